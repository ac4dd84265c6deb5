"""The layer-graph explorer: the network as a graph to zoom, with a layer's costs on every device type on click."""

from typing import Any

import ipywidgets

from .. import plots
from ..display.markup import Html, joined
from ..plan import Plan
from ..plots.table import scaled_bytes
from ..profile import Profile
from .html_view import HtmlView
from .messages import Messages
from .plot_view import PlotView
from .responsive import responsive


class LayerGraphExplorer:
    """Shows `profile`'s graph, coloured by cost, with the stages of `plan` where given. `widget` is what to display.

    Raises InputError for a plan of another graph.
    """

    def __init__(self, profile: Profile, plan: Plan | None = None, *, note: str = "") -> None:
        if plan is not None:
            plan.check(profile.graph)
        self.profile, self.plan = profile, plan
        self.messages = Messages()
        self.details = HtmlView(Html("<i>Click a layer for its numbers; drag to move, scroll to zoom.</i>"))
        self.view = PlotView(scroll_zoom=True)
        self.device_type = ipywidgets.Dropdown(options=list(profile.device_types), description="device type")
        self.device_type.observe(self.messages.shown(lambda _: self._draw(note)), names="value")
        self.view.on_click(self.messages.shown(self._clicked))
        self.widget = responsive(ipywidgets.VBox([self.messages, self.device_type, self.view, self.details]))
        self._draw(note)

    def show(self, layer: str) -> None:
        """Show the numbers of one layer. Raises KeyError for a layer that the graph does not have."""
        self.details.value = layer_details(self.profile, self.profile.graph.index[layer])

    def _draw(self, note: str) -> None:
        self.view.show(plots.layer_graph(self.profile, self.plan, device_type=self.device_type.value, note=note))

    def _clicked(self, point: dict[str, Any]) -> None:
        if point.get("data") in self.profile.graph.index:
            self.show(point["data"])


def layer_details(profile: Profile, layer: int) -> Html:
    """All that a profile knows of one layer as HTML: a row for each device type and size it was measured at."""
    found, graph = profile.graph.layers[layer], profile.graph
    inputs = ", ".join(graph.layers[i].id for i in graph.inputs[layer]) or "the input"
    consumers = ", ".join(graph.layers[i].id for i in graph.consumers[layer]) or "the loss"
    head = (
        "device type",
        profile.size_unit,
        "forward",
        "spread",
        "backward",
        "spread",
        "output",
        "new coordinates",
        "kept",
        "pairs",
    )
    rows = []
    for kind in profile.device_types:
        for s in profile.costs[kind][layer].samples:
            times = (s.forward, s.forward_spread, s.backward, s.backward_spread)
            sizes = (s.output_bytes, s.coordinate_bytes, s.saved_bytes)
            rows.append(
                (
                    kind,
                    f"{s.size:,.0f}",
                    *(f"{t * 1e3:.3f} ms" for t in times),
                    *map(scaled_bytes, sizes),
                    f"{s.kernel_map_pairs:,.0f}",
                )
            )
    cell, line = Html("<td style='padding-right:14px'>{}</td>"), Html("<tr>{}</tr>")
    table = joined(line.format(joined(map(cell.format, row))) for row in (head, *rows))
    text = f"from {inputs}, to {consumers}; parameters {scaled_bytes(found.parameter_bytes)}"
    return Html("<b>{}</b> {}<br>{}<table>{}</table>").format(found.id, found.description, text, table)
