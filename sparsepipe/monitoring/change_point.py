"""One change-point test for one series of log ratios: Page's cumulative sums, with steps that outliers cannot stretch.

              x, log(measured / expected)                 S, the sum that says "slower"
                          · ·· · ·                          ────────────── threshold → a change, since S was last 0
              ·  · ' ·                                                 ⟋
        · ·· ·  ·   ·  ·                                     ·   ⟋ ·
       ──────── reference ────────                          ───────── 0

    S ← max(0, S + clip(x − reference − allowance, ± threshold / 6))       and its mirror image, that says "faster"

Sources: E. S. Page, "Continuous inspection schemes", Biometrika 41, 1954: the sum, its allowance of half the smallest
change that is to be found, and the beginning of a change where the sum was last 0. P. J. Huber, "A robust version of
the probability ratio test", Ann. Math. Statist. 36, 1965: each step is clipped, which is best against a share of
outliers of any size; here it also says that no fewer than six minibatches make a lasting change, however slow they are.
D. Siegmund, "Sequential Analysis", 1985, section II.6: the threshold for a mean distance between false alarms. The
noise is measured by the median of |x[i] − x[i−1]|, which a change of level moves no more than an outlier does.
"""

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from ..errors import InputError
from ..planning.simulator import simulate
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.stragglers import Stragglers
from ..values.trace import Trace
from .decision import CAUTION, Caution
from .moves import moves_between, transfer_seconds

SMALLEST = 1.3  # times as long, or as short: the smallest change that is to be found
AT_ONCE = 6  # minibatches in a row that make a change, at the least
PASSED_OVER = 5  # first minibatches, in which kernels and caches warm up
LEARNED = 10  # minibatches after those, of which a first reference is taken; the test begins behind them
SETTLED = 100  # minibatches of which the reference is the median, at the most
OUTLIER = 1.5  # times as long as usual, and more than four times the noise: a spike

_ALLOWANCE = math.log(SMALLEST) / 2
_FROM_START = math.log(1.25)  # of a first reference: a profile may be off by less
_EXPONENT = 20.0  # of the mean number of minibatches between false alarms: some e^20, if the noise is Gaussian
_LEAST_NOISE = 0.05  # of a ratio: quieter machines are not trusted to stay so quiet
_FIRST_NOISE, _TRUSTED = 0.1, 50  # nor so few differences that say so
_DIFFERENCES = 200  # newest ones, of which the noise is told
_REMEMBERED = 1000  # values since a sum was 0
_GAUSSIAN = 1 / (0.6745 * math.sqrt(2))  # standard deviation over the median of |x[i] − x[i−1]|


@dataclass(frozen=True, slots=True)
class Change:
    """A lasting change: `began` counts the series' values, the first is 0; levels are medians of log ratios."""

    began: int
    found: int
    before: float
    after: float


@dataclass
class _Sum:
    """One of the two sums, and the values since it was last 0."""

    total: float = 0.0
    values: list[float] = field(default_factory=list)

    def add(self, step: float, value: float, *, most: float) -> bool:
        """Take a step; return whether the sum is at its limit, `most`."""
        self.total = max(0.0, min(self.total + step, most))
        if self.total:
            self.values.append(value)
            del self.values[:-_REMEMBERED]
        else:
            self.values.clear()
        return self.total >= most * (1 - 1e-9)


def _sums() -> dict[int, _Sum]:
    """The two sums of a test that begins: of what says slower, and of what says faster."""
    return {1: _Sum(), -1: _Sum()}


