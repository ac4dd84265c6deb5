"""Build the site: python scripts/docs/build.py [FIGURES] [--out figures/site]. `scripts/site.sh` sets up before.

The pages are assembled in a folder laid out as the repository, so that links which hold on GitHub hold here; then
Sphinx writes them, with every warning an error, and what it does not look at is checked: links of the pages as written.
"""

import argparse
import inspect
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import nbformat

REPOSITORY = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(REPOSITORY))

import sparsepipe as sp  # noqa: E402
from sparsepipe.cli.command import parser  # noqa: E402
from sparsepipe.study import NOTEBOOKS, PAGE, catalogue  # noqa: E402
from sparsepipe.util.host.imports import python_command, python_environment  # noqa: E402

PAGES = ("figures/README.md", "data_manifests/README.md", "CHANGELOG.md")
MODULES = {  # of the page of Python names
    "sparsepipe": "Types and verbs",
    "sparsepipe.data": "Data sets",
    "sparsepipe.runtime": "Settings of training",
    "sparsepipe.views.plots": "Figures and their tables",
    "sparsepipe.views.widgets": "Widgets",
    "sparsepipe.monitoring": "Drift and online repartitioning",
    "sparsepipe.values.replication": "Synchronization schemes",
    "sparsepipe.records.sinks": "Trackers",
    "sparsepipe.planning.measured_plans": "Plans that others measured",
    "sparsepipe.study": "What notebooks share",
}
LINK = re.compile(r"(?<!`)\]\(<?([^)\s>#]+)(#[^)\s>]*)?>?\)")
SHOWN = ("image/png", "image/svg+xml", "text/html", "text/markdown", "text/plain")  # outputs that need no scripts


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("figures", type=Path, nargs="?", default=REPOSITORY / "figures", help="of `reproduce`")
    options.add_argument("--out", type=Path, default=REPOSITORY / "figures" / "site")
    given = options.parse_args()
    needed = ("sphinx", "myst_nb", "furo")
    if missing := [name for name in needed if find_spec(name) is None]:
        print(
            f"site: no module {', '.join(missing)}; run ./scripts/setup.sh, or pip install '.[docs]'", file=sys.stderr
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="site-") as folder:
        source, built = Path(folder, "source"), Path(folder, "site")
        pages = assemble(source, given.figures.resolve())
        if code := sphinx(source, built):
            return code
        copy_markdown(pages, source, built)
        wrong = [*broken(built, pages), *without_example(documented_names())]
        if wrong:
            print("\n".join(f"site: {line}" for line in wrong), file=sys.stderr)
            return 1
        shutil.rmtree(given.out, ignore_errors=True)
        shutil.copytree(built, given.out, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo", "objects.inv"))
    print(f"{len(pages)} pages: {given.out / 'index.html'}")
    return 0


def assemble(source: Path, figures: Path) -> list[str]:
    """Write all pages below `source`; return their names, without suffix, in the order of the contents."""
    guides, background = listed("guides"), listed("background")
    for name in ("README.md", *PAGES, *guides, *background):
        write_page(source, name)
    executed = figures.parent / "runs" / "notebooks"
    shutil.copytree(REPOSITORY / "figures" / "gallery", source / "figures" / "gallery", dirs_exist_ok=True)
    for picture in (REPOSITORY / "figures").glob("readme_*.png"):  # which pages show
        shutil.copy(picture, source / "figures")
    for name in NOTEBOOKS:
        write_notebook(source, name, executed / f"{name}.ipynb")
    write(source / "reference" / "command_line.md", command_line())
    write(source / "reference" / "python.md", python_names())
    contents = {
        "Guides": guides,
        "Background": background,
        "Notebooks": [f"notebooks/{name}.ipynb" for name in catalogue.by_number()],
        "Reference": ["reference/command_line.md", "reference/python.md", *PAGES],
    }
    contents = {title: [name.rpartition(".")[0] for name in names] for title, names in contents.items()}
    with (source / "index.md").open("a", encoding="utf-8") as index:
        index.write(
            "\n## Reference\n\n[Command line](reference/command_line.md) · [Python names](reference/python.md)\n"
        )
        for title, names in contents.items():
            rows = "\n".join(names)
            index.write(f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n:maxdepth: 1\n\n{rows}\n```\n")
    page = source / "figures" / "README.md"  # opens with the pictures
    about, head, pictures = page.read_text(encoding="utf-8").partition("## Gallery\n")
    title, _, about = about.partition("\n\n")
    batch = f'<a href="../../{PAGE}">The figures of the last batch on this machine</a>\n\n'
    write(page, f"{title}\n\n{batch * (figures / PAGE).exists()}{head}{pictures}\n## Files\n\n{about}")
    return ["index", *(name for names in contents.values() for name in names)]


def listed(folder: str) -> list[str]:
    """Return the pages of a folder in the order of the links in its README, which is the first."""
    text = (REPOSITORY / "notebooks" / folder / "README.md").read_text(encoding="utf-8")
    names = [path.name for path in (REPOSITORY / "notebooks" / folder).glob("*.*") if path.suffix in (".md", ".ipynb")]
    return [f"notebooks/{folder}/{name}" for name in sorted(names, key=lambda name: text.find(f"]({name})"))]


def write_page(source: Path, name: str) -> None:
    """Copy a page of the repository, and the files of the repository that it links to."""
    if name.endswith(".ipynb"):
        notebook = nbformat.read(REPOSITORY / name, as_version=4)
        notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}  # which knows `!command`
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = as_page(source, name, cell.source)
        write(source / name, nbformat.writes(notebook))
    else:
        text = as_page(source, name, (REPOSITORY / name).read_text(encoding="utf-8"))
        write(source / ("index.md" if name == "README.md" else name), text)


def as_page(source: Path, name: str, text: str) -> str:
    """Return Markdown of a page as the site has it, and copy the files that it links to."""
    text = text.replace("```mermaid\n", "```text\n")  # drawn by scripts from the network
    text = re.sub(r'<a href="[^"]*">(<img [^>]*>)</a>', r"\1", text)
    folder = (REPOSITORY / name).parent
    linked = {match[1] for match in LINK.finditer(text)} | set(re.findall(r'<img src="([^"]+)"', text))
    for link in linked:
        path = Path(os.path.normpath(folder / link))
        if ":" not in link and path.is_file() and path.suffix not in (".md", ".ipynb"):
            target = source / path.relative_to(REPOSITORY)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
    return re.sub(r"\]\(((?:\.\./)*)README\.md", _index, text) if name.count("/") != 1 else text


def _index(match: re.Match[str]) -> str:
    return f"]({match[1]}index.md" if match[1] in ("", "../../") and match[1] else match[0]


def write_notebook(source: Path, name: str, executed: Path) -> None:
    """Copy a notebook as it was executed; without pictures of its own it is followed by those of the gallery."""
    path = REPOSITORY / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(executed if executed.exists() else path, as_version=4)
    drawn = False
    notebook.cells = [cell for cell in notebook.cells if "injected-parameters" not in tags(cell)]  # paths of a machine
    for cell in notebook.cells:
        if "parameters" in tags(cell):
            cell.metadata["tags"] = [*tags(cell), "hide-input"]  # as collapsed as in JupyterLab
        for output in cell.get("outputs", ()):
            if "data" in output:
                output.data = {kind: value for kind, value in output.data.items() if kind in SHOWN}
                drawn |= any(kind.startswith("image/") for kind in output.data)
                for kind in output.data.keys() & {"text/html", "text/markdown"}:
                    output.data[kind] = links_of_site(output.data[kind], "../" * (1 + name.count("/")))
    up = "../" * (1 + name.count("/"))
    exported = catalogue.exported(path)
    head = notebook.cells[0]  # in an executed copy its picture is the exported one
    head.source = re.sub(r"\]\((?:\.\./)+[^)]*?(\w+)\.(?:png|webp)\)", rf"]({up}figures/gallery/\1.webp)", head.source)
    if exported and not drawn:
        text = "## Figures\n\nNo figure was drawn on this machine. The figures of a run on two cores:\n\n"
        pictures = "\n\n".join(f"![{figure}]({up}figures/gallery/{figure}.webp)" for figure in exported)
        notebook.cells.append(nbformat.v4.new_markdown_cell(text + pictures, id="gallery"))
    target = source / "notebooks" / f"{name}.ipynb"
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)


def tags(cell: nbformat.NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", ()))


def links_of_site(shown: str, up: str) -> str:
    """Let what a notebook has shown lead to the pages of the site, and to the page of figures above it."""
    shown = re.sub(rf"""(href=["']|\]\()(?:\.\./)+figures/{PAGE}""", rf"\1{up}../{PAGE}", shown)
    return re.sub(r"""((?:href=["']|\]\()(?!\w+:)[^"'#()]+)\.ipynb\b""", r"\1.html", shown)


_OF_ALL = ("help", "help_all", "json", argparse.SUPPRESS)  # of every verb; the last is of the verbs below a verb


def command_line() -> str:
    """The page of the command line: for each verb its summary, options by group as `--help` has them, and examples."""
    parts = ["# Command line\n\n[The guide](../notebooks/guides/command_line.md) explains output and exit codes; "]
    parts.append("[all settings](../notebooks/background/settings.md) are one table. Every verb takes `--json`.\n")
    for name, verb in parser().verbs.items():
        parts.append(f"\n## sparsepipe {name}\n\n{plain(verb.description or '')}\n")
        for group in verb._action_groups:
            actions = [action for action in group._group_actions if action.dest not in _OF_ALL]
            if rows := "\n".join(filter(None, (option_row(verb, action) for action in actions))):
                title = (group.title or "").removeprefix("positional ")
                head = plain(": ".join(filter(None, [title, group.description])).rstrip("."))
                parts.append(f"\n**{head[:1].upper()}{head[1:]}**\n\n| option | meaning |\n|---|---|\n{rows}\n")
        if verb.epilog:
            parts.append(f"\n```text\n{verb.epilog}\n```\n")
    return "".join(parts)


def option_row(verb: argparse.ArgumentParser, action: argparse.Action) -> str:
    """A row of a table: an option with its values, and what it means; empty for what help does not show."""
    if action.help == argparse.SUPPRESS:
        return ""
    formatter = verb._get_formatter()
    written = formatter._format_action_invocation(action).replace("|", "&#124;")
    return f"| `{written}` | {plain(formatter._expand_help(action)) if action.help else ''} |"


def plain(text: str) -> str:
    """Return text whose `code` is code, and whose other marks are no Markdown; a cell of a table may hold it."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [re.sub(r"([\\*_<>\[\]`])", r"\\\1", words) for words in parts[::2]]
    return "".join(parts).replace("|", "&#124;")


