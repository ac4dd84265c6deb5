"""The README's pictures: the partition explorer and the launch board as a browser draws them, and a figure.

python scripts/screenshots.py [--out figures]
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.bench.scratch import scratch  # noqa: E402
from scripts.lab_driver import Lab, chromium, open_page, run_notebook, set_theme  # noqa: E402
from sparsepipe.study import reproduce  # noqa: E402

TALL = 2600  # pixels: all of an explorer or a board, above the status bar
EXPLORER = """
from sparsepipe.views.widgets import PartitionExplorer
explorer = PartitionExplorer()  # two RTX and two TITAN V, as published
explorer.controls.plan.planner.value = "data-parallel"
explorer.view.pin.click()
explorer.controls.plan.planner.value = "optimal"
explorer.widget
"""
# Emulated: processes sleep as long as published GPU profiles say, so that another load changes little of what is shown.
BOARD = """
from dataclasses import replace
from sparsepipe.planning import partition
from sparsepipe.runtime.config import RunConfig
from sparsepipe.study.unlike_devices import unlike_devices
from sparsepipe.views.widgets import LaunchBoard
profile, mix = unlike_devices("minkvgg16bn", cluster="sparsepipe-mix")
nodes = tuple(replace(node, device_types=node.device_types[-1:]) for node in mix.nodes)
cluster = replace(mix, nodes=nodes)  # an RTX and a TITAN Xp
plans = {"pipeline": partition(profile, cluster), "data parallel": partition(profile, cluster, planner="data-parallel")}
config = RunConfig("replay", "replay", engine="replay", batch_size=profile.batch_size, minibatches=120)
board = LaunchBoard(plans, config, runs="runs", profile=profile, cluster=cluster)
board.widget
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("figures"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    with scratch("screenshots") as folder:
        lab = Lab(folder)
        try:
            with chromium() as browser:
                explorer(browser, lab, folder / "explorer.png")
                board(browser, lab, folder / "board.png")
        finally:
            lab.close()
        reproduce(["mixed_devices"], out=folder / "figures")
        few_colours(folder / "figures" / "mixed_devices.png", out / "readme_mixed_devices.png")
        for name in ("explorer", "board"):
            few_colours(folder / f"{name}.png", out / f"readme_{name}.png")
    return 0


def few_colours(source: Path, target: Path) -> None:
    """A chart has few colours: as a palette of them it is a quarter as large."""
    with Image.open(source) as picture:
        picture.convert("RGB").quantize(128).save(target, optimize=True)


def explorer(browser: Any, lab: Lab, path: Path) -> None:
    """The explorer on heterogeneous devices: the optimal plan, compared with data parallelism as A."""
    lab.write("explorer.ipynb", EXPLORER)
    page = open_page(browser, width=1280, height=TALL)
    run_notebook(page, lab, "explorer.ipynb")
    page.evaluate("() => window.jupyterapp.commands.execute('application:toggle-left-area')")
    page.locator(".sp-pareto-button").click()
    page.wait_for_selector(".sp-point")
    page.locator(".sp-seek").press("ArrowUp")  # the path of a minibatch
    page.evaluate("() => document.activeElement.blur()")
    page.mouse.move(0, 0)  # nothing is under the pointer
    page.wait_for_timeout(1000)
    page.locator(".jp-OutputArea-output").first.screenshot(path=path)


def board(browser: Any, lab: Lab, path: Path) -> None:
    """The launch board after an emulated run, in the dark theme."""
    lab.write("board.ipynb", BOARD)
    page = open_page(browser, width=1280, height=TALL)
    run_notebook(page, lab, "board.ipynb", seconds=200)
    page.get_by_role("button", name="launch pipeline").click()
    page.wait_for_selector("text=finished:", timeout=200_000)
    page.wait_for_selector("text=Breakdown of device time")
    set_theme(page, "JupyterLab Dark")
    page.wait_for_timeout(1500)
    page.locator(".jp-OutputArea-output").last.screenshot(path=path)


if __name__ == "__main__":
    sys.exit(main())
