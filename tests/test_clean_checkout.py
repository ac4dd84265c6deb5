"""Opening and running notebooks leaves a checkout as it was: for git, by set-up's filter, and for provenance."""

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from sparsepipe.records.run_record import commit
from sparsepipe.study.saved_notebook import OPTIONS, after_save, look_again

REPOSITORY = Path(__file__).resolve().parent.parent
NAME = "notebooks/02_data.ipynb"


@pytest.fixture
def clone(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("no git")
    (tmp_path / "notebooks").mkdir()
    for name in (NAME, ".gitattributes"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "code.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all")
    return tmp_path


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def run_in_lab(path):
    """As JupyterLab leaves a notebook that was run: outputs, counts, times, state of widgets, the kernel's language."""
    notebook = nbformat.read(path, as_version=4)
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = number
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{number}\n")]
        cell.metadata["execution"] = {"iopub.execute_input": "2026-01-01T00:00:00Z"}
    notebook.metadata["language_info"] = {"name": "python", "version": "3.11.7"}
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def change_a_cell(path):
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].source += "\n# another word"
    nbformat.write(notebook, path)


@pytest.mark.slow
def test_a_notebook_that_was_run_and_saved_is_clean_for_git(clone):
    pytest.importorskip("nbstripout")
    line = re.search(r"git config filter\.notebooks\.clean '(.+)' \|\|", (REPOSITORY / "scripts/setup.sh").read_text())
    assert shlex.split(line[1])[-len(OPTIONS) :] == list(OPTIONS)
    git(clone, "config", "filter.notebooks.clean", line[1].replace(".venv/bin/python", sys.executable))
    path = clone / NAME
    run_in_lab(path)
    assert look_again(path, clone)
    assert git(clone, "status", "--porcelain") == "" and "outputs" in path.read_text()
    change_a_cell(path)
    assert not look_again(path, clone) and git(clone, "status", "--porcelain") == f"M {NAME}"
    assert git(clone, "diff", "--cached", "--name-only") == ""  # nothing is staged


def test_what_is_no_notebook_of_a_checkout_is_left_alone(clone):
    assert after_save({"type": "file"}, str(clone / "code.py"), None) is None
    shutil.copy(clone / NAME, clone / "new.ipynb")
    assert not look_again(clone / "new.ipynb", clone) and git(clone, "status", "--porcelain") == "?? new.ipynb"
    assert not look_again(clone / "nowhere" / "a.ipynb", clone)
    assert not look_again(REPOSITORY / NAME, clone)
    hook = re.search(r"post_save_hook=([\w.]+)", (REPOSITORY / "scripts" / "lab.sh").read_text())[1]
    assert hook == f"{after_save.__module__}.{after_save.__name__}"


def test_provenance_takes_a_notebook_that_was_run_for_unchanged_without_the_filter_too(clone):
    head = git(clone, "rev-parse", "HEAD")
    assert commit(clone) == head
    run_in_lab(clone / NAME)
    assert git(clone, "status", "--porcelain") == f"M {NAME}" and commit(clone) == head
    change_a_cell(clone / NAME)
    assert commit(clone) == f"{head}+"
    git(clone, "checkout", "-q", NAME)
    (clone / NAME).write_text("{")
    assert commit(clone) == f"{head}+"
    (clone / NAME).unlink()
    assert commit(clone) == f"{head}+"
    git(clone, "checkout", "-q", NAME)
    (clone / "code.py").write_text("2\n")
    assert commit(clone) == f"{head}+"
    assert commit(clone / "notebooks") is None


# What a `.git/config` names that git runs when it is asked what has changed, or looks at a file.
PROGRAMS = {
    "a file system monitor": {"core.fsmonitor": "{program}"},
    "hooks": {"core.hooksPath": "{hooks}"},
    "the filter of notebooks": {"filter.notebooks.clean": "{program}", "filter.notebooks.required": "true"},
    "another filter": {"filter.own.clean": "{program}", "filter.own.process": "{program}"},
    "a filter with a name that git splits": {"filter.a=b.clean": "{program}"},
    "a remote for what is missing": {
        **{"remote.evil.url": "ext::{program}", "remote.evil.promisor": "true", "protocol.ext.allow": "always"},
        **{"extensions.partialClone": "evil", "core.repositoryFormatVersion": "1"},
    },
}


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=pytest.mark.slow) if "notebooks" in what else what for what in PROGRAMS]
)
def test_no_program_is_run_that_a_checkout_names(clone, tmp_path_factory, what):
    """Git that is asked what changed runs what `.git/config` says: a folder that somebody sent would be obeyed."""
    hooks = tmp_path_factory.mktemp("hooks")
    program, marker = hooks / "post-index-change", hooks / "was-run"
    program.write_text(f"#!/bin/sh\ntouch {marker}\nexit 1\n")
    program.chmod(0o755)
    for name, value in PROGRAMS[what].items():
        git(clone, "config", name, value.format(program=program, hooks=hooks))
    attributes = {"another filter": "own", "a filter with a name that git splits": "a=b"}
    (clone / ".git" / "info" / "attributes").write_text(f"*.ipynb filter={attributes.get(what, 'notebooks')}\n")
    if what == "a remote for what is missing":
        name = git(clone, "rev-parse", f"HEAD:{NAME}")
        (clone / ".git" / "objects" / name[:2] / name[2:]).unlink()
    run_in_lab(clone / NAME)
    commit(clone), look_again(clone / NAME, clone)
    assert not marker.exists()
    change_a_cell(clone / NAME)
    for words in (("add", NAME), ("show", f"HEAD:{NAME}")):
        subprocess.run(["git", *words], cwd=clone, capture_output=True, check=False)
    assert marker.exists(), "git by itself runs it"


@pytest.mark.parametrize("where", ["beside ours", "within ours", "above ours"])
def test_git_is_asked_nothing_about_notebooks_of_other_checkouts(clone, tmp_path_factory, where):
    folder = tmp_path_factory.mktemp("folder")
    marker = folder / "was-run"
    git(clone, "config", "core.fsmonitor", f"touch {marker}; false")
    ours, path = {
        "beside ours": (folder / "ours", clone / NAME),
        "within ours": (folder / "ours", folder / "ours" / "sent" / NAME),
        "above ours": (clone / "notebooks", clone / NAME),
    }[where]
    if where != "above ours":
        git(folder, "init", "-q", ours)
        shutil.copytree(clone, ours / "sent")
    assert not look_again(path, ours)
    after_save({"type": "notebook"}, str(path), None).join()
    assert commit(clone / "notebooks") is None and not marker.exists()
    git(path.parent, "status")
    assert marker.exists(), "git by itself runs it"
