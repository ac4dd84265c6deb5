"""The command: pages, figures and panels, each taken at every width and in every theme, and put on sheets."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scripts.bench.scratch import scratch
from scripts.lab_driver import REPOSITORY, Lab, chromium

from . import __doc__ as about
from .panels import panels
from .paper import columns, rows
from .words import crowded

KINDS, THEMES, WIDTHS = ("pages", "figures", "panels"), ("light", "dark"), (1280, 1920)
_MOST = 15000  # pixels: what a browser draws at once


def main() -> int:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path, nargs="?", default=REPOSITORY / "figures")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "work" / "sheets")
    parser.add_argument("--of", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--width", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--theme", nargs="+", choices=THEMES, default=THEMES)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with scratch("screenshot-sheets") as folder, chromium() as browser:
        for kind in options.of:
            if kind == "panels":
                lab = Lab(folder)
                try:
                    taken = panels(browser, lab, options.figures, folder, list(options.width), list(options.theme))
                finally:
                    lab.close()
                for name, width, theme, path, told in taken:
                    sheets = columns(path, options.out / f"panel-{name}-{width}-{theme}") if path else []
                    say(f"panel {name}", width, theme, sheets, told)
                continue
            for theme in options.theme:
                if kind == "pages":
                    pages(browser, options, theme, folder)
                else:
                    figures(browser, options, theme, folder)
    print(f"sheets in {options.out}")
    return 0


def pages(browser: Any, options: argparse.Namespace, theme: str, folder: Path) -> None:
    """The page of figures and those of executed notebooks, all that unfolds unfolded."""
    found = [options.figures / "index.html", *sorted((options.figures / "notebooks").rglob("*.html"))]
    for width in options.width:
        context = browser.new_context(color_scheme=theme, viewport={"width": width, "height": 1200})
        page = context.new_page()
        for path in found:
            name = "-".join(path.relative_to(options.figures).with_suffix("").parts)
            page.goto(path.resolve().as_uri())
            page.evaluate("document.querySelectorAll('img').forEach((one) => { one.loading = 'eager'; })")
            page.wait_for_load_state("networkidle")
            sheets = []
            for k, part in enumerate(whole(page, folder / f"{name}.png")):
                sheets += columns(part, options.out / f"{name}-{width}-{theme}-{k}")
            say(name, width, theme, sheets, crowded(page))
        context.close()


def whole(page: Any, path: Path) -> Iterator[Path]:
    """Take the whole page, in as many pictures as it needs."""
    high, width = int(page.evaluate("document.documentElement.scrollHeight")), page.viewport_size["width"]
    for k, top in enumerate(range(0, high, _MOST)):
        part = path.with_stem(f"{path.stem}-{k}")
        clip = {"x": 0, "y": top, "width": width, "height": min(_MOST, high - top)}
        page.screenshot(path=part, full_page=True, clip=clip)
        yield part


def figures(browser: Any, options: argparse.Namespace, theme: str, folder: Path) -> None:
    """Every exported SVG, at its own size."""
    context, taken = browser.new_context(color_scheme=theme, viewport={"width": 800, "height": 600}), []
    page = context.new_page()
    for path in sorted(options.figures.glob("*.svg")):
        page.goto(path.resolve().as_uri())
        box = page.evaluate(
            "() => { const b = document.documentElement.getBoundingClientRect(); return [b.width, b.height]; }"
        )
        page.set_viewport_size({"width": max(1, round(box[0])), "height": max(1, round(box[1]))})
        taken.append(folder / f"{path.stem}-{theme}.png")
        page.screenshot(path=taken[-1])
        if told := crowded(page, "svg"):
            say(path.stem, round(box[0]), theme, [], told)
    context.close()
    say("figures", 0, theme, rows(taken, options.out / f"figures-{theme}"), [])


def say(name: str, width: int, theme: str, sheets: list[Path], told: list[str]) -> None:
    where = f"{name} {width or ''} {theme}".strip()
    print(f"{where}: {len(sheets)} sheet{'s' if len(sheets) != 1 else ''}", flush=True)
    for line in told:
        print(f"  {line}", flush=True)
