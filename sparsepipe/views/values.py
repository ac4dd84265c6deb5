"""What is shown of values: a headline, tables and, in HTML, small SVG drawings; the same everywhere that shows one.

Titles, cells and labels are text that is escaped where it is put in, or `Html` that was made here.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial, singledispatch
from typing import Any, NamedTuple

from ..errors import one_line
from ..planning.hardware_changes import HardwareChanges
from ..planning.regret import Regret, RobustPlan
from ..planning.replaying import Replay, WhatIf
from ..records import RunRecord
from ..util.text.numbers import (
    as_given,
    counted,
    duration,
    duration_or_none,
    gap_text,
    number_of,
    pace_text,
    scaled_bytes,
    validation_text,
)
from ..values.cluster import Cluster, Link
from ..values.plan import Plan, PlanDiff, Stage
from ..values.profile import Profile
from ..values.trace import Span, Trace
from .colors import edge_of, stage_color, type_colors, work_color
from .markup import Html, joined
from .tables import MOST_ROWS, Cell, Table, Unit, table_html, table_text

_GREY = "#8C8C8C"
_WIDTH, _LANE, _EDGE = 460, 16, 1  # pixels of drawings
_MOST_SPANS = 600
OURS = "sp-value"  # the class of a value's HTML: its words have no colours of their own, and go with any page
_STAGE, _TYPE = "■", "●"  # the marks before a stage's name and before that of a type of devices
_TIMES: dict[str, Unit] = {"compute": "s", "transfer": "s", "averaging": "s", "memory": "B"}
_DIFFERENCES = ("compute", "transfer", "averaging", "memory", "sent")
_SHARES = ("work", "idle", "averaging", "waiting", "sending")
_IDLE = (
    "idle: all time without work, while the pipeline fills and drains, waits or averages. Waits for other ranks are "
    "separate if they were measured; sends overlap the work."
)


class Section(NamedTuple):
    """A table with the headline above it, the drawing that HTML has there, and the notes below it."""

    table: Table | None = None
    headline: str = ""
    notes: Sequence[str] = ()
    picture: Callable[[], Html] = partial(Html, "")


class Page(NamedTuple):
    """The view of a value."""

    headline: str
    sections: Sequence[Section]
    notes: Sequence[str] = ()


def text(value: object, *, all_in: str = "") -> str:
    """Return what `print` shows of a value; `all_in` says where rows that are left out are. Raises TypeError."""
    page = page_of(value)
    lines = [one_line(page.headline)]
    for section in page.sections:
        lines += ["", one_line(section.headline)] if section.headline else []
        lines += [table_text(section.table, all_in=all_in)] if section.table and section.table.rows else []
        lines += map(one_line, section.notes)
    return "\n".join([*lines, *map(one_line, page.notes)])


def html(value: object) -> str:
    """Return what a notebook shows of a value.

    Args:
        value: A plan, profile, cluster, trace or another value with a view.

    Returns:
        HTML as a string.

    Raises:
        TypeError: A value without a view.

    Example:
        >>> "stage" in sp.views.html(plan)
        True

    See also:
        guides/explorer_and_board
    """
    # A string of Python's own: whoever adds to it would have theirs escaped by an `Html`.
    page, parts = page_of(value), list[Html]()
    for section in page.sections:
        parts += [_division(section.headline)] if section.headline else []
        parts += [section.picture()] + ([table_html(section.table)] if section.table else [])
        parts += map(_division, section.notes)
    whole = Html("<div class='{}' style='font-size:13px'><div><b>{}</b></div>{}</div>")
    return str(whole.format(OURS, page.headline, joined([*parts, *map(_division, page.notes)])))


def _division(line: str) -> Html:
    return Html("<div>{}</div>").format(line)


@singledispatch
def page_of(value: object) -> Page:
    """Return what is shown of a value. Raises TypeError for one that has no view."""
    raise TypeError(f"{type(value).__name__}: no view for this type")


@page_of.register
def _(plan: Plan) -> Page:
    """Stages as rows, and the layers as a strip in the stages' colours; each pipeline below the one before."""
    sections = []
    for k, each in enumerate(plan.pipelines):
        headline = plan.prefix(k) + each.summary() if plan.members else ""
        picture = partial(_stages_strip, each)
        sections.append(
            Section(
                stage_table(each),
                headline,
                [*_warmups(each.stages), *_recomputed(each.stages), *_shared(each.stages)],
                picture,
            )
        )
    return Page(plan.summary(), sections, [f"warning: {warning}" for warning in plan.all_warnings])


