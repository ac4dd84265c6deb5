"""How long the partition explorer takes from a slider's move to the redrawn picture, in a real browser and JupyterLab.

    python scripts/bench_widgets.py [--json] [--layers N] [--devices N] [--moves N]

Key presses are timed one by one, each until its own picture is on screen (the frame after it was drawn). A drag is 60
moves of the mouse, one a frame: how many pictures came, and how long after the last move the last one stood there.
The load average is told beside: what else runs on the machine is measured too.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from lab_driver import Lab, chromium, open_page, run_notebook

CELLS = """
from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile
from sparsepipe.widgets import PartitionExplorer
layers = tuple(Layer(f"conv{{k}}", "", 2e6 + 1e5 * k) for k in range({layers}))
def costs(speed):
    few = [CostSample(1000, (.004 + .001 * (k % 5)) * speed, (.009 + .002 * (k % 3)) * speed, 4e6 / (1 + k), 1e5, 4e6)
           for k in range({layers})]
    more = [CostSample(8000, 8 * s.forward, 8 * s.backward, 8 * s.output_bytes, 8e5, 3e7) for s in few]
    return tuple(LayerCost(pair) for pair in zip(few, more))
origin = {{"batch_size": 16, "voxel_size": 0.03}}
graph = LayerGraph.chain(layers, skips=[(k, k + 3) for k in range(0, {layers} - 4, 4)])
profile = Profile(graph, {{"fast": costs(1), "slow": costs(1.6)}}, (3000.0, 4000.0), origin)
half = {devices} // 2
nodes = (Node("a", (DeviceType("fast", 2e10),) * half, Link(1e10, 1e-5)),
         Node("b", (DeviceType("slow", 2e10),) * ({devices} - half), Link(1e10, 1e-5)))
explorer = PartitionExplorer(profile, Cluster(nodes, Link(1e9, 5e-5)))
explorer.widget
"""
WATCH = """() => {
  const view = document.querySelector('.sp-view');
  window.spTimes = { keys: [], drawn: [], moves: [] };
  document.addEventListener('keydown', () => window.spTimes.keys.push(performance.now()), true);
  document.addEventListener('pointermove', () => window.spTimes.moves.push(performance.now()), true);
  new MutationObserver(() => {
    const serial = Number(view.dataset.serial);
    requestAnimationFrame(() => setTimeout(() => window.spTimes.drawn.push([performance.now(), serial]), 0));
  }).observe(view, { attributes: true, attributeFilter: ['data-drawn'] });
}"""
SERIAL = "() => Number(document.querySelector('.sp-view').dataset.serial)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--moves", type=int, default=24, help="key presses on each slider")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder))
        try:
            with chromium() as browser:
                found = measure(browser, lab, options)
        finally:
            lab.close()
    print(json.dumps(found, indent=1) if options.json else table(found))
    return 0


def measure(browser: Any, lab: Lab, options: argparse.Namespace) -> dict[str, Any]:
    lab.write("bench.ipynb", CELLS.format(layers=options.layers, devices=options.devices))
    page = open_page(browser, width=1440, height=1600)
    run_notebook(page, lab, "bench.ipynb")
    page.wait_for_selector(".sp-view[data-serial]")
    page.evaluate(WATCH)
    load = os.getloadavg()[0]
    sliders = {"devices": "fast", "bandwidth": "between nodes", "memory": "memory", "batch size": "batch size"}
    found = {name: summed(pressed(page, label, options.moves)) for name, label in sliders.items()}
    page.get_by_role("button", name="pin cuts").click()
    page.wait_for_selector(".sp-cut")
    found["cut by hand"] = summed(cut_moved(page, options.moves))
    page.get_by_role("button", name="pin cuts").click()
    page.wait_for_timeout(500)
    planner = page.locator(".widget-dropdown select", has_text="model-parallel")
    planner.select_option("model-parallel")  # which knows stages per device
    page.wait_for_timeout(500)
    found["stages"] = summed(pressed(page, "stages per device", options.moves))
    planner.select_option("optimal")
    page.wait_for_timeout(500)
    found["drag"] = dragged(page, "between nodes")
    every = [value for part in found.values() for value in part.pop("all_ms", [])]
    return {"load": load, "moves": len(every), "p95_ms": quantile(every, 0.95), "sliders": found}


def pressed(page: Any, label: str, moves: int) -> list[float]:
    """Milliseconds from each key press on a slider to its picture; presses that change nothing are left out."""
    row = page.locator(".widget-inline-hbox", has=page.get_by_text(label, exact=True)).first
    row.locator(".noUi-handle").first.focus()
    times = []
    for k in range(moves):
        times += one(page, "ArrowLeft" if (k // 3) % 2 == 0 else "ArrowRight")
    return times


def cut_moved(page: Any, moves: int) -> list[float]:
    page.locator(".sp-cut").first.focus()
    times = []
    for k in range(moves):
        times += one(page, "ArrowRight" if (k // 3) % 2 == 0 else "ArrowLeft")
    return times


def one(page: Any, key: str) -> list[float]:
    before = page.evaluate(SERIAL)
    page.evaluate("() => { spTimes.keys.length = 0; spTimes.drawn.length = 0; }")
    page.keyboard.press(key)
    try:
        page.wait_for_function(f"() => spTimes.drawn.some(([, serial]) => serial > {before})", timeout=3000)
    except Exception:  # playwright's own TimeoutError: at a slider's end
        return []
    return [page.evaluate(f"() => spTimes.drawn.find(([, serial]) => serial > {before})[0] - spTimes.keys[0]")]


def dragged(page: Any, label: str) -> dict[str, Any]:
    row = page.locator(".widget-inline-hbox", has=page.get_by_text(label, exact=True)).first
    box = row.locator(".noUi-handle").first.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.evaluate("() => { spTimes.moves.length = 0; spTimes.drawn.length = 0; }")
    for step in range(60):
        page.mouse.move(x - step, y)
        page.wait_for_timeout(16)
    last = page.evaluate("() => spTimes.moves.at(-1)")
    page.mouse.up()
    page.wait_for_timeout(1500)
    drawn = page.evaluate("() => spTimes.drawn")
    shown = row.locator(".widget-readout").inner_text()
    return {"moves": 60, "pictures": len(drawn), "last_ms": round(drawn[-1][0] - last, 1), "readout": shown}


def summed(times: list[float]) -> dict[str, Any]:
    return {"moves": len(times), "median_ms": quantile(times, 0.5), "p95_ms": quantile(times, 0.95), "all_ms": times}


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) if ordered else float("nan")


def table(found: dict[str, Any]) -> str:
    lines = [f"load {found['load']:.1f}; {found['moves']} moves, p95 {found['p95_ms']} ms (aim: 150)"]
    for name, part in found["sliders"].items():
        lines.append(f"{name:14s} " + "  ".join(f"{key} {value}" for key, value in part.items()))
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
