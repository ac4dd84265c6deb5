"""The look of all figures: one template, a fixed colour for each stage, full if measured, a lighter tone if not.

Texts of a figure are escaped in this one place, as plotly interprets tags in any of them.
`Html` is a figure's own markup and stays; every other string of a finished figure is text. A hover template is markup
as a whole: where names are part of it, it is an `Html` that they were filled into.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from ...records.provenance import Provenance
from ..colors import WORK_SHADES, contrast, mixed, work_color
from ..markup import TIE, Html, figure_text

_TEMPLATES = ("hovertemplate", "texttemplate")
_DATA = "customdata"  # shown where a template says so; else it is for programs
_NOT_SHOWN = (*_TEMPLATES, "uid", "meta", "template", "legendgroup", "offsetgroup")


def with_text_escaped(figure: go.Figure) -> go.Figure:
    """The figure, changed in place, with every string in it that is no `Html` as text."""
    for trace in figure.data:
        told = "".join(str(getattr(trace, name, None) or "") for name in _TEMPLATES if name in trace)
        kept = _NOT_SHOWN if _DATA in told else (*_NOT_SHOWN, _DATA)
        _escape(trace, kept)
    _escape(figure.layout, _NOT_SHOWN)
    return figure


def _escape(part: Any, kept: tuple[str, ...]) -> None:
    values = part.to_plotly_json()
    changed = {key: new for key, value in values.items() if key not in kept and (new := _escaped(value)) is not value}
    part.update(changed, overwrite=True)


def _escaped(value: object) -> Any:
    """The value with its strings escaped; itself where none changes."""
    if isinstance(value, Html):
        return value
    if isinstance(value, str):
        text = figure_text(value)
        return value if text == value else text
    if isinstance(value, dict):
        items = {key: item if key in _NOT_SHOWN else _escaped(item) for key, item in value.items()}
        return items if any(items[key] is not value[key] for key in value) else value
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "OU":
            return value
        listed = value.tolist()
        escaped = _escaped(listed)
        return value if escaped is listed else escaped
    if isinstance(value, list | tuple):
        escaped_items = [_escaped(item) for item in value]
        changed = any(new is not old for new, old in zip(escaped_items, value, strict=True))
        return type(value)(escaped_items) if changed else value
    return value


# Strategies and runs are not stages: Tol's "high contrast" colours, each line with its own dash and marker as well.
RUN_COLORS = ("#004488", "#BB5566", "#DDAA33", "#000000", "#66A182", "#8C6BB1")
RUN_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
RUN_MARKERS = ("circle", "square", "diamond", "triangle-up", "x", "cross")
FORWARD_COLOR, BACKWARD_COLOR = "#56B4E9", "#0072B2"
COST_SCALE = "Cividis"  # even in lightness, and the same to colour-blind eyes


def scale_shades(low: float, high: float, count: int) -> tuple[str, ...]:
    """So many colours of `COST_SCALE` ("#rrggbb") from one share of it to another, the darker first."""
    shares = [low + (high - low) * k / (count - 1) for k in range(count)]
    parted = (color[4:-1].split(",") for color in sample_colorscale(COST_SCALE, shares))
    return tuple("#" + "".join(f"{round(float(part)):02X}" for part in parts) for parts in parted)


POINT_SHADES = scale_shades(0.0, 1.0, 16)  # of a cloud, far to near; few, so that dark pages have one for each
GREY, LIGHT_GREY, DARK_GREY, INK = "#8C8C8C", "#D9D9D9", "#5F5F5F", "#222222"
# Of text on a colour: it stays on a dark page, where all other ink becomes light. It is next to black: of black and
# white one has a contrast of 4.58 on any colour, where a lighter black would leave 4.1 on some.
INK_ON = "#010101"
_WHISKERS = ("#444444", GREY)  # plotly's own, and one that is seen on black and on dark blue
FONT = "DejaVu Sans, Verdana, Arial, sans-serif"
FONT_SIZE, SMALL = 13, 11  # pixels
WIDTH, HEIGHT = 760, 400  # pixels: a text column's width at a readable size
MODEBAR = {"showSendToCloud": False, "displaylogo": False}  # no button that uploads the data to a service

TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": FONT_SIZE, "color": INK},
        "title": {"x": 0, "xref": "container", "xanchor": "left", "pad": {"l": 14}, "font": {"size": FONT_SIZE + 2}},
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "colorway": list(RUN_COLORS),
        "margin": {"l": 70, "r": 24, "t": 64, "b": 56},
        "hoverlabel": {"font": {"family": FONT}},
        "legend": {"font": {"size": SMALL}, "tracegroupgap": 4},
        "bargap": 0.25,
    }
)
_AXIS = {
    "showline": True,
    "linecolor": GREY,
    "gridcolor": "#EDEDED",
    "zerolinecolor": LIGHT_GREY,
    "ticks": "outside",
    "tickcolor": GREY,
    "ticklen": 4,
    "automargin": True,
    "title": {"font": {"size": FONT_SIZE}, "standoff": 8},
}
TEMPLATE.layout.xaxis = _AXIS
TEMPLATE.layout.yaxis = _AXIS


def stage_color(stage: int, kind: str = "backward") -> str:
    """The colour of a stage, the same in every figure: lighter for a forward, darker for an update, grey for waits."""
    if kind not in WORK_SHADES:
        return {"wait": LIGHT_GREY, "load": DARK_GREY}.get(kind, GREY)
    return work_color(stage, kind)


def ink_on(color: str) -> str:
    """The text colour, dark or white, that stands out more from `color`: by a contrast of 4.5 at least."""
    return INK_ON if contrast(color, INK_ON) >= contrast(color, _WHITE) else "white"


def whisker_on(color: str) -> str:
    """The colour of the line of an interval, which stands half on a bar of `color` and half on the page."""
    return max(_WHISKERS, key=lambda line: contrast(line, color))


_WHITE = "#FFFFFF"
TONES = {"simulated": 0.6, "emulated": 0.3}  # source → share of white in a bar's colour; "measured" has none
_OUTLINE = 1.5  # pixels


def bar_marker(source: str | Sequence[str], color: str | Sequence[str]) -> dict[str, object]:
    """The look of bars by the source of their numbers: full if measured, else a lighter tone with an outline.

    Either may be one for all bars.
    """
    given = [value for value in (source, color) if not isinstance(value, str)]
    count = len(given[0]) if given else 1
    sources = [source] * count if isinstance(source, str) else list(source)
    colors = [color] * count if isinstance(color, str) else list(color)
    fills = [mixed(full, TONES.get(each, 0.0)) for each, full in zip(sources, colors, strict=True)]
    widths = [_OUTLINE if each in TONES else 0.0 for each in sources]
    if not given:
        return {"color": fills[0], "line": {"color": colors[0], "width": widths[0]}}
    return {"color": fills, "line": {"color": colors, "width": widths}}


def source_key(source: str, color: str = GREY) -> dict[str, object]:
    """The marker of a legend's bar that stands for a source, in a colour that no series has, since all have sources."""
    return bar_marker(source, color)