def stage_table(plan: Plan) -> Table:
    """A row for each stage of a plan of one pipeline: its layers, its devices and what is expected of it."""
    uneven = any(len(set(stage.shares)) > 1 for stage in plan.stages)
    kinds = {stage.shares_scenes for stage in plan.stages if len(set(stage.shares)) > 1}
    dealt = " or ".join("scenes" if shares else "minibatches" for shares in sorted(kinds))
    devices = f"devices (shares of {dealt})" if uneven else "devices"
    rows: list[tuple[Cell, ...]] = []
    for k, stage in enumerate(plan.stages):
        row: tuple[Cell, ...] = (str(k), _span(stage.layers), _devices(stage))
        if plan.estimate:
            e = plan.estimate.stages[k]
            times = (e.compute_seconds or None, e.transfer_seconds or None, e.averaging_seconds or None)
            row = (*row, *times, e.memory_bytes)
        rows.append(row)
    marks = [_swatch(stage_color(k), _STAGE) for k in range(len(rows))]
    columns = ("stage", "layers", devices, *(_TIMES if plan.estimate else ()))
    return Table(columns, rows, _TIMES, marks)


def _span(layers: Sequence[str]) -> str:
    return f"{layers[0]} … {layers[-1]} ({len(layers)})" if len(layers) > 1 else "".join(layers)


def _devices(stage: Stage) -> str:
    """The replicas by type and rank, neighbouring ranks of a type with the same share together.

    Different shares are given as so many of as many minibatches as the stage takes in turn: "RTX 0–3 (1/6 each), tv 5
    (2/6)".
    """
    kinds = stage.device_types or ("rank",) * len(stage.ranks)
    runs: list[tuple[str, int, int, int]] = []  # type, first rank, last rank, share
    for kind, rank, share in zip(kinds, stage.ranks, stage.shares, strict=True):
        if runs and runs[-1] == (kind, runs[-1][1], rank - 1, share):
            runs[-1] = (kind, runs[-1][1], rank, share)
        else:
            runs.append((kind, rank, rank, share))
    uneven, whole = len(set(stage.shares)) > 1, sum(stage.shares)
    parts = []
    for kind, first, last, share in runs:
        part = f" ({share}/{whole}{' each' if last > first else ''})" if uneven else ""
        parts.append(f"{kind} {first}" + (f"–{last}" if last > first else "") + part)
    return ", ".join(parts)


def _warmups(stages: Sequence[Stage]) -> list[str]:
    """Say how many forwards stages begin with if the plan says so and not the schedule alone: a line, or none."""
    counts = [f"{stage.warmup} of stage {k}" for k, stage in enumerate(stages) if stage.warmup is not None]
    if not counts:
        return []
    return [f"warm-up forwards before the first backward: {', '.join(counts)}; memory includes their activations"]


def _recomputed(stages: Sequence[Stage]) -> list[str]:
    """Say which layers of which stages repeat their forward: a line each."""
    return [f"stage {k} recomputes {stage.recomputed_text}" for k, stage in enumerate(stages) if stage.recomputes]


def _shared(stages: Sequence[Stage]) -> list[str]:
    """Say which stages' devices share scenes: a line each."""
    return [
        f"{number_of(len(stage.ranks), 'device')} of stage {k} share each scene, which is divided in space "
        f"(sharding: {stage.sharding})"
        for k, stage in enumerate(stages)
        if stage.shares_scenes
    ]