@dataclass
class ChangePoint:
    """The state of the test. Feed it one value after the other by `add`."""

    to_pass_over: int = PASSED_OVER  # values that are still to come and say nothing
    count: int = 0
    level: float = 0.0  # median log ratio since the last change (of its first SETTLED values); 0: as expected
    noise: float = _FIRST_NOISE  # standard deviation of the log ratio, robustly
    spikes: int = 0  # runs of outliers that ended before they made a change
    _sorted: list[float] = field(default_factory=list, repr=False)  # the values that the level is the median of
    _differences: deque[float] = field(default_factory=lambda: deque(maxlen=_DIFFERENCES), repr=False)
    _sums: dict[int, _Sum] = field(default_factory=_sums, repr=False)  # by direction
    _ordered: list[float] = field(default_factory=list, repr=False)  # the differences by their size
    _last: float | None = field(default=None, repr=False)
    _outliers: int = field(default=0, repr=False)  # of the run that goes on

    @property
    def learning(self) -> bool:
        """Return whether there are too few values yet, since the beginning or since `restart`, to say anything."""
        return len(self._sorted) < LEARNED

    def restart(self) -> None:
        """Learn the reference level again, as another quantity is measured from now on; a jump of it is a change."""
        self._sorted, self._sums, self._outliers, self._last = [], _sums(), 0, None
        self.to_pass_over = PASSED_OVER

    def add(self, value: float) -> Change | None:
        """Take the next log ratio; return the change that it proves, if it does.

        If the first reference is not what was expected, or one after `restart` not what it was before, that is a
        change which began with its first value.
        """
        self.count += 1
        if self.to_pass_over:
            self.to_pass_over -= 1
            return None
        self._take_noise(value)
        if self.learning:
            return self._learn(value)
        self._take_spike(value)
        threshold = self._threshold()
        most = threshold / AT_ONCE
        allowance = _ALLOWANCE + 1.25 * self.noise / math.sqrt(len(self._sorted))  # the reference is itself uncertain
        for direction, one in self._sums.items():
            step = direction * (value - self.level) - allowance
            if one.add(max(-most, min(step, most)), value, most=threshold) and self._differs(one):
                return self._changed(one)
        # What may be the beginning of a change, an outlier or as much, is no reference: it would soon be the median of
        # the few values that there are, unnoticed.
        if len(self._sorted) < SETTLED and all(one.total < 0.99 * most for one in self._sums.values()):
            insort(self._sorted, value)
            self.level = median(self._sorted)
        return None

    def _learn(self, value: float) -> Change | None:
        insort(self._sorted, value)
        if self.learning:
            return None
        before, self.level = self.level, median(self._sorted)
        if abs(self.level - before) <= _FROM_START:
            return None
        return Change(max(0, self.count - LEARNED - PASSED_OVER), self.count - 1, before, self.level)

    def _take_noise(self, value: float) -> None:
        if self._last is not None:
            if len(self._differences) == _DIFFERENCES:
                del self._ordered[bisect_left(self._ordered, self._differences[0])]
            self._differences.append(abs(value - self._last))
            insort(self._ordered, self._differences[-1])
            least = _LEAST_NOISE if len(self._ordered) >= _TRUSTED else _FIRST_NOISE
            self.noise = max(least, _GAUSSIAN * self._ordered[len(self._ordered) // 2])
        self._last = value

    def _take_spike(self, value: float) -> None:
        if abs(value - self.level) > max(math.log(OUTLIER), 4 * self.noise):
            self._outliers += 1
        elif self._outliers:
            self.spikes += 1
            self._outliers = 0

    def _threshold(self) -> float:
        """Grows with the variance of the noise, and with how uncertain that still is."""
        uncertain = 1 + 1.6 / math.sqrt(len(self._differences))
        return _EXPONENT * (self.noise * uncertain) ** 2 / (2 * _ALLOWANCE)

    def _differs(self, one: _Sum) -> bool:
        """Return whether most values since the sum was 0 are off: a sum may be high for a few that are far off."""
        return abs(median(one.values) - self.level) > _ALLOWANCE

    def _changed(self, one: _Sum) -> Change:
        began, before = self.count - len(one.values), self.level
        self._sorted = sorted(one.values[-SETTLED:])
        self.level = median(self._sorted)
        self._sums = _sums()
        self._outliers = 0
        return Change(began, self.count - 1, before, self.level)


UNDISTURBED = Stragglers()
NO_KILLS = "straggler kill: simulated plans that change end no process; run or replay it, or simulate one plan"
Followed = tuple[int, Plan]  # (its first minibatch, plan)


@dataclass(frozen=True)
class Segment:
    """A part of a run under one plan."""

    first_minibatch: int
    plan: Plan
    begin: float  # seconds, of the run
    trace: Trace  # in the run's time and minibatches
    pause_seconds: float  # before it, in which nothing is trained


def simulate_plans(
    plans: Sequence[Followed],
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    *,
    stragglers: Stragglers = UNDISTURBED,
    caution: Caution = CAUTION,
) -> tuple[Segment, ...]:
    """Let a run follow `plans` in turn. Each pipeline runs empty before the next fills; its state moves between them.

    Raises InputError as `simulate` does.
    """
    found: list[Segment] = []
    ends = [first for first, _ in plans[1:]] + [len(sizes)]
    clock = 0.0
    before: Plan | None = None
    for (first, plan), end in zip(plans, ends, strict=True):
        pause = 0.0
        if before is not None:
            moves = moves_between(before, plan, profile, cluster)
            pause = transfer_seconds(moves, cluster) + caution.other_seconds
        trace = simulate_from(plan, profile, cluster, sizes[first:end], first, clock + pause, stragglers)
        found.append(Segment(first, plan, clock + pause, trace, pause))
        clock, before = max((span.end for span in trace.spans), default=clock + pause), plan
    return tuple(found)


def simulate_from(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    first_minibatch: int,
    begin: float,
    stragglers: Stragglers,
) -> Trace:
    """One plan's part of a run, which begins at `begin` seconds with the run's minibatch `first_minibatch`.

    Raises InputError as `simulate` does, and if a rank is killed in it.
    """
    stragglers.check(len(cluster.devices))
    own = simulate(plan, profile, cluster, sizes, stragglers=stragglers.later(first_minibatch))
    if own.facts.get("restart"):
        raise InputError("straggler.kill_not_simulated", NO_KILLS)
    spans = (
        span._replace(start=span.start + begin, end=span.end + begin, minibatch=span.minibatch + first_minibatch)
        for span in own.spans
    )
    return Trace(tuple(spans), own.source, own.facts)


def seconds_of(segments: Sequence[Segment]) -> float:
    """Return the duration of the run in seconds."""
    return max((span.end for segment in segments for span in segment.trace.spans), default=0.0)


def iteration_seconds(segments: Sequence[Segment], num_minibatches: int) -> list[float]:
    """From the end of each minibatch's last backward to that of the next; of the first one from the beginning."""
    ends = [0.0] * num_minibatches
    for segment in segments:
        for span in segment.trace.spans:
            if span.stage == 0 and span.kind == "backward":
                ends[span.minibatch] = max(ends[span.minibatch], span.end)
    return [after - before for before, after in pairwise([0.0, *ends])]
