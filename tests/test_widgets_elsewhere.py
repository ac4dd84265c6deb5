"""The explorer outside JupyterLab: in Jupyter Notebook 7 and in marimo, driven by Chromium."""

import os
import signal
import subprocess
import sys
import time

import pytest

from scripts.free_port import free_port
from scripts.lab_driver import Lab, errors, open_notebook, open_page, run_cells

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def blank(chromium):
    """A page that shows nothing yet."""
    page = open_page(chromium)
    page.set_default_timeout(60_000)  # a server that was found starts within it
    yield page
    page.context.close()


def explore(page):
    """Add a device on the map and choose a candidate: the kernel answers both. Playwright looks into shadow roots."""
    ranks, bars = page.locator(".sp-rank"), page.locator(".sp-stages .sp-bar")
    ranks.nth(3).wait_for()
    assert ranks.count() == 4
    page.get_by_label("One more RTX on alpha").click()
    ranks.nth(4).wait_for()
    page.locator("[data-key='data-parallel'] .sp-row").click()
    bars.nth(1).wait_for(state="detached")
    assert (ranks.count(), bars.count()) == (5, 1)


def test_the_explorer_answers_in_notebook_7(blank, tmp_path):
    pytest.importorskip("notebook")
    lab = Lab(tmp_path, classic=True)
    try:
        lab.write("explorer.ipynb", "import sparsepipe as sp\nsp.widgets.PartitionExplorer()")
        open_notebook(blank, lab, "explorer.ipynb")
        before = list(blank.problems)  # some of Notebook's own
        run_cells(blank)
        explore(blank)
        assert not errors(blank) and blank.problems == before
        assert blank.locator(".noUi-handle").count() > 0, "sliders are shown, too"
        assert [url for url in blank.requests if not url.startswith(("http://127.0.0.1", "data:", "blob:"))] == []
    finally:
        lab.close()


NOTEBOOK = """
import marimo

app = marimo.App()


@app.cell
def _():
    import sparsepipe as sp

    explorer = sp.widgets.PartitionExplorer()
    explorer
    return explorer, sp


@app.cell
def _(explorer, sp):
    import marimo as mo

    mo.vstack([mo.Html(sp.views.html(explorer.plan)), sp.plots.timeline(explorer.shown.trace)])
    return
"""


def test_the_explorer_answers_in_marimo(blank, tmp_path):
    """marimo has no ipywidgets: it shows the explorer's picture, which is an anywidget, without the sliders."""
    pytest.importorskip("marimo")
    (tmp_path / "explorer.py").write_text(NOTEBOOK)
    port = free_port()
    command = [sys.executable, "-m", "marimo", "run", "explorer.py", "--headless", "--no-token"]
    server = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)], cwd=tmp_path, start_new_session=True
    )
    try:
        for _ in range(600):
            try:
                blank.goto(f"http://127.0.0.1:{port}")
                break
            except Exception:  # it does not listen yet
                assert server.poll() is None
                time.sleep(0.1)
        explore(blank)
        blank.get_by_text("optimal: 3 stages on 4 devices").wait_for()
        blank.locator(".js-plotly-plot").wait_for()
        assert not blank.problems
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)
