"""Widgets in a real JupyterLab, driven by Chromium: sliders dragged, jobs launched and cancelled, loopback alone."""

import json
import re
from functools import partial

import pytest
from processes import until

from scripts import lab_driver
from scripts.lab_driver import errors, open_notebook, run_notebook, set_theme, settle, show_all

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


PROFILE = """
from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Link, Profile
from sparsepipe.views.widgets import PartitionExplorer
layers = tuple(Layer(f"conv{k}", "", 4e6) for k in range(24))
few = [CostSample(1000, .01 + .002 * (k % 5), .02, 1e6) for k in range(24)]
costs = tuple(LayerCost((sample, CostSample(4000, .04, .07, 4e6))) for sample in few)
profile = Profile(LayerGraph.chain(layers), {"gpu": costs}, (1000.0, 2000.0))
"""
EXPLORER = """
cluster = Cluster.uniform(4, device_type="gpu", link=Link(1e9, 1e-5))
explorer = PartitionExplorer(profile, cluster)
explorer.widget
"""


SHOWN = "() => window.jupyterapp?.shell.currentWidget?.context?.path"
# Whether the explorer's first picture is as wide as its place: controls that come later make that narrower.
FITTED = """() => {
  const view = document.querySelector(".sp-view[data-serial='1']"), lanes = view && view.querySelector(".sp-lanes svg");
  return Boolean(lanes) && lanes.viewBox.baseVal.width === Math.floor(view.querySelector(".sp-picture").clientWidth);
}"""
PARTS = ".noUi-handle, .jupyter-button, .widget-dropdown, .sp-picture, .sp-view svg"


@pytest.fixture
def explorer(lab_page, lab):
    """A fresh explorer: its cells are run, again where the page shows it already."""
    if not (lab.notebooks / "explorer.ipynb").exists():
        lab.write("explorer.ipynb", PROFILE, EXPLORER)
    if lab_page.evaluate(SHOWN) != "explorer.ipynb":
        open_notebook(lab_page, lab, "explorer.ipynb")
    lab_driver.run_cells(lab_page)
    for name in ("Advanced", "⋯"):
        button(lab_page, name).click()
    for name in ("gpu", "within a node", "memory"):
        slider(lab_page, name).wait_for()
    for name in ("set baseline A", "pin cuts", "export"):
        until(button(lab_page, name).is_enabled, f"the button {name}")
    lab_driver.settle(lab_page, PARTS)
    lab_page.wait_for_function(FITTED)
    return lab_page


RANKS = "() => document.querySelectorAll('.sp-rank').length"
TOPS = "() => ['.sp-stages', '.sp-lanes', '.sp-why', '.sp-map'].map((one) => document.querySelector(one).offsetTop)"


def test_devices_are_added_on_the_map_and_nothing_moves(explorer):
    """A candidate is shown by a click; the buttons of the header are a few keys away."""
    before = explorer.evaluate(TOPS)
    for _ in range(2):  # a panel over the picture, which leaves its button free
        button(explorer, "⋯").click()
        assert explorer.evaluate(TOPS) == before
    explorer.get_by_label("One more gpu on local").click()
    explorer.wait_for_function(f"() => ({RANKS})() === 5")
    assert explorer.evaluate("() => document.querySelectorAll('.sp-chip').length") == 5
    assert explorer.evaluate(TOPS)[0] == before[0] and explorer.evaluate(TOPS)[3] == before[3]
    explorer.get_by_label("One fewer gpu on local").click()
    explorer.wait_for_function(f"() => ({RANKS})() === 4")
    explorer.locator("[data-key='data-parallel'] .sp-row").click()
    explorer.wait_for_function("() => document.querySelectorAll('.sp-stages .sp-bar').length === 1")
    assert explorer.evaluate(TOPS) == before, "room is left for as many stages as there are devices"
    explorer.locator(".jp-OutputArea-output .sp-header select").focus()
    keys = 0
    while "save plan" not in explorer.evaluate("() => document.activeElement.textContent"):
        explorer.keyboard.press("Tab")
        keys += 1
    assert keys <= 10
    explorer.locator(".sp-pareto-button[data-part=points]").click()
    explorer.wait_for_selector(".sp-point")
    explorer.locator(".sp-pareto-button[data-part=points]").focus()
    for key in ("Tab", "ArrowRight", "Enter"):
        explorer.keyboard.press(key)
    shown = "() => document.activeElement.classList.contains('sp-point') && document.activeElement.dataset.key"
    assert explorer.evaluate(shown)
    explorer.locator(".sp-pareto-button[data-part=points]").click()
    explorer.wait_for_selector(".sp-point", state="detached")
    explorer.locator("[data-part='hardware']").click()
    explorer.wait_for_selector("[data-part='hardware'] + svg rect")
    explorer.locator("[data-part='hardware']").click()
    explorer.wait_for_selector("[data-part='hardware'] + svg", state="detached")
    explorer.locator(".sp-seek").press("ArrowUp")
    explorer.wait_for_selector(".sp-followed >> text=/Minibatch \\d+:/")
    assert explorer.locator(".sp-arrows").count() == 1
    assert not explorer.problems


