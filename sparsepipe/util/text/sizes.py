"""Units of a minibatch's size (voxels, tokens, pixels, samples), with which costs grow; and how sure costs are.

See values/profile/size_laws.py for the laws by which they grow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# The first of them that a row of metrics has is its size: samples are in each.
# Active voxels at a sparse network's input, points of clouds as they are, tokens of a text, and pixels of pictures of
# several sizes.
SIZE_UNITS = ("voxels", "points", "tokens", "pixels", "samples")


def size_words(unit: str) -> str:
    """Return a unit of size as figures and messages write it: "active voxels" are those that hold points."""
    return f"active {unit}" if unit == "voxels" else unit


EXTRAPOLATED = 1.005  # times beyond a measured size: less, and digits do not show it


@dataclass(frozen=True, slots=True)
class Certainty:
    """Of the seconds predicted for a minibatch of one size.

    `factor`: how many times the size is beyond the nearest measured one, 1 within the measured range. `share`: by which
    the seconds may be off, about one standard deviation.
    """

    factor: float = 1.0
    share: float = 0.0

    @property
    def extrapolated(self) -> bool:
        """Return whether the size is beyond what was measured, by more than digits show."""
        return self.factor > EXTRAPOLATED

    def __str__(self) -> str:
        """ "extrapolated 4 ×: ± 20%", or "± 3%" within the measured range."""
        share = f"± {100 * self.share:.0f}%"
        factor = f"{self.factor:,.0f}" if self.factor >= 100 else f"{self.factor:.3g}"  # no exponent: 2,050 ×
        return f"extrapolated {factor} ×: {share}" if self.extrapolated else share

    def to_json(self) -> dict[str, float]:
        """Return the JSON values for plan files and results."""
        return {"extrapolation": self.factor, "uncertainty": self.share}

    @staticmethod
    def beyond(*known: "Certainty | None") -> str:
        """Return what is said wherever times are predicted: "extrapolated 4 ×: ± 20%", of the worst of `known`.

        Empty if all sizes are within the measured range, and for times that do not depend on size.
        """
        worst = Certainty()
        for certainty in known:
            worst |= certainty or Certainty()
        return str(worst) if worst.extrapolated else ""

    def __or__(self, other: "Certainty") -> "Certainty":
        """Combine two certainties: the worse value of each field."""
        return Certainty(max(self.factor, other.factor), max(self.share, other.share))


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
