"""Drift: each rank's and each link's measured time over the one expected for that size, watched for lasting changes.

    spans ──► work of a rank on a minibatch ──┐
    sizes ──► what its profile says of it ────┴─► log ratio ──► change-point test ──► Alarm, Factors
              (a large cloud is expected to take long: it is no slow device)
    spans ──► a transfer, without the queue at its ports ──► over what the link needs for those bytes ──► …
              (what a rank waits for is not its work: a slow link is no slow device)
    times of a rank that the plan leaves out ──► over its first ones, times the factor that it was left out with ──► …

DynPipe compares times whatever the sizes are, and takes one reading for a change. The test here is change_point.py's,
which names its sources.
"""

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.trace import Span
from .change_point import SETTLED, Change, ChangePoint
from .drift_file import Alarm, Standing
from .factors import (
    LEAST,
    MOST,
    Factors,
    LeftOutWork,
    MinibatchWork,
    Pair,
    Ports,
    Transfer,
    TransfersOfLinks,
    WorkOfRanks,
)
from .predictions import Expected

_BLOCK = 10  # minibatches: some tenths of a second
_KNOWN = 5  # differences, before they tell anything
_AT_FIRST = 0.1  # of a ratio, until then
_NEWEST_DIFFERENCES = 40  # differences that are remembered
_GAUSSIAN = 1 / (0.6745 * math.sqrt(2))  # standard deviation over the median of differences


@dataclass
class Swings:
    """Takes a series' log ratios one after the other; `size` is the standard deviation of medians of ten of them."""

    _block: list[float] = field(default_factory=list)
    _before: float | None = None  # the median of the block before
    _differences: deque[float] = field(default_factory=lambda: deque(maxlen=_NEWEST_DIFFERENCES))

    def add(self, value: float) -> None:
        self._block.append(value)
        if len(self._block) < _BLOCK:
            return
        now = median(self._block)
        if self._before is not None:
            self._differences.append(abs(now - self._before))
        self._block, self._before = [], now

    def restart(self) -> None:
        """Another quantity is measured from now on: no block has some of both, and no difference is between both."""
        self._block, self._before = [], None

    @property
    def size(self) -> float:
        if len(self._differences) < _KNOWN:
            return _AT_FIRST
        return _GAUSSIAN * median(self._differences)


_NEWEST = 20  # values that say whether a slow beginning is over
_OF_MEDIAN = math.sqrt(math.pi / 2)  # its standard error over a mean's
_ALIKE = math.log(1.15)  # levels closer to each other than that: what was slow is back
_REMEMBERED = 1024  # values that are kept, with their minibatches


