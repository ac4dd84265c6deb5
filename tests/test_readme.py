"""README, guides and background pages are run as a newcomer would run them: copied and pasted.

Guides with Python are notebooks, read here as Markdown. Of the pages' blocks `python` is run, or written to the file
that its first line names (`# net.py`); `bash` is run, and blocks without a language are read: each `sparsepipe` line
is one that the command takes.
"""

import io
import operator
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from contextlib import chdir, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import nbformat
import pytest
from command_line import sparsepipe

import sparsepipe as package
from scripts.docs.build import as_markdown
from sparsepipe import SCHEDULES
from sparsepipe.cli.arguments import OPTIONS
from sparsepipe.cli.command import parser

REPOSITORY = Path(__file__).resolve().parent.parent
README = REPOSITORY / "README.md"
GUIDES = REPOSITORY / "notebooks" / "guides"
PAGES = [README, *sorted([*REPOSITORY.glob("notebooks/*/*.md"), *GUIDES.glob("*.ipynb")])]
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path, *languages: str) -> list[str]:
    return [text for language, text in FENCED.findall(as_markdown(path)) if language in languages]


def commands(text: str) -> list[list[str]]:
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("sparsepipe ")]


EXAMPLE = next(block for block in blocks(README, "python") if block.startswith("import sparsepipe"))
SHELL = next(block for block in blocks(README, "") if block.startswith("sparsepipe data make"))
RUN = [path for path in PAGES if path != README and blocks(path, "python", "bash")]
NEEDS = {"own_sparse_module": "MinkowskiEngine", "pointcept": "pointcept", "trackers": "tensorboard"}


def test_the_readme_is_short_and_shows_code_early():
    text = README.read_text()
    assert len(text.splitlines()) <= 250
    assert len(text.partition("```python")[0].split()) < 350
    assert text.count("](") >= len(text.split()) / 100


def test_the_table_of_schedules_is_that_of_the_rows():
    page = REPOSITORY / "notebooks" / "background" / "schedules.md"
    rows = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", page.read_text(), flags=re.MULTILINE)
    assert dict(rows) == SCHEDULES


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_each_line_is_one_that_the_command_takes(path):
    for words in (words for text in blocks(path, "", "bash") for words in commands(text)):
        if words not in (["--help"], ["--version"]):
            parser().parse(words)


def test_each_verb_and_option_in_the_text_exists():
    verbs = parser().verbs
    options = {option for verb in verbs.values() for option in verb._option_string_actions}
    options |= {"--version", "--fast", "--labels", "--what", "--seeds", "--published", "--coded-bytes"}
    for path in PAGES:
        for code in re.findall(r"(?<!`)`([^`\n]+)`(?!`)", FENCED.sub("", as_markdown(path))):
            assert set(re.findall(r"(?<![\w-])--[a-z][\w-]*", code)) <= options, (path.name, code)
            if match := re.match(r"sparsepipe ([a-z]+)(?: ([a-z]+))?", code):
                assert {match[1], f"{match[1]} {match[2]}"} & set(OPTIONS), (path.name, code)


def test_all_that_pages_name_is_reached_from_the_package():
    """Each `sparsepipe.module.name` and `sp.module.name` is an attribute."""
    text = "".join(map(as_markdown, PAGES))
    named = set(re.findall(r"(?<![\w/.@])(?:sp|sparsepipe)((?:\.[A-Za-z_]\w*)+)", text))
    assert len(named) > 20
    for name in named:
        operator.attrgetter(name[1:])(package)


def test_every_guide_and_background_page_is_in_its_list():
    for path in (path for path in PAGES if path.name != "README.md"):
        assert f"]({path.name})" in (path.parent / "README.md").read_text(), path


def test_guides_with_python_are_notebooks_and_carry_no_output():
    for path in (path for path in PAGES if path.parent == GUIDES):
        assert (path.suffix == ".ipynb") == bool(blocks(path, "python")), path
    for path in GUIDES.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert set(notebook.metadata) == {"kernelspec"}
        for cell in notebook.cells:
            assert cell.cell_type == "markdown" or not cell.outputs and cell.execution_count is None


def run_python(text: str, folder: Path, known: dict[str, object]) -> str:
    """Run a block of a page in this process, as a cell would be; return what it printed. `known`: names so far."""
    printed = io.StringIO()
    with patch.dict(os.environ), chdir(folder), redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("default")  # they are told, not raised as in tests
        exec(compile(text, "block of a page", "exec"), known)
    return printed.getvalue()


# Added to the commands that begin so: with fewer shapes and passes they say the same, sooner.
FEWER = {"data make": ["--train", "4", "--test", "2"], "profile": ["--repeats", "2"]}


def with_fewer(words: list[str]) -> list[str]:
    fewer = next((fewer for start, fewer in FEWER.items() if words[: len(start.split())] == start.split()), [])
    return [*words, *fewer]  # the last value counts


def run_command(words: list[str], folder: Path) -> str:
    """Run a command of a page in this process; return what it printed. Commands as processes are in test_wheel.py."""
    code, printed, errors = sparsepipe(*with_fewer(words), folder=folder)
    assert code == 0, (words, errors)
    return printed


@pytest.mark.slow
def test_the_example_runs(tmp_path):
    quick = EXAMPLE.replace("profile_model(model, data, **sizes)", "profile_model(model, data, **sizes, repeats=2)")
    assert quick != EXAMPLE  # fewer passes, as above
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    words = [sys.executable, "-c", quick]
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = done.stdout
    assert "2 stages" in printed
    assert float(printed.splitlines()[-1].removesuffix(" samples/s")) > 0
    assert "plotly" in (tmp_path / "timeline.html").read_text()
    assert (tmp_path / "runs/first/status.json").exists()


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """What the README's first commands leave, and what the last has printed."""
    folder = tmp_path_factory.mktemp("workplace")
    for words in commands(SHELL):
        printed = run_command(words, folder)
    return folder, printed


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_commands_run(workplace):
    assert "finished" in workplace[1]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("path", RUN, ids=lambda path: path.stem)
def test_a_page_runs_from_its_first_block_to_its_last(path, workplace, tmp_path):
    if (module := NEEDS.get(path.stem)) and find_spec(module) is None:
        pytest.skip(f"{module} is not installed")
    folder = tmp_path / "work"
    if path.suffix == ".md":  # a notebook stands alone
        shutil.copytree(workplace[0], folder)
    else:
        folder.mkdir()
    known: dict[str, object] = {"__name__": "__main__"}
    for language, text in FENCED.findall(as_markdown(path)):
        if language == "python":
            if named := re.match(r"# (\w+\.py)\n", text):
                (folder / named[1]).write_text(text)
            else:
                printed = run_python(text, folder, known)
        if language == "bash":
            for words in commands(text):
                run_command(words, folder)
            if text.startswith("torchrun "):
                module = [sys.executable, "-m", "torch.distributed.run", *shlex.split(text)[1:]]
                subprocess.run(module, cwd=folder, check=True)
    if path.stem == "inference":  # a class for each point
        assert printed.splitlines()[-1] == "(5000,)"
