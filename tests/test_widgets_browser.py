"""Widgets in a real JupyterLab, driven by Chromium: sliders dragged, jobs launched and cancelled, loopback alone."""

import json
import re
import subprocess
from functools import partial

import pytest
from processes import until

from scripts import lab_driver
from scripts.lab_driver import open_notebook, run_notebook

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


PROFILE = """
from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Link, Profile
from sparsepipe.widgets import PartitionExplorer
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
  return Boolean(lanes) && lanes.viewBox.baseVal.width === Math.floor(view.clientWidth);
}"""
PARTS = ".noUi-handle, .jupyter-button, .widget-dropdown, .sp-view, .sp-view svg"


@pytest.fixture
def explorer(lab_page, lab):
    """A fresh explorer: its cells are run, again where the page shows it already."""
    if not (lab.notebooks / "explorer.ipynb").exists():
        lab.write("explorer.ipynb", PROFILE, EXPLORER)
    if lab_page.evaluate(SHOWN) != "explorer.ipynb":
        open_notebook(lab_page, lab, "explorer.ipynb")
    lab_driver.run_cells(lab_page)
    for name in ("gpu", "within a node", "memory", "stages per device"):
        slider(lab_page, name).wait_for()
    for name in ("pin as A", "pin cuts", "export"):
        until(button(lab_page, name).is_enabled, f"the button {name}")
    lab_driver.settle(lab_page, PARTS)
    lab_page.wait_for_function(FITTED)
    return lab_page


RANKS = "() => document.querySelectorAll('.sp-rank').length"


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


def test_pictures_that_stay_are_not_built_anew(explorer):
    """At 1,250 layers a redraw took the page 110 ms, most of it for layers whose stages had not changed."""
    kept = "() => ['cells', 'lanes'].filter((name) => document.querySelector(`.sp-${name} svg`).dataset.kept)"
    shown = "(serial) => Number(document.querySelector('.sp-view').dataset.serial) > serial"
    explorer.evaluate("document.querySelectorAll('.sp-view svg').forEach((one) => { one.dataset.kept = 'yes'; })")
    assert explorer.evaluate(kept) == ["cells", "lanes"]
    slider(explorer, "within a node").focus()
    explorer.keyboard.press("ArrowLeft")  # transfers take longer, the cuts stay
    explorer.wait_for_function(shown, arg=1)  # a picture is drawn whole: what it kept is to be seen at once
    assert explorer.evaluate(kept) == ["cells"]
    slider(explorer, "gpu").focus()
    explorer.keyboard.press("ArrowRight")
    explorer.wait_for_function(f"() => ({RANKS})() === 5")
    assert explorer.evaluate(kept) == []


def test_explorer_keeps_up_with_a_dragged_slider(explorer):
    drag(explorer, slider(explorer, "gpu"), 120)
    until(lambda: explorer.evaluate(RANKS) == number(explorer, "gpu") > 4, "as many devices as the slider says")


def test_stages_per_device_are_dragged(explorer):
    handle = slider(explorer, "stages per device")
    explorer.wait_for_selector("text=planner 'optimal' plans one stage per device; model-parallel several")
    drag(explorer, handle, 120)  # disabled: nothing happens
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
    names = explorer.locator(".sp-stages title", has_text="conv").all_text_contents
    own = ", ".join(str(4 * lap) for lap in range(value))
    layers = re.compile(rf"{own} · gpu: conv0(, | … conv\d+ \(\d+ layers\), )")  # of one layer its name alone
    until(lambda: layers.match(names()[0]), "the stages of a device, with the layers of each")
    explorer.wait_for_selector("text=not known")
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
        f"() => document.querySelectorAll('.sp-stages title')[0].textContent.includes('({at - 1} layers)')"
    )
    cell = explorer.evaluate("() => document.querySelector('.sp-strip').clientWidth / 24")
    drag(explorer, first, cell)
    explorer.wait_for_function(
        f"() => document.querySelectorAll('.sp-stages title')[0].textContent.includes('({at} layers)')"
    )
    x, y = middle(first)
    explorer.mouse.down()
    explorer.mouse.move(x + 18 * cell, y, steps=10)
    explorer.wait_for_selector("text=it must lie before cut 1 | 2")
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
    typed(explorer, "its latency", "1 ms", "1 ms")
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
    marked = "() => getComputedStyle(document.querySelector('.sp-part'), '::before').content"
    assert explorer.evaluate(marked) == '"old · "'
    buttons = [button(explorer, name) for name in ("export", "pin as A", "pin cuts", "pin devices")]
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
    button(explorer, "pin as A").click()
    same = explorer.get_by_text("the same layers on the same devices")
    until(
        lambda: same.count() and explorer.evaluate(RANKS) == number(explorer, "gpu") > 4,
        "A is the plan of as many devices as the slider says",
    )


