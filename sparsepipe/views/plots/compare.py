"""Plans side by side: a strip of layers for each, coloured by stage."""

import pandas as pd
import plotly.graph_objects as go

from ...errors import InputError
from ...util.text.counting import counted
from ...util.text.numbers import duration
from ...values.plan import Plan
from ..markup import Html, figure_text
from .table import plan_names
from .text_room import width_of
from .theme import FONT_SIZE, INK, SMALL, finished, ink_on, stage_color

_WIDTH, _RIGHT = 900, 90  # pixels: of the figure, and beside its axis, where periods are told
_WIDE, _NARROW = 8, 3  # pixels of a stage that a line of 2 pixels around it, or of a half, does not hide
_ROW, _GAP = 46, 0.35  # pixels of a plan, about, and what of it is free
_BESIDE = 5  # pixels between words and what is beside them
_READ = 9  # pixels of the smallest letters


def compare_table(*plans: Plan) -> pd.DataFrame:
    """One row for each layer: its stage in each plan. Raises InputError for plans of different layers."""
    if not plans:
        raise InputError("plot.nothing", "no plan to compare: expected at least one")
    layers = plans[0].layers
    table = pd.DataFrame({"layer": layers})
    for name, plan in zip(plan_names(plans), plans, strict=True):
        stage_of = {id: k for k, stage in enumerate(plan.stages) for id in stage.layers}
        if set(stage_of) != set(layers):
            raise InputError(
                "plot.layers_differ",
                f"plan {name!r} is for other layers than {plan_names(plans)[0]!r}: compare plans of one network",
            )
        table[name] = [stage_of[id] for id in layers]
    return table


def compare(*plans: Plan, note: str = "") -> go.Figure:
    """Draw each plan as a strip of layers coloured by stage, its devices written in, its period next to it.

    Devices of a stage that is too narrow for their names are written above it, or below; if others are, by hover
    alone.
    """
    table = compare_table(*plans)
    names = plan_names(plans)
    left = max(70, FONT_SIZE * max(map(width_of, names)) + 16)
    pixels = (_WIDTH - left - _RIGHT) / len(table)  # of a layer
    figure, shown = go.Figure(), set()
    for row, name, plan in zip(reversed(range(len(plans))), names, plans, strict=True):
        start = 0
        outside = _Outside()
        for k, stage in enumerate(plan.stages):
            kinds = stage.device_types or tuple(f"rank {rank}" for rank in stage.ranks)
            devices = counted(kinds)
            room, wide = pixels * len(stage.layers), width_of(devices)
            size = min(SMALL, (room - _BESIDE) / wide)
            fits = size >= _READ
            bar = go.Bar(
                x=[len(stage.layers)],
                base=[start],
                y=[name],
                orientation="h",
                name=f"stage {k}",
                legendgroup=f"stage {k}",
                showlegend=k not in shown,
                marker={"color": stage_color(k), "line": {"width": _outline(room), "color": "white"}},
                text=devices if fits else "",
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                constraintext="none",
                textfont={"size": size if fits else SMALL, "color": ink_on(stage_color(k))},
                hovertemplate=Html("stage {}: {} … {}<br>{}<extra>{}</extra>").format(
                    k, stage.layers[0], stage.layers[-1], devices, name
                ),
            )
            figure.add_trace(bar)
            shown.add(k)
            middle = start + len(stage.layers) / 2
            if not fits and (side := outside.free(middle * pixels, SMALL * wide, pixels * len(table))):
                place = row + side * (1 - _GAP) / 2
                anchor = "bottom" if side > 0 else "top"
                figure.add_annotation(
                    x=middle,
                    y=place,
                    yanchor=anchor,
                    borderpad=1,
                    text=figure_text(devices),
                    font={"size": SMALL, "color": INK},
                    showarrow=False,
                )
            start += len(stage.layers)
        if plan.estimate:
            text = Html("{}<br>predicted").format(duration(plan.estimate.period_seconds))
            figure.add_annotation(
                x=1.01,
                xref="paper",
                xanchor="left",
                y=name,
                text=text,
                showarrow=False,
                font={"size": SMALL, "color": INK},
            )
    layers = table.layer.tolist()
    every = max(1, len(layers) // 26)
    ticks = list(range(0, len(layers), every))
    figure.update_xaxes(
        tickvals=[k + 0.5 for k in ticks],
        ticktext=[layers[k] for k in ticks],
        title_text="layers, in the order of the network",
        tickangle=-90,
        tickfont_size=SMALL - 2,
        showgrid=False,
        range=[0, len(layers)],
    )
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], ticks="", showgrid=False)
    below = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom", "traceorder": "normal"}
    figure.update_layout(barmode="overlay", bargap=_GAP, legend=below, margin={"r": _RIGHT, "b": 140})
    return finished(
        figure,
        "Layers of each stage, and predicted time per minibatch, by plan",
        note=note,
        width=_WIDTH,
        height=260 + _ROW * max(2, len(plans)),
    )


def _outline(room: float) -> float:
    """Pixels of the line around a stage that is so wide: it parts it from others, and would hide a narrow one."""
    return 2 if room > _WIDE else 0.5 if room > _NARROW else 0


class _Outside:
    """The words above the stages of one plan and below them: pixels from left to right that are taken."""

    def __init__(self) -> None:
        self.taken: dict[int, list[tuple[float, float]]] = {1: [], -1: []}

    def free(self, middle: float, wide: float, whole: float) -> int:
        """Take a place for words around `middle`: 1 above, -1 below, 0 if there is none within 0 to `whole`."""
        low, high = middle - wide / 2, middle + wide / 2
        for side, taken in self.taken.items():
            if low >= 0 and high <= whole and all(high + _BESIDE <= a or b + _BESIDE <= low for a, b in taken):
                taken.append((low, high))
                return side
        return 0
