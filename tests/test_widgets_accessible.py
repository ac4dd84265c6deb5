"""Widgets for everybody: axe-core finds no violation of WCAG 2.1 AA in any of them, in the light theme or the dark."""

from functools import partial

import pytest
from processes import until

from scripts.lab_driver import errors, run_notebook, set_theme, settle, show_all

axe_core = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install axe-playwright-python")

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

ALL = """
import json
from pathlib import Path
from IPython.display import display
from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile, partition
from sparsepipe import plots, simulate
from sparsepipe.plots.theme import doubted
from sparsepipe.record import Origin, RunRecord
from sparsepipe.runtime.config import RunConfig
from sparsepipe.widgets import LaunchBoard, LayerGraphExplorer, PartitionExplorer, RunsTable, WaitingExplorer
from sparsepipe.widgets.looks import show
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
board._thread.join(200)  # it has shown the runs that ended
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
BOARD = """
told = "other processes used 90% of the cores while layers were measured, and again while the run was at work"
timeline = plots.timeline(simulate(plan, profile, cluster, [1000.0] * 12), note="net-pipeline-000, last epoch")
board.details.timeline.show(doubted(timeline, [told]))
show(board.details.end, on=True)
board
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
    BOARD,
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
    lab_page.wait_for_selector("[title='Who chooses the stages']")
    settle(lab_page, ".jupyter-widgets, .main-svg, .sp-view svg")
    return lab_page


def test_tooltips_of_pickers_and_fields_reach_the_page(widgets):
    """ipywidgets shows them for controls without a name alone."""
    row = widgets.locator(".widget-dropdown", has_text="planner").first
    told = partial(row.get_attribute, "title"), partial(row.locator("select").get_attribute, "aria-description")
    until(lambda: [tell() for tell in told] == 2 * ["Who chooses the stages"], lambda: [tell() for tell in told])


OUTPUTS = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output"
TITLES = "(title) => [...document.querySelectorAll('.sp-heading b')].filter((b) => b.textContent === title).length"
# Figures that are not as wide as their place yet.
UNFITTED = """() => [...document.querySelectorAll('.js-plotly-plot')].filter((one) => one.parentElement.clientWidth
  && Math.abs(one.querySelector('.main-svg').clientWidth - one.parentElement.clientWidth) > 1)"""
# What is wider than its place, and words of pictures that lie beyond them; tables scroll within regions of their own.
PLACES = ".widget-box, .widget-html, .widget-html-content, .sp-view, .sp-heading, .sp-heading *"
CUT_OFF = """([outputs, places]) => {
  const told = [];
  const say = (one, what) =>
    told.push(`${one.className.baseVal ?? one.className}: ${what}: ${one.textContent.slice(0, 60)}`);
  for (const output of document.querySelectorAll(outputs)) {
    for (const one of [output, ...output.querySelectorAll(places)])
      if (one.clientWidth && one.scrollWidth > one.clientWidth + 1)
        say(one, `${one.scrollWidth} of ${one.clientWidth} pixels`);
    for (const text of output.querySelectorAll('.main-svg text, .sp-view svg text')) {
      const box = text.getBoundingClientRect(), frame = text.closest('.main-svg, .sp-view').getBoundingClientRect();
      const beside = box.left < frame.left - 1 || box.right > frame.right + 1;
      if (box.width && (beside || box.bottom > frame.bottom + 1)) say(text, 'cut off');
    }
  }
  return told;
}"""


def test_nothing_is_wider_than_its_place_beside_the_side_bar_of_a_small_page(widgets):
    """Figures for 900 pixels, a table of waits and the notes above were cut off at the right."""
    size = widgets.viewport_size
    try:
        widgets.set_viewport_size({"width": 1280, "height": size["height"]})
        widgets.wait_for_function(f"() => ({TITLES})('Who averages with whom, and how late') === 2")  # both explorers'
        widgets.wait_for_function(f"() => ({UNFITTED})().length === 0")
        width = partial(widgets.evaluate, f"() => document.querySelector('{OUTPUTS}').clientWidth")
        until(lambda: 800 < width() < 900, lambda: f"a place of 800 to 900 pixels, not {width()}")
        doubtful = widgets.locator(".sp-heading", has_text="doubtful: other processes used")
        until(lambda: doubtful.count() == 1, lambda: f"one doubt, not {doubtful.count()}")
        cut_off = partial(widgets.evaluate, CUT_OFF, [OUTPUTS, PLACES])
        until(lambda: not cut_off(), lambda: "\n".join(cut_off()))
    finally:
        widgets.set_viewport_size(size)


def test_no_tooltip_says_null(widgets):
    """ipywidgets' way of showing none."""
    widgets.wait_for_function("() => document.querySelectorAll('.jupyter-widgets [title=null]').length === 0")


def violations(page):
    """What axe-core finds, a line each; and the rules that it should have looked at something for, and did not."""
    found = axe_core.Axe().run(page, context=OURS, options=RULES)
    missed = SEEN - {rule["id"] for rule in found.response["passes"]}
    return [*(f"{rule}: it saw nothing of the kind" for rule in sorted(missed))] + [
        f"{violation['id']}: {violation['help']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for violation in found.response["violations"]
        for node in violation["nodes"]
    ]


SEEN = {"color-contrast", "button-name", "label", "select-name", "aria-input-field-name"}


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_no_widget_violates_wcag_2_1_aa(widgets, theme):
    set_theme(widgets, theme)
    until(lambda: not violations(widgets), lambda: "\n".join(violations(widgets)))


# For each slider the better contrast of its knob's rim and fill with what lies behind it (WCAG 1.4.11); and the lists'
# arrows as they are drawn.
KNOBS_AND_ARROWS = """() => {
  const rgb = (color) => color.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = (color) => { const [r, g, b] = rgb(color).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ratio = (a, b) => { const [low, high] = [luminance(a), luminance(b)].sort((x, y) => x - y);
    return (high + 0.05) / (low + 0.05); };
  const ground = (one) => { const own = getComputedStyle(one).backgroundColor;
    return rgb(own)[3] === 0 ? ground(one.parentElement) : own; };
  const panels = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output";
  return {
    knobs: [...document.querySelectorAll(`${panels} .noUi-handle`)].map((one) => {
      const own = getComputedStyle(one), behind = ground(one.closest(".jupyter-widgets"));
      return Math.max(ratio(own.borderTopColor, behind), ratio(own.backgroundColor, behind)); }),
    arrows: [...document.querySelectorAll(`${panels} .widget-dropdown > select`)].map((one) =>
      decodeURIComponent(getComputedStyle(one).backgroundImage).includes("fill='#e0e0e0'")),
  };
}"""


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_knobs_of_sliders_and_arrows_of_lists_are_seen(widgets, theme):
    """Knobs were white on white, and arrows black on black."""
    set_theme(widgets, theme)
    found = widgets.evaluate(KNOBS_AND_ARROWS)
    assert len(found["knobs"]) > 10 and min(found["knobs"]) >= 3, found
    assert len(found["arrows"]) > 5 and set(found["arrows"]) == {theme == "JupyterLab Dark"}, found