@page_of.register
def _(difference: PlanDiff) -> Page:
    """Each stage's numbers under either plan, and which layers and ranks moved."""
    rows = []
    for k, sides in enumerate(difference.stages):
        before, after = (side or (None,) * len(_DIFFERENCES) for side in sides)
        forms = [duration_or_none] * 3 + [_bytes_or_none] * 2
        cells = (f"{form(a)} → {form(b)}" for form, a, b in zip(forms, before, after, strict=True))
        rows.append((str(k), *cells))
    periods = " → ".join(map(duration_or_none, difference.periods))
    headline = f"{' → '.join(difference.planners)}: {periods} per minibatch"
    if difference.speedup is not None:
        headline += f" ({difference.speedup:.2f} × as fast)"
    if any(gap is not None for gap in difference.gaps):
        headline += ", gap " + " → ".join("unknown" if gap is None else gap_text(gap) for gap in difference.gaps)
    notes = [*(difference.moves() or ["the same layers on the same ranks"]), *difference.changed_settings()]
    return Page(headline, [Section(Table(("stage", *_DIFFERENCES), rows), notes=notes)])


@page_of.register
def _(report: Regret | RobustPlan | HardwareChanges) -> Page:
    """A sentence, and a table of what to measure, of both plans or of the changes."""
    return Page(report.summary(), [Section(Table(*report.table()))])


def _bytes_or_none(value: float | None) -> str:
    return "–" if value is None else scaled_bytes(value)


@page_of.register
def _(profile: Profile) -> Page:
    """Each device type's time of a typical minibatch, and layers as bars, as high as their time."""
    layers, rows = range(len(profile.graph.layers)), list[tuple[Cell, ...]]()
    for kind in profile.device_types:
        costliest = max(layers, key=lambda k: sum(profile.time([k], kind)))
        rows.append((kind, *profile.time(layers, kind), profile.graph.layers[costliest].id))
    colors = type_colors(profile.device_types)
    marks = [_swatch(colors[kind], _TYPE) for kind in profile.device_types]
    columns = ("device type", "forward", "backward", "costliest layer")
    table = Table(columns, rows, {"forward": "s", "backward": "s"}, marks).first()
    size = profile.size()
    headline = f"profile of {number_of(len(layers), 'layer')} on {counted(profile.device_types)}"
    headline += f", {size:,.0f} {profile.size_unit} per minibatch" if size else ""
    return Page(headline, [Section(table, picture=partial(_layer_bars, profile))], profile.warnings)


@page_of.register
def _(cluster: Cluster) -> Page:
    """Each node's devices and link, nodes as boxes with their devices, and each type's memory."""
    rows = [
        (node.name, counted(kind.name for kind in node.device_types), link_text(node.link)) for node in cluster.nodes
    ]
    headline = f"{number_of(len(cluster.devices), 'device')} on {number_of(len(cluster.nodes), 'node')}"
    headline += f", {link_text(cluster.network)} between nodes" if len(rows) > 1 else ""
    nodes = Table(("node", "devices", "link"), rows).first()
    colors = type_colors(kind.name for kind in cluster.device_types)
    marks = [_swatch(colors[kind.name], _TYPE) for kind in cluster.device_types]
    limits = [(kind.name, _limit(kind.memory_bytes)) for kind in cluster.device_types]
    types = Table(("device type", "memory"), limits, marks=marks).first()
    return Page(headline, [Section(nodes, picture=partial(_node_boxes, cluster)), Section(types)])


def link_text(link: Link, unlimited: str = "free") -> str:
    """A link as one reads it: bytes a second, and the latency if there is one."""
    free = link.bandwidth == float("inf")
    bandwidth = unlimited if free else f"{scaled_bytes(link.bandwidth, form=as_given)}/s"
    return f"{bandwidth}, {as_given(link.latency * 1e6)} µs" if link.latency else bandwidth


