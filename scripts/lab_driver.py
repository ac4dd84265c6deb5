"""JupyterLab on loopback, driven by Chromium: what browser tests, the widgets' benchmark and screenshots share."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat

from scripts.free_port import free_port

REPOSITORY = Path(__file__).resolve().parent.parent
PATIENCE = 200  # seconds for whatever takes some at most on an idle machine: a busy one says nothing about a page
SETTINGS = REPOSITORY / "scripts" / "jupyterlab"  # what lab.sh has JupyterLab read
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
]
# Documents with changes are closed without a question: nothing is kept of them.
OPEN = """async (path) => {
  const app = window.jupyterapp;
  for (const widget of [...app.shell.widgets('main')]) {
    if (widget.context) { widget.context.model.dirty = false; }
    widget.close();
  }
  const panel = await app.commands.execute('docmanager:open', { path, factory: 'Notebook' });
  await panel.revealed;
}"""
# The indicator says "idle" before the kernel can be asked: a run then does nothing, silently.
READY = """async (seconds) => {
  const panel = window.jupyterapp.shell.currentWidget;
  await panel.context.ready; await panel.sessionContext.ready;
  let kernel;
  for (let i = 0; i < 20 * seconds; i++) {
    kernel = panel.sessionContext.session && panel.sessionContext.session.kernel;
    if (kernel && kernel.connectionStatus === 'connected' && kernel.status === 'idle') { await kernel.info; return; }
    await new Promise(done => setTimeout(done, 50));
  }
  const state = kernel ? `${kernel.connectionStatus}, ${kernel.status}` : 'there is none';
  throw new Error(`the kernel did not become ready: ${state}`);
}"""
RUN = """(seconds) => Promise.race([
  window.jupyterapp.commands.execute('notebook:run-all-cells'),
  new Promise((_, fail) => setTimeout(() => fail(new Error(`the cells did not end within ${seconds} s`)),
                                      1000 * seconds)),
])"""
# Widgets come one after the other, and push aside what is there: a place that was asked for too early is another's.
SETTLED = """async ([selector, seconds]) => {
  const places = () => JSON.stringify([...document.querySelectorAll(selector)].map((one) => {
    const box = one.getBoundingClientRect();
    return [box.x, box.y, box.width, box.height];
  }));
  let before = places();
  for (let i = 0, same = 0; i < 20 * seconds; i++) {
    await new Promise(done => setTimeout(done, 50));
    const now = places();
    same = now === before ? same + 1 : 0;
    before = now;
    if (same === 4) { return; }
  }
  throw new Error(`${selector}: they move on and on`);
}"""
BOTTOM = """() => {
  const cells = [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell')];
  return Math.ceil(Math.max(...cells.map(cell => cell.getBoundingClientRect().bottom)));
}"""


class Lab:
    """A JupyterLab server on loopback, with settings, kernels and notebooks of its own below `folder`.

    It reads what scripts/lab.sh has it read, unless it is to be a `plain` one. `classic`: Jupyter Notebook 7 instead.
    """

    def __init__(self, folder: Path, *, plain: bool = False, classic: bool = False) -> None:
        self.is_classic = classic
        self.notebooks = folder / "notebooks"
        self.notebooks.mkdir(parents=True, exist_ok=True)
        self.token = secrets.token_hex(8)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        own = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR")
        own += ("JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR", "HOME")
        environment = os.environ | {name: str(folder / name.lower()) for name in own} | {"PYTHONPATH": str(REPOSITORY)}
        environment["JUPYTER_PREFER_ENV_PATH"] = "1"
        environment["JUPYTER_CONFIG_PATH"] = "" if plain else str(SETTINGS)
        environment.setdefault("XDG_CACHE_HOME", str(Path.home() / ".cache"))  # code compiled before need not be again
        settings = folder / "jupyter_config_dir" / "labconfig" / "page_config.json"
        settings.parent.mkdir(parents=True, exist_ok=True)
        settings.write_text(json.dumps({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}))
        options = [f"--ServerApp.port={port}", "--ServerApp.ip=127.0.0.1", f"--IdentityProvider.token={self.token}"]
        options += [f"--ServerApp.root_dir={self.notebooks}", "--allow-root"]
        application = "JupyterNotebookApp" if classic else "LabApp"
        options += [f"--{application}.expose_app_in_browser=True"]
        options += [] if classic else ["--LabApp.extension_manager=readonly"]
        options += ["--ServerApp.jpserver_extensions=sparsepipe.lab_server=False"] if plain else []
        with (folder / "lab.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "notebook" if classic else "jupyterlab", "--no-browser", *options],
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait(folder / "lab.log")

    def _wait(self, log: Path) -> None:
        for _ in range(2000):
            try:
                self._ask("api")
                return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
                if self.process.poll() is not None:
                    break
        raise RuntimeError(log.read_text())

    def _ask(self, path: str, method: str = "GET") -> bytes:
        request = urllib.request.Request(f"{self.url}/{path}?token={self.token}", method=method)
        return urllib.request.urlopen(request).read()

    def write(self, name: str, *cells: str) -> None:
        """Write a notebook of code cells."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
        notebook.metadata["kernelspec"] = kernel
        nbformat.write(notebook, self.notebooks / name)

    def end_kernels(self, *, but: str = "") -> None:
        """End every kernel, that of the notebook `but` left out: those left alive keep memory and cores."""
        for session in json.loads(self._ask("api/sessions")):
            if session["path"] != but:
                try:
                    self._ask(f"api/sessions/{session['id']}", "DELETE")
                except urllib.error.HTTPError as error:
                    if error.code not in (404, 410):  # it, or its kernel, ended meanwhile
                        raise

    def close(self) -> None:
        self.end_kernels()
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a browser without a window. Raises RuntimeError where there is none."""
    from playwright.sync_api import sync_playwright

    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        raise RuntimeError("no Chromium on PATH; install it (Debian: apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS, timeout=1000 * PATIENCE)
        yield browser
        browser.close()


def open_page(browser: Any, *, width: int = 1440, height: int = 2200) -> Any:
    """Open a page that keeps the addresses it asked (`requests`) and the errors of its scripts (`problems`)."""
    page = browser.new_context(viewport={"width": width, "height": height}).new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.requests, page.problems = [], []
    page.on("request", lambda request: page.requests.append(request.url))
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    return page


def open_notebook(page: Any, lab: Lab, name: str) -> None:
    """Open a notebook alone, and wait until its kernel can be asked: in a fresh workspace, or where the page shows one
    already in that, whose other documents are closed (a JupyterLab takes some seconds to load)."""
    if lab.is_classic:
        page.goto(f"{lab.url}/notebooks/{name}?token={lab.token}")
        page.wait_for_function("() => !!window.jupyterapp?.shell.currentWidget?.context")
    elif page.url.startswith(lab.url):
        page.evaluate(OPEN, name)
    else:
        page.goto(f"{lab.url}/lab/workspaces/auto-t/tree/{name}?token={lab.token}&reset")
        page.wait_for_selector("#jupyterlab-splash", state="detached")
        page.wait_for_selector(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook")
        page.wait_for_function("() => !!window.jupyterapp")
    page.evaluate(READY, PATIENCE)


def run_cells(page: Any, *, seconds: int = PATIENCE) -> None:
    """Run all cells of the notebook that the page shows."""
    page.evaluate(RUN, seconds)


def run_notebook(page: Any, lab: Lab, name: str, *, seconds: int = PATIENCE) -> None:
    """Open a notebook and run all its cells."""
    open_notebook(page, lab, name)
    run_cells(page, seconds=seconds)


def restart_kernel(page: Any) -> None:
    """Restart the kernel of the page's notebook, and wait until the new one can be asked."""
    page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.restartKernel()")
    page.evaluate(READY, PATIENCE)


def settle(page: Any, selector: str) -> None:
    """Wait until what the selector finds stays where it is."""
    page.evaluate(SETTLED, [selector, PATIENCE])


def set_theme(page: Any, theme: str) -> None:
    """Show the page in "JupyterLab Light" or "JupyterLab Dark"."""
    page.evaluate("theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })", theme)
    page.wait_for_function("theme => document.body.dataset.jpThemeName === theme", arg=theme)
    page.wait_for_selector("#main")  # JupyterLab hides all of itself for a moment
    page.wait_for_timeout(800)  # until figures are drawn in the theme's ink


def errors(page: Any) -> list[str]:
    """What the cells of the page's notebook raised, a line each; whether they are drawn or not."""
    return page.evaluate(
        """() => [...window.jupyterapp.shell.currentWidget.content.model.cells]
        .flatMap((cell) => (cell.outputs ? cell.outputs.toJSON() : []))
        .filter((output) => output.output_type === "error")
        .map((output) => `${output.ename}: ${output.evalue}`)"""
    )


def show_all(page: Any, *, tallest: int = 12000) -> int:
    """Make the page so tall that every output of its notebook is drawn; returns where the last cell ends, in pixels."""
    width = page.viewport_size["width"]
    page.set_viewport_size({"width": width, "height": tallest})
    page.evaluate(
        "() => { const n = window.jupyterapp.shell.currentWidget.content; n.scrollToItem && n.scrollToItem(0); }"
    )
    page.wait_for_timeout(1500)
    return min(int(page.evaluate(BOTTOM)) + 24, tallest)
