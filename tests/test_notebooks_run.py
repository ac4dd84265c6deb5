"""Notebooks run with few samples: from nothing by papermill; then JupyterLab shows those, and runs what has widgets."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from test_notebooks import FIGURES, PATHS, SMALL, asked_of, name_of, small

from scripts import lab_driver
from scripts.lab_driver import open_notebook, run_notebook
from sparsepipe.data import make_shapes
from sparsepipe.io.files import sha256
from sparsepipe.record import RunRecord
from sparsepipe.reproduce import reproduce
from sparsepipe.reproduce.catalogue import exported, exported_by
from sparsepipe.reproduce.executed import Executed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


OWN = {"09_your_own_network": {"batch_size": 48}}  # it reads 1,437 images, whatever it is told


def run_from_nothing(parameters, root):
    """Reproduce the notebooks that take these parameters; returns where they left what they made.

    Of real data they find the two scans alone: training on the real shapes has a test of its own.
    """
    paths = [path for path in PATHS if small(path) is parameters]
    names = [name_of(path) for path in paths]  # pictures have their own test; tables come all the same
    (root / "data").mkdir()
    (root / "data" / "scans").symlink_to(Path(os.environ.get("SPARSEPIPE_DATA") or root) / "scans")
    data = make_shapes(root / "few", num_train=3, num_test=1) if parameters is FIGURES else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSEPIPE_DATA", str(root / "data"))
        options = {"out": root / "figures", "data": data, "pictures": False}
        others = [name for name in names if name not in OWN]
        written = reproduce(others, parameters=asked_of(*others), **options)
        for name in OWN.keys() & set(names):
            written += reproduce([name], parameters=asked_of(name) | OWN[name], **options)
    tables = {path.stem for path in written if path.suffix == ".csv"}
    assert tables == {name for path in paths for name in exported(path)}
    return root


@pytest.fixture(scope="module")
def of_shapes(tmp_path_factory):
    return run_from_nothing(SMALL, tmp_path_factory.mktemp("shapes"))


@pytest.fixture(scope="module")
def of_figures(tmp_path_factory):
    return run_from_nothing(FIGURES, tmp_path_factory.mktemp("figures"))


def runs(root):
    return {path.name for path in (root / "runs").iterdir()} - {"notebooks"}


def test_the_walk_and_the_figure_of_shapes_run_from_nothing(of_shapes):
    strategies = ("one-process", "data-parallel", "pipeline", "native")
    assert {f"minkvgg11bn-narrow-{name}-001" for name in strategies} <= runs(of_shapes)
    assert "minkunet14a-segmentation-narrow-parts-001" in runs(of_shapes)


def test_a_network_of_the_readers_own_is_written_trained_and_held_to_one_piece(of_shapes):
    assert {f"own-{name}-001" for name in ("one-process", "data-parallel", "pipeline")} <= runs(of_shapes)
    record = RunRecord.load(of_shapes / "runs" / "own-pipeline-001")
    written = of_shapes / "work" / "own_network" / "net.py"
    assert record.plan.stages[1:] and record.origin["facts"]["code_sha256"]["model"] == sha256(written)
    executed = nbformat.read(of_shapes / "runs" / "notebooks" / "09_your_own_network.ipynb", as_version=4)
    said = "".join(o.get("text", "") for cell in executed.cells for o in cell.get("outputs", []))
    has_minkowski = find_spec("MinkowskiEngine") is not None
    assert said.count("the same network in 2 stages") == 1 + has_minkowski
    assert ("MinkowskiEngine is not installed" in said) != has_minkowski
    assert ("own-sparse-001" in runs(of_shapes)) == has_minkowski


def test_the_other_figures_run_from_nothing(of_figures):
    assert len(runs(of_figures)) > 1


def test_executed_copies_are_small(of_shapes, of_figures):
    copies = [path for root in (of_shapes, of_figures) for path in (root / "runs" / "notebooks").rglob("*.ipynb")]
    assert len(copies) == len(PATHS)
    assert not any(path.stat().st_size > 3e6 for path in copies)


def test_answers_begin_each_sentence_with_a_capital(of_shapes, of_figures):
    """Or with a name as `code`; "translation: 12 minibatches are too few", said one."""
    found = {}
    for root, path in ((root, path) for root in (of_shapes, of_figures) for path in PATHS):
        if (copy := root / "runs" / "notebooks" / f"{name_of(path)}.ipynb").exists():
            answer = Executed.read(name_of(path), copy).answer
            prose = [block for block in re.split(r"\n\s*\n", answer) if not re.match(r"\s*[-|]", block)]
            found[path] = re.findall(r"(?:^|[^A-Z\s][.!?]\**\s+)\**[a-z].{30}", "\n\n".join(prose))
    assert len(found) == len(PATHS) and not {path: told for path, told in found.items() if told}


LIVE = {
    "03_layer_graph": 1,
    "04_partition": 1,
    "05_launch": 2,
    "09_your_own_network": 1,
    "10_waiting": 1,
}  # those that show widgets, and how many
# Those that train after it run to the last cell with these words: papermill ran the rest above, without widgets.
UP_TO = {"09_your_own_network": "explorer.plan", "10_waiting": "WaitingExplorer("}
ALL_WIDGETS = "least => document.querySelectorAll('.widget-vbox, .sp-view').length >= least"
ALL_FIGURES = "least => document.querySelectorAll('.js-plotly-plot').length >= least"


def as_far_as(notebook, words):
    """Leave out of a notebook what comes after its last code cell with these words; returns that notebook."""
    last = max(k for k, cell in enumerate(notebook.cells) if cell.cell_type == "code" and words in cell.source)
    del notebook.cells[last + 1 :]
    return notebook


@pytest.mark.browser
@pytest.mark.timeout(600, func_only=True)  # whoever comes first has the results made, in the time of the tests above
@pytest.mark.parametrize("path", [path for path in PATHS if path.stem in LIVE], ids=name_of)
def test_a_notebook_with_widgets_runs_in_jupyterlab(page, lab, of_shapes, path):
    """Widgets and live figures are drawn, and nothing fails."""
    notebook = as_far_as(nbformat.read(path, as_version=4), UP_TO.get(path.stem, ""))
    cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    told = SMALL | OWN.get(path.stem, {}) | {"root": str(of_shapes)}
    cell.source += "".join(f"\n{key} = {value!r}" for key, value in told.items() if f"\n{key} = " in cell.source)
    figures = len(exported_by("\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")))
    assert figures == len(exported(path)) or path.stem in UP_TO
    nbformat.write(notebook, lab.notebooks / path.name)
    run_notebook(page, lab, path.name, seconds=300)
    assert not lab_driver.errors(page)
    lab_driver.show_all(page)
    page.wait_for_function(ALL_WIDGETS, arg=LIVE[path.stem])
    page.wait_for_function(ALL_FIGURES, arg=figures)
    assert not page.problems


FIGURES_AT_ONCE = 8  # as many as the notebook with the most has: to open a notebook takes seconds


def in_groups():
    """The notebooks that do not run to their end in JupyterLab, those together whose figures fit into one."""
    groups, left = [], 0
    for path in (path for path in PATHS if path.stem not in LIVE or path.stem in UP_TO):
        count = len(exported(path))
        if not groups or count > left:
            groups.append([])
            left = FIGURES_AT_ONCE
        groups[-1].append(path)
        left -= count
    return groups


@pytest.mark.browser
@pytest.mark.timeout(600, func_only=True)
@pytest.mark.parametrize("paths", in_groups(), ids=lambda paths: ", ".join(map(name_of, paths)))
def test_the_figures_of_executed_notebooks_are_drawn_in_jupyterlab(page, lab, of_shapes, of_figures, paths):
    """What ran from nothing above, opened: each figure is alive in it. The outputs of several are in one notebook."""
    together = nbformat.v4.new_notebook()
    for path in paths:
        root = of_figures if small(path) is FIGURES else of_shapes
        executed = nbformat.read(root / "runs" / "notebooks" / f"{name_of(path)}.ipynb", as_version=4)
        together.metadata |= executed.metadata
        shown = [cell for cell in executed.cells if cell.get("outputs")]
        assert sum(map(_is_figure, shown)) >= len(exported(path)), name_of(path)
        together.cells += shown
        for cell in shown:
            cell.source = f"# {name_of(path)}"
    for k, cell in enumerate(together.cells):
        cell.id = f"of-{k}"  # copies made of one notebook share theirs
    nbformat.write(together, lab.notebooks / "executed.ipynb")
    open_notebook(page, lab, "executed.ipynb")
    assert not lab_driver.errors(page)
    lab_driver.show_all(page, tallest=20_000)
    page.wait_for_function(CELLS_WITH_FIGURES, arg=sum(map(_is_figure, together.cells)))
    assert not page.problems


CELLS_WITH_FIGURES = """least => [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell')]
  .filter((cell) => cell.querySelector('.js-plotly-plot')).length >= least"""


def _is_figure(cell):
    """Tell whether an executed cell shows a live figure."""
    return any("application/vnd.plotly.v1+json" in output.get("data", {}) for output in cell.get("outputs", []))
