"""A figure on a dark page: what stands for its white ground and dark ink there. Stages keep their colours,
but for updates and averages, whose shades are too dark there, and so are the far points of clouds.

Figures are drawn on white, as they are printed: a PNG stays so on any page. Vectors change with the page that shows
them: an exported SVG where its viewer prefers dark pages, a widget's figure with JupyterLab's theme, and so a live one
in a JupyterLab that scripts/lab.sh opened.
"""

from ..colors import SEEN, STAGE_COLORS, between, contrast, mixed, work_color
from .theme import DARK_GREY, GREY, INK, LIGHT_GREY, POINT_SHADES, RUN_COLORS, TONES, scale_shades

GROUND, LIGHT_INK, GRID, SOFT = "#1a1a1a", "#d8d8d8", "#3a3a3a", "#aaaaaa"
_ZERO = "#5c5c5c"  # the line at an axis' zero: between the grid and the axis, as on white
# Ink, and colours of lines, markers and bars that are too dark there → what stands for them.
LIT = {INK: LIGHT_INK, "#000000": "#f2f2f2", "#004488": "#6ea6dc", "#BB5566": "#d9808d", "#8C6BB1": "#b39ad1"}
# Work that is darker than its stage's own colour on white. An average is almost white there; an update is the first of
# these shades of its stage's colour that is seen, shares of black. Where none is, it is a vivid shade, within some 20
# degrees of the stage's hue: tints are too near its forwards and its waits (found in Oklab, far from all that the stage
# does and from other stages' colours).
_UPDATES, _AVERAGE = (-0.35, -0.3, -0.25), 0.92
_VIVID = {0: "#0055FF", 5: "#995417", 7: "#9419FF", 9: "#FF0099", 11: "#E600FF", 12: "#00DD22"}


def _lit_update(stage: int) -> str:
    darker = (mixed(STAGE_COLORS[stage], share) for share in _UPDATES)
    return next((shade for shade in darker if contrast(shade, GROUND) >= SEEN), "") or _VIVID[stage]


LIT_SHADES = {work_color(k, "update"): _lit_update(k) for k in range(len(STAGE_COLORS))}
LIT_SHADES |= {work_color(k, "average"): mixed(color, _AVERAGE) for k, color in enumerate(STAGE_COLORS)}
LIT_POINTS = dict(zip(POINT_SHADES, scale_shades(0.42, 1.0, len(POINT_SHADES)), strict=True))  # far ones are seen, too
_TONED = (*RUN_COLORS, *STAGE_COLORS, GREY, DARK_GREY, INK)  # colours of bars that may be predicted

LIT_TONES = {  # of what is not measured: towards the page, as on white
    mixed(color, share): between(LIT.get(color, color), GROUND, share) for color in _TONED for share in TONES.values()
}
LIT_TEXT = {"#555555": SOFT, DARK_GREY: SOFT, "#B03A2E": "#ff8f80"}  # of a note, of labels, of a doubt
_LINES = ("#EDEDED", "#444444")  # a grid's, and plotly's own where a figure names none
_WHOLE_WORDS = ".jp-OutputArea-output pre { word-break: normal !important; overflow-wrap: break-word; }"
# Shades of work and tones are of bars alone.
_BARS = (".barlayer .points", ".legendpoints")
_POINTS = (".scatterlayer .points", ".legendpoints", ".barlayer .points", ".boxlayer .points")
_ERROR = ".errorbar"  # its line is of plotly's own colour, like a grid's


def dark_style(within: str = "", *, drawn: str | None = None) -> str:
    """Return the rules of CSS, below the selector `within`, for a figure as plotly draws it.

    `drawn`: its SVG, if there is one: rules of shades that are not in it are left out.
    Text on a colour, of ink of its own (`theme.INK_ON`) or white, stays as it is with that colour.
    """
    rules = [
        (['svg.main-svg[style*="background"]'], f"background: {GROUND}"),
        (["svg.main-svg > rect:first-of-type", ".bg"], f"fill: {GROUND}"),
        ([_painted("path", "stroke", color) for color in _LINES], f"stroke: {GRID}"),
        ([".zl"], f"stroke: {_ZERO}"),
        ([f".shapelayer {_painted('path', 'fill', LIGHT_GREY)}"], f"fill: {GRID}"),  # a range behind lines
        # What is parted by lines of the ground's colour: spans of a timeline, stages of a plan.
        ([f"{part} {_painted('path', 'stroke', '#FFFFFF')}" for part in _POINTS], f"stroke: {GROUND}"),
    ]
    for color, lit in LIT.items():
        rules.append(([_painted("path", "stroke", color)], f"stroke: {lit}"))
        filled = [f"{part} {_painted('path', 'fill', color)}" for part in _POINTS]
        rules.append((filled, f"fill: {lit}"))
        rules.append(([f".annotation {_painted('text', 'fill', color)}"], f"fill: {lit}"))
    for color, lit in (LIT_SHADES | LIT_TONES).items():
        if drawn is None or _named(color) in drawn:
            filled = [f"{part} {_painted('path', 'fill', color)}" for part in _BARS]
            rules.append((filled, f"fill: {lit}"))
    for color, lit in LIT_POINTS.items():
        if drawn is None or _named(color) in drawn:
            rules.append(([f".scatterlayer .points {_painted('path', 'fill', color)}"], f"fill: {lit}"))
    rules.append(([f"{_ERROR} {_painted('path', 'stroke', color)}" for color in _LINES], f"stroke: {SOFT}"))
    for color, lit in {INK: LIGHT_INK, **LIT_TEXT}.items():
        of_markup = f'tspan[style*="fill:{color}"]'  # as a title's own markup has it
        rules.append(([_painted("text", "fill", color), of_markup], f"fill: {lit}"))
    return "\n".join(f"{_selected(within, parts)} {{ {told} !important; }}" for parts, told in rules)


def lab_style() -> str:
    """Return scripts/jupyterlab/custom.css: the same for live figures in cells, where JupyterLab's theme is dark.

    And what a cell prints, an error's line too, is broken between words: JupyterLab's own rule breaks within them.
    """
    about = "/* Written by sparsepipe.views.plots.dark.lab_style: live figures in cells follow JupyterLab's theme. */"
    figures = dark_style("[data-jp-theme-light=false] .jp-RenderedPlotly")
    return f"{about}\n{figures}\n{_WHOLE_WORDS}\n"


def _selected(within: str, parts: list[str]) -> str:
    return ", ".join(f"{within} {part}".strip() for part in parts)


def _painted(tag: str, what: str, color: str) -> str:
    """The selector of elements that plotly gives a colour, which it writes as "rgb(34, 34, 34)"."""
    return f'{tag}[style*="{what}: {_named(color)}"]'


def _named(color: str) -> str:
    return f"rgb({', '.join(str(int(color[k : k + 2], 16)) for k in (1, 3, 5))})"
