"""Paces: how long minibatches really take, whatever their sizes, and how sure that is."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import fmean, stdev

from ..cluster import Cluster
from ..plan import Plan
from ..profile import Profile
from ..trace import Span
from .expected import Expected

_LEAST = 5  # rounds, of which a pace is told
_ASIDE = 10  # of so many, the slowest and the quickest round are left aside: spikes are no pace
_REMEMBERED = 4096  # minibatches whose ends are kept


@dataclass(frozen=True, slots=True)
class MeasuredPace:
    """Seconds between ends of minibatches, over those of one device by the profile: sizes are so accounted for."""

    ratio: float
    error: float  # its standard error

    def faster(self, other: "MeasuredPace") -> tuple[float, float]:
        """By which share a minibatch is shorter at this pace than at another, and the standard error of that."""
        share = 1 - self.ratio / other.ratio
        return share, (1 - share) * math.hypot(self.error / self.ratio, other.error / other.ratio)


class Paces:
    """Takes a run's spans and sizes, and tells the pace of any of its newest minibatches."""

    def __init__(self, profile: Profile, cluster: Cluster, plan: Plan) -> None:
        """Raises InputError where the plan is not one for the profile's network and the cluster's devices."""
        self._expected = Expected(profile, cluster, plan)
        self._ends: dict[int, float] = {}  # of minibatches' last backward in the first stage
        self._sizes: dict[int, float] = {}

    def take(self, spans: Iterable[Span], sizes: Mapping[int, float]) -> None:
        """Take new spans and sizes; what is done again, as after a crash, counts for the second time."""
        self._sizes |= sizes
        for span in spans:
            if span.stage == 0 and span.kind == "backward":
                self._ends[span.minibatch] = span.end
        for kept in (self._sizes, self._ends):
            for number in list(islice(kept, max(0, len(kept) - _REMEMBERED))):
                del kept[number]

    def of(self, first: int, past: int, *, unit: int) -> MeasuredPace | None:
        """The pace of minibatches `first` to `past` − 1, in rounds of `unit`; None where too few of them are known."""
        self._expected.learn(size for number in range(first, past) if (size := self._sizes.get(number)) is not None)
        rounds = [self._round(range(begin, begin + unit)) for begin in range(first, past - unit + 1, unit)]
        ratios = sorted(
            (one[0] - before[0]) / one[1]
            for before, one in pairwise(rounds)
            if before is not None and one is not None and one[1] > 0 and one[0] > before[0]
        )
        if len(ratios) < _LEAST:
            return None
        aside = len(ratios) // _ASIDE
        kept = ratios[aside : len(ratios) - aside]
        return MeasuredPace(fmean(kept), stdev(kept) / math.sqrt(len(kept)))

    def _round(self, numbers: range) -> tuple[float, float] | None:
        """When a round ended, and the seconds that one device would take for it; None where that is not known."""
        if not all(number in self._ends and number in self._sizes for number in numbers):
            return None
        seconds = sum(sum(self._expected.of(self._sizes[number]).work.values()) for number in numbers)
        return max(self._ends[number] for number in numbers), seconds
