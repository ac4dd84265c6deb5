"""The layer-graph explorer: the network as a graph to zoom and search, with a layer's costs on every device type."""

from typing import Any

import ipywidgets
import pandas as pd
import plotly.graph_objects as go

from ...util.text.numbers import duration, duration_or_none, scaled_bytes
from ...values.plan import Plan
from ...values.profile import Profile
from .. import plots
from ..markup import Html, joined
from ..plots.layer_graph import cuts_table, layer_graph_table, layer_name, lines_of
from ..plots.layout import BoxLayout, layout
from ..plots.marks import width_of
from ..plots.theme import GREY, INK, ink_on, scale_shades, stage_color
from . import looks
from .controls import Shown, with_tips
from .html_view import HtmlView, Messages, scrolled
from .plan_picture import GAP, SMALL, SOFT, WIDE, Sheet
from .plot_view import PlotView

_AROUND = 3.5  # widths of a box that stay in sight on each side of a layer that was searched for
_HIGH = 560  # pixels of the figure then
_MOST_FOUND = 200
_PIXELS = 1.12  # of a picture for each point of the layout, as in the figure
_COLUMNS = (24, 12, 9, 7, 5, 4)  # of a picture's line of layers: the most that its width has room for
_SHADES = scale_shades(0.0, 1.0, 25)  # of cost
_KEY, _SCALE_ROW = 75, 18  # pixels: width of the scale of cost, whose cells are too narrow for edges; its height
_ARROW = Html("<path d='M{:.1f} {:.1f}l-6 -3v6z' fill='{}' transform='rotate({} {:.1f} {:.1f})'/>")
_FRAME = Html("<rect x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}' fill='none' stroke='{}' stroke-width='{}'/>")
_HOW = (
    "Click a layer for its numbers, or find it by name or kind. Drag to move. The buttons above the graph "
    "zoom; they appear on hover or focus."
)
_HEAD = (
    "device type",
    "at",
    "forward",
    "± spread",
    "backward",
    "± spread",
    "output",
    "new coordinates",
    "activation memory",
    "kernel map",
)


