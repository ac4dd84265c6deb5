"""Units of a minibatch's size (voxels, tokens, pixels, samples), with which costs grow; and how sure costs are.

See values/profile/size_laws.py for the laws by which they grow.
"""

from dataclasses import dataclass

# The first of them that a row of metrics has is its size: samples are in each.
# Active voxels at a sparse network's input, points of clouds as they are, tokens of a text, and pixels of pictures of
# several sizes.
SIZE_UNITS = ("voxels", "points", "tokens", "pixels", "samples")


def size_words(unit: str) -> str:
    """Return a unit of size as figures and messages write it: "active voxels" are those that hold points."""
    return f"active {unit}" if unit == "voxels" else unit


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
        return self.factor > 1.005

    def __str__(self) -> str:
        """ "extrapolated 4 ×: ± 20%", or "± 3%" within the measured range."""
        share = f"± {100 * self.share:.0f}%"
        factor = f"{self.factor:,.0f}" if self.factor >= 100 else f"{self.factor:.3g}"  # no exponent: 2,050 ×
        return f"extrapolated {factor} ×: {share}" if self.extrapolated else share

    def to_json(self) -> dict[str, float]:
        """What a plan's file and answers have of it."""
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
        """What holds of both: the worse of each."""
        return Certainty(max(self.factor, other.factor), max(self.share, other.share))