def _limit(memory_bytes: float) -> str:
    return "no limit" if memory_bytes == float("inf") else scaled_bytes(memory_bytes, form=as_given)


@page_of.register
def _(trace: Trace) -> Page:
    """Each rank's shares of the time, and each rank as a lane."""
    if not trace.shown_seconds:
        return Page(f"{trace.source} trace without spans", [])
    ranks, shown = trace.ranks[:MOST_ROWS], _drawn_spans(trace)
    headline = f"{trace.source} trace: {number_of(len(trace.spans), 'span')} of {number_of(len(trace.ranks), 'rank')}"
    headline += f" in {duration(trace.shown_seconds)}"
    headline += f"; {left_out(trace)}" if trace.left_out else ""
    notes = [_IDLE]
    if len(shown) == _MOST_SPANS:
        until = max(span.end for span in shown) - min(span.start for span in trace.spans)
        notes.append(f"only the first {duration(until)} are drawn")
    rows = [_shares(trace, rank) for rank in ranks]
    table = Table(("rank", *_SHARES), rows, dict.fromkeys(_SHARES, "share"), more=len(trace.ranks) - len(ranks))
    return Page(headline, [Section(table, notes=notes, picture=partial(_rank_lanes, trace, ranks))])


def _shares(trace: Trace, rank: int) -> tuple[Cell, ...]:
    """Activity of a rank in shares of its time; waits only if measured."""
    length, work = trace.shown_seconds, trace.busy(rank)
    average, wait, send = (trace.seconds(rank, (kind,)) / length for kind in ("average", "wait", "send"))
    waited = None if trace.source == "simulated" else wait
    return (str(rank), work / length, 1 - work / length, average, waited, send)


def left_out(trace: Trace) -> str:
    """Return what is missing of a long run's trace: "left out: 1200 spans of minibatches 22–43, 55–98 (14.2 s)"."""
    missing = trace.left_out
    ranges = [f"{first}–{last}" for first, last in missing["minibatches"]]
    parts = ", ".join(ranges[:4]) + (f" and {len(ranges) - 4} more parts" if len(ranges) > 4 else "")
    return f"left out: {number_of(missing['spans'], 'span')} of minibatches {parts} ({duration(missing['seconds'])})"


@page_of.register
def _(record: RunRecord) -> Page:
    """A run: its state, its epochs and its plan, or an error for what cannot be read."""
    try:
        return _run(record)
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return Page(f"run {record.name} cannot be read: {error}", [])


def _run(record: RunRecord) -> Page:
    status, epochs, steps = record.status, record.metrics("epoch"), record.metrics("step")
    summary = record.metrics("summary")
    learned = validation_text(epochs[-1]) if epochs else ""
    reason = f": {status['reason']}" if status.get("reason") else ""
    rows = [("minibatches", f"{len(steps)}"), ("epochs", f"{len(epochs)}")]
    rows += [("throughput", pace_text(summary[-1]))] if summary else []
    rows += [("validation", learned.removeprefix("validation "))] if learned else []
    rates = [row["learning_rate"] for row in steps if "learning_rate" in row]  # older runs have none
    rows += [("learning rate", as_given(rates[-1]))] if rates else []
    rows += [("injected delay", record.straggler_note)] if record.straggler_note else []
    rows += [("plan", record.plan.summary()), ("folder", str(record.folder))]
    losses = [row["loss"] for row in steps if row.get("loss") is not None]
    picture = partial(_curve, losses, "loss by minibatch")
    return Page(f"run {record.name}, {status['state']}{reason}", [Section(Table(("", ""), rows), picture=picture)])