def slider(page, name):
    row = page.locator(".widget-inline-hbox", has=page.get_by_text(name, exact=True)).first
    return row.locator(".noUi-handle").first


def button(page, name):
    return page.get_by_role("button", name=name)


def readout(page, name):
    row = page.locator(".widget-inline-hbox", has=page.get_by_text(name, exact=True)).first
    return row.locator(".widget-readout")


def number(page, name):
    """What a slider says, as a number."""
    return int(readout(page, name).inner_text())


def middle(locator):
    """Hold the pointer over the middle of something that stands still; returns where that is."""
    locator.hover()
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def drag(page, locator, distance, steps=30):
    x, y = middle(locator)
    page.mouse.down()
    for step in range(1, steps + 1):
        page.mouse.move(x + distance * step / steps, y)
        page.wait_for_timeout(15)
    page.mouse.up()


def test_explorer_redraws_when_a_slider_moves_and_asks_nobody_else(explorer):
    tiles = explorer.locator(".sp-tiles")  # the words below explain it, too
    until(lambda: tiles.get_by_text("time per minibatch", exact=True).count() == 1, "one number of that name")
    until(lambda: explorer.evaluate(RANKS) == 4, "four devices")
    slider(explorer, "gpu").focus()
    explorer.keyboard.press("ArrowRight")
    explorer.wait_for_function(f"() => ({RANKS})() === 5")
    assert not explorer.problems
    outside = [url for url in explorer.requests if not url.startswith(("http://127.0.0.1", "data:", "blob:"))]
    assert not outside
    assert explorer.get_by_text("Share chart").count() == 0


def test_stages_per_device_are_dragged(explorer):
    handle = slider(explorer, "stages per device")
    explorer.wait_for_selector("text=planner 'optimal' plans one stage per device; model-parallel several")
    assert not handle.is_visible(), "what has no effect is hidden"
    explorer.locator(".widget-dropdown select", has_text="model-parallel").select_option("model-parallel")
    bars = "() => document.querySelectorAll('.sp-stages .sp-bar').length"
    explorer.wait_for_selector("text=plans one stage per device", state="detached")
    explorer.wait_for_function(f"() => ({bars})() === 4")
    until(lambda: handle.get_attribute("aria-disabled") == "false", "a slider to be dragged")
    drag(explorer, handle, 120)
    until(
        lambda: explorer.evaluate(bars) == 4 * number(explorer, "stages per device") > 4,
        "as many stages as the slider says",
    )
    value = number(explorer, "stages per device")
    until(lambda: explorer.evaluate(RANKS) == 4, "as many devices, each with several stages")
    tips = "() => [...document.querySelectorAll('.sp-stages text[data-tip*=conv]')].map((one) => one.dataset.tip)"
    names = partial(explorer.evaluate, tips)
    own = ", ".join(str(4 * lap) for lap in range(value))
    layers = re.compile(rf"{own} · gpu: conv0(, | … conv\d+ \(\d+ layers\), )")  # of one layer its name alone
    until(lambda: layers.match(names()[0]), "the stages of a device, with the layers of each")
    explorer.wait_for_selector(".sp-tiles >> text=unknown", state="attached")
    until(button(explorer, "pin cuts").is_disabled, "no cuts to pin")
    code = explorer.locator(".sp-code pre")
    until(lambda: f"stages_per_device={value})" in code.text_content(), "them in the code")
    explorer.locator(".widget-dropdown select", has_text="vertical-sync").select_option("2bw")
    explorer.wait_for_selector("text=interleave stages, and not with weights '2bw'")
    explorer.wait_for_selector(".sp-old")
    assert explorer.evaluate(bars) == 4 * value, "the last plan that could be made"
    explorer.locator(".widget-dropdown select", has_text="vertical-sync").select_option("stash")
    explorer.wait_for_selector(".sp-old", state="detached")
    drag(explorer, handle, -400)
    explorer.wait_for_function(f"() => ({bars})() === 4")
    until(button(explorer, "pin cuts").is_enabled, "cuts to pin")
    assert not explorer.problems


