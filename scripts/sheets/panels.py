"""The live panels: a notebook whose cells show one widget each, beside the runs and figures of a batch."""

from pathlib import Path
from typing import Any

from scripts.lab_driver import Lab, errors, open_page, run_notebook, set_theme, show_all

from .words import crowded

_BEGIN = """
from IPython.display import display
import sparsepipe as sp
from sparsepipe import Link, Profile, RunConfig, partition, plots
from sparsepipe.data.manifests import manifests_folder
from sparsepipe.study.overview import Overview
from sparsepipe.study.unlike_devices import unlike_devices
from sparsepipe.views.widgets import LaunchBoard, LayerGraphExplorer, PartitionExplorer, RunsTable, WaitingExplorer
model, root = "minkvgg11bn-narrow", {root!r}
profile, cluster = unlike_devices(model)
plan, alike = partition(profile, cluster), partition(profile, cluster, planner="data-parallel")
unet = Profile.load(manifests_folder().parent / "profiles" / "minkunet14a.json")
config = RunConfig(model, "shapes", voxel_size=0.03, batch_size=16)
known = {{"profile": profile, "cluster": cluster}}
board = LaunchBoard({{"pipeline": plan, "data parallel": alike}}, config, runs=root + "/runs", **known)
here = Overview.open(root, figures={figures!r})
"""
_COMPARED = """
compared = PartitionExplorer(unet, cluster)
compared.view.pin.click()
compared.controls.plan.planner.value = "model-parallel"
compared.controls.stages.pin_devices.value = compared.controls.stages.pin_cuts.value = True
compared.widget
"""
_REFUSED = """
refused = PartitionExplorer(profile, cluster)
refused.controls.devices.memory.value = 1e7
refused.widget
"""
_PIPELINES = """
several = PartitionExplorer(profile, cluster, board=board)
several.controls.pipelines.slider.value = 2
several.controls.pipelines.straggler.kind.value = "one slow pipeline"
several.current()
several
"""
_RUNS = """
table = RunsTable(root + "/runs")
table.listing.marks.value = table.listing.marks.options[:3]
table.compare.click()
table.widget
"""
CELLS = {
    "loop": "display(here.loop, here.notebooks, here.data, here.profiles)",
    "start": "display(here.runs, here.thumbnails)",
    "values": "display(profile, cluster, plan, sp.simulate(plan, profile, cluster, profile.typical_sizes[:8]))",
    "explorer": "PartitionExplorer(profile, cluster, board=board).widget",
    "explorer-compared": _COMPARED,
    "explorer-refused": _REFUSED,
    "explorer-pipelines": _PIPELINES,
    "board": "board.widget",
    "runs": _RUNS,
    "layer-graph": "LayerGraphExplorer(unet, partition(unet, cluster)).widget",
    "waiting": "WaitingExplorer(profile, Link(1e9, 1e-5)).widget",
    "figures": "display(plots.stages(plan, alike), plots.compare(plan, alike))",
}
OUTPUT = ".sp-sheet-{name}"
_MARK = """(names) => {
  const outputs = [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell')].slice(1);
  names.forEach((name, k) => outputs[k].querySelector('.jp-Cell-outputWrapper').classList.add(`sp-sheet-${name}`));
}"""


def panels(browser: Any, lab: Lab, figures: Path, out: Path, widths: list[int], themes: list[str]) -> list[tuple]:
    """Take a picture of each panel; returns (its name, width, theme, path, lines on words) of each."""
    root = figures.resolve().parent
    begin = _BEGIN.format(root=str(root), figures=str(figures.resolve()))
    lab.write("panels.ipynb", begin, *CELLS.values())
    page = open_page(browser, width=widths[0], height=1600)
    run_notebook(page, lab, "panels.ipynb")
    found: list[tuple] = [("panels", 0, "", None, errors(page))]
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    for width in widths:
        page.set_viewport_size({"width": width, "height": 1600})
        show_all(page, tallest=16000)
        page.wait_for_timeout(1500)
        page.evaluate(_MARK, list(CELLS))
        for theme in themes:
            set_theme(page, f"JupyterLab {theme.capitalize()}")
            page.wait_for_timeout(1500)
            for name in CELLS:
                selector = OUTPUT.format(name=name)
                path = out / f"panel-{name}-{width}-{theme}.png"
                page.locator(selector).first.screenshot(path=path)
                found.append((name, width, theme, path, crowded(page, selector)))
    found[0][4].extend(page.problems)
    page.context.close()
    return found
