"""Notebooks run with few samples: from nothing by papermill; then JupyterLab shows those, and runs what has widgets."""

import os
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from test_notebooks import FIGURES, FOLDER, PATHS, SMALL, asked_of, name_of, small

from scripts import lab_driver
from scripts.lab_driver import open_notebook, run_notebook
from sparsepipe.records import RunRecord
from sparsepipe.study import reproduce
from sparsepipe.study.catalogue import exported, exported_by, parameter_names
from sparsepipe.util.io.files import sha256

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

REAL = "02_data"  # runs on real clouds, where they are here
ALONE = "07_learning"  # runs as it stands in tests/test_notebooks.py, on all it was written for
OWN = "09_your_own_network"
SPARSE = "13_own_sparse_modules"
OF_OWN = {"batch_size": 32}  # it always reads 1,437 images, and a minibatch of the shapes


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder in which the notebooks were reproduced, one after the other, each with what those before it left.

    Of real data they find the two scans and some clouds alone: training on those has a test of its own.
    """
    root = tmp_path_factory.mktemp("notebooks")
    real = Path(os.environ.get("SPARSEPIPE_DATA") or root)
    (root / "data").mkdir()
    (root / "data" / "scans").symlink_to(real / "scans")
    clouds = real / "modelnet10-sample" / "ModelNet10"
    walk = [name_of(path) for path in PATHS if small(path) is SMALL and name_of(path) not in (REAL, ALONE, OWN)]
    drawn = [name_of(path) for path in PATHS if small(path) is FIGURES]
    options = {"out": root / "figures", "pictures": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARSEPIPE_DATA", str(root / "data"))
        patch.setenv("SPARSEPIPE_CACHE", str(root / "prepared"))  # some forty processes read the same shapes
        written = reproduce([REAL], parameters=asked_of(REAL), data=clouds if clouds.exists() else None, **options)
        written += reproduce(walk, parameters=asked_of(*walk), **options)
        written += reproduce([OWN], parameters=asked_of(OWN) | OF_OWN, **options)
        made_here = (root / "work" / "data").glob("shapes-*")  # notebook 14 makes others
        shapes = min(made_here, key=lambda folder: folder.stat().st_mtime)
        written += reproduce(drawn, parameters=asked_of(*drawn), data=shapes, **options)  # measured already
    tables = {path.stem for path in written if path.suffix == ".csv"}
    assert tables == {name for path in PATHS if name_of(path) != ALONE for name in exported(path)}
    return root


def told_by(root, name):
    """What the executed copy of a notebook has printed."""
    executed = nbformat.read(root / "runs" / "notebooks" / f"{name}.ipynb", as_version=4)
    return "".join(output.get("text", "") for cell in executed.cells for output in cell.get("outputs", []))


def test_every_notebook_runs_and_trains_what_it_says(made):
    runs = {path.name for path in (made / "runs").iterdir()}
    strategies = ("one-process", "data-parallel", "pipeline", "pipeline-2bw")
    assert {f"minkvgg11bn-narrow-{name}-001" for name in strategies} <= runs
    assert "minkunet14a-segmentation-narrow-parts-001" in runs
    copies = list((made / "runs" / "notebooks").rglob("*.ipynb"))
    assert len(copies) == len(PATHS) - 1
    assert not any(path.stat().st_size > 3e6 for path in copies)


def test_figures_say_which_data_they_are_about(made):
    """Real clouds are drawn as such; that those of our shapes are none must not be missed."""
    text = (made / "figures" / "voxels.json").read_text()
    assert ("ModelNet10" in text) != ("synthetic shapes" in text)
    assert "synthetic shapes" in (made / "figures" / "timeline.json").read_text()


def test_a_notebook_finds_what_it_left_and_draws_the_same_bytes(made):
    """The same link, plans, numbers and digests."""
    files = {path: path.read_bytes() for path in (made / "figures").glob("stages.*")}
    assert "measured now" in told_by(made, "06_launch") and files
    reproduce(["05_partition"], out=made / "figures", parameters=asked_of("05_partition"), pictures=False)
    assert "measured now" not in told_by(made, "05_partition")
    assert {path: path.read_bytes() for path in files} == files


def test_a_network_of_the_readers_own_is_written_trained_and_held_to_one_piece(made):
    runs = {path.name for path in (made / "runs").iterdir()}
    assert {f"own-{name}-001" for name in ("one-process", "data-parallel", "pipeline")} <= runs
    record = RunRecord.load(made / "runs" / "own-pipeline-001")
    written = made / "work" / "own_network" / "net.py"
    assert record.plan.stages[1:] and record.origin["facts"]["code_sha256"]["model"] == sha256(written)
    has_minkowski = find_spec("MinkowskiEngine") is not None
    assert told_by(made, OWN).count("the same network in 2 stages") == 1
    assert told_by(made, SPARSE).count("the same network in 2 stages") == has_minkowski
    assert ("own-sparse-001" in runs) == has_minkowski


LIVE = {"05_partition": 1, "06_launch": 2}  # those that run in JupyterLab, too, and how many widgets each shows
ALL_WIDGETS = "least => document.querySelectorAll('.widget-vbox, .sp-view').length >= least"
ALL_FIGURES = "least => document.querySelectorAll('.js-plotly-plot').length >= least"


@pytest.mark.browser
@pytest.mark.timeout(600, func_only=True)  # whoever comes first has the results made, in the time of the tests above
@pytest.mark.parametrize("name", LIVE)
def test_a_notebook_with_widgets_runs_in_jupyterlab(page, lab, made, name):
    """Widgets and live figures are drawn, and nothing fails."""
    path = FOLDER / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    parameters, known = SMALL | {"root": str(made), "cluster": ""}, parameter_names(path)
    cell.source += "".join(f"\n{key} = {value!r}" for key, value in parameters.items() if key in known)
    figures = len(exported_by("\n".join(cell.source for cell in notebook.cells if cell.cell_type == "code")))
    assert figures == len(exported(path))
    nbformat.write(notebook, lab.notebooks / path.name)
    run_notebook(page, lab, path.name, seconds=300)
    assert not lab_driver.errors(page)
    lab_driver.show_all(page)
    page.wait_for_function(ALL_WIDGETS, arg=LIVE[name])
    page.wait_for_function(ALL_FIGURES, arg=figures)
    assert not page.problems


SHOWN = (
    "02_data",
    "03_profile",
    "04_layer_graph",
    "figures/2_mixed_devices",
    "figures/4_accuracy",
    "figures/8_waiting",
)


@pytest.mark.browser
@pytest.mark.timeout(600, func_only=True)
def test_the_figures_of_executed_notebooks_are_drawn_in_jupyterlab(page, lab, made):
    """What ran from nothing above, opened: each figure is alive in it. The outputs of several are in one notebook."""
    together = nbformat.v4.new_notebook()
    for name in SHOWN:
        executed = nbformat.read(made / "runs" / "notebooks" / f"{name}.ipynb", as_version=4)
        together.metadata |= executed.metadata
        shown = [cell for cell in executed.cells if cell.get("outputs")]
        assert sum(map(_is_figure, shown)) >= len(exported(FOLDER / f"{name}.ipynb")), name
        together.cells += shown
        for cell in shown:
            cell.source = f"# {name}"
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