def test_a_cut_is_dragged_and_moved_by_keys_and_refused_where_it_cannot_be(explorer):
    button(explorer, "pin cuts").click()
    first = explorer.locator(".sp-cut").first
    first.wait_for()
    at = int(first.get_attribute("aria-valuenow"))
    first.focus()
    until(lambda: explorer.locator(".sp-no").count() >= 1, "grey behind the next cut")
    explorer.keyboard.press("ArrowLeft")
    explorer.wait_for_function(f"() => document.querySelector('.sp-cut').getAttribute('aria-valuenow') == {at - 1}")
    explorer.wait_for_function(
        f"() => document.querySelector('.sp-stages text[data-tip]').dataset.tip.includes('({at - 1} layers)')"
    )
    cell = explorer.evaluate("() => document.querySelector('.sp-strip').clientWidth / 24")
    drag(explorer, first, cell)
    explorer.wait_for_function(
        f"() => document.querySelector('.sp-stages text[data-tip]').dataset.tip.includes('({at} layers)')"
    )
    x, y = middle(first)
    explorer.mouse.down()
    explorer.mouse.move(x + 18 * cell, y, steps=10)
    explorer.wait_for_selector("text=it must be before cut 1 | 2")
    explorer.mouse.up()
    last = int(explorer.locator(".sp-cut").nth(1).get_attribute("aria-valuenow")) - 1  # where it could still be
    explorer.wait_for_function(f"() => document.querySelector('.sp-cut').getAttribute('aria-valuenow') == {last}")
    assert not explorer.problems


# A readout that is clicked is marked, so that what is typed takes its place.
MARKED = "() => getSelection().toString() === document.activeElement.textContent"


def typed(page, name, text, shown=None):
    """Type into a slider's readout, and wait until it says what is to be shown, to eyes and to screen readers."""
    readout(page, name).click()
    page.wait_for_function(MARKED)
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    if shown is not None:
        says = readout(page, name).text_content, partial(slider(page, name).get_attribute, "aria-valuetext")
        until(lambda: [say() for say in says] == [shown, shown], lambda: f"{shown}, not {[say() for say in says]}")


def test_links_are_shown_as_given_and_typed_with_units(explorer):
    """A page moved 1.25e9 to 1.2589e9 when it displayed it, and took a typed 10G for 10."""
    code = explorer.locator(".sp-code pre")
    until(lambda: "Link(1000000000.0, 1e-05)" in code.text_content(), "the link in the code")
    given = explorer.get_by_text("Devices and links as given: local: 4 × gpu; links 1 GB/s, 10 µs.")
    until(lambda: given.count() == 1, "the link in words")
    for text, shown, kept in (
        ("1.25e9", "1.25 GB/s", "1250000000.0"),
        ("10G", "10 GB/s", "10000000000.0"),
        ("200 Mbit/s", "25 MB/s", "25000000.0"),
    ):
        typed(explorer, "within a node", text, shown)
        explorer.wait_for_function(f"() => document.querySelector('.sp-code pre').textContent.includes('Link({kept}')")
    typed(explorer, "within a node", "10 Gb/s", "25 MB/s")
    explorer.wait_for_selector("text=write GB/s for bytes or Gbit/s for bits")
    typed(explorer, "latency within a node", "1 ms", "1 ms")
    typed(explorer, "memory", "24 GiB", "25.77 GB")
    typed(explorer, "gpu", "12", "12")
    explorer.wait_for_function(f"() => ({RANKS})() === 12")
    assert not explorer.problems


def refuses(one):
    """Whether a button acts no more, and says why."""
    return one.is_disabled() and "cannot be planned" in (one.get_attribute("title") or "")


