"""HTML representations of values for notebooks: a small table with an SVG drawing.

Cells, titles and labels are text that is escaped where it is put in, or `Html` that was made here.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from .colors import STAGE_COLORS, edge_of, type_colors, work_color
from .counting import number_of
from .markup import Html, joined
from .numbers import as_given, duration, duration_or_none, pace_text, scaled_bytes, validation_text
from .plan_text import warmups_told
from .table import html_table
from .trace_shares import SHARES_HEAD, rank_shares

_GREY = "#8C8C8C"
_WIDTH, _LANE, _EDGE = 460, 16, 1  # pixels
_MOST_SPANS, _MOST_ROWS = 600, 12
_STAGE, _TYPE = "■", "●"  # the marks before a stage's name and before that of a type of devices


def plan(value: Any) -> str:
    """Stages as rows, and the layers as a strip in the stages' colours; each pipeline below the one before."""
    parts = []
    for k, one in enumerate(value.pipelines):
        parts += [Html("<div>{}</div>").format(value.prefix(k) + one.summary())] if value.members else []
        parts += [*_stages(one), _notes(warmups_told(one.stages))]
    return _page(value.summary(), *parts, _notes(value.all_warnings))


def _stages(value: Any) -> tuple[Html, Html]:
    """A plan's picture and table."""
    rows = []
    for k, stage in enumerate(value.stages):
        kinds = stage.device_types or tuple(f"rank {rank}" for rank in stage.ranks)
        span = f"{stage.layers[0]} … {stage.layers[-1]} ({len(stage.layers)})" if stage.layers else ""
        row = [_swatch(_color(k), str(k)), span, counted(kinds)]
        if value.estimate:
            expected = value.estimate.stages[k]
            times = (expected.compute_seconds, expected.transfer_seconds, expected.averaging_seconds)
            row += [*map(duration_or_none, times), scaled_bytes(expected.memory_bytes)]
        rows.append(row)
    total, left, cells = max(1, sum(len(stage.layers) for stage in value.stages)), 0.0, []
    for k, stage in enumerate(value.stages):
        width = len(stage.layers) / total * _WIDTH
        cells.append(
            _rect(left, 0, width - 1, _LANE, _color(k), title=f"stage {k}: {number_of(len(stage.layers), 'layer')}")
        )
        left += width
    head = ["stage", "layers", "devices", *(["compute", "transfer", "averaging", "memory"] if value.estimate else [])]
    return _svg(cells, _LANE, "layers by stage"), _table(head, rows)


def profile(value: Any) -> str:
    """Layers as bars, as high as their time on each device type; totals as rows."""
    layers = range(len(value.graph.layers))
    rows, drawn, height, colors = list[list[str]](), [], 44, type_colors(value.device_types)
    seconds = {kind: [sum(value.time([k], kind)) for k in layers] for kind in value.device_types}
    top = max((max(found) for found in seconds.values()), default=0.0) or 1.0
    width = _WIDTH / max(len(layers), 1)
    for place, (kind, found) in enumerate(seconds.items()):
        costliest = max(layers, key=found.__getitem__)
        forward, backward = value.time(layers, kind)
        name = _swatch(colors[kind], kind, _TYPE)
        rows.append([name, duration(forward), duration(backward), value.graph.layers[costliest].id])
        for k in layers:
            high = found[k] / top * (height - 4)
            y = place * height + height - high
            title = f"{value.graph.layers[k].id} on {kind}: {duration(found[k])}"
            drawn.append(_rect(k * width, y, max(width - 0.6, 0.4), high, colors[kind], title=title))
    picture = _svg(drawn, height * len(seconds), "time of each layer")
    table = _table(["device type", "forward", "backward", "costliest layer"], rows)
    return _page(profile_told(value), picture, table, _notes(value.warnings))


def profile_told(profile: Any) -> str:
    """Return what a profile is, in a line: "profile of 9 layers on RTX, 20,000 voxels per minibatch"."""
    size = profile.size()
    told = f"profile of {number_of(len(profile.graph.layers), 'layer')} on {counted(profile.device_types)}"
    return told + (f", {size:,.0f} {profile.size_unit} per minibatch" if size else "")


