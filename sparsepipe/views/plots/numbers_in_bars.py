"""Numbers in horizontal bars: on plain colour where a bar is hatched, as no one reads digits behind lines."""

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from .text_room import width_of
from .theme import ink_on

_AROUND = 4  # pixels beside a number on its patch
_KEPT_FREE = 3  # pixels that plotly keeps free on each side of a text in a bar


def numbered(
    bars: go.Bar,
    numbers: Sequence[str],
    *,
    hatched: Sequence[bool],
    begins: Sequence[float],
    pixel: float,
    high: float,
    size: float,
    least: float = 0.0,
) -> list[go.Bar]:
    """Return bars of one colour with a number in each ("": none), and plain patches below those of hatched ones.

    `begins`: where each bar begins, at its base or on top of those that it is stacked on. `pixel`: what a pixel is of
    the axis, about; `high`: how high a patch is, of a row; `size`: of a number in pixels, and `least`: the size below
    which the figure hides it, so that a hatched bar without the room for that has neither a number nor a patch.
    """
    font = {"size": size, "color": ink_on(bars.marker.color)}
    solid = ["" if lines else number for number, lines in zip(numbers, hatched, strict=True)]
    bars = go.Bar(bars).update(text=solid, textposition="inside", insidetextanchor="middle", textangle=0, textfont=font)
    rooms = [length / pixel - 2 * _KEPT_FREE for length in bars.x]
    told = [k for k, number in enumerate(numbers) if number and hatched[k] and width_of(number) * least <= rooms[k]]
    if not told:
        return [bars]
    lengths = [min(bars.x[k], (width_of(numbers[k]) * size + 2 * _AROUND) * pixel) for k in told]
    middles: list[Any] = [begins[k] + bars.x[k] / 2 for k in told]
    patches = go.Bar(
        y=[bars.y[k] for k in told],
        x=lengths,
        base=[middle - length / 2 for middle, length in zip(middles, lengths, strict=True)],
        orientation="h",
        width=high,
        name=bars.name,
        legendgroup=bars.legendgroup,
        showlegend=False,
        hoverinfo="skip",
        marker={"color": bars.marker.color, "line": {"width": 0}},
        text=[numbers[k] for k in told],
        textposition="inside",
        insidetextanchor="middle",
        textangle=0,
        textfont=font,
    )
    return [bars, patches]