def test_refused_settings_grey_the_picture_and_leave_nothing_to_act_on(explorer, lab):
    folder = lab.notebooks / "figures"
    before = {path.name: path.stat().st_mtime_ns for path in folder.glob("*")}
    typed(explorer, "memory", "15 MB")
    explorer.wait_for_selector("text=last plan that fits: 4 × gpu · links 1 GB/s, 10 µs · memory no limit")
    looks = "(name) => getComputedStyle(document.querySelector('.sp-stages'))[name]"
    until(lambda: explorer.evaluate(looks, "filter") == "grayscale(1)", "a grey picture")
    assert explorer.evaluate(looks, "opacity") == "1", "it is read as before"
    marked = "() => getComputedStyle(document.querySelector('.sp-picture .sp-part'), '::before').content"
    assert explorer.evaluate(marked) == '"old · "'
    buttons = [button(explorer, name) for name in ("export", "set baseline A", "pin cuts", "pin devices")]
    until(lambda: all(map(refuses, buttons)), lambda: f"{[*map(refuses, buttons)]}: whether each says why it is grey")
    until(explorer.locator(".sp-copy").is_disabled, "no code to copy")
    until(lambda: "Cluster" not in explorer.locator(".sp-code pre").text_content(), "no code to read")
    button(explorer, "export").click(force=True)
    explorer.wait_for_timeout(500)
    assert {path.name: path.stat().st_mtime_ns for path in folder.glob("*")} == before
    until(lambda: explorer.get_by_text("no plan fits into the memory of").count() == 1, "the message stays")
    typed(explorer, "memory", "as given")
    explorer.wait_for_selector(".sp-old", state="detached")
    until(button(explorer, "export").is_enabled, "a plan to export")


def test_a_dragged_slider_and_a_click_at_once_act_on_what_the_slider_shows(explorer):
    """The page holds back the last moves while the kernel plans: a click would overtake them."""
    drag(explorer, slider(explorer, "gpu"), 80, steps=8)
    button(explorer, "set baseline A").click()
    same = explorer.get_by_text("the same layers on the same devices")
    until(
        lambda: same.count() and explorer.evaluate(RANKS) == number(explorer, "gpu") > 4,
        "A is the plan of as many devices as the slider says",
    )


FORESEEN = """() => {
  window.spForeseen = 0;
  const view = document.querySelector(".sp-view");
  const count = () => { window.spForeseen += view.classList.contains("sp-foreseen"); };
  new MutationObserver(count).observe(view, { attributes: true, attributeFilter: ["data-drawn"] });
}"""


SERIALS = """() => {
  window.spSerials = [];
  const view = document.querySelector(".sp-view"), serial = () => Number(view.dataset.serial);
  const look = new MutationObserver(() => window.spSerials.push(serial()));
  look.observe(view, { attributes: true, attributeFilter: ["data-drawn"] });
  return serial();
}"""


def test_the_page_answers_a_move_before_the_kernel_does(explorer):
    explorer.wait_for_selector(".sp-row")
    explorer.wait_for_function("() => document.querySelector('.sp-slider .noUi-band')")
    explorer.evaluate(FORESEEN)
    slider(explorer, "within a node").focus()
    explorer.keyboard.press("ArrowLeft")
    explorer.wait_for_function("() => window.spForeseen === 1")
    explorer.wait_for_selector(".sp-view:not(.sp-foreseen)", state="attached")
    explorer.wait_for_function("() => document.querySelector('.sp-view').dataset.serial > 1")
    before = explorer.evaluate(SERIALS)
    explorer.keyboard.press("ArrowRight")  # back: the picture as it was, with its serial, and then the kernel's
    explorer.wait_for_function("() => window.spSerials.length === 2")
    assert explorer.evaluate("() => window.spSerials") == [before - 1, before + 1]
    assert not explorer.problems


OVER = "() => [...document.querySelectorAll('.sp-orders b')].map((cell) => cell.textContent)"
SIZES_BOX = """() => {
  const box = (name) => document.querySelector(name).getBoundingClientRect();
  const [sizes, stages] = [box('.sp-sizes'), box('.sp-stages')];
  return [sizes.top, sizes.height, stages.top];
}"""
SETTLED_SIZES = ".sp-view:not(.sp-wait) .sp-orders"