def cluster(value: Any) -> str:
    """Nodes as boxes with their devices; links as rows of a table."""
    rows, drawn, left = [], [], 0.0
    colors = type_colors(kind.name for kind in value.device_types)
    size = min(22.0, _WIDTH / max(len(value.devices) + len(value.nodes), 1))
    for node in value.nodes:
        width = size * len(node.device_types) + 4
        drawn.append(_box(left, 0, width, 26, "none", _GREY, title=node.name))
        for k, kind in enumerate(node.device_types):
            x = left + 3 + k * size
            drawn.append(_rect(x, 4, size - 3, 18, colors[kind.name], title=f"{kind.name} on {node.name}"))
        left += width + size / 2
        rows.append([node.name, counted(k.name for k in node.device_types), link_text(node.link)])
    if len(value.nodes) > 1:
        rows.append(["between nodes", "", link_text(value.network)])
    kinds = [(_swatch(colors[kind.name], kind.name, _TYPE), kind.memory_bytes) for kind in value.device_types]
    limits = [[name, "", limit_text(memory_bytes)] for name, memory_bytes in kinds]
    table = _table(["", "devices", "link or memory"], [*rows, *limits])
    return _page(
        f"{number_of(len(value.devices), 'device')} on {number_of(len(value.nodes), 'node')}",
        _svg(drawn, 26, "nodes"),
        table,
    )


_IDLE = (
    "idle: all time without work, while the pipeline fills and drains, waits or averages. Waits for other ranks are "
    "told apart where they were measured; sends go on beside the work."
)


def trace(value: Any) -> str:
    """Each rank as a lane; work, waiting and sending as shares."""
    ranks, length = value.ranks, value.shown_seconds
    if not length:
        return _page(f"{value.source} trace without spans")
    start = min(span.start for span in value.spans)
    kinds = {*value.work, "average"}
    shown = [span for span in value.spans if span.kind in kinds][:_MOST_SPANS]
    until = max((span.end for span in shown), default=start) - start or 1.0
    lanes = {rank: k for k, rank in enumerate(ranks[:_MOST_ROWS])}
    drawn = []
    for span in shown:
        if span.rank in lanes:
            x, width = (span.start - start) / until * _WIDTH, (span.end - span.start) / until * _WIDTH
            y, high = lanes[span.rank] * _LANE + 2, _LANE - 4
            title = f"rank {span.rank}: {span.name} {span.kind}, {duration(span.end - span.start)}"
            color = work_color(span.stage, "forward" if span.kind == "evaluate" else span.kind)
            drawn.append(_rect(x, y, width, high, color, title=title))
    told = trace_told(value)
    if len(shown) == _MOST_SPANS:
        told += f", the first {duration(until)} drawn"
    picture = _svg(drawn, _LANE * len(lanes), "what each rank did")
    return _page(told, picture, _table(SHARES_HEAD, rank_shares(value, [*lanes])), _notes([_IDLE]))


def trace_told(trace: Any) -> str:
    """Return what a trace is, in a line: "measured trace: 120 spans of 2 ranks in 512 ms"."""
    told = f"{trace.source} trace: {number_of(len(trace.spans), 'span')} of {number_of(len(trace.ranks), 'rank')}"
    told += f" in {duration(trace.shown_seconds)}"
    return told + (f"; {left_out(trace)}" if trace.left_out else "")


def left_out(trace: Any) -> str:
    """Return what is missing of a long run's trace: "left out: 1200 spans of minibatches 22–43, 55–98 (14.2 s)"."""
    found = trace.left_out
    ranges = [f"{first}–{last}" for first, last in found["minibatches"]]
    told = ", ".join(ranges[:4]) + (f" and {len(ranges) - 4} more parts" if len(ranges) > 4 else "")
    return f"left out: {number_of(found['spans'], 'span')} of minibatches {told} ({duration(found['seconds'])})"