def public_names() -> dict[str, dict[str, Any]]:
    """Return for each module of the page of Python names what it offers; each object once, where it comes first."""
    shown, modules = set[int](), dict[str, dict[str, Any]]()
    for module in MODULES:
        loaded, modules[module] = import_module(module), {}
        for name in sorted(loaded.__all__, key=str.lower):
            value = getattr(loaded, name)
            # An alias, such as the name of an older version, is another name of what is shown.
            if callable(value) and id(value) not in shown and getattr(value, "__name__", name) == name:
                shown.add(id(value))
                modules[module][name] = value
    return modules


def resolve(name: str) -> Any:
    """Return what a dotted name of the package is."""
    value: Any = sp
    for part in name.split("."):
        value = getattr(value, part, None) or import_module(f"{value.__name__}.{part}")
    return value


def as_markdown(page: Path) -> str:
    """Return a page as Markdown: a notebook's cells of code are fenced, as a file (`# net.py`), Python or shell."""
    if page.suffix == ".md":
        return page.read_text(encoding="utf-8")
    return "\n\n".join(
        fenced(cell.source) if cell.cell_type == "code" else cell.source
        for cell in nbformat.read(page, as_version=4).cells
    )


def fenced(code: str) -> str:
    """Return a cell of code as a block of Markdown."""
    first, _, rest = code.partition("\n")
    if first.startswith("%%writefile "):
        return f"```python\n# {first.removeprefix('%%writefile ')}\n{rest}\n```"
    if all(line.startswith("!") for line in code.replace("\\\n", "").splitlines()):
        return f"```bash\n{re.sub('^!', '', code, flags=re.MULTILINE)}\n```"
    return f"```python\n{code}\n```"