@page_of.register
def _(replay: Replay) -> Page:
    """Each step as measured and as replayed."""
    rows = []
    for step in replay.steps:
        seconds = (f"{value:.4f}" for value in (step.measured_seconds, step.replayed_seconds))
        rows.append((str(step.step), *seconds, f"{step.error:+.2%}", f"{step.pipeline_error:+.2%}"))
    columns = ("step", "measured (s)", "replayed (s)", "difference", "pipeline alone")
    headline = (
        f"{number_of(len(rows), 'step')}, largest error {replay.largest_error:.2%}; of forwards and backwards alone "
        f"(without transfers and launch delays) {replay.largest_pipeline_error:.2%}"
    )
    return Page(headline, [Section(Table(columns, rows).first())])


@page_of.register
def _(found: WhatIf) -> Page:
    """The step, what each part adds and costs, and the culprit."""
    rows = []
    for part in sorted(found.without, key=found.share, reverse=True):
        name = " ".join(map(str, filter(lambda word: word != "", part)))
        rows.append((name, f"{found.by[part]:.3f} ×", f"{found.without[part]:.4f}", f"{found.share(part):.0%}"))
    notes = [found.culprit, *(f"assumed: {note}" for note in found.assumed)]
    notes += [f"unknown: {note}" for note in found.unknown]
    columns = ("what", "slowdown caused by this part", "step without it (s)", "of the time lost")
    headline = (
        f"a step takes {found.measured_seconds:.4f} s, {found.launched_seconds:.4f} s without launch delays, "
        f"{found.even_seconds:.4f} s if equal operations took equal times: {found.slowdown:.3f} × as long"
    )
    return Page(headline, [Section(Table(columns, rows).first(), notes=notes)])


def _stages_strip(plan: Plan) -> Html:
    """The layers of a plan of one pipeline, in the stages' colours."""
    total, left, cells = max(1, len(plan.layers)), 0.0, []
    for k, stage in enumerate(plan.stages):
        width, top = len(stage.layers) / total * _WIDTH, 0.0
        title = f"stage {k}: {number_of(len(stage.layers), 'layer')}"
        title += f", recomputed: {stage.recomputed_text}" if stage.recomputes else ""
        parts = stage.parts_of_work() if stage.shares_scenes else (1.0,)  # of each scene: a strip for each device
        title += f", each scene divided among {number_of(len(parts), 'device')}" if len(parts) > 1 else ""
        for part in parts:
            gap = 1 if top + part < 1 - 1e-9 else 0
            cells.append(_rect(left, top * _LANE, width - 1, part * _LANE - gap, stage_color(k), title=title))
            top += part
        left += width
    return _svg(cells, _LANE, "layers by stage")


def _layer_bars(profile: Profile) -> Html:
    """Layers as bars, as high as their time on each device type."""
    layers, drawn, height = range(len(profile.graph.layers)), [], 44
    colors = type_colors(profile.device_types)
    seconds = {kind: [sum(profile.time([k], kind)) for k in layers] for kind in profile.device_types}
    top = max((max(times) for times in seconds.values()), default=0.0) or 1.0
    width = _WIDTH / max(len(layers), 1)
    for row, (kind, times) in enumerate(seconds.items()):
        for k in layers:
            high = times[k] / top * (height - 4)
            title = f"{profile.graph.layers[k].id} on {kind}: {duration(times[k])}"
            y = row * height + height - high
            drawn.append(_rect(k * width, y, max(width - 0.6, 0.4), high, colors[kind], title=title))
    return _svg(drawn, height * len(seconds), "time of each layer")


def _node_boxes(cluster: Cluster) -> Html:
    """Nodes as boxes with their devices."""
    drawn, left = [], 0.0
    colors = type_colors(kind.name for kind in cluster.device_types)
    size = min(22.0, _WIDTH / max(len(cluster.devices) + len(cluster.nodes), 1))
    for node in cluster.nodes:
        width = size * len(node.device_types) + 4
        drawn.append(_box(left, 0, width, 26, "none", _GREY, title=node.name))
        for k, kind in enumerate(node.device_types):
            x = left + 3 + k * size
            drawn.append(_rect(x, 4, size - 3, 18, colors[kind.name], title=f"{kind.name} on {node.name}"))
        left += width + size / 2
    return _svg(drawn, 26, "nodes")


