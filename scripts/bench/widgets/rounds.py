"""Each slider in turn: key by key, and a drag, in a page that writes down when its pictures were on screen."""

import argparse
from typing import Any

from scripts.lab_driver import Lab, open_page, run_notebook

from ..rounds import load
from .cases import CELLS

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


def measure(browser: Any, lab: Lab, options: argparse.Namespace) -> dict[str, Any]:
    lab.write("bench.ipynb", CELLS.format(layers=options.layers, devices=options.devices))
    page = open_page(browser, width=1440, height=1600)
    run_notebook(page, lab, "bench.ipynb")
    page.wait_for_selector(".sp-view[data-serial]")
    page.evaluate(WATCH)
    busy = load()
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
    return {"load": busy, "moves": len(every), "p95_ms": quantile(every, 0.95), "sliders": found}


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
    page.wait_for_function("() => spTimes.drawn.length > 0", timeout=60_000)  # a large network takes its time
    page.wait_for_timeout(1500)
    drawn = page.evaluate("() => spTimes.drawn")
    shown = row.locator(".widget-readout").inner_text()
    return {"moves": 60, "pictures": len(drawn), "last_ms": round(drawn[-1][0] - last, 1), "readout": shown}


def summed(times: list[float]) -> dict[str, Any]:
    return {"moves": len(times), "median_ms": quantile(times, 0.5), "p95_ms": quantile(times, 0.95), "all_ms": times}


def quantile(values: list[float], share: float) -> float | None:
    """Return the value that so large a share is not above; None without values."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) if ordered else None