def named_by_guides() -> set[str]:
    pages = [*(REPOSITORY / "notebooks").rglob("*.md"), *(REPOSITORY / "notebooks" / "guides").glob("*.ipynb")]
    text = "\n".join(as_markdown(page) for page in (REPOSITORY / "README.md", *pages))
    return set(re.findall(r"\b(?:sp|sparsepipe)\.((?:[a-z_]+\.)*[A-Za-z]\w*(?:\.[a-z]\w+)?)(?=\W)", text))


def documented_names() -> dict[str, Any]:
    """Return each class, function and method of `sparsepipe.__all__` and of the guides, by its first name."""
    names = [*sp.__all__, *sorted(named_by_guides() - set(sp.__all__))]
    values = {name: resolve(name) for name in names}
    once = {id(inspect.unwrap(value)): name for name, value in reversed(values.items()) if callable(value)}
    return {name: values[name] for name in sorted(once.values())}


def without_example(names: dict[str, Any]) -> Iterator[str]:
    """Say which names have no example in their docstring."""
    yield from (f"{name}: no example" for name, value in names.items() if ">>> " not in (inspect.getdoc(value) or ""))


# What the examples of docstrings begin with; tests/test_public_names.py runs them so.
EXAMPLES_START = """\
from pathlib import Path

import sparsepipe as sp


def cost(seconds):
    samples = (sp.CostSample(n, n * seconds, 2 * n * seconds, output_bytes=1000 * n) for n in (1000, 4000))
    return sp.LayerCost(tuple(samples))


layers = [sp.Layer(name, parameter_bytes=1e6) for name in ("conv1", "conv2", "conv3", "linear")]
costs = {"cpu": tuple(cost(seconds) for seconds in (5e-6, 1e-5, 1.2e-5, 3e-6))}  # seconds per voxel
profile = sp.Profile(sp.LayerGraph.chain(layers), costs, sizes=(1500.0, 2500.0))
cluster = sp.Cluster.uniform(2, device_type="cpu", link=sp.Link(bandwidth=1e9, latency=1e-4))
plan = sp.partition(profile, cluster, planner="model-parallel")
sizes = [2000.0] * 8  # voxels of each minibatch
trace = sp.simulate(plan, profile, cluster, sizes)
"""
PYTHON_HEAD = f"""# Python names

[The architecture](../notebooks/background/architecture.md) says which file does what. Examples start with these lines;
`run_dir` is the directory of a finished run of two epochs:

```python
{EXAMPLES_START}```
"""