def record(value: Any) -> str:
    """A run: its state, its epochs and its plan, or an error for what cannot be read."""
    try:
        status, epochs, steps = value.status, value.metrics("epoch"), value.metrics("step")
        summary = value.metrics("summary")
        learned = validation_text(epochs[-1]) if epochs else ""
        reason = f": {status['reason']}" if status.get("reason") else ""
        told = f"run {value.name}, {status['state']}{reason}"
        rows = [["minibatches", f"{len(steps)}"], ["epochs", f"{len(epochs)}"]]
        rows += [["throughput", pace_text(summary[-1])]] if summary else []
        rows += [["validation", learned.removeprefix("validation ")]] if learned else []
        rates = [row["learning_rate"] for row in steps if "learning_rate" in row]  # older runs did not tell it
        rows += [["learning rate", as_given(rates[-1])]] if rates else []
        rows += [["held up on purpose", value.straggler_note]] if value.straggler_note else []
        rows += [["plan", value.plan.summary()], ["folder", str(value.folder)]]
        losses = [row["loss"] for row in steps if row.get("loss") is not None]
        return _page(told, _curve(losses, "loss by minibatch"), _table(["", ""], rows))
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return _page(f"run {value.name} cannot be read: {error}")


OURS = "sp-value"  # the class of a value's HTML: its words have no colours of their own, and go with any page


def _page(told: str, *parts: Html) -> str:
    """A whole page, as a string of Python's own: whoever adds to it would have theirs escaped by an `Html`."""
    whole = Html("<div class='{}' style='font-size:13px'><div><b>{}</b></div>{}</div>")
    return str(whole.format(OURS, told, joined(parts)))


def lines(text: str) -> str:
    """Text in lines and columns, as it stands in a terminal."""
    return str(Html("<pre class='{}'>{}</pre>").format(OURS, text))


def _notes(texts: Iterable[str]) -> Html:
    return joined(Html("<div>{}</div>").format(text) for text in texts)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Html:
    rows = list(rows)
    more = len(rows) - _MOST_ROWS
    return html_table(head, rows[:_MOST_ROWS], rest=f"… {more} more" if more > 0 else "")


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


def _curve(values: Sequence[float], label: str) -> Html:
    values = [value for value in values if math.isfinite(value)]
    if len(values) < 2:
        return Html("")
    few = values[:: max(1, len(values) // _WIDTH)]
    low, high = min(few), max(few)
    scale = 40 / (high - low) if high > low else 0.0
    points = " ".join(f"{k / (len(few) - 1) * _WIDTH:.1f},{44 - (v - low) * scale:.1f}" for k, v in enumerate(few))
    line = Html("<polyline points='{}' fill='none' stroke='{}'><title>{}</title></polyline>")
    return _svg([line.format(points, _color(0), label)], 48, label)


def _color(k: int) -> str:
    return STAGE_COLORS[k % len(STAGE_COLORS)]


def _swatch(color: str, name: str, mark: str = _STAGE) -> Html:
    marked = Html("<span style='-webkit-text-stroke:{}px {};color:{}'>{}</span> {}")
    return marked.format(_EDGE, edge_of(color), color, mark, name)


def counted(names: Iterable[str]) -> str:
    """Devices by type, as people write them: "2 × RTX + tv"; a type's name may begin with a digit."""
    found = list(names)
    each = ((name, found.count(name)) for name in dict.fromkeys(found))
    return " + ".join(name if count == 1 else f"{count} × {name}" for name, count in each)


def link_text(link: Any, unlimited: str = "free") -> str:
    """A link as one reads it: bytes a second, and the latency where there is one."""
    free = link.bandwidth == float("inf")
    bandwidth = unlimited if free else f"{scaled_bytes(link.bandwidth, form=as_given)}/s"
    return f"{bandwidth}, {as_given(link.latency * 1e6)} µs" if link.latency else bandwidth


def limit_text(value: float) -> str:
    return "no limit" if value == float("inf") else scaled_bytes(value, form=as_given)