class LayerGraphExplorer(Shown):
    """Show the layer graph of a profile, coloured by cost, with the stages of `plan`, if given. Display `widget`.

    `note` is the text below the figure's title. Default: the network's name, if the profile contains it. Raises
    InputError for a plan of another graph.
    """

    def __init__(self, profile: Profile, plan: Plan | None = None, *, note: str = "") -> None:
        if plan is not None:
            plan.check(profile.graph)
        self.profile, self.plan = profile, plan
        self.note = note or str(profile.origin.get("model") or "")
        self.messages = Messages()
        self.details = HtmlView(Html("<i>{}</i>").format(_HOW))
        self.view = PlotView(picture=self._picture)
        self.device_type = looks.Dropdown(
            options=list(profile.device_types),
            description="device type",
            tooltip="device type whose times are shown",
            style=looks.OWN_WIDTH,
        )
        self.find = looks.Text(
            description="find",
            placeholder="a layer's name or kind",
            tooltip="highlights matching layers",
            style=looks.OWN_WIDTH,
        )
        self.found = looks.Dropdown(
            description="found", tooltip="shows this layer", style=looks.OWN_WIDTH, layout={"display": "none"}
        )
        self.device_type.observe(self.messages.shown(lambda _: self._draw()), names="value")
        self.find.observe(self.messages.shown(lambda _: self._search()), names="value")
        self.found.observe(self.messages.shown(lambda _: self._draw()), names="value")
        self.view.on_click(self.messages.shown(self._clicked))
        controls = looks.HBox([self.device_type, self.find, self.found], layout={"flex_flow": "row wrap"})
        views = [self.messages, controls, self.details, self.view]
        self.widget = with_tips(looks.VBox(views, layout=ipywidgets.Layout()))
        self._draw()

    def show(self, layer: str) -> None:
        """Show the numbers of one layer. Raises KeyError for an unknown layer."""
        self.details.value = layer_details(self.profile, self.profile.graph.index[layer])

    def _search(self) -> None:
        """Offer the layers whose name or description has all words; the first of them is shown."""
        words = self.find.value.lower().split()
        layers = self.profile.graph.layers if words else ()
        told = [(f"{layer.id} {layer_name(layer)} {layer.description}", layer) for layer in layers]
        hits = [layer for text, layer in told if all(word in text.lower() for word in words)]
        options = [(f"{layer_name(layer)} ({layer.id})", layer.id) for layer in hits[:_MOST_FOUND]]
        self.found.options = options
        looks.show(self.found, on=bool(options))
        if options:
            self.found.value = options[0][1]  # which draws it
            return
        if words:
            self.details.value = Html("<i>No layer has {} in its name or kind</i>").format(" ".join(words))
        self._draw()

    def _draw(self) -> None:
        figure = plots.layer_graph(self.profile, self.plan, device_type=self.device_type.value, note=self.note)
        if self.found.value is not None:
            self.show(self.found.value)
            self._mark(figure, self.profile.graph.index[self.found.value])
        self.view.show(figure)

    def _picture(self) -> str:
        layer, index = self.found.value, self.profile.graph.index
        return layer_graph_picture(
            self.profile,
            self.plan,
            device_type=self.device_type.value,
            note=self.note,
            marked=None if layer is None else index[layer],
        )

    def _mark(self, figure: go.Figure, layer: int) -> None:
        """Draw a frame around a layer; of a large graph only its neighbourhood stays in sight."""
        placed = layout(self.profile.graph)
        (x, y), (w, h) = placed.positions[layer], placed.half
        figure.add_shape(
            type="rect", x0=x - w - 4, x1=x + w + 4, y0=y - h - 4, y1=y + h + 4, line={"width": 3, "color": INK}
        )
        room = _AROUND * 2 * w
        if placed.extent[0] > 2 * room:
            figure.update_xaxes(range=[x - room, x + room])
            figure.update_yaxes(range=[y - room / 2, y + room / 2])
            # Else it would be as high as all of it, and the layer below the fold.
            figure.update_layout(height=_HIGH, meta={**figure.layout.meta, "keeps_ratio": False})

    def _clicked(self, point: dict[str, Any]) -> None:
        if point.get("data") in self.profile.graph.index:
            self.show(point["data"])


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
        sheet.path("L".join(f"{x:.1f} {y:.1f}" for x, y in points), GREY, 1.2)
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


def _fitting(profile: Profile) -> BoxLayout:
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
    sheet.low += _SCALE_ROW
    if stages:
        sheet.keys([(f"stage {stage}", stage_color(stage)) for stage in stages])


def layer_details(profile: Profile, layer: int) -> Html:
    """All that a profile knows of one layer as HTML: a row for each device type and size it was measured at."""
    found, graph = profile.graph.layers[layer], profile.graph
    inputs = ", ".join(graph.layers[i].id for i in graph.inputs[layer]) or "the input"
    consumers = ", ".join(graph.layers[i].id for i in graph.consumers[layer]) or "the loss"
    rows = []
    for kind in profile.device_types:
        for s in profile.costs[kind][layer].stretched:
            times = (s.forward, s.forward_spread, s.backward, s.backward_spread)
            sizes = (s.output_bytes, s.coordinate_bytes, s.saved_bytes)
            pairs = f"{s.kernel_map_pairs:,.0f} pairs of voxels" if s.kernel_map_pairs else "none"
            size = f"{s.size:,.0f} {profile.size_unit}" if s.size else "any size"
            rows.append((kind, size, *map(duration_or_none, times), *map(scaled_bytes, sizes), pairs))
    look = "padding-right:14px;text-align:left;white-space:nowrap"
    cell, head, line = Html("<td style='{}'>{}</td>"), Html("<th style='{}'>{}</th>"), Html("<tr>{}</tr>")
    top = line.format(joined(head.format(look, word) for word in _HEAD))
    table = joined([top, *(line.format(joined(cell.format(look, text) for text in row)) for row in rows)])
    text = f"from {inputs}, to {consumers}; parameters {scaled_bytes(found.parameter_bytes)}"
    told = Html("<b>{}</b> {}<br>{}{}")
    return told.format(found.id, found.description, text, scrolled(Html("<table>{}</table>").format(table), "costs"))