def python_names() -> str:
    """The page of Python names: for each module a table, then each name with its docstring."""
    parts = [PYTHON_HEAD]
    for module, names in public_names().items():
        rows = "\n".join(f"   {name}" for name in names)
        parts.append(
            f"## {MODULES[module]}\n\n```{{eval-rst}}\n.. currentmodule:: {module}\n\n.. autosummary::\n\n{rows}\n"
        )
        for name, value in names.items():
            directive = "autoclass" if isinstance(value, type) else "autofunction"
            parts.append(f".. {directive}:: {name}\n" + ("   :members:\n" if directive == "autoclass" else ""))
        parts.append("```\n")
    return "\n".join(parts)


def python_names_as_text() -> str:
    """The same for those who read Markdown: each name with its docstring as it stands."""
    parts = [PYTHON_HEAD]
    for module, names in public_names().items():
        parts.append(f"## {MODULES[module]}\n")
        parts += [f"### {module}.{name}\n\n```text\n{inspect.getdoc(value)}\n```\n" for name, value in names.items()]
    return "\n".join(parts)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def sphinx(source: Path, built: Path) -> int:
    """Write the pages; return Sphinx's exit code."""
    options = ["-q", "-W", "--keep-going", "-b", "html", "-d", f"{built}-read", "-c", str(Path(__file__).parent)]
    command = python_command("sphinx", *options, str(source), str(built))
    return subprocess.run(command, env=python_environment(), check=False).returncode


def copy_markdown(pages: list[str], source: Path, built: Path) -> None:
    """Put the Markdown of every page next to it, and list all of it in llms.txt."""
    summary = "A workbench for pipeline-parallel training of sparse 3D networks on heterogeneous devices."
    lines = ["# SparsePipe", "", f"> {summary}", ""]
    for name in pages:
        page = source / f"{name}.md"
        if name == "reference/python":
            text = python_names_as_text()
        else:
            text = as_markdown(page if page.exists() else page.with_suffix(".ipynb")).partition("\n```{toctree}")[0]
        write(built / f"{name}.md", text)
        title = next(line.lstrip("# ") for line in text.splitlines() if line.startswith("# "))
        lines.append(f"- [{title}]({name}.md)")
    write(built / "llms.txt", "\n".join([*lines, ""]))


class Page(HTMLParser):
    """The links of a page, those of its article apart, and the names that links may end in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links, self.article_links, self.names = set[str](), set[str](), set[str]()
        self.in_article = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.in_article |= tag == "article"
        self.names |= {given["id"]} if given.get("id") else set()
        for link in filter(None, (given.get("href"), given.get("src"))):
            self.links.add(link)
            if self.in_article:
                self.article_links.add(link)

    def handle_endtag(self, tag: str) -> None:
        self.in_article &= tag != "article"


def broken(built: Path, pages: list[str]) -> Iterator[str]:
    """Say which links lead nowhere, and which pages no article links to."""
    read = {name: Page((built / f"{name}.html").read_text(encoding="utf-8")) for name in pages}
    linked = set[str]()
    for name, page in read.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
                continue
            path = os.path.normpath(Path(name).parent / unquote(parts.path)) if parts.path else f"{name}.html"
            target = path.removesuffix(".html")
            if path.startswith(".."):
                continue  # the page of figures, which is there
            if not (built / path).exists():
                yield f"{name}: link to {link}, which does not exist"
            elif parts.fragment and target in read and unquote(parts.fragment) not in read[target].names:
                yield f"{name}: link to {link}, a heading that does not exist"
            if target != name and link in page.article_links:
                linked.add(target)
    yield from (f"{name}: no other page links to it" for name in pages if name != "index" and name not in linked)


if __name__ == "__main__":
    sys.exit(main())
