"""Who averaged with whom, and how late: sizes of groups and staleness of what was averaged (SDPipe's figure 9)."""

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ..markup import Html
from .outcomes import Outcome, mean_of, rule_color, sourced
from .theme import finished, hatch

_MOST = 9  # of the values on an axis the last stands for all that are larger


def groups_table(outcomes: Sequence[Outcome]) -> pd.DataFrame:
    """One row for each value that an outcome counted: `what` is "group size" or "staleness". Raises InputError without
    any.
    """
    rows = [
        {
            "rule": one.rule,
            "straggler": one.straggler,
            "source": one.source,
            "seed": one.seed,
            "what": what,
            "value": value,
            "count": count,
            "share": count / sum(counts.values()),
        }
        for one in outcomes
        for what, counts in (("group size", one.group_sizes), ("staleness", one.staleness))
        for value, count in counts.items()
    ]
    if not rows:
        raise InputError("plot.nothing", "no averages to draw: expected a synchronization scheme that averages")
    return pd.DataFrame(rows)


def groups(outcomes: Sequence[Outcome], *, note: str = "") -> go.Figure:
    """Draw for each outcome which share of its averages had how many members, and how many updates later which share of
    the contributions to them had its average: each pipeline takes an average for itself.
    """
    groups_table(outcomes)  # refuses what has nothing to draw
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.13)
    for k, one in enumerate(outcomes):
        for col, counts, unit in ((1, one.group_sizes, "members"), (2, one.staleness, "updates late")):
            shares = _shares(counts)
            bar = go.Bar(
                x=list(shares),
                y=[100 * share for share in shares.values()],
                name=f"{one.rule}, {one.source}" if _mixed(outcomes) else one.rule,
                legendgroup=str(k),
                offsetgroup=str(k),
                showlegend=col == 1,
                marker={"color": rule_color(one.rule), "pattern": hatch(one.source, rule_color(one.rule))},
                hovertemplate=Html("{}<br>%{{x}} {}: %{{y:.1f}}% (mean {})<extra>{}</extra>").format(
                    one.rule, unit, f"{mean_of(counts):.2f}", one.source
                ),
            )
            figure.add_trace(bar, row=1, col=col)
    figure.update_xaxes(title_text="pipelines in an average", dtick=1, ticks="", row=1, col=1)
    late = [str(value) for value in range(_MOST)] + [f"{_MOST}+"]
    figure.update_xaxes(title_text="staleness (updates between contribution and average)", ticks="", row=1, col=2)
    if any(value >= _MOST for one in outcomes for value in one.staleness):
        figure.update_xaxes(tickvals=list(range(_MOST + 1)), ticktext=late, row=1, col=2)
    else:
        figure.update_xaxes(dtick=1, row=1, col=2)
    figure.update_yaxes(title_text="share of averages (%)", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(title_text="share of contributions (%)", rangemode="tozero", row=1, col=2)
    legend = {"orientation": "h", "x": 0, "y": 0.01, "yref": "container", "yanchor": "bottom"}
    figure.update_layout(barmode="group", bargroupgap=0.06, legend=legend, margin={"b": 110})
    title = "Averaging groups and staleness"
    return finished(figure, title, note=sourced(outcomes, note), width=900, height=430)


def _shares(counts: Mapping[int, int]) -> dict[int, float]:
    total = sum(counts.values())
    found: dict[int, float] = {}
    for value, count in counts.items():
        found[min(value, _MOST)] = found.get(min(value, _MOST), 0.0) + count / total
    return found


def _mixed(outcomes: Sequence[Outcome]) -> bool:
    return len({one.source for one in outcomes}) > 1
