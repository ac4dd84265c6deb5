"""Outcomes: the gain predicted for each change of plan, the gain measured, and how far the next prediction is believed.

A simulator has ranks that do not touch one another. On a machine they may share a memory, a cache or a processor: who
gets more to do slows the others down, and an intruder slows all of them. No profile says by how much; the paces before
and after a change do.

            decided           the new plan begins        judged
    ───────────┼───────────────────────┼─────────────────────┼──►  minibatches
          └──── its pace before ───────┘    └─ its pace after ┘
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from statistics import fmean, stdev
from typing import Any

from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.trace import Span
from .change_point import LEARNED, PASSED_OVER
from .decision import faster_or_slower
from .drift_file import Alarm
from .factors import Factors
from .predictions import Expected

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
    """Takes a run's spans and sizes, and computes the pace of any of its newest minibatches."""

    def __init__(self, profile: Profile, cluster: Cluster, plan: Plan) -> None:
        """Raises InputError if the plan is not one for the profile's network and the cluster's devices."""
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
        """The pace of minibatches `first` to `past` − 1, in rounds of `unit`; None if too few of them are known."""
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
        """Return the end of a round and the seconds that one device would need for it; None if unknown."""
        if not all(number in self._ends and number in self._sizes for number in numbers):
            return None
        seconds = sum(sum(self._expected.of(self._sizes[number]).work.values()) for number in numbers)
        return max(self._ends[number] for number in numbers), seconds


_FILLS = 5  # first minibatches of a plan, in which its stages fill
_SEEN, _USUAL = 20, 40  # minibatches of which a pace is taken: after a change, and the newest ones elsewhere
_ROUNDS = 6  # of them, at the least
_ALIKE = 1.2  # times as long: devices closer to each other than that are as they were
_OTHERS = 1.5  # times as long, for one rank beside another: more than profiles are off by for other layers
_CAME = 0.5  # of what a change was to give, at the least: else it was in vain
_MOST_IN_VAIN = 4
_AT_FIRST = 0.1  # share that changes are taken to have given, as they were to, before any was judged
_JUDGED, _KNOWN = 3, 16  # of the newest, that are remembered
_FORGOTTEN = 2000  # minibatches after which they are not
_SURE = 2.0  # standard errors


@dataclass(frozen=True, slots=True)
class Outcome:
    """A judged change of plan: by which share minibatches were to become shorter, and became; below 0: longer."""

    first_minibatch: int
    predicted: float  # by the simulator; 0 of a plan of which was known what it takes
    measured: float
    expected: float  # by the decision

    def __str__(self) -> str:
        gave, told = faster_or_slower(self.measured), faster_or_slower(self.expected)
        return f"the plan since minibatch {self.first_minibatch} is {gave}; predicted: {told}"

    def to_json(self) -> dict[str, Any]:
        """Return the row of a run's decisions file."""
        shares = {"predicted_share": round(self.expected, 4), "measured_share": round(self.measured, 4)}
        return {"minibatch": self.first_minibatch, **shares}


@dataclass(frozen=True, slots=True)
class _Known:
    """Measured time of a plan on devices in some state, and its minibatch."""

    at: int
    stages: tuple[object, ...]
    ranks: tuple[float, ...]
    pace: MeasuredPace


@dataclass(frozen=True, slots=True)
class _Open:
    """A change that is not judged yet."""

    before: Plan
    since: int  # the first minibatch of which the pace before is taken
    first: int
    predicted: float
    expected: float
    ranks: tuple[float, ...]  # the devices that it was decided for