def test_explorer_says_what_cannot_be(explorer):
    handle = slider(explorer, "gpu")
    handle.focus()
    for _ in range(5):
        explorer.keyboard.press("ArrowLeft")
    explorer.wait_for_selector("text=no device chosen: move a device slider up")


def test_explorer_pins_a_plan_to_compare(explorer):
    button(explorer, "pin as A").click()
    explorer.wait_for_selector("text=the same layers on the same devices")
    explorer.locator(".widget-dropdown select", has_text="data-parallel").select_option("data-parallel")
    explorer.wait_for_selector("text=/B is [0-9.]+\\s×\\sas fast as A/")
    cells = explorer.locator(".sp-cells")

    def told(across, above):
        """What the strip says below the pointer."""
        box = cells.bounding_box()
        for aside in (1, 0):
            explorer.mouse.move(box["x"] + across * box["width"] - aside, box["y"] + box["height"] - above)
        return cells.get_attribute("title") or ""

    until(lambda: told(0.995, 18).startswith("conv23, A: stage "), "A's strip, between the layers and their names")
    until(lambda: told(0.005, 26).startswith("conv0: "), "the layers")


LISTEN = """() => {
  const button = document.querySelector(".sp-copy");
  window.said = [];
  new MutationObserver(() => window.said.push(button.textContent)).observe(button, { childList: true });
}"""


def test_the_code_is_copied(explorer):
    explorer.context.grant_permissions(["clipboard-read", "clipboard-write"])
    explorer.evaluate(LISTEN)
    explorer.locator(".sp-copy").click()
    explorer.wait_for_function("() => window.said.includes('copied')")  # and says so for two seconds
    assert "partition(profile, cluster" in explorer.evaluate("() => navigator.clipboard.readText()")


def test_a_figure_is_exported_by_the_button(explorer, lab):
    button(explorer, "export").click()
    explorer.wait_for_selector("text=/Drawing…|Written to/")
    explorer.wait_for_selector("text=/Written to|cannot be used/", timeout=400_000)  # as long as a browser may take
    assert not explorer.get_by_text("cannot be used").count()
    path = lab.notebooks / "figures" / "explorer_stages.pdf"
    said = subprocess.run(["pdftotext", str(path), "-"], capture_output=True, text=True, check=True).stdout
    assert "Stages of each plan, as predicted" in said and "memory (MB)" in said
    fonts = subprocess.run(["pdffonts", str(path)], capture_output=True, text=True, check=True).stdout
    assert "yes" in fonts.splitlines()[2].split()[-5:-2]  # embedded


def test_a_layer_is_clicked(page, lab):
    cells = "from sparsepipe.widgets import LayerGraphExplorer\nLayerGraphExplorer(profile).widget"
    lab.write("graph.ipynb", PROFILE, cells)
    run_notebook(page, lab, "graph.ipynb")
    page.wait_for_selector(".js-plotly-plot[data-drawn='1'] .textpoint")  # which listens to clicks
    page.locator(".js-plotly-plot .textpoint", has_text="conv7").first.click(force=True)
    page.wait_for_selector("text=from conv6, to conv8")


def test_figures_follow_the_theme(page, lab):
    cells = "import plotly.graph_objects as go\nfrom sparsepipe.widgets import PlotView"
    cells += "\nPlotView(go.Figure(go.Scatter(y=[1, 2], mode='lines', line_color='#222222', uid='a')))"
    lab.write("theme.ipynb", cells)
    run_notebook(page, lab, "theme.ipynb")
    page.wait_for_selector(".js-plotly-plot[data-drawn='1']")
    drag(page, page.locator(".nsewdrag").first, 120)
    zoomed = "() => document.querySelector('.js-plotly-plot')._fullLayout.xaxis.range"
    stroke = "() => getComputedStyle(document.querySelector('.scatterlayer .js-line')).stroke"
    page.wait_for_function(f"() => ({zoomed})()[0] > 0.1")
    before = page.evaluate(zoomed)
    lab_driver.set_theme(page, "JupyterLab Dark")
    page.wait_for_function("() => Number(document.querySelector('.js-plotly-plot').dataset.drawn) >= 2")
    until(lambda: page.evaluate(stroke) == "rgb(216, 216, 216)", "a line that is seen on dark ground")
    width = page.locator(".js-plotly-plot").bounding_box()["width"]
    page.set_viewport_size({"width": 1200, "height": 2200})
    page.wait_for_function(f"() => document.querySelector('.main-svg').clientWidth < {width} - 100")
    assert page.evaluate(zoomed) == before, "what was zoomed stays so in another theme and at another width"
    until(lambda: page.evaluate(stroke) == "rgb(216, 216, 216)", "and at another width")
    assert not page.problems


