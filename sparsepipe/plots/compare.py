"""Plans side by side: a strip of layers for each, coloured by stage."""

import pandas as pd
import plotly.graph_objects as go

from ..display.html import counted
from ..display.markup import Html
from ..errors import InputError
from ..plan import Plan
from .table import milliseconds, plan_names
from .theme import INK, SMALL, finished, ink_on, stage_color


def compare_table(*plans: Plan) -> pd.DataFrame:
    """One row for each layer: its stage in each plan. Raises InputError for plans of different layers."""
    if not plans:
        raise InputError("no plan to compare: expected at least one")
    layers = plans[0].layers
    table = pd.DataFrame({"layer": layers})
    for name, plan in zip(plan_names(plans), plans, strict=True):
        stage_of = {id: k for k, stage in enumerate(plan.stages) for id in stage.layers}
        if set(stage_of) != set(layers):
            raise InputError(
                f"plan {name!r} is for other layers than {plan_names(plans)[0]!r}: compare plans of one network"
            )
        table[name] = [stage_of[id] for id in layers]
    return table


def compare(*plans: Plan, note: str = "") -> go.Figure:
    """Draw each plan as a strip of layers coloured by stage, its devices written in, its period beside it."""
    table = compare_table(*plans)
    names = plan_names(plans)
    figure, shown = go.Figure(), set()
    for name, plan in zip(names, plans, strict=True):
        start = 0
        for k, stage in enumerate(plan.stages):
            kinds = stage.device_types or tuple(f"rank {rank}" for rank in stage.ranks)
            devices = counted(kinds)
            bar = go.Bar(
                x=[len(stage.layers)],
                base=[start],
                y=[name],
                orientation="h",
                name=f"stage {k}",
                legendgroup=f"stage {k}",
                showlegend=k not in shown,
                marker={"color": stage_color(k), "line": {"width": 2, "color": "white"}},
                text=devices,
                textposition="inside",
                insidetextanchor="middle",
                textangle=0,
                textfont={"size": SMALL, "color": ink_on(stage_color(k))},
                hovertemplate=Html("stage {}: {} … {}<br>{}<extra>{}</extra>").format(
                    k, stage.layers[0], stage.layers[-1], devices, name
                ),
            )
            figure.add_trace(bar)
            shown.add(k)
            start += len(stage.layers)
        if plan.estimate:
            text = Html("{}<br>predicted").format(milliseconds(plan.estimate.period_seconds))
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
    )
    figure.update_yaxes(categoryorder="array", categoryarray=names[::-1], ticks="", showgrid=False)
    below = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom", "traceorder": "normal"}
    figure.update_layout(barmode="overlay", bargap=0.35, legend=below, margin={"r": 90, "b": 140})
    return finished(
        figure,
        "Which layers each plan puts where, and its predicted period",
        note=note,
        width=900,
        height=260 + 46 * max(2, len(plans)),
    )
