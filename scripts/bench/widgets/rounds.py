"""Each slider in turn: key by key, and a drag, in a page that writes down when its pictures were on screen."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from scripts.lab_driver import Lab, open_page, run_notebook

from ..rounds import load
from .cases import Case
from .parts import FORGET, KERNEL, PAGE, TOLD, WATCH, averages, kernel_rows, parts_of

_BETWEEN = 1500  # milliseconds that a hand takes from one slider to the next
SERIAL = "() => Number(document.querySelector('.sp-view').dataset.serial)"
Move = Mapping[str, Any]


def measure(browser: Any, lab: Lab, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    lab.write("bench.ipynb", KERNEL, case.cell)
    page = open_page(browser, width=1440, height=1600)
    page.add_init_script(PAGE)
    run_notebook(page, lab, "bench.ipynb")
    page.wait_for_selector(".sp-view[data-serial]")
    page.get_by_role("button", name="Advanced").click()
    page.wait_for_timeout(1000)
    page.evaluate(WATCH)
    busy = load()
    sliders = {
        "devices": case.devices_label,
        "bandwidth": "between nodes",
        "memory": "memory",
        "batch size": "batch size",
    }
    found = {name: pressed(page, label, options) for name, label in sliders.items()}
    page.get_by_role("button", name="pin cuts").click()
    page.wait_for_selector(".sp-cut")
    found["cut by hand"] = cut_moved(page, options)
    page.get_by_role("button", name="pin cuts").click()
    page.wait_for_timeout(500)
    planner = page.locator(".widget-dropdown select", has_text="model-parallel")
    planner.select_option("model-parallel")  # which knows stages per device
    page.wait_for_timeout(500)
    found["stages"] = pressed(page, "stages per device", options)
    planner.select_option("optimal")
    page.wait_for_timeout(500)
    drag = dragged(page, "between nodes")
    every = [move for moves in found.values() for move in moves]
    rows = kernel_rows(lab.notebooks)
    page.context.close()
    return {
        "case": case.about,
        "load": busy,
        "moves": len(every),
        "median_ms": quantile([move["took"] for move in every], 0.5),
        "p95_ms": quantile([move["took"] for move in every], 0.95),
        "first_median_ms": quantile([move["first"] for move in every], 0.5),
        "first_p95_ms": quantile([move["first"] for move in every], 0.95),
        "sliders": {name: summed(moves) for name, moves in found.items()} | {"drag": drag},
        "mean_ms": averages([parts_of(move, rows[move["serial"]]) for move in every if move["serial"] in rows]),
        "mean_messages": {
            name: round(sum(move[name] for move in every) / max(1, len(every)), 1)
            for name in ("messages", "bytes", "sent_messages", "sent_bytes")
        },
    }


def pressed(page: Any, label: str, options: argparse.Namespace) -> list[Move]:
    """What each key press on a slider took until its picture; presses that change nothing are left out."""
    row = page.locator(".widget-inline-hbox", has=page.get_by_text(label, exact=True)).first
    row.locator(".noUi-handle").first.focus()
    page.wait_for_timeout(_BETWEEN)
    found = []
    for k in range(options.moves):
        found += one(page, "ArrowLeft" if (k // 3) % 2 == 0 else "ArrowRight", options.rest)
    return found


def cut_moved(page: Any, options: argparse.Namespace) -> list[Move]:
    page.locator(".sp-cut").first.focus()
    found = []
    for k in range(options.moves):
        found += one(page, "ArrowRight" if (k // 3) % 2 == 0 else "ArrowLeft", options.rest)
    return found


def one(page: Any, key: str, rest: float) -> list[Move]:
    page.wait_for_timeout(1000 * rest)
    before = page.evaluate(SERIAL)
    page.evaluate(FORGET)
    page.keyboard.press(key)
    try:
        page.wait_for_function(f"() => spTimes.drawn.some(([, serial]) => serial > {before})", timeout=3000)
    except Exception:  # playwright's own TimeoutError: at a slider's end
        return []
    return [page.evaluate(TOLD, before)]


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


def summed(moves: Sequence[Move]) -> dict[str, Any]:
    times = [move["took"] for move in moves]
    first = [move["first"] for move in moves]
    return {
        "moves": len(times),
        "median_ms": quantile(times, 0.5),
        "p95_ms": quantile(times, 0.95),
        "first_p95_ms": quantile(first, 0.95),
    }


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the value that so large a share is not above; None without values."""
    ordered = sorted(values)
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1) if ordered else None
