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
from sparsepipe.study.unlike_devices import unlike_devices
from sparsepipe.views.widgets import PartitionExplorer
profile, cluster = unlike_devices("minkvgg11bn-narrow")
explorer = PartitionExplorer(profile, cluster)
explorer.controls.plan.planner.value = "data-parallel"
explorer.view.pin.click()
explorer.controls.plan.planner.value = "optimal"
explorer.widget
"""
BOARD = """
from sparsepipe import Cluster
from sparsepipe.data.shapes import make_shapes
from sparsepipe.planning import partition
from sparsepipe.profiling import profile_model
from sparsepipe.runtime.config import RunConfig
from sparsepipe.views.widgets import LaunchBoard
model, sizes = "minkvgg11bn-narrow", {"voxel_size": 0.05, "batch_size": 16}
data = str(make_shapes("shapes", num_train=24, num_test=4))
profile = profile_model(model, data, **sizes, engine="native", beside=1)  # as two workers will slow each other down
cluster = Cluster.uniform(2, device_type=profile.device_types[0])
plans = {"pipeline": partition(profile, cluster, planner="model-parallel"),
         "data parallel": partition(profile, cluster, planner="data-parallel")}
config = RunConfig(model, data, **sizes, engine="native", epochs=6, learning_rate=0.02)
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
    page.wait_for_timeout(1000)
    page.locator(".jp-OutputArea-output").first.screenshot(path=path)


def board(browser: Any, lab: Lab, path: Path) -> None:
    """The launch board after a run, in the dark theme."""
    lab.write("board.ipynb", BOARD)
    page = open_page(browser, width=1280, height=TALL)
    run_notebook(page, lab, "board.ipynb", seconds=200)
    page.locator("button.jupyter-button", has_text="launch").first.click()
    page.wait_for_selector("text=finished:", timeout=200_000)
    page.wait_for_selector("text=Breakdown of device time")
    set_theme(page, "JupyterLab Dark")
    page.wait_for_timeout(1500)
    page.locator(".jp-OutputArea-output").last.screenshot(path=path)


if __name__ == "__main__":
    sys.exit(main())