def test_orders_follow_the_sliders_and_move_nothing(explorer):
    explorer.wait_for_selector(SETTLED_SIZES)
    before, box = explorer.evaluate(OVER), explorer.evaluate(SIZES_BOX)
    assert len(before) == 4 and all(re.fullmatch("(≥ )?[0-9.]+\xa0×\xa0balanced", words) for words in before)
    drag(explorer, slider(explorer, "variation"), 60)
    value = float(readout(explorer, "variation").inner_text())
    assert value > 0.5
    until(lambda: explorer.evaluate(OVER) != before, "what orders lose with sizes that vary more")
    explorer.wait_for_selector(SETTLED_SIZES)
    assert explorer.evaluate(SIZES_BOX) == box
    shuffled, snake = (float(words.split("\xa0")[0]) for words in explorer.evaluate(OVER)[:2])
    assert shuffled > snake
    slider(explorer, "within a node").focus()
    for _ in range(6):  # of a plan before nothing is shown as if it were of this one
        explorer.keyboard.press("ArrowLeft")
    explorer.wait_for_selector(".sp-wait")
    assert explorer.evaluate(SIZES_BOX)[1] == box[1]
    explorer.wait_for_selector(SETTLED_SIZES)
    same = (
        "() => document.querySelector('.sp-view').dataset.sizes === document.querySelector('.sp-view').dataset.serial"
    )
    assert explorer.evaluate(same)
    assert not explorer.problems


def test_a_view_whose_kernel_was_restarted_says_so_and_runs_its_cell_again(page, lab):
    lab.write("dead.ipynb", "from sparsepipe.views.widgets import PartitionExplorer\nPartitionExplorer()")
    run_notebook(page, lab, "dead.ipynb")
    page.wait_for_selector(".sp-lanes svg")
    assert page.locator(".sp-dead").is_hidden()
    lab_driver.restart_kernel(page)
    page.get_by_role("button", name="run its cell").click()
    page.wait_for_selector(".sp-dead", state="hidden")
    page.get_by_label("One more RTX on alpha").click()
    page.wait_for_function(f"() => ({RANKS})() === 5")
    assert not page.problems


def test_a_layer_is_clicked(page, lab):
    cells = "from sparsepipe.views.widgets import LayerGraphExplorer\nLayerGraphExplorer(profile).widget"
    lab.write("graph.ipynb", PROFILE, cells)
    run_notebook(page, lab, "graph.ipynb")
    page.wait_for_selector(".js-plotly-plot[data-drawn='1'] .textpoint")  # which listens to clicks
    page.locator(".js-plotly-plot .textpoint", has_text="conv7").first.click(force=True)
    page.wait_for_selector("text=from conv6, to conv8")


def test_a_page_without_the_static_file_gets_plotly_from_the_kernel(page, lab):
    cell = "view = PlotView(go.Figure(go.Scatter(y=[1, 2, 3], uid='a')))\nview.asset = ''\nview"
    lab.write("kernel.ipynb", "import plotly.graph_objects as go\nfrom sparsepipe.views.widgets import PlotView", cell)
    run_notebook(page, lab, "kernel.ipynb")
    page.wait_for_selector(".js-plotly-plot .scatterlayer .js-line")
    assert not [url for url in page.requests if "plotly.min.js" in url or "plotly-" in url]


BOARD = """
from pathlib import Path
from sparsepipe import Cluster
from sparsepipe.data.shapes import make_shapes
from sparsepipe.networks import network
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.runtime.config import RunConfig
from sparsepipe.views.widgets import LaunchBoard
data = make_shapes("shapes", num_train=4, num_test=1, families=["box", "cone", "gear"])
ids = [layer.id for layer in network("minkvgg11bn-narrow", num_classes=3).graph().layers]
plan = Plan((Stage(tuple(ids[:8]), (0,)), Stage(tuple(ids[8:]), (1,))))
config = RunConfig("minkvgg11bn-narrow", str(data), voxel_size=0.1, batch_size=4, engine="native", epochs={epochs})
board = LaunchBoard({{"pipeline": plan}}, config, runs="{runs}")
board.widget
"""


