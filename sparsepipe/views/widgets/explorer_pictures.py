"""The layer graph and the comparison of synchronization schemes as pictures without scripts.

Plotly draws both on a page. These pictures are for outputs that are read without a kernel, as that of a plan is.
"""

from itertools import groupby
from typing import TYPE_CHECKING

import pandas as pd

from ...util.text.numbers import as_measured, duration, scaled_bytes
from ...values.plan import Plan
from ...values.profile import Profile
from ..markup import Html
from ..plots.layer_graph import cuts_table, layer_graph_table, layer_name, lines_of
from ..plots.layout import Layout, layout
from ..plots.marks import width_of
from ..plots.outcomes import NOBODY, Outcome, rule_color
from ..plots.run_times import CAUSES
from ..plots.theme import GREY, INK, ink_on, scale_shades, stage_color
from .plan_picture import GAP, RED, SMALL, SOFT, TEXT, WIDE, Sheet

if TYPE_CHECKING:
    from .waiting_figures import Compared

_PIXELS = 1.12  # for each point of the layout, as in the figure
_COLUMNS = (24, 12, 9, 7, 5, 4)  # of a line of layers: the most that the width has room for
_SHADES = scale_shades(0.0, 1.0, 25)  # of cost
_KEY = 75  # pixels of the scale of cost: its cells are too narrow for edges
_BAR, _ROW = 13, 19  # pixels: height of a bar, distance of two
_PATH = Html("<path d='M{}' fill='none' stroke='{}' stroke-width='{}'{}/>")
_ARROW = Html("<path d='M{:.1f} {:.1f}l-6 -3v6z' fill='{}' transform='rotate({} {:.1f} {:.1f})'/>")
_DASHED = Html(" stroke-dasharray='2 2'")
_FRAME = Html("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill='none' stroke='{}' stroke-width='{}'/>")


def layer_graph_picture(
    profile: Profile, plan: Plan | None, *, device_type: str, note: str = "", marked: int | None = None
) -> str:
    """Return the graph of layers as SVG: fill by time, outline by stage, and below it what crosses each cut.

    Args:
        profile: Times of the layers.
        plan: Stages; None: no outlines.
        device_type: Device type of the times.
        note: A line below the title.
        marked: Index of a layer that gets a frame.
    """
    table = layer_graph_table(profile, plan, device_type=device_type)
    seconds = (table.forward_seconds + table.backward_seconds).tolist()
    sheet = Sheet()
    sheet.heading(
        "Layers, coloured by cost" + (", stages outlined" if plan else ""),
        " · ".join(filter(None, [note, device_type])),
    )
    _key(sheet, max(seconds), sorted({int(stage) for stage in table.stage.dropna()}))
    placed = _fitting(profile)
    scale = min(_PIXELS, (WIDE - 2 * GAP) / placed.extent[0])
    left, _, _, high = placed.bounds

    def at(x: float, y: float) -> tuple[float, float]:
        return GAP + (x - left) * scale, sheet.low + GAP + (high - y) * scale

    for route in placed.routes:
        points = [at(*point) for point in route]
        sheet.marks.append(_PATH.format("L".join(f"{x:.1f} {y:.1f}" for x, y in points), GREY, 1.2, ""))
        (x0, y0), (x1, y1) = points[-2:]
        turned = (0 if x1 > x0 else 180) if abs(x1 - x0) >= abs(y1 - y0) else (90 if y1 > y0 else 270)
        sheet.marks.append(_ARROW.format(x1, y1, GREY, turned, x1, y1))
    wide, tall = (2 * scale * half for half in placed.half)
    for k, (layer, stage) in enumerate(zip(profile.graph.layers, table.stage.tolist(), strict=True)):
        x, y = at(*placed.positions[k])
        fill = _SHADES[round(seconds[k] / (max(seconds) or 1.0) * (len(_SHADES) - 1))]
        sheet.rect(x - wide / 2, y - tall / 2, wide, tall, fill)
        color, thick = (INK, 1) if pd.isna(stage) else (stage_color(int(stage)), 3)
        sheet.marks.append(_FRAME.format(x - wide / 2, y - tall / 2, wide, tall, color, thick))
        if k == marked:
            sheet.marks.append(_FRAME.format(x - wide / 2 - 4, y - tall / 2 - 4, wide + 8, tall + 8, INK, 3))
        lines = [line for line in lines_of(layer_name(layer)) if width_of(line) * SMALL <= 1.25 * wide]
        for line, text in enumerate(lines):
            down = y + 3.5 + (line - (len(lines) - 1) / 2) * (SMALL + 1)
            sheet.words(x, down, text, SMALL, color=ink_on(fill), anchor="middle")
    sheet.low += placed.extent[1] * scale + 2 * GAP
    if plan:
        for cut in cuts_table(profile, plan, device_type=device_type).itertuples():
            crossing = scaled_bytes(cut.feature_bytes + cut.coordinate_bytes)
            sheet.paragraph(f"after stage {cut.after_stage}: {crossing} for each minibatch, from {cut.layers}")
    slowest = profile.graph.layers[seconds.index(max(seconds))].id
    return sheet.drawing(f"graph of {len(seconds)} layers; the slowest is {slowest}, {duration(max(seconds))}")[0]