# On the title's line, at its right: a note below the title may be as long as the figure is wide.
BESIDE_TITLE = {"orientation": "h", "x": 1, "xanchor": "right", "yref": "container", "y": 0.97, "yanchor": "top"}


_LINE = 20  # pixels from one line of a subtitle to the next: 1.3 times the title's size


def whole_ticks(most: float) -> int:
    """Return the step between ticks of an axis that counts from 0 or 1 to `most`: whole, so that none comes twice."""
    return max(1, int(most) // 6)


def finished(figure: go.Figure, title: str, *, note: str = "", width: int = WIDTH, height: int = HEIGHT) -> go.Figure:
    """Give a figure its template, size and title, `note` in lines below it, and every trace a name that stays.

    An axis whose ticks are names has no line at its zero, which is the first name's place.
    Names in it are text from here on, not markup. plotly draws a random uid for a trace without one, and
    the same figure would differ in every export. A note of several lines, or of one longer than the figure is wide,
    makes the figure higher: nothing else moves.
    """
    given = note.split("\n") if note else []
    told = _in_lines(given, width)
    further, margin = max(0, len(told) - 1) * _LINE, figure.layout.margin.t or TEMPLATE.layout.margin.t
    height += further
    whole = Html("<b>{}</b>{}").format(figure_text(title), _as_note(told) if note else "")
    meta = _meta(figure) | {"notes": given}
    figure.update_layout(template=TEMPLATE, title={"text": whole}, width=width, height=height, meta=meta)
    if further:
        figure.update_layout(title=_title_above(margin, height), margin={"t": margin + further})
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        if axis.ticktext is not None:
            axis.zeroline = False
    for k, trace in enumerate(figure.data):
        trace.uid = f"trace{k}"
    return with_text_escaped(figure)


_GLYPH = 6.4  # pixels of a character below the title, on average


def _wrapped(line: str, width: float) -> list[str]:
    """The lines that `line` becomes below the title of a figure `width` pixels wide: as few as there can be.

    Each is as long as the figure is wide, or ends between two facts where that takes no further line: with the dot that
    stands between them, which says that the list continues. A number stays with its unit or with what it counts, and a
    name with hyphens is in one line.
    """
    most, kept, lines = max(20, int(width / _GLYPH) - 4), _counted(tied(line.rstrip().removesuffix(" ·"))), []
    while len(rest := _filled(kept, most)) > 1:
        facts = (found.end() - 1 for found in re.finditer(BETWEEN, kept))
        ends = [at for at in facts if _FULL * most <= at <= most]
        end = next((at for at in reversed(ends) if len(_filled(kept[at + 1 :], most)) < len(rest)), len(rest[0]))
        lines.append(kept[:end])
        kept = kept[end:].removeprefix(" ")
    return [each.replace(TIE, " ") for each in [*lines, *rest]]


_FULL = 0.6  # of a line's room: one that is shorter ends too early


def _filled(text: str, most: int) -> list[str]:
    return wrap(text, most, break_on_hyphens=False)


BETWEEN = f"{TIE}· "  # two facts of a list: where a line ends there, the dot ends it


def tied(text: str) -> str:
    """The text with numbers tied to their units, and names to their counts ("parallel × 2"): no line ends there.

    Nor before the dot between two facts, between a number and the bracket that says what it is of ("1.20 (cpu)"),
    within a bracket that counts ("(4 pipelines)"), and within "gap 0%".
    """
    counted = re.sub(r" ?× ?", lambda found: found[0].replace(" ", TIE), text.replace(" · ", BETWEEN))
    counted = re.sub(r"(\([\d,.]+) (?=[a-z]+\))", rf"\1{TIE}", counted)
    counted = re.sub(r"\bgap (?=(?:<|&lt;)?\d)", f"gap{TIE}", counted)  # of text and of markup
    return re.sub(r"(?<=\d) (?=\(|(?:%|[mµ]?s|[kMG]?B|[kMG]B/s|[kMG]bit/s|[a-z]+/s|more|times)(?![\w/]))", TIE, counted)


def _counted(text: str) -> str:
    """The text with numbers tied to what they count: words of four letters or more."""
    return re.sub(r"(?<=\d) (?=[a-z]{4})", TIE, text)


def _in_lines(notes: Iterable[str], width: float) -> list[str]:
    return [line for given in notes for line in _wrapped(given, width)]


def _meta(figure: go.Figure) -> dict[str, Any]:
    """Return the metadata of a finished figure: `notes` and `doubts` as they were given."""
    return dict(figure.layout.meta) if isinstance(figure.layout.meta, dict) else {}


DOUBT = "#B03A2E"  # a red that is read on white by eyes that do not tell red from green
_BUTTONS, _OVER_PLOT = (
    34,
    48,
)  # pixels over a plot whose title is elsewhere: for its buttons, and panels' titles as well


def doubts_of(figure: go.Figure) -> tuple[str, ...]:
    """Doubts that a figure's function passed to `doubted`."""
    return tuple(_meta(figure).get("doubts", ()))


def resting_on(figure: go.Figure, origin: Provenance) -> go.Figure:
    """The figure with what its runs were delayed by on purpose in its note, and a badge if it is doubtful."""
    return doubted(with_held_up(figure, origin.held_up), origin.doubts)


def title_of(figure: go.Figure) -> Html:
    """Return a finished figure's title with its notes: markup, whatever type a copy gave it."""
    return Html(figure.layout.title.text or "")


def with_held_up(figure: go.Figure, notes: Iterable[str]) -> go.Figure:
    """The figure with its injected delays in the note; unchanged if the note has them already.

    It becomes higher by what the line takes, as by any longer note.
    """
    text = title_of(figure)
    said = "".join(text.striptags().split())  # lines are broken anywhere
    missing = [note for note in notes if "".join(note.split()) not in said]
    if not missing:
        return figure
    line = f"injected delay: {'; '.join(missing)}"
    lines = _wrapped(line, figure.layout.width or WIDTH)
    before = text.count("<br>")
    extra = _LINE * (max(1, before + len(lines)) - max(1, before))
    height, meta = (figure.layout.height or HEIGHT) + extra, _meta(figure)
    return go.Figure(figure).update_layout(
        title={"text": text + _as_note(lines), **_title_above(_first_margin(figure), height)},
        margin={"t": _margin(figure) + extra},
        height=height,
        meta=meta | {"notes": [*meta.get("notes", ()), line]},
    )


def doubted(figure: go.Figure, doubts: Iterable[str]) -> go.Figure:
    """The figure with a badge beside its title if something is doubtful, and the doubts in its `meta`.

    Pages, a PDF's metadata and the JSON of an export have the doubts in words. Nothing moves, unless there is no title:
    then the badge has a line of its own.
    """
    reasons = tuple(dict.fromkeys([*doubts_of(figure), *doubts]))
    if not reasons:
        return figure
    marked = go.Figure(figure).update_layout(meta=_meta(figure) | {"doubts": list(reasons)})
    title, line_end, note = title_of(figure).partition("<br>")
    if _BADGE in title:
        return marked
    marked.update_layout(title={"text": title + (Html("\N{EN SPACE}") + _BADGE if title else _BADGE) + line_end + note})
    if title:
        return marked
    height = (figure.layout.height or HEIGHT) + _LINE
    return marked.update_layout(title=_title_above(_LINE, height), margin={"t": _margin(figure) + _LINE}, height=height)


@dataclass(frozen=True)
class Heading:
    """The words over a figure's plot as they were given, and the size of the figure without them."""

    title: str
    notes: tuple[str, ...]
    doubt: str  # a sentence; empty where nothing is doubtful
    margin: float  # pixels that are left over the plot
    height: float  # of the figure


def heading_of(figure: go.Figure) -> Heading | None:
    """The heading of a finished figure, for a page that shows it in words of its own; None of one without a title."""
    if "notes" not in _meta(figure) or not figure.layout.title.text:
        return None
    title = title_of(figure).partition("<br>")[0].replace(_BADGE, "").rstrip()
    keeps = _OVER_PLOT if legend_is_above(figure) else _BUTTONS
    had = _margin(figure)
    doubt = Provenance(doubts=doubts_of(figure)).doubt or ""
    return Heading(
        title.striptags(), tuple(_meta(figure)["notes"]), doubt, keeps, (figure.layout.height or HEIGHT) - (had - keeps)
    )


def in_place(figure: go.Figure, width: float) -> go.Figure:
    """The figure with its note in lines for a place of so many pixels, as high as that makes it.

    As it is where it is no wider itself, and where it has no note that is known.
    """
    own = figure.layout.width or WIDTH
    if own <= width or "notes" not in _meta(figure) or not figure.layout.title.text:
        return figure
    notes = _in_lines(_meta(figure)["notes"], width)
    margin = _first_margin(figure)
    above = margin + _LINE * max(0, len(notes) - 1)
    height = (figure.layout.height or HEIGHT) + above - _margin(figure)
    title = title_of(figure).partition("<br>")[0]
    return go.Figure(figure).update_layout(
        title={"text": title + (_as_note(notes) if notes else ""), **_title_above(margin, height)},
        margin={"t": above},
        height=height,
    )


def _first_margin(figure: go.Figure) -> float:
    """The margin above a finished figure without the further lines of its note."""
    return _margin(figure) - _LINE * max(0, title_of(figure).count("<br>") - 1)


def _margin(figure: go.Figure) -> float:
    margin: float | None = figure.layout.margin.t
    return margin if margin is not None else TEMPLATE.layout.margin.t


def _title_above(margin: float, height: float) -> dict[str, Any]:
    """Position of a title in plotly: its first line in the middle of the margin that it has without further lines."""
    return {"y": 1 - margin / 2 / height, "yanchor": "middle"}


def legend_is_above(figure: go.Figure) -> bool:
    """Return whether a legend or a panel's title stands over the plot, on the title's line or below it."""
    legend = figure.layout.legend
    return _is_above(figure) or (legend.yref == "container" and (legend.y or 0) > 0.5)


def _is_above(figure: go.Figure) -> bool:
    """Return whether a legend or a panel's title stands between the figure's title and its plot."""
    legend = figure.layout.legend
    beside = legend.orientation == "h" and legend.yref != "container" and (legend.y or 0) >= 1
    return beside or any((note.yref or "") == "paper" and (note.y or 0) >= 1 for note in figure.layout.annotations)


def _as_note(lines: Iterable[str]) -> Html:
    looks = Html("<br><span style='font-size:{}px;color:#555555'>{}</span>")
    return looks.format(SMALL, Html("<br>").join(map(figure_text, lines)))


_BADGE = Html("<span style='font-size:{}px;color:{}'>⚠ doubtful</span>").format(SMALL, DOUBT)


def log_ticks(drawn: Iterable[float], *, most: int = 99) -> dict[str, list[Any]]:
    """Ticks at 1, 2 and 5 times each power of ten, written out: plotly writes "2" for 20 and for 200.

    At powers of ten alone where more than `most` would be in sight.
    """
    values = list(drawn)
    if not values:
        return {}
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    if sum(min(values) <= tick <= max(values) for tick in ticks) > most:
        ticks = [10.0**power for power in powers]
    return {"tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
