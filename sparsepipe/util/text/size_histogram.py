"""How sizes of samples are spread: quantiles and a small histogram, as JSON and as a line of text."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

_QUANTILES = {"least": 0.0, "1%": 0.01, "25%": 0.25, "median": 0.5, "75%": 0.75, "99%": 0.99, "most": 1.0}
_BINS = 12
_BARS = " ▁▂▃▄▅▆▇█"


def sizes_spread(sizes: Sequence[float]) -> dict[str, Any]:
    """Return quantiles of `sizes`, and how many lie in each of equal steps from least to most on a logarithmic axis.

    Raises ValueError without any.
    """
    values = np.maximum(np.asarray(sizes, dtype=float), 1.0)
    found = dict(zip(_QUANTILES, np.quantile(values, list(_QUANTILES.values())).tolist(), strict=True))
    low, high = found["least"], found["most"]
    edges = np.geomspace(low, high, _BINS + 1) if high > low else np.array([low, low + 1])
    edges[0], edges[-1] = low, max(high, low + 1)
    return {"samples": len(values), **found, "histogram": np.histogram(values, edges)[0].tolist()}


def spread_text(spread: Mapping[str, Any], unit: str) -> str:
    """Return "voxels of a sample: 1,700 ▂▅█▇▃▁ 50,000, median 6,200, 1% to 99% 1,900 to 41,000"."""
    most = max(spread["histogram"])
    bars = "".join(_BARS[-(-(len(_BARS) - 1) * count // most)] for count in spread["histogram"])
    of = {name: f"{spread[name]:,.0f}" for name in _QUANTILES}
    return (
        f"{unit} of a sample: {of['least']} |{bars}| {of['most']}, median {of['median']}, 25% to 75% {of['25%']} to "
        f"{of['75%']}, 1% to 99% {of['1%']} to {of['99%']}"
    )
