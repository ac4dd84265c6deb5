"""Widgets for everybody: axe-core finds no violation of WCAG 2.1 AA in any of them, in the light theme or the dark."""

import pytest

from scripts.lab_driver import errors, run_notebook, set_theme, show_all

axe_core = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(400)]

ALL = """
import json
from pathlib import Path
from IPython.display import display
from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile, partition
from sparsepipe.record import Origin, RunRecord
from sparsepipe.runtime.config import RunConfig
from sparsepipe.widgets import LaunchBoard, LayerGraphExplorer, PartitionExplorer, RunsTable, WaitingExplorer
layers = tuple(Layer(f"conv{k}", "Conv2d()", 4e6) for k in range(12))
def costs(factor):
    few = [CostSample(1000, .01 * factor, .02 * factor, 1e6) for k in range(12)]
    return tuple(LayerCost((s, CostSample(4000, 4 * s.forward, 4 * s.backward, 4e6))) for s in few)
graph = LayerGraph.chain(layers, skips=[(2, 6)])
profile = Profile(graph, {"fast": costs(1), "slow": costs(2)}, (1000.0,), {"batch_size": 4, "voxel_size": 0.03})
fast, slow = DeviceType("fast", 24e9), DeviceType("slow", 12e9)
cluster = Cluster((Node("a", (fast, fast), Link(1e10)), Node("b", (slow,), Link(1e10))), Link(1e9))
config = RunConfig("net", "data", voxel_size=0.03, batch_size=4, epochs=2)
plan = partition(profile, cluster)
for k in range(2):
    folder = f"shown/net-pipeline-00{k}"
    if not Path(folder).exists():
        record = RunRecord.create(folder, plan, config.to_json(), Origin(created=f"2026-0{k + 1}-01"))
        step = {"event": "step", "epoch": 0, "loss": 2.0, "samples": 4, "voxels": 10}
        rows = [step | {"seconds": 1.0 + j, "minibatch": j} for j in range(8)]
        rows += [{"event": "epoch", "epoch": 0, "minibatches": 8, "seconds": 9.0, "samples_per_second": 4.0,
                  "train": {"loss": 2.0}, "validation": {"loss": 1.0, "accuracy": 0.5}}]
        rows += [{"event": "summary", "seconds": 9.0, "minibatches": 8, "samples_per_second": 4.0, "stages": []}]
        (record.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
        record.write_status("failed" if k else "cancelled", **({"reason": "rank 1 was killed"} if k else {}))
board = LaunchBoard({"pipeline": plan}, config, runs="shown", profile=profile, cluster=cluster)
board._thread.join(60)  # it has shown the runs that ended
board.change.offer(["pipeline"], ["pipeline", "other"])  # as while a job runs
explorer = PartitionExplorer(profile, cluster, plans="plans", board=board)
"""
SHOW = """
explorer.pin_devices.value = True
explorer.pin_cuts.value = True
explorer.current()
explorer
"""
PIPELINES = """
several = PartitionExplorer(profile, cluster)
several.several.slider.value = 2
several.several.straggler.kind.value = "one rank is slow"
several.current()
several
"""
RUNS = """
table = RunsTable("shown")
table.marks.value = table.marks.options
table.compare.click()
table.delete.click()
table.link.show("<p>a page</p>", label="timeline of a run")
table
"""
CELLS = (
    ALL,
    SHOW,
    PIPELINES,
    "board",
    "LayerGraphExplorer(profile, plan)",
    RUNS,
    "WaitingExplorer(profile, Link(1e9, 1e-5), pipelines=2)",
)
RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]},
    "resultTypes": ["violations"],
}
OURS = {"include": [[".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output"]]}


@pytest.fixture(scope="module")
def widgets(lab_page, lab):
    """A page that shows all of them, which both themes are asked of: nothing in it changes but the colours."""
    lab.write("all.ipynb", *CELLS)
    run_notebook(lab_page, lab, "all.ipynb")
    assert not errors(lab_page)
    show_all(lab_page)
    lab_page.wait_for_selector(".sp-lanes svg")
    lab_page.wait_for_selector(".sp-runs tbody tr")
    lab_page.wait_for_selector("a:text('timeline of a run')")
    lab_page.wait_for_selector(".js-plotly-plot .main-svg")
    lab_page.wait_for_selector("[title='who chooses the stages']")
    return lab_page


def test_tooltips_of_pickers_and_fields_reach_the_page(widgets):
    """ipywidgets shows them for controls without a name alone."""
    row = widgets.locator(".widget-dropdown", has_text="planner").first
    assert row.get_attribute("title") == "who chooses the stages"
    assert row.locator("select").get_attribute("aria-description") == "who chooses the stages"


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_no_widget_violates_wcag_2_1_aa(widgets, theme):
    set_theme(widgets, theme)
    found = axe_core.Axe().run(widgets, context=OURS, options=RULES)
    seen = {rule["id"] for rule in found.response["passes"]}
    assert {"color-contrast", "button-name", "label", "select-name", "aria-input-field-name"} <= seen, "it saw them"
    told = [
        f"{violation['id']}: {violation['help']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for violation in found.response["violations"]
        for node in violation["nodes"]
    ]
    assert not told, "\n".join(told)
