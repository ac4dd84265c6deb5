"""Seconds of each iteration over a run, a panel a variant: what an intruder costs, and what is done about it."""

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..display.markup import Html, figure_text
from .nothing import nothing_to_draw
from .theme import GREY, INK, RUN_COLORS, SMALL, finished

Series = Mapping[str, Sequence[tuple[int, float]]]  # variant → (iteration, seconds)
Marks = Mapping[str, Sequence[tuple[int, str]]]  # variant → (iteration, what happened)
_PANEL = 110  # pixels
_APART = 0.07  # of the axis: marks closer to each other have their words together, which would lie over each other


def iteration_times_table(series: Series, marks: Marks | None = None) -> pd.DataFrame:
    """One row for each iteration of each variant, with what happened at it."""
    happened = {name: dict(told) for name, told in (marks or {}).items()}
    rows = [
        {"variant": name, "iteration": at, "seconds": seconds, "mark": happened.get(name, {}).get(at, "")}
        for name, points in series.items()
        for at, seconds in points
    ]
    return pd.DataFrame(rows, columns=["variant", "iteration", "seconds", "mark"])


def iteration_times(series: Series, marks: Marks | None = None, *, title: str = "", note: str = "") -> go.Figure:
    """Draw every variant's seconds by iteration below each other, on the same axes; upright lines are marks.

    Nothing is smoothed or left out. Seconds beyond 1.5 times what 99 of 100 iterations take are cut off by the axis.
    """
    title = title or "Seconds of an iteration, by variant"
    if not series:
        return nothing_to_draw(title, note=note)
    names = list(series)
    figure = make_subplots(rows=len(names), cols=1, shared_xaxes=True, shared_yaxes="all", vertical_spacing=0.06)
    for row, name in enumerate(names, start=1):
        color, points = RUN_COLORS[(row - 1) % len(RUN_COLORS)], series[name]
        line = go.Scatter(
            x=[at for at, _ in points],
            y=[seconds for _, seconds in points],
            mode="lines",
            name=name,
            showlegend=False,
            line={"color": color, "width": 1},
            hovertemplate=Html("{}<br>iteration %{{x}}: %{{y:.3f}} s<extra></extra>").format(name),
        )
        figure.add_trace(line, row=row, col=1)
        figure.update_yaxes(title_text="s", row=row, col=1)
    table = iteration_times_table(series)
    most, top = table.iteration.max(), 1.5 * table.seconds.quantile(0.99)
    for row, name in enumerate(names, start=1):
        _named(figure, row, name, RUN_COLORS[(row - 1) % len(RUN_COLORS)])
        _mark(figure, row, (marks or {}).get(name, ()), apart=_APART * max(1, most))
    figure.update_yaxes(range=[0, top])
    figure.update_xaxes(title_text="iteration", row=len(names), col=1)
    figure.update_layout(margin_r=90)
    return finished(figure, title, note=note, height=110 + _PANEL * len(names))


def _axis(letter: str, row: int) -> str:
    return letter if row == 1 else f"{letter}{row}"


def _named(figure: go.Figure, row: int, name: str, color: str) -> None:
    """The variant's name at the right of its panel, where no mark can be."""
    figure.add_annotation(
        x=1.01,
        xref=f"{_axis('x', row)} domain",
        y=1,
        yref=f"{_axis('y', row)} domain",
        xanchor="left",
        yanchor="top",
        text=Html("<b>{}</b>").format(figure_text(name)),
        showarrow=False,
        font={"color": color, "size": SMALL + 1},
    )


def _counted(texts: Sequence[str]) -> list[str]:
    """Each text once, with how often it is there."""
    counts = Counter(texts)
    return [text if count == 1 else f"{text} × {count}" for text, count in counts.items()]


def _mark(figure: go.Figure, row: int, marks: Sequence[tuple[int, str]], *, apart: float) -> None:
    """An upright line for each mark; words of marks that are close to each other stand together."""
    groups: list[tuple[int, list[str]]] = []
    for at, text in marks:
        figure.add_vline(at, line={"color": GREY, "width": 1, "dash": "dot"}, row=row, col=1)
        if groups and at - groups[-1][0] < apart:
            groups[-1][1].append(text)
        else:
            groups.append((at, [text]))
    for at, texts in groups:
        figure.add_annotation(
            x=at,
            xref=_axis("x", row),
            y=1,
            yref=f"{_axis('y', row)} domain",
            xanchor="left",
            yanchor="top",
            align="left",
            text=Html("<br>").join(map(figure_text, _counted(texts))),
            showarrow=False,
            font={"size": SMALL - 2, "color": INK},
        )