def _drawn_spans(trace: Trace) -> list[Span]:
    """The spans that `rank_lanes` draws: work and averages, the first of many."""
    kinds = {*trace.work, "average"}
    return [span for span in trace.spans if span.kind in kinds][:_MOST_SPANS]


def _rank_lanes(trace: Trace, ranks: Sequence[int]) -> Html:
    """Each rank as a lane of its spans."""
    start, shown = min(span.start for span in trace.spans), _drawn_spans(trace)
    until = max((span.end for span in shown), default=start) - start or 1.0
    lanes, drawn = {rank: k for k, rank in enumerate(ranks)}, []
    for span in shown:
        if span.rank in lanes:
            x, width = (span.start - start) / until * _WIDTH, (span.end - span.start) / until * _WIDTH
            y, high = lanes[span.rank] * _LANE + 2, _LANE - 4
            title = f"rank {span.rank}: {span.name} {span.kind}, {duration(span.end - span.start)}"
            color = work_color(span.stage, "forward" if span.kind == "evaluate" else span.kind)
            drawn.append(_rect(x, y, width, high, color, title=title))
    return _svg(drawn, _LANE * len(lanes), "what each rank did")


def _curve(values: Sequence[float], label: str) -> Html:
    """Values in their order as a line; empty for fewer than two."""
    values = [value for value in values if math.isfinite(value)]
    if len(values) < 2:
        return Html("")
    few = values[:: max(1, len(values) // _WIDTH)]
    low, high = min(few), max(few)
    scale = 40 / (high - low) if high > low else 0.0
    points = " ".join(f"{k / (len(few) - 1) * _WIDTH:.1f},{44 - (v - low) * scale:.1f}" for k, v in enumerate(few))
    line = Html("<polyline points='{}' fill='none' stroke='{}'><title>{}</title></polyline>")
    return _svg([line.format(points, stage_color(0), label)], 48, label)


def _swatch(color: str, mark: str) -> Html:
    """A mark in a colour, with an edge by which it is seen on any page."""
    return Html("<span style='-webkit-text-stroke:{}px {};color:{}'>{}</span> ").format(
        _EDGE, edge_of(color), color, mark
    )


def _svg(inside: Iterable[Html], height: float, label: str) -> Html:
    return Html(
        "<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height:g}' "
        "viewBox='0 0 {width} {height:g}' role='img' aria-label='{label}'>{inside}</svg>"
    ).format(width=_WIDTH, height=height, label=label, inside=joined(inside))


def _rect(x: float, y: float, width: float, height: float, color: str, *, title: str) -> Html:
    """A rectangle with an edge inside it, by which it is seen on any page; a thin one has the edge's colour alone."""
    edge = edge_of(color)
    if edge == color or min(width, height) < 2 * _EDGE:
        return _box(x, y, max(width, 0.3), max(height, 0.3), edge, "none", title=title)
    return _box(x + _EDGE / 2, y + _EDGE / 2, width - _EDGE, height - _EDGE, color, edge, title=title)


def _box(x: float, y: float, width: float, height: float, fill: str, stroke: str, *, title: str) -> Html:
    return Html(
        "<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill='{}' stroke='{}'><title>{}</title></rect>"
    ).format(x, y, width, height, fill, stroke, title)


SHOWN = (Cluster, HardwareChanges, Plan, PlanDiff, Profile, Regret, Replay, RobustPlan, RunRecord, Trace, WhatIf)


def show_in(shell: Any) -> None:  # noqa: ANN401 - IPython has no types
    """Have an IPython shell, such as a notebook's, show values as `html` does."""
    formatter = shell.display_formatter.formatters["text/html"]
    for kind in SHOWN:
        formatter.for_type(kind, html)
