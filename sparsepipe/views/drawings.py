"""Small SVG drawings of values: a plan's stages, a profile's layers, a cluster's devices, a trace's ranks, a curve."""

import math
from collections.abc import Iterable, Sequence

from ..cluster import Cluster
from ..display.counting import number_of
from ..display.numbers import duration
from ..plan import Plan
from ..profile import Profile
from ..trace import Span, Trace
from .colors import STAGE_COLORS, edge_of, type_colors, work_color
from .markup import Html, joined

_GREY = "#8C8C8C"
_WIDTH, _LANE, _EDGE = 460, 16, 1  # pixels
MOST_SPANS = 600


def stages_strip(plan: Plan) -> Html:
    """The layers of a plan of one pipeline, in the stages' colours."""
    total, left, cells = max(1, len(plan.layers)), 0.0, []
    for k, stage in enumerate(plan.stages):
        width = len(stage.layers) / total * _WIDTH
        title = f"stage {k}: {number_of(len(stage.layers), 'layer')}"
        cells.append(_rect(left, 0, width - 1, _LANE, stage_color(k), title=title))
        left += width
    return _svg(cells, _LANE, "layers by stage")


def layer_bars(profile: Profile) -> Html:
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


def node_boxes(cluster: Cluster) -> Html:
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


def drawn_spans(trace: Trace) -> list[Span]:
    """The spans that `rank_lanes` draws: work and averages, the first of many."""
    kinds = {*trace.work, "average"}
    return [span for span in trace.spans if span.kind in kinds][:MOST_SPANS]


def rank_lanes(trace: Trace, ranks: Sequence[int]) -> Html:
    """Each rank as a lane of its spans."""
    start, shown = min(span.start for span in trace.spans), drawn_spans(trace)
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


def curve(values: Sequence[float], label: str) -> Html:
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


def stage_color(k: int) -> str:
    """The colour of stage `k`."""
    return STAGE_COLORS[k % len(STAGE_COLORS)]


def swatch(color: str, mark: str) -> Html:
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