class Outcomes:
    """Remembers the paces of a run's plans on its devices as they were, and judges each change by them."""

    def __init__(self, profile: Profile, cluster: Cluster, plan: Plan) -> None:
        self.told: list[Outcome] = []  # whenever one was known
        self.judged: list[Outcome] = []  # of what the simulator predicted, those that say how far it is believed
        self.in_vain = 0  # newest changes in a row that did not give what they were to, or of which nobody knows
        self._paces = Paces(profile, cluster, plan)
        self._plan, self._since = plan, _filled(plan, 0)  # from that minibatch on plan and devices are as they are
        self._factors = Factors.none(len(cluster.devices))
        self._known: list[_Known] = []
        self._open: _Open | None = None
        self._last: tuple[int, int] | None = None  # of the newest outcome: its first minibatch, and when it was judged

    def see(
        self,
        spans: Sequence[Span],
        sizes: Mapping[int, float],
        minibatch: int,
        *,
        alarms: Sequence[Alarm],
        factors: Factors,
    ) -> Outcome | None:
        """Take what a run did up to `minibatch`; return the outcome that is known by now, if one is.

        If devices change again before a plan was seen at work, no one knows what it would have given. What changes
        while ranks learn their new layers is the plan's doing, unless one rank becomes slower than the others by more
        than profiles are off: then somebody came, or went, at that moment.
        """
        self._paces.take(spans, sizes)
        if alarms:
            self._devices_changed(min(alarm.began for alarm in alarms))
        self._factors = factors
        return self._judge(minibatch)

    def begin(self, plan: Plan, *, first_minibatch: int, predicted: float, expected: float) -> None:
        """The run follows another plan from `first_minibatch` on; `predicted`: the share that the simulator told,
        `expected`: the one that was believed.

        A plan of which it is known what it takes was not chosen by the simulator.
        """
        known = self._known_of(plan, first_minibatch) is not None
        told, now = 0.0 if known else predicted, self._factors.ranks
        self._open, self._last = _Open(self._plan, self._since, first_minibatch, told, expected, now), None
        self._plan, self._since = plan, _filled(plan, first_minibatch)

    def follow(self, plan: Plan, *, first_minibatch: int) -> None:
        """The run follows another plan from `first_minibatch` on, whose gain no one predicted."""
        ranks = self._factors.ranks
        self._remember(self._plan, self._pace(self._plan, self._since, first_minibatch), first_minibatch, ranks)
        self._open = self._last = None
        self._plan, self._since = plan, _filled(plan, first_minibatch)

    @property
    def judging(self) -> bool:
        """Return whether the gain of the newest change is not measured yet."""
        return self._open is not None

    @property
    def _costs_time(self) -> bool:
        """Return whether the present plan was measured to be slower than the one before."""
        return self._last is not None and self.told[-1].measured < 0

    def trust(self, minibatch: int) -> float:
        """The share of the predicted gains that was measured; 1 before any change was judged."""
        newest = [one for one in self.judged[-_JUDGED:] if minibatch - one.first_minibatch < _FORGOTTEN]
        # No more than what it was to give speaks against the simulator: what else happened meanwhile is in it, too.
        seen = sum(max(min(one.measured, one.predicted), -one.predicted) for one in newest)
        told = sum(one.predicted for one in newest)
        return min(max((_AT_FIRST + seen) / (_AT_FIRST + told), 0.0), 1.0)

    @property
    def patience(self) -> float:
        """Factor on the required gain of the next change: doubled for each recent change without a gain."""
        return float(2 ** min(self.in_vain, _MOST_IN_VAIN))

    def believed(self, plan: Plan, share: float, minibatch: int) -> float:
        """The share by which a minibatch is expected to be shorter under `plan`, where the simulator predicts `share`.

        What a plan took on devices like these counts more than what a simulator says, as far as it is sure; if the
        simulator says that it is no shorter, only if the present plan was seen to cost time. Else the
        devices may be the same and the machine's pace not: changing back was as often slower as faster.
        """
        known = self._known_of(plan, minibatch)
        now = self._pace(self._plan, self._since, minibatch)
        if known is None or now is None or share <= 0 and not self._costs_time:
            return share * self.trust(minibatch) if share > 0 else share
        measured, error = known.pace.faster(now)
        return math.copysign(max(0.0, abs(measured) - _SURE * error), measured)

    def _known_of(self, plan: Plan, minibatch: int) -> _Known | None:
        """The newest that is known of `plan` on devices like these."""
        return next((one for one in reversed(self._known) if self._fits(one, plan, minibatch)), None)

    def _fits(self, one: _Known, plan: Plan, minibatch: int) -> bool:
        """Return whether that is known of `plan` on devices like these; what slows all of them by as much does not
        count.
        """
        alike = _apart(one.ranks, self._factors.ranks) <= _ALIKE
        return one.stages == _stages(plan) and minibatch - one.at < _FORGOTTEN and alike

    def _pace(self, plan: Plan, since: int, past: int) -> MeasuredPace | None:
        """The pace of the newest minibatches from `since` to `past` − 1, under `plan`."""
        unit = _unit(plan)
        return self._paces.of(max(since, past - max(_USUAL, _ROUNDS * unit)), past, unit=unit)

    def _devices_changed(self, began: int) -> None:
        if self._open is not None:
            if self._open.first <= began <= self._open.first + PASSED_OVER + LEARNED:
                return
            if began > self._open.first:
                self._open = None
                self.in_vain += 1
        elif self._last is not None and self._last[0] < began <= self._last[1]:
            self._unjudge()
        if began > self._since:
            self._remember(self._plan, self._pace(self._plan, self._since, began), began, self._factors.ranks)
            self._since = began

    def _judge(self, minibatch: int) -> Outcome | None:
        one = self._open
        if one is None or minibatch < self._since + max(_SEEN, _ROUNDS * _unit(self._plan)):
            return None
        self._open = None
        before = self._pace(one.before, one.since, one.first)
        if _apart(one.ranks, self._factors.ranks) > _OTHERS:
            self._remember(one.before, before, one.first, one.ranks)
            self._since = minibatch
            self.in_vain += 1
            return None
        after = self._pace(self._plan, self._since, minibatch)
        self._remember(one.before, before, one.first, self._factors.ranks)  # of the same devices, as they are seen now
        self._remember(self._plan, after, minibatch, self._factors.ranks)
        if before is None or after is None:
            return None
        self._last = one.first, minibatch
        outcome = Outcome(one.first, one.predicted, after.faster(before)[0], one.expected)
        self.in_vain = 0 if outcome.measured >= _CAME * max(one.expected, 0.0) else self.in_vain + 1
        self.told.append(outcome)
        if one.predicted > 0:
            self.judged.append(outcome)
        return outcome

    def _unjudge(self) -> None:
        """Forget the newest outcome: devices changed meanwhile, which is seen only now."""
        assert self._last is not None
        first, at = self._last
        self._last = None
        self.judged = [one for one in self.judged if one.first_minibatch != first]
        self._known = [one for one in self._known if one.at != at]

    def _remember(self, plan: Plan, pace: MeasuredPace | None, at: int, ranks: tuple[float, ...]) -> None:
        if pace is not None:
            self._known = [*self._known[1 - _KNOWN :], _Known(at, _stages(plan), ranks, pace)]


def _apart(first: tuple[float, ...], second: tuple[float, ...]) -> float:
    """Return the spread of the ranks' ratios `first` / `second`: 1 if all ratios are equal."""
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    return max(ratios) / min(ratios)


def _stages(plan: Plan) -> tuple[object, ...]:
    return tuple((stage.layers, stage.ranks, stage.shares) for stage in plan.stages)


def _unit(plan: Plan) -> int:
    """Minibatches whose ends belong together: a round of replicas, or a step."""
    return math.lcm(plan.num_microbatches if plan.updates_by_step else 1, *(stage.round for stage in plan.stages))


def _filled(plan: Plan, first: int) -> int:
    """The minibatch from which on the stages of a plan that begins with minibatch `first` are full."""
    return first + max(_FILLS, _unit(plan))