def waiting_picture(compared: "Compared", *, stale: str = "") -> str:
    """Return what synchronization schemes cost as SVG: throughput under each straggler, and lost time by cause.

    Args:
        compared: Outcomes of each scheme.
        stale: A sentence on what the picture is of, if its settings have changed since.
    """
    sheet = Sheet()
    if stale:
        sheet.paragraph(stale, color=RED)
    sheet.heading("Synchronization stall", compared.note)
    sheet.paragraph(compared.told().striptags())
    names = list(dict.fromkeys(one.rule for one in compared.outcomes))
    left = max(width_of(name) for name in names) * TEXT * 1.1 + GAP
    for straggler, outcomes in groupby(compared.outcomes, key=lambda one: one.straggler):
        sheet.heading(straggler or NOBODY, "throughput of all pipelines together; dashed: if no pipeline waited")
        _throughputs(sheet, list(outcomes), left, compared)
    if any(one.lost_seconds for one in compared.held):
        causes = [cause for cause in CAUSES if any(cause in one.lost_seconds for one in compared.held)]
        sheet.heading("Lost time", "seconds of all pipelines together")
        _keys(sheet, [CAUSES[cause] for cause in causes])
        most = max(sum(one.lost_seconds.values()) for one in compared.held) or 1.0
        room = sheet.width - left - 70
        for one in compared.held:
            sheet.words(0, sheet.low + 10, one.rule, bold=one.rule == compared.rule)
            x = left
            for cause in causes:
                wide = one.lost_seconds.get(cause, 0.0) / most * room
                sheet.rect(x, sheet.low, wide, _BAR, CAUSES[cause][1])
                x += wide
            sheet.words(x + 5, sheet.low + 10, f"{as_measured(sum(one.lost_seconds.values()))} s")
            sheet.low += _ROW
    return sheet.drawing(f"throughput of {len(names)} synchronization schemes; {compared.told().striptags()}")[0]


def _throughputs(sheet: Sheet, outcomes: list[Outcome], left: float, compared: "Compared") -> None:
    """A bar for each scheme, on one scale in the whole picture."""
    most = max(max(one.samples_per_second, one.own_pace) for one in compared.outcomes) or 1.0
    scale = (sheet.width - left - 120) / most
    for one in outcomes:
        bold = one.rule == compared.rule
        end, alone = (left + pace * scale for pace in (one.samples_per_second, one.own_pace))
        sheet.words(0, sheet.low + 10, one.rule, bold=bold)
        sheet.rect(left, sheet.low, end - left, _BAR, rule_color(one.rule))
        line = f"{alone:.1f} {sheet.low - 2:.1f}V{sheet.low + _BAR + 2:.1f}"
        sheet.marks.append(_PATH.format(line, INK, 1, _DASHED))
        rate = f"{as_measured(one.samples_per_second)} {one.counted}/s"
        sheet.words(max(end, alone) + 5, sheet.low + 10, rate, bold=bold)
        sheet.low += _ROW


def _fitting(profile: Profile) -> Layout:
    """The graph in lines of as many layers as the width has room for."""
    layouts = (layout(profile.graph, columns=columns) for columns in _COLUMNS)
    fitting = (placed for placed in layouts if placed.extent[0] * _PIXELS <= WIDE - 2 * GAP)
    return next(fitting, layout(profile.graph, columns=_COLUMNS[-1]))


def _key(sheet: Sheet, most: float, stages: list[int]) -> None:
    """The scale of cost, and the colours of stages."""
    sheet.words(0, sheet.low + 10, "forward + backward: 0", SMALL, color=SOFT)
    begin = width_of("forward + backward: 0") * SMALL + GAP
    for k, shade in enumerate(_SHADES):
        cell = _KEY / len(_SHADES)
        sheet.rect(begin + k * cell, sheet.low + 2, cell + 0.3, 9, shade)
    sheet.words(begin + _KEY + GAP, sheet.low + 10, duration(most), SMALL, color=SOFT)
    sheet.low += _ROW
    if stages:
        _keys(sheet, [(f"stage {stage}", stage_color(stage)) for stage in stages])


def _keys(sheet: Sheet, entries: list[tuple[str, str]]) -> None:
    """A coloured mark for each entry with its name, in as many lines as it takes."""
    x = 0.0
    for name, color in entries:
        wide = width_of(name) * SMALL + 16 + 2 * GAP
        if x and x + wide > sheet.width:
            x = 0.0
            sheet.low += _ROW
        sheet.rect(x, sheet.low + 1, 10, 10, color)
        sheet.words(x + 14, sheet.low + 10, name, SMALL, color=SOFT)
        x += wide
    sheet.low += _ROW