def test_board_launches_and_shows_the_end(page, lab):
    lab.write("board.ipynb", BOARD.format(epochs=2, runs="runs-a"))
    run_notebook(page, lab, "board.ipynb")
    button(page, "launch pipeline").click()
    page.wait_for_selector("text=finished:", timeout=400_000)
    page.wait_for_selector(".js-plotly-plot .scatterlayer .js-line")
    page.wait_for_selector(".sp-job .sp-lane path")
    page.wait_for_selector("text=/Why it is slow|As fast as predicted/")
    assert page.locator(".sp-job .sp-chip").all_text_contents() == ["0", "1"] and not page.locator(".sp-step").count()
    assert not page.problems


BUSY = """() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute(
  { code: "import time; time.sleep(600)" }).msg.header.msg_id"""


def test_a_detached_job_is_found_again_after_a_restart_and_stopped_while_a_cell_runs(page, lab):
    lab.write("again.ipynb", BOARD.format(epochs=10_000, runs="runs-b"))
    run_notebook(page, lab, "again.ipynb")
    page.get_by_label("keep jobs running after the kernel stops").check()
    button(page, "launch pipeline").click()
    page.wait_for_selector("text=/minibatch \\d+/")
    lab_driver.restart_kernel(page)
    lab_driver.run_cells(page)
    page.wait_for_selector("text=/minibatch \\d+/")
    page.evaluate(BUSY)
    page.wait_for_function("() => window.jupyterapp.shell.currentWidget.sessionContext.kernelDisplayStatus === 'busy'")
    button(page, "stop pipeline").click()
    page.wait_for_selector("text=/stopped after \\d+/")
    status = lab.notebooks / "runs-b" / "minkvgg11bn-narrow-pipeline-001" / "status.json"
    until(lambda: json.loads(status.read_text())["state"] == "stopped", status.read_text)
    assert not page.problems


ALL = """
import json
from dataclasses import replace
from pathlib import Path
from IPython.display import display
from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile, partition
from sparsepipe import plots, simulate
from sparsepipe.views.plots.theme import doubted
from sparsepipe.records import Origin, RunRecord
from sparsepipe.runtime.config import RunConfig
from sparsepipe.views.widgets import LaunchBoard, LayerGraphExplorer, PartitionExplorer, RunsTable, WaitingExplorer
from sparsepipe.views.widgets.looks import show
from sparsepipe.views.widgets.view_model import timelines
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
board.watch.thread.join(200)  # it has shown the runs that ended
board.change.offer(["pipeline"], ["pipeline", "other"])  # as while a job runs
explorer = PartitionExplorer(profile, cluster, plans="plans", board=board)
"""
SHOW = """
explorer.controls.stages.pin_devices.value = True
explorer.controls.stages.pin_cuts.value = True
explorer.current()
explorer
"""
PIPELINES = """
several = PartitionExplorer(profile, cluster)
several.controls.pipelines.slider.value = 2
several.controls.pipelines.straggler.kind.value = "one slow rank"
several.current()
several
"""
DOUBTFUL_BOARD = """
told = "other processes used 90% of the cores while layers were measured, and again while the run was at work"
trace = simulate(plan, profile, cluster, [1000.0] * 12)
timeline = plots.timeline(trace, note="net-pipeline-000, last epoch")
spans = timelines([trace, replace(trace, source="measured")], (4, 7))
board.details.end.timeline.show(doubted(timeline, [told]), timeline=spans)
show(board.details.end.widget, on=True)
board
"""
RUNS = """
table = RunsTable("shown")
table.listing.marks.value = table.listing.marks.options
table.compare.click()
table.deletion.button.click()
table.link.show("<p>a page</p>", label="timeline of a run")
table
"""
CELLS = (
    ALL,
    SHOW,
    PIPELINES,
    DOUBTFUL_BOARD,
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
    for name in ("Advanced", "⋯", "Add a card, or open a file"):
        for fold in lab_page.get_by_role("button", name=name).all():
            fold.click()
    lab_page.wait_for_selector("[title*='chooses the stages']")
    lab_page.locator(".sp-pareto-button").first.click()
    lab_page.wait_for_selector(".sp-point")
    settle(lab_page, ".jupyter-widgets, .main-svg, .sp-view svg")
    return lab_page


def violations(page):
    """What axe-core finds, a line each; and the rules that it should have looked at something for, and did not."""
    axe_core = pytest.importorskip("axe_playwright_python.sync_playwright", reason="no axe-playwright-python")
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
