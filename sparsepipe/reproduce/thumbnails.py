"""A figure's small copies for a list of figures: one for light pages, one for dark ones, in whatever theme they lie."""

import base64
import io
from contextlib import suppress
from pathlib import Path

import numpy as np
from PIL import Image

from ..display.colors import STAGE_COLORS, work_color
from ..display.markup import Html
from ..plots.dark import GROUND, LIT, LIT_POINTS, LIT_TEXT
from ..plots.theme import RUN_COLORS

_SIZE = (360, 240)  # pixels
_STYLE = 20_000  # letters in which an SVG's style ends
_WHITE = np.ones(3)
_SAME = 0.02  # of each part of a colour
_CLOSE = 0.06  # of colours from 0 to 1: a pixel that is farther from a colour on white is of a scale, and stays

# JupyterLab's theme decides, also one that is chosen after the cell has run. Where the style is taken away, as from a
# notebook that is not trusted, what the second picture says itself hides it.
STYLE = Html(
    "<style>[data-jp-theme-light=false] .sp-thumbnail .sp-on-white {display: none}"
    "[data-jp-theme-light=false] .sp-thumbnail .sp-on-black {display: inline !important}</style>"
)
# The second in other quotes: exported pages put the figure's SVG in place of the first alone (notebook_page.py).
_PICTURES = Html(
    "<img class='sp-on-white' src='{}' alt='{}' width='200' style='border-radius:4px'>"
    '<img class="sp-on-black" src="{}" alt="{}" width="200" style="border-radius:4px;display:none">'
)


def thumbnail(path: Path, name: str) -> Html | None:
    """Return the small copies of a picture that is drawn on white, as images in the page; None where there is none."""
    with suppress(OSError), Image.open(path) as picture:
        twice = picture.convert("RGB")
        twice.thumbnail((2 * _SIZE[0], 2 * _SIZE[1]))  # colours are told before neighbours are mixed
        dark = on_black(twice, points=_has_points(path.with_suffix(".svg")))
        return _PICTURES.format(_address(twice), name, _address(dark), name)
    return None


def _has_points(vector: Path) -> bool:
    """Whether an exported SVG has all shades of a cloud's points, which its style then names for dark pages."""
    with suppress(OSError, UnicodeDecodeError), vector.open(encoding="utf-8") as file:
        style = file.read(_STYLE)
        return all(lit in style for lit in LIT_POINTS.values())
    return False


def on_black(picture: Image.Image, *, points: bool = False) -> Image.Image:
    """Return a figure's picture as a dark page shows the figure: see plots/dark.py.

    What is drawn on white is drawn on the dark ground instead: ink in the colour that stands for it there, stages in
    their own, also where white is mixed in it, as for a forward. A colour of a scale stays as it is; `points`: it is
    that of clouds, whose far points would be as dark as the ground.
    """
    pixels = np.asarray(picture, dtype=np.float32) / 255
    best, found = np.full(pixels.shape[:2], np.inf, np.float32), pixels.copy()
    for color, lit in (_PAINTS | (_POINTS if points else {})).items():
        down, paint = _WHITE - color, np.array(lit)
        share = np.clip((_WHITE - pixels) @ (down / (down @ down)).astype(np.float32), 0, 1)[..., None]
        away = np.linalg.norm(_WHITE - share * down - pixels, axis=-1)
        nearer = (away < best - 1e-4) & (away < _CLOSE)
        best[nearer] = away[nearer]
        found[nearer] = (_GROUND + share * (paint - _GROUND))[nearer]
    for shade in _SHADES:
        flat = np.abs(pixels - np.array(shade, np.float32)).max(axis=-1) < _SAME
        found[flat] = pixels[flat]
    return Image.fromarray(np.round(np.clip(found, 0, 1) * 255).astype(np.uint8))


def _rgb(color: str) -> tuple[float, float, float]:
    red, green, blue = (int(color[k : k + 2], 16) / 255 for k in (1, 3, 5))
    return red, green, blue


_GROUND = np.array(_rgb(GROUND))
# Of stages that are not grey: edges of ink are.
_LIGHT = [work_color(k, kind) for k in range(len(STAGE_COLORS)) for kind in ("forward", "weights")]
_SHADES = [shade for shade in map(_rgb, _LIGHT) if max(shade) > min(shade)]
_STAY = {color: color for color in (*STAGE_COLORS, *RUN_COLORS) if color not in LIT}
_PAINTS = {_rgb(color): _rgb(lit) for color, lit in (LIT | LIT_TEXT | _STAY).items()}  # ink first: it takes all greys
_POINTS = {_rgb(color): _rgb(lit) for color, lit in LIT_POINTS.items()}


def _address(picture: Image.Image) -> str:
    small, kept = picture.copy(), io.BytesIO()
    small.thumbnail(_SIZE)
    small.save(kept, "WEBP", quality=70)
    return f"data:image/webp;base64,{base64.b64encode(kept.getvalue()).decode()}"