def test_a_page_without_the_static_file_gets_plotly_from_the_kernel(page, lab):
    cell = "view = PlotView(go.Figure(go.Scatter(y=[1, 2, 3], uid='a')))\nview.asset = ''\nview"
    lab.write("kernel.ipynb", "import plotly.graph_objects as go\nfrom sparsepipe.widgets import PlotView", cell)
    run_notebook(page, lab, "kernel.ipynb")
    page.wait_for_selector(".js-plotly-plot .scatterlayer .js-line")
    assert not [url for url in page.requests if "plotly.min.js" in url or "plotly-" in url]


BOARD = """
from pathlib import Path
from sparsepipe import Cluster
from sparsepipe.data.shapes import make_shapes
from sparsepipe.models import network
from sparsepipe.plan import Plan, Stage
from sparsepipe.runtime.config import RunConfig
from sparsepipe.widgets import LaunchBoard
data = make_shapes("shapes", num_train=8, num_test=2, families=["box", "cone", "gear"])
ids = [layer.id for layer in network("minkvgg11bn-narrow", num_classes=3).graph().layers]
plan = Plan((Stage(tuple(ids[:8]), (0,)), Stage(tuple(ids[8:]), (1,))))
config = RunConfig("minkvgg11bn-narrow", str(data), voxel_size=0.03, batch_size=4, engine="native", epochs={epochs})
board = LaunchBoard({{"pipeline": plan}}, config, runs="{runs}")
board.widget
"""


def test_board_launches_and_shows_the_end(page, lab):
    lab.write("board.ipynb", BOARD.format(epochs=2, runs="runs-a"))
    run_notebook(page, lab, "board.ipynb")
    page.locator("button.jupyter-button:has-text('launch pipeline')").click()
    page.wait_for_selector("text=finished:", timeout=400_000)
    page.wait_for_selector(".js-plotly-plot .scatterlayer .js-line")
    assert not page.problems


BUSY = """() => window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.requestExecute(
  { code: "import time; time.sleep(600)" }).msg.header.msg_id"""


def cancelled(page, lab, runs):
    """Wait until a run is cancelled, as the page and its record say."""
    page.wait_for_selector("text=cancelled")
    status = lab.notebooks / runs / "minkvgg11bn-narrow-pipeline-001" / "status.json"
    until(lambda: json.loads(status.read_text())["state"] == "cancelled", status.read_text)


def test_board_launches_and_cancels_while_a_cell_runs(page, lab):
    lab.write("cancel.ipynb", BOARD.format(epochs=10_000, runs="runs-b"))
    run_notebook(page, lab, "cancel.ipynb")
    page.evaluate(BUSY)
    page.wait_for_function("() => window.jupyterapp.shell.currentWidget.sessionContext.kernelDisplayStatus === 'busy'")
    page.locator("button.jupyter-button:has-text('launch pipeline')").click()
    page.wait_for_selector("text=/minibatch \\d+/")
    page.locator("button.jupyter-button:has-text('cancel pipeline')").click()
    cancelled(page, lab, "runs-b")


def test_a_detached_job_is_found_again_after_the_kernel_restarted(page, lab):
    lab.write("again.ipynb", BOARD.format(epochs=10_000, runs="runs-c"))
    run_notebook(page, lab, "again.ipynb")
    page.get_by_label("jobs outlive the kernel").check()
    page.locator("button.jupyter-button", has_text="launch").click()
    page.wait_for_selector("text=/minibatch \\d+/")
    page.wait_for_selector("text=/rank 1, stage 1/")  # what each rank does
    lab_driver.restart_kernel(page)
    lab_driver.run_cells(page)
    page.wait_for_selector("text=/minibatch \\d+/")
    page.locator("button.jupyter-button", has_text="cancel").click()
    cancelled(page, lab, "runs-c")
    assert not page.problems


RUNS = """
from sparsepipe import Plan, Stage
from sparsepipe.record import Origin, RunRecord
from sparsepipe.widgets import RunsTable
from pathlib import Path
for k in range(3):
    if not Path(f"kept/run-{k}").exists():
        RunRecord.create(f"kept/run-{k}", Plan((Stage(("a",), (0,)),)), {"model": "net"}, Origin(created=str(k)))
RunsTable("kept").widget
"""


def test_a_run_is_deleted_after_a_question(page, lab):
    lab.write("runs.ipynb", RUNS)
    run_notebook(page, lab, "runs.ipynb")
    page.wait_for_selector("text=3 of 3 runs")
    page.get_by_label("mark run-1").check()
    page.locator("button.jupyter-button", has_text="delete").first.click()
    page.wait_for_selector("text=Delete run-1 with records")
    page.locator("button.jupyter-button", has_text="yes, delete").click()
    page.wait_for_selector("text=2 of 2 runs")
    kept = lab.notebooks / "kept"
    until(lambda: sorted(path.name for path in kept.iterdir()) == ["run-0", "run-2"], "two runs")
