"""Widgets in a real JupyterLab, driven by Chromium: sliders dragged, jobs launched and cancelled, loopback alone."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import nbformat
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

REPOSITORY = Path(__file__).parent.parent
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]
READY = """async () => {
  const panel = window.jupyterapp.shell.currentWidget;
  await panel.context.ready; await panel.sessionContext.ready;
  for (let i = 0; i < 400; i++) {
    const kernel = panel.sessionContext.session && panel.sessionContext.session.kernel;
    if (kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle') { await kernel.info; return; }
    await new Promise(done => setTimeout(done, 50));
  }
  throw new Error('the kernel did not become ready');
}"""


RUN = """() => Promise.race([
  window.jupyterapp.commands.execute('notebook:run-all-cells'),
  new Promise((_, fail) => setTimeout(() => fail(new Error('the cells did not end within 90 s')), 90000)),
])"""


class Lab:
    """A JupyterLab server on loopback, with settings, kernels and notebooks of its own."""

    def __init__(self, folder: Path) -> None:
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir()
        self.token = secrets.token_hex(8)
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        own = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR")
        own += ("JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR", "HOME")
        environment = os.environ | {name: str(folder / name.lower()) for name in own} | {"PYTHONPATH": str(REPOSITORY)}
        settings = folder / "jupyter_config_dir" / "labconfig" / "page_config.json"
        settings.parent.mkdir(parents=True)
        settings.write_text(json.dumps({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}))
        options = [f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={self.token}"]
        options += [f"--ServerApp.root_dir={self.notebooks}", "--LabApp.expose_app_in_browser=True", "--allow-root"]
        with (folder / "lab.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterlab", "--no-browser", *options, "--LabApp.extension_manager=readonly"],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait(folder / "lab.log")

    def _wait(self, log: Path) -> None:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{self.url}/api?token={self.token}")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
                assert self.process.poll() is None, log.read_text()
        raise AssertionError(log.read_text())

    def write(self, name: str, *cells: str) -> None:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
        }
        nbformat.write(notebook, self.notebooks / name)

    def close(self) -> None:
        for kernel in json.loads(urllib.request.urlopen(f"{self.url}/api/kernels?token={self.token}").read()):
            request = urllib.request.Request(
                f"{self.url}/api/kernels/{kernel['id']}?token={self.token}", method="DELETE"
            )
            urllib.request.urlopen(request)
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(20)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    server = Lab(tmp_path_factory.mktemp("lab"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    found = next(path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


def open_page(chromium):
    page = chromium.new_context(viewport={"width": 1440, "height": 2200}).new_page()
    page.set_default_timeout(60_000)
    page.requests, page.problems = [], []
    page.on("request", lambda request: page.requests.append(request.url))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    return page


@pytest.fixture
def page(chromium):
    page = open_page(chromium)
    yield page
    page.context.close()


def run_notebook(page, lab, name: str) -> None:
    page.goto(f"{lab.url}/lab/workspaces/auto-t/tree/{name}?token={lab.token}&reset")
    page.wait_for_selector("#jupyterlab-splash", state="detached")
    page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook")
    page.wait_for_function("() => !!window.jupyterapp")
    page.evaluate(READY)
    page.evaluate(RUN)


def drawn(page, number: int = 0) -> int:
    return int(page.evaluate(f"() => document.querySelectorAll('.js-plotly-plot')[{number}].dataset.drawn"))


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


@pytest.fixture(scope="module")
def explorer_page(chromium, lab):
    page = open_page(chromium)
    lab.write("explorer.ipynb", PROFILE, EXPLORER)
    run_notebook(page, lab, "explorer.ipynb")
    yield page
    page.context.close()


@pytest.fixture
def explorer(explorer_page):
    """A fresh explorer on the same page: its cells are run again."""
    explorer_page.evaluate(RUN)
    explorer_page.wait_for_function("() => document.querySelectorAll('.js-plotly-plot .main-svg').length >= 6")
    return explorer_page


def test_explorer_redraws_when_a_slider_moves_and_asks_nobody_else(explorer):
    assert explorer.locator("text=ms a minibatch").count()
    before = drawn(explorer)
    rows = "() => document.querySelectorAll('.js-plotly-plot')[0].querySelectorAll('.yaxislayer-above .ytick').length"
    assert explorer.evaluate(rows) == 4
    handle = explorer.locator(".widget-slider .noUi-handle").first
    handle.focus()
    explorer.keyboard.press("ArrowRight")
    explorer.wait_for_function(f"() => ({rows})() === 5")
    assert drawn(explorer) > before
    assert not explorer.problems
    outside = [url for url in explorer.requests if not url.startswith(("http://127.0.0.1", "data:", "blob:"))]
    assert not outside
    assert explorer.get_by_text("Share chart").count() == 0


def test_explorer_keeps_up_with_a_dragged_slider(explorer):
    handle = explorer.locator(".widget-slider .noUi-handle").first
    box = handle.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    explorer.mouse.move(x, y)
    explorer.mouse.down()
    for step in range(30):
        explorer.mouse.move(x + 4 * step, y)
        explorer.wait_for_timeout(15)
    explorer.mouse.up()
    value = int(explorer.locator(".widget-slider .widget-readout").first.inner_text())
    rows = "() => document.querySelectorAll('.js-plotly-plot')[0].querySelectorAll('.yaxislayer-above .ytick').length"
    assert value > 4
    explorer.wait_for_function(f"() => ({rows})() === {value}", timeout=5000)


def test_explorer_says_what_cannot_be(explorer):
    explorer.locator(".widget-dropdown select").first.select_option("cuts by hand")
    explorer.wait_for_selector("text=cut 0 | 1")
    cut = explorer.locator(".widget-slider", has_text="cut 0 | 1").locator(".noUi-handle")
    cut.focus()
    for _ in range(16):
        explorer.keyboard.press("ArrowRight")
    explorer.wait_for_selector("text=each must lie behind the one before")


def test_explorer_pins_a_plan_to_compare(explorer):
    explorer.get_by_role("button", name="pin as A").click()
    explorer.locator(".widget-dropdown select").first.select_option("data-parallel")
    explorer.wait_for_function(
        "() => document.querySelectorAll('.js-plotly-plot')[2].textContent.includes('A: optimal')"
    )


def test_a_layer_is_clicked(page, lab):
    cells = "from sparsepipe.widgets import LayerGraphExplorer\nLayerGraphExplorer(profile).widget"
    lab.write("graph.ipynb", PROFILE, cells)
    run_notebook(page, lab, "graph.ipynb")
    page.wait_for_selector(".js-plotly-plot .textpoint")
    page.locator(".js-plotly-plot .textpoint", has_text="conv7").first.click(force=True)
    page.wait_for_selector("text=from conv6, to conv8")


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
    page.locator("button.jupyter-button[title=launch]").click()
    page.wait_for_selector("text=finished:", timeout=90_000)
    page.wait_for_selector(".js-plotly-plot .scatterlayer .js-line")
    assert not page.problems


def test_board_cancels(page, lab):
    lab.write("cancel.ipynb", BOARD.format(epochs=200, runs="runs-b"))
    run_notebook(page, lab, "cancel.ipynb")
    page.locator("button.jupyter-button[title=launch]").click()
    page.wait_for_selector("text=/minibatch \\d+/", timeout=90_000)
    page.locator("button.jupyter-button[title=cancel]").click()
    page.wait_for_selector("text=cancelled", timeout=20_000)
    record = lab.notebooks / "runs-b" / "minkvgg11bn-narrow-pipeline-001"
    assert json.loads((record / "status.json").read_text())["state"] == "cancelled"
