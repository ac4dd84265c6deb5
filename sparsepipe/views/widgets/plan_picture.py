"""A plan as one picture without scripts: its numbers, devices, layers, stages and timeline, as the explorer shows them.

The page draws the same scene itself (partition_view.js). This picture is for places without a page: outputs that are
read without a kernel, and paper. It is laid out for its width: text is neither cut nor shrunk.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from ...util.io.quantities import SIZE
from ...util.text.numbers import duration
from ...values.trace import SPAN_KINDS
from ..colors import edge_of, work_color
from ..markup import Html, joined
from ..plots.marks import width_of
from ..plots.theme import FONT, GREY, INK, LIGHT_GREY, finished, ink_on, tied

Scene = Mapping[str, Any]

WIDE = 960  # pixels of a picture in a notebook's output
_CSS_INCH = 96
SMALL, TEXT, _NUMBER = 10, 11, 15  # pixels of letters: the type scale
_NARROW = 480  # pixels below which a stage's name has a line of its own
_MOST_TILES = 5
_STRIP, _BAR, _LANE = 58, 15, 18  # pixels: height of the strip, of a stage's bar, distance of two rows of the timeline
_CHIP = 13  # pixels: height of a device on the map
SOFT, RED = "#555555", "#D55E00"
GAP = 8
_MARGIN = 2
_TYPE = "image/svg+xml"

_ROOT = Html(
    "<svg xmlns='http://www.w3.org/2000/svg' width='{0:.0f}' height='{1:.0f}' viewBox='0 0 {0:.0f} {1:.0f}' role='img' "
    "aria-label='{2}' font-family='{3}'><rect width='100%' height='100%' fill='#FFFFFF'/>{4}</svg>"
)
_RECT = Html("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill='{}'{}/>")
_EDGE = Html(" stroke='{}' stroke-width='0.6'")
_WORDS = Html("<text x='{:.1f}' y='{:.1f}' font-size='{}' fill='{}' text-anchor='{}'{}>{}</text>")
_BOLD = Html(" font-weight='bold'")
_PATH = Html("<path d='M{}' fill='none' stroke='{}' stroke-width='{}'{}/>")
_DASHED = Html(" stroke-dasharray='2 2'")
_LINE = Html("<path d='M{:.1f} {:.1f}V{:.1f}' stroke='{}' stroke-width='1' stroke-dasharray='4 3'/>")


def plan_picture(scene: Scene, width: float = WIDE, *, links: Scene | None = None, stale: str = "") -> str:
    """Return the explorer's view of a plan as SVG, `width` pixels wide.

    Args:
        scene: What `PartitionView.show` takes.
        width: Width in pixels.
        links: What `PartitionView.show_map` takes: the links within each host and between hosts.
        stale: A sentence on what the picture is of, if its settings have changed since.
    """
    return _picture(scene, width, links or {}, stale)[0]


def plan_figure(scene: Scene, *, title: str, note: str, inches: float, links: Scene | None = None) -> go.Figure:
    """Return the same as a figure to export, laid out for its width on paper."""
    width = inches * _CSS_INCH
    drawing, height = _picture(scene, width - 2 * GAP, links or {}, "")
    address = f"data:{_TYPE};base64,{base64.b64encode(drawing.encode()).decode()}"
    figure = go.Figure()
    figure.add_layout_image(
        source=address, xref="paper", yref="paper", x=0, y=1, sizex=1, sizey=1, xanchor="left", yanchor="top"
    )
    above = 56 if note else 36
    figure.update_layout(margin={"l": GAP, "r": GAP, "t": above, "b": GAP})
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    whole = finished(figure, title, note=note, width=round(width), height=round(height) + above + GAP)
    return whole.update_layout(xaxis_automargin=False, yaxis_automargin=False)


def _picture(scene: Scene, width: float, links: Scene, stale: str) -> tuple[str, float]:
    """The picture and its height."""
    sheet = Sheet(width)
    if stale:
        sheet.paragraph(stale, color=RED)
    _numbers(sheet, scene["tiles"])
    _devices(sheet, scene["chips"], links)
    for name, layers in _strips(scene):
        _strip(sheet, name, layers, _devices_of(scene))
    _stages(sheet, scene)
    _timeline(sheet, scene)
    sheet.low += 4
    sheet.paragraph(scene["why"])
    label = ", ".join(f"{name}: {value}" for name, value, *_ in scene["tiles"][:_MOST_TILES])
    return sheet.drawing(f"plan; {label}")


class Sheet:
    """Marks of a picture from top to bottom; `low` is the pixel at which the next part begins."""

    def __init__(self, width: float = WIDE) -> None:
        self.width, self.low = width, float(_MARGIN)
        self.marks: list[Html] = []

    def drawing(self, label: str) -> tuple[str, float]:
        """Return the picture as SVG, and its height. `label`: what it shows, for those who do not see it."""
        height = self.low + 4
        return str(_ROOT.format(self.width, height, label, FONT, joined(self.marks))), height

    def rect(self, x: float, y: float, wide: float, high: float, color: str) -> None:
        edge = edge_of(color)
        seen = _EDGE.format(edge) if edge != color and wide > 3 else ""
        self.marks.append(_RECT.format(x, y, max(wide, 0.0), high, color, seen))

    def words(
        self,
        x: float,
        y: float,
        text: str,
        size: int = TEXT,
        *,
        color: str = INK,
        anchor: str = "start",
        bold: bool = False,
    ) -> None:
        self.marks.append(_WORDS.format(x, y, size, color, anchor, _BOLD if bold else "", text))

    def path(self, data: str, color: str, width: float = 1.0, *, dashed: bool = False) -> None:
        """Draw a line; `data` is what follows the M of an SVG path."""
        self.marks.append(_PATH.format(data, color, width, _DASHED if dashed else ""))

    def keys(self, entries: Sequence[tuple[str, str]]) -> None:
        """A coloured mark for each (name, colour), in as many lines as they take."""
        x = 0.0
        for name, color in entries:
            wide = width_of(name) * SMALL + 16 + 2 * GAP
            if x and x + wide > self.width:
                x = 0.0
                self.low += _LANE
            self.rect(x, self.low + 1, 10, 10, color)
            self.words(x + 14, self.low + 10, name, SMALL, color=SOFT)
            x += wide
        self.low += _LANE

    def heading(self, title: str, about: str) -> None:
        """Begin a part: its name, and beside it what its marks mean, in further lines if it is long."""
        self.low += GAP + TEXT
        self.words(0, self.low, title, bold=True)
        begin = width_of(title) * TEXT * 1.1 + GAP
        if begin + width_of(about) * SMALL <= self.width:
            self.words(begin, self.low, about, SMALL, color=SOFT)
            self.low += 5
        else:
            self.low += 2
            self.paragraph(about, size=SMALL, color=SOFT)

    def paragraph(self, text: str, *, size: int = TEXT, color: str = INK) -> None:
        for line in wrap(tied(text), max(20, int(self.width / (0.58 * size))), break_on_hyphens=False):
            self.low += size + 3
            self.words(0, self.low, line, size, color=color)
        self.low += 4


def _numbers(sheet: Sheet, tiles: Sequence[Sequence[str]]) -> None:
    """The first numbers of a plan, side by side as far as there is room."""
    x = 0.0
    sheet.low += 30
    for name, value, *_ in tiles[:_MOST_TILES]:
        wide = max(width_of(name) * SMALL, width_of(value) * _NUMBER * 1.05) + 2 * GAP
        if x and x + wide > sheet.width:
            x = 0.0
            sheet.low += 34
        sheet.words(x, sheet.low - 18, name, SMALL, color=SOFT)
        sheet.words(x, sheet.low, value, _NUMBER, bold=True)
        x += wide


def _devices(sheet: Sheet, chips: Mapping[str, Mapping[str, Sequence[Sequence[int]]]], links: Scene) -> None:
    """A line for each host: its link, and its devices by type in the colour of their stage, or grey."""
    between = f"; between hosts {links['network']}" if len(chips) > 1 and links.get("network") else ""
    sheet.heading("Devices", f"by host; colour and number: stage{between}")
    within = {host["name"]: host["link"] for host in links.get("hosts", ())}
    for host, types in chips.items():
        sheet.words(0, sheet.low + _CHIP - 2, host, bold=True)
        x = begin = width_of(host) * TEXT * 1.1 + GAP
        sheet.words(x, sheet.low + _CHIP - 2, within.get(host, ""), SMALL, color=SOFT)
        x += width_of(within.get(host, "")) * SMALL + 2 * GAP
        for kind, devices in types.items():
            for k, stages in enumerate(devices):
                label = ",".join(map(str, stages)) or "·"
                room = 0.0 if k else width_of(kind) * SMALL + 4
                wide = max(_CHIP + 5, width_of(label) * SMALL + 6)
                if x + room + wide > sheet.width and x > begin:
                    x = begin
                    sheet.low += _LANE
                if room:
                    sheet.words(x, sheet.low + _CHIP - 2, kind, SMALL)
                color = work_color(stages[0], "backward") if stages else LIGHT_GREY
                sheet.rect(x + room, sheet.low, wide, _CHIP, color)
                middle = x + room + wide / 2
                sheet.words(middle, sheet.low + _CHIP - 3, label, SMALL, color=ink_on(color), anchor="middle")
                x += room + wide + 2
            x += GAP
        sheet.low += _LANE


def _strips(scene: Scene) -> list[tuple[str, Sequence[tuple[str, float, int]]]]:
    """The name and the layers of each pipeline; one of them has no name."""
    if "pipelines" in scene:
        return [(strip["name"], strip["layers"]) for strip in scene["pipelines"]]
    return [("", scene["layers"])]


def _devices_of(scene: Scene) -> dict[int, str]:
    """The devices of each stage; empty with several pipelines, whose stages have the same numbers."""
    if "pipelines" in scene:
        return {}
    return {part[0]: row["devices"] for row in scene["stages"] for part in row["parts"]}


def _strip(sheet: Sheet, name: str, layers: Sequence[tuple[str, float, int]], devices: Mapping[int, str]) -> None:
    """Layers as bars as high as their time, and below them their stages with the devices, if there is room."""
    sheet.heading(f"Layers of {name}" if name else "Layers", "in network order, height proportional to time")
    cell, most = sheet.width / len(layers), max([seconds for _, seconds, _ in layers] + [1e-12])
    floor = sheet.low + _STRIP
    for k, (_, seconds, stage) in enumerate(layers):
        high = max(2.0, seconds / most * _STRIP)
        sheet.rect(k * cell, floor - high, cell - (1 if cell > 4 else 0.2), high, work_color(stage, "backward"))
    begin = 0
    for stage, run in groupby(layers, key=lambda layer: layer[2]):
        count = len(list(run))
        room, middle = count * cell, (begin + count / 2) * cell
        choices = [f"stage {stage} on {devices[stage]}"] if stage in devices else []
        choices += [f"stage {stage}", f"{stage}"]
        label = next((text for text in choices if width_of(text) * SMALL < room), "")
        sheet.words(middle, floor + SMALL + 3, label, SMALL, anchor="middle")
        begin += count
    sheet.low = floor + SMALL + 6


def _stages(sheet: Sheet, scene: Scene) -> None:
    """A row for each stage: its devices, its time, its memory of how much."""
    rows = scene["stages"]
    sheet.heading("Stages", "time per minibatch, all-reduce darker, transfers thin below; memory on the right")
    names = [f"{', '.join(str(part[0]) for part in row['parts'])} · {row['devices']}" for row in rows]
    limits = [f" of {SIZE.shown(row['limit'])}" if row["limit"] is not None else "" for row in rows]
    memory = [
        row["words"][1] + (limit if sheet.width >= _NARROW else "") for row, limit in zip(rows, limits, strict=True)
    ]
    times = [row["words"][0] + (" ◀ slowest" if row["slowest"] else "") for row in rows]
    longest = max(width_of(name) for name in names) * TEXT * 1.1 + GAP
    apart = longest > 0.34 * sheet.width or sheet.width < _NARROW  # its name above a bar
    left = 0.0 if apart else longest
    right = max(width_of(text) for text in memory) * TEXT + GAP
    beside = max(width_of(text) for text in times) * TEXT * 1.1 + 2 * GAP
    most = max(
        [max(row["compute"] + row["averaging"], row["transfer"]) for row in rows] + [scene["bound"] or 0.0, 1e-12]
    )
    scale = max(sheet.width - left - right - beside, 20.0) / most
    top = sheet.low
    for row, name, held, time in zip(rows, names, memory, times, strict=True):
        if "head" in row:
            sheet.paragraph(row["head"], color=SOFT)
        if apart:
            sheet.paragraph(name)
        bold = bool(row["slowest"])
        if not apart:
            sheet.words(0, sheet.low + 12, name, bold=bold)
        x = left
        for stage, _, _, _, seconds, *_ in row["parts"]:
            sheet.rect(x, sheet.low, seconds * scale - 0.5, _BAR, work_color(stage, "backward"))
            x += seconds * scale
        sheet.rect(x, sheet.low, row["averaging"] * scale, _BAR, work_color(row["parts"][0][0], "update"))
        sheet.rect(left, sheet.low + _BAR + 1, row["transfer"] * scale, 3, GREY)
        end = max(x + row["averaging"] * scale, left + row["transfer"] * scale)
        bound = left + (scene["bound"] or 0.0) * scale
        sheet.words(max(end, bound) + 5, sheet.low + 12, time, bold=bold)  # no line goes through it
        over = row["limit"] is not None and row["memory"] > row["limit"]
        sheet.words(sheet.width, sheet.low + 12, held, color=RED if over else INK, anchor="end", bold=over)
        sheet.low += _BAR + 9
    if scene["bound"] and not apart:  # else it would go through names
        sheet.marks.append(_LINE.format(left + scene["bound"] * scale, top - 2, sheet.low - 3, SOFT))


def _timeline(sheet: Sheet, scene: Scene) -> None:
    """A row for each device, by the time of the simulation."""
    about = "simulated: forward light, backward full, all-reduce dark, transfers thin; numbers are minibatches"
    sheet.heading("Timeline", about)
    names = {str(rank): name for rank, name in scene["names"].items()}
    lanes = [rank if isinstance(rank, str) else f"{rank} · {names[str(rank)]}" for rank in scene["ranks"]]
    left = max(width_of(lane) for lane in lanes) * TEXT + GAP
    if left > 0.4 * sheet.width:  # a type's name is in the rows of stages
        lanes = [rank if isinstance(rank, str) else f"rank {rank}" for rank in scene["ranks"]]
        left = max(width_of(lane) for lane in lanes) * TEXT + GAP
    first, last = (share * scene["end"] for share in scene.get("sight", (0.0, 1.0)))  # as on the page
    scale = (sheet.width - left) / max(last - first, 1e-12)
    for k, lane in enumerate(lanes):
        sheet.words(0, sheet.low + k * _LANE + 11, lane, bold=isinstance(scene["ranks"][k], str))
    for row, begin, finish, code, stage, minibatch, *_ in scene["spans"]:
        start, end = max(begin, first) - first, min(finish, last) - first
        if end <= start:
            continue
        kind, wide = SPAN_KINDS[code], (end - start) * scale
        color, y = _color(kind, stage), sheet.low + row * _LANE
        if kind == "send":
            sheet.rect(left + start * scale, y + 14, wide, 2.5, color)
            continue
        sheet.rect(left + start * scale, y + 1, wide - (0.5 if wide > 3 else 0), 12, color)
        number = str(minibatch)
        if kind in ("forward", "backward") and width_of(number) * SMALL + 2 < wide:
            sheet.words(left + (start + end) / 2 * scale, y + 10.5, number, SMALL, color=ink_on(color), anchor="middle")
    sheet.low += len(lanes) * _LANE + SMALL
    sheet.words(left, sheet.low, duration(first) if first else "0", SMALL, color=SOFT)
    sheet.words(sheet.width, sheet.low, duration(last), SMALL, color=SOFT, anchor="end")
    sheet.low += 4


def _color(kind: str, stage: int) -> str:
    """The colour of a span, as the page has it."""
    if kind in ("forward", "update", "average"):
        return work_color(stage, "forward" if kind == "forward" else "update")
    if kind in ("backward", "send"):
        return work_color(stage, "backward")
    return LIGHT_GREY if kind == "wait" else GREY


def scene_of(text: str) -> Scene | None:
    """The scene that a page was sent; None if it was sent none yet."""
    scene = json.loads(text)
    return scene if isinstance(scene, dict) and "tiles" in scene else None