@dataclass
class Series:
    """The times of one rank or of one link over those expected: `rank` or `link` says whose.

    Usual is what its profile says, what it took before it ever changed, what it took when it was quickest, and all
    between: a profile is off by other shares for other layers, and what ranks of a job slow one another by is no other
    process's doing. Of a slow beginning no more is usual than what remains of it.
    """

    rank: int | None = None
    link: Pair | None = None
    changed: bool = False  # whether it is not as usual, by its last alarm
    since: int | None = None  # the minibatch at which its last lasting change began
    _test: ChangePoint = field(default_factory=ChangePoint)
    _swings: Swings = field(default_factory=Swings)
    _usual: float | None = None  # its level before it ever changed
    _least: float = 0.0  # the logs of what is usual beside its profile
    _most: float = 0.0
    _newest: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _began: int = 0  # values before the last change

    @classmethod
    def of_link(cls, pair: Pair) -> "Series":
        """Return the series of a link, whose first times count: links do not warm up."""
        return cls(link=pair, _test=ChangePoint(to_pass_over=0))

    def add(
        self,
        minibatch: int,
        measured: float,
        expected: float,
        *,
        unnoticed: float,
        seconds: float,
        uncertainty: float = 0.0,
    ) -> Alarm | None:
        """Compare a minibatch's seconds with those expected; `seconds` is when it was. Returns the alarm it raises.

        `unnoticed` seconds more hold no one up: they are added to both, so that a ratio of what is short says little.
        `uncertainty` is the share by which the expected time may be off: a ratio counts by what is beyond that.
        """
        tested = (measured + unnoticed) / (expected + unnoticed)
        self._newest.append((minibatch, measured / expected if expected > 0 else tested))
        apart = math.log(tested) - self._test.level
        value = self._test.level + math.copysign(max(0.0, abs(apart) - uncertainty), apart)
        self._swings.add(value)
        change = self._test.add(value)
        return None if change is None else self._alarm(change, minibatch, seconds)

    def is_faster(self, at_most: float, expected: float) -> bool:
        """Return whether a time that may be shorter still shows that what became slow is no longer as slow as that."""
        slow = self.changed and self._test.level > (self._usual or 0.0)
        return slow and math.log(at_most / expected) < self._test.level - _ALIKE

    def learn_anew(self) -> None:
        """Learn the usual level again, as the rank has other layers from now on."""
        self._test.restart()
        self._swings.restart()

    @property
    def factor(self) -> float:
        """Slowdown compared with the expected time: the median since the last change; 1 if unknown."""
        return 1.0 if self._test.learning and self.since is None else self._median(self._began, self._test.count)

    @property
    def lasting(self) -> float:
        """Return the slowdown of the last alarm; 1 if it reported a recovery."""
        level = math.log(self.factor)
        return math.exp(level - self._usual_of(level)) if self.changed else 1.0

    @property
    def from_start(self) -> float:
        """Usual slowdown compared with the profile, 1 or more, by its newest values, as a slow
        beginning passes.
        """
        if not self.changed:
            return 1.0
        return max(1.0, math.exp(self._usual_of(math.log(min(self.newest, self.factor)))))

    @property
    def newest(self) -> float:
        """Return the slowdown of the newest minibatches since the last change."""
        if self._test.learning and self.since is None:
            return 1.0
        return self._median(max(self._began, self._test.count - _NEWEST), self._test.count)

    @property
    def error(self) -> float:
        """The standard error of the logs of `factor` and `lasting`: of a median of noisy times, and of what swings."""
        known = min(max(self._test.count - self._began, 1), SETTLED)
        return math.hypot(_OF_MEDIAN * self._test.noise / math.sqrt(known), self._swings.size)

    @property
    def count(self) -> int:
        """Its minibatches that were measured."""
        return self._test.count

    def _usual_of(self, level: float) -> float:
        """Return the usual part of a level."""
        return min(max(level, self._least), self._most)

    def standing(self) -> Standing:
        test = self._test
        return Standing(
            self.rank, self.link, self.factor, test.count, self.since, test.spikes, test.noise, self.changed
        )

    def _alarm(self, change: Change, minibatch: int, seconds: float) -> Alarm:
        usual = change.before if self._usual is None else self._usual
        self._take_usual(change)
        self._usual = usual
        self.changed = abs(change.after - usual) > _ALIKE
        before = self._median(self._began, change.began) if change.began > self._began else 1.0
        self._began = change.began
        self.since = self._newest[self._place(change.began)][0]
        since, back, always = self.since, not self.changed, change.began == 0
        return Alarm(
            minibatch, since, self.factor, before, self.rank, self.link, recovered=back, seconds=seconds, always=always
        )

    def _take_usual(self, change: Change) -> None:
        """Widen what is usual by what was never as quick, or narrow it by what remains of a slow beginning."""
        if self._usual is None:
            first = change.before if change.began else change.after
            self._least, self._most = min(first, 0.0), max(first, 0.0)
        self._least = min(self._least, change.after)
        if self._test.count < SETTLED:
            self._most = max(min(self._most, change.after), 0.0)

    def _median(self, first: int, past: int) -> float:
        """The median ratio of the newest SETTLED of some values, by their numbers, of those that are remembered."""
        low, high = self._place(max(first, past - SETTLED)), self._place(past)
        found = sorted(ratio for _, ratio in islice(self._newest, low, max(high, low + 1)))
        return min(max(found[len(found) // 2], LEAST), MOST)

    def _place(self, number: int) -> int:
        return max(0, number - (self._test.count - len(self._newest)))


_MOST_SIZES = 200_000  # minibatches whose sizes are kept
_FIRST_TIMES = 5  # of a rank that is left out, whose median says what it takes when it is as slow as it was
# By how much a rank is slower than the quickest ever since they began, and minibatches of each until that is believed.
_APART = ((1.25, SETTLED), (1.5, 40))
_SURE = 2.0  # standard errors
_MOST_WAITING = 20_000  # measured times whose minibatches' sizes did not come
Found = MinibatchWork | Transfer | LeftOutWork


class Watch:
    """Detect lasting slowdowns of the ranks and links of one run.

    Args:
        profile: Profile of the network.
        cluster: Devices of the run.
        plan: Plan that the run follows.
        simulated: Whether the trace is simulated: its "send" spans are transfers, and it has no waits.

    Raises:
        InputError: A plan for a different network or cluster.

    Example:
        >>> watch = sp.monitoring.Watch(profile, cluster, plan, simulated=True)
        >>> slow = sp.simulate(plan, profile, cluster, [2000.0] * 200, stragglers="slow:rank=1,factor=2")
        >>> alarms = watch.see(slow.spans, {minibatch: 2000.0 for minibatch in range(200)})
        >>> [alarm.rank for alarm in alarms]
        [1]
        >>> now = watch.factors.scaled(profile, cluster)  # profile and cluster as they are now, for `partition`

    See also:
        guides/online_repartitioning, `monitoring.drift_of`, `monitoring.Factors`
    """

    def __init__(self, profile: Profile, cluster: Cluster, plan: Plan, *, simulated: bool = False) -> None:
        """`simulated`: spans of sends are transfers, as in `simulate`'s traces, and no waits are recorded.

        Raises InputError if the plan is not one for the profile's network and the cluster's devices.
        """
        self.profile, self.cluster = profile, cluster
        self.alarms: list[Alarm] = []
        self._eras = [_Era(0, Expected(profile, cluster, plan), WorkOfRanks(plan), set())]
        self._transfers, self._ports = TransfersOfLinks(simulated=simulated), Ports(cluster)
        self._simulated = simulated
        self._sizes: dict[int, float] = {}
        self._waiting: list[tuple[Found, float]] = []  # until their minibatch's size is known
        self.ranks: dict[int, Series] = {}  # those that were seen at work
        self.links: dict[Pair, Series] = {}  # those that anybody waited for

    def follow(self, plan: Plan, *, first_minibatch: int) -> None:
        """Switch to another plan of the same network, from a minibatch on. The known slowdowns of the devices stay.

        Ranks have other layers then, for which the profile may have other errors. The usual time of each rank is
        therefore estimated again.
        """
        expected, before = Expected(self.profile, self.cluster, plan), self._era(first_minibatch).expected.plan
        others = {rank for rank in plan.ranks if _layers(plan, rank) != _layers(before, rank)}
        self._eras = [era for era in self._eras if era.first < first_minibatch]
        self._eras.append(_Era(first_minibatch, expected, WorkOfRanks(plan), others))

    def see(
        self, spans: Iterable[Span], sizes: Mapping[int, float], left_out: Iterable[LeftOutWork] = ()
    ) -> list[Alarm]:
        """Process new spans, those of each rank in time order, and the sizes of minibatches by number.

        Returns new alarms.

        Sizes may come before or after the spans of their minibatches, and ranks in any order. Spans outside of training
        are skipped. `left_out` contains new times of ranks without stages.
        """
        self._sizes.update(sizes)
        for era in self._eras:
            era.expected.learn(size for number, size in sizes.items() if self._era(number) is era)
        for span in spans:
            found: MinibatchWork | Transfer | None = self._era(span.minibatch).work.take(span) or self._transfers.take(
                span
            )
            if found is not None:
                self._waiting.append((found, span.end))
        if new := [(found, found.end) for found in left_out]:
            self._waiting = sorted([*self._waiting, *new], key=lambda one: one[1])
        alarms = [alarm for found, end in self._take_known() if (alarm := self._look(found, end)) is not None]
        self.alarms += alarms
        return alarms

    @property
    def factors(self) -> Factors:
        """Present slowdowns of all devices and links, after their alarms. 1: as usual.

        The times of a rank in its first minibatches count as usual, whatever the profile says. A slowdown that all
        ranks share therefore changes no plan. A rank is slow from the start if it is 50 % slower than the fastest one
        after forty minibatches, or 25 % after a hundred.
        """
        return factors_of(self.cluster, self.ranks, self.links)

    def also(self, made_for: Factors) -> tuple[Factors, ...]:
        """Return other slowdowns that the measurements allow, for a plan that was `made_for` others.

        First: each rank nearer to its earlier slowdown, by twice the standard error of the measurements. Second: each
        rank as in its newest minibatches, compared with its profile. Lasting changes ignore errors of the profile,
        which is right if an error belongs to the layers of a rank, and wrong if it belongs to the rank.
        """
        now, series = self.factors, [self.ranks.get(device.rank) for device in self.cluster.devices]
        pairs = zip(series, now.ranks, made_for.ranks, strict=True)
        nearer = tuple(_nearer(here, then, _SURE * one.error if one else 0.0) for one, here, then in pairs)
        return Factors(nearer, now.links), Factors(tuple(one.newest if one else 1.0 for one in series), now.links)

    @property
    def standings(self) -> tuple[Standing, ...]:
        """State of every rank in order, then of every link that a rank waited for."""
        series = [self.ranks[rank] for rank in sorted(self.ranks)]
        series += [self.links[pair] for pair in sorted(self.links)]
        return tuple(one.standing() for one in series)

    def _era(self, minibatch: int) -> "_Era":
        place = bisect_right(self._eras, minibatch, key=lambda era: era.first)
        return self._eras[max(0, place - 1)]

    def _take_known(self) -> list[tuple[Found, float]]:
        """Return the waiting entries whose minibatch sizes are now known, or do not matter."""
        known: list[tuple[Found, float]] = []
        waiting: list[tuple[Found, float]] = []
        for one in self._waiting:
            (known if isinstance(one[0], LeftOutWork) or one[0].minibatch in self._sizes else waiting).append(one)
        self._waiting = waiting[-_MOST_WAITING:]
        for number in list(self._sizes)[: max(0, len(self._sizes) - _MOST_SIZES)]:
            del self._sizes[number]
        return known

    def _look_left_out(self, found: LeftOutWork) -> Alarm | None:
        """Compare a time with the first ones under this plan, when the rank was as slow as it was known to be before.

        Of a rank that was never seen at work nothing is known: its times tell nothing.
        """
        if (series := self.ranks.get(found.rank)) is None:
            return None
        era = self._era(found.minibatch)
        first = era.left_out.setdefault(found.rank, [])
        if len(first) < _FIRST_TIMES:
            first.append(found.seconds)
            era.as_usual[found.rank] = median(first) / series.factor
            return None
        expected = era.as_usual[found.rank]
        return series.add(found.minibatch, found.seconds, expected, unnoticed=0.0, seconds=found.end)

    def _look(self, found: Found, seconds: float) -> Alarm | None:
        """Compare a time with the expected one."""
        if isinstance(found, LeftOutWork):
            return self._look_left_out(found)
        era = self._era(found.minibatch)
        size = self._sizes[found.minibatch]
        times = era.expected.of(size)
        if isinstance(found, MinibatchWork):
            series = self.ranks.setdefault(found.rank, Series(rank=found.rank))
            if found.rank in era.others:
                era.others.remove(found.rank)
                series.learn_anew()
            expected, measured, unnoticed = times.work.get(found.rank, 0.0), found.seconds, 0.0
            unsure = times.uncertainty
        else:
            first, second = sorted((found.rank, found.peer))
            series = self.links.setdefault((first, second), Series.of_link((first, second)))
            expected = era.expected.transfer_seconds(size, first, second, forwards=found.forwards, cut=found.cut)
            measured, unnoticed, unsure = self._under_way(found, expected * series.factor), times.noticed, 0.0
            if not found.waited and not series.is_faster(measured + unnoticed, expected + unnoticed):
                return None  # it took no longer than that, which says nothing new
        if expected + unnoticed <= 0 or measured + unnoticed <= 0:
            return None  # layers that cost nothing, as in a profile that leaves out some
        return series.add(found.minibatch, measured, expected, unnoticed=unnoticed, seconds=seconds, uncertainty=unsure)

    def _under_way(self, one: Transfer, expected: float) -> float:
        if self._simulated:  # where a transfer begins when its ports are free
            return one.end - one.start
        return self._ports.seconds(one, expected)


def factors_of(cluster: Cluster, ranks: Mapping[int, Series], links: Mapping[Pair, Series]) -> Factors:
    """Return what the series of ranks and links say of the devices of a cluster, as `Watch.factors` tells."""
    from_start = _from_start(ranks)
    now = {rank: one.lasting * from_start.get(rank, 1.0) for rank, one in ranks.items()}
    return Factors(
        tuple(now.get(device.rank, 1.0) for device in cluster.devices),
        {
            pair: one.lasting * (one.from_start if one.count >= SETTLED else 1.0)
            for pair, one in links.items()
            if one.changed
        },
    )


def _from_start(ranks: Mapping[int, Series]) -> dict[int, float]:
    """By how much ranks are slower than the quickest ever since they began, if that is much and is sure."""
    if not ranks:
        return {}
    known = min(one.count for one in ranks.values())
    much = min((apart for apart, count in _APART if count <= known), default=math.inf)
    least = min(one.from_start for one in ranks.values())
    return {rank: one.from_start / least for rank, one in ranks.items() if one.from_start > much * least}


@dataclass
class _Era:
    """The minibatches, from `first` on, that were trained under one plan."""

    first: int
    expected: Expected
    work: WorkOfRanks
    others: set[int]  # ranks that have other layers than before, and have not been seen since
    left_out: dict[int, list[float]] = field(default_factory=dict)  # rank → its first times
    as_usual: dict[int, float] = field(default_factory=dict)  # rank → what it would take, were it as its profile says


def _nearer(now: float, then: float, error: float) -> float:
    """A factor that is nearer to another one by an error of its log, or is that one."""
    apart = math.log(now / then)
    return then * math.exp(math.copysign(max(0.0, abs(apart) - error), apart))


def _layers(plan: Plan, rank: int) -> list[tuple[str, ...]]:
    return [plan.stages[k].layers for k in plan.stages_of(rank)]
