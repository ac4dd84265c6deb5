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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.trace import Span
from .alarms import Alarm, Standing
from .change_point import SETTLED
from .expected import Expected
from .factors import Factors, Pair
from .observations import LeftOut, Ports, Transfer, TransfersOfLinks, Work, WorkOfRanks
from .series import Series

_MOST_SIZES = 200_000  # minibatches whose sizes are kept
_FIRST_TIMES = 5  # of a rank that is left out, whose median says what it takes when it is as slow as it was
# By how much a rank is slower than the quickest ever since they began, and minibatches of each until that is believed.
_APART = ((1.25, SETTLED), (1.5, 40))
_SURE = 2.0  # standard errors
_MOST_WAITING = 20_000  # measured times whose minibatches' sizes did not come
Found = Work | Transfer | LeftOut


class Watch:
    """Watch the ranks and links of one run for lasting slowdowns.

    Args:
        profile: Profile of the network.
        cluster: Devices of the run.
        plan: Plan that the run follows.
        simulated: Whether the trace is simulated, so that spans of sends are transfers and nobody waits.

    Raises:
        InputError: A plan of another network or cluster.

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
        """Switch to another plan of the same network, from a minibatch on; what is known of the devices stays.

        Ranks have other layers then, of which a profile may be off otherwise: what is usual for them is learned again.
        """
        expected, before = Expected(self.profile, self.cluster, plan), self._era(first_minibatch).expected.plan
        others = {rank for rank in plan.ranks if _layers(plan, rank) != _layers(before, rank)}
        self._eras = [era for era in self._eras if era.first < first_minibatch]
        self._eras.append(_Era(first_minibatch, expected, WorkOfRanks(plan), others))

    def see(self, spans: Iterable[Span], sizes: Mapping[int, float], left_out: Iterable[LeftOut] = ()) -> list[Alarm]:
        """Take new spans, those of each rank in the order of time, and the sizes of minibatches by their numbers.

        Sizes may come before or after the spans of their minibatches, and ranks in any order. What is no training is
        passed over. `left_out`: new times of ranks that the plan leaves out. Returns the alarms that all this raises.
        """
        self._sizes.update(sizes)
        for era in self._eras:
            era.expected.learn(size for number, size in sizes.items() if self._era(number) is era)
        for span in spans:
            found: Work | Transfer | None = self._era(span.minibatch).work.take(span) or self._transfers.take(span)
            if found is not None:
                self._waiting.append((found, span.end))
        if new := [(found, found.end) for found in left_out]:
            self._waiting = sorted([*self._waiting, *new], key=lambda one: one[1])
        alarms = [alarm for found, end in self._take_known() if (alarm := self._look(found, end)) is not None]
        self.alarms += alarms
        return alarms

    @property
    def factors(self) -> Factors:
        """Every device and link as it is now: lasting changes alone, from their alarm on; 1 is as usual.

        What ranks took in their first minibatches is usual, whatever their profile says: no plan moves away from what
        all of them have in common. A rank that is half as slow again as the quickest after forty minibatches, or by a
        quarter after a hundred, is slow.
        """
        return factors_of(self.cluster, self.ranks, self.links)

    def also(self, made_for: Factors) -> tuple[Factors, ...]:
        """Return what devices may be as well, as far as measurements tell, under a plan that was `made_for` others.

        First: each rank nearer to what it was then, by twice the standard error of what was measured. Second: each as
        its newest minibatches are, compared with its profile. Lasting changes leave aside by how much profiles are off,
        which is right where that belongs to the rank's layers, and wrong where it belongs to the rank.
        """
        now, series = self.factors, [self.ranks.get(device.rank) for device in self.cluster.devices]
        pairs = zip(series, now.ranks, made_for.ranks, strict=True)
        nearer = tuple(_nearer(here, then, _SURE * one.error if one else 0.0) for one, here, then in pairs)
        return Factors(nearer, now.links), Factors(tuple(one.newest if one else 1.0 for one in series), now.links)

    @property
    def standings(self) -> tuple[Standing, ...]:
        """Every rank in order, then every link that anybody waited for."""
        series = [self.ranks[rank] for rank in sorted(self.ranks)]
        series += [self.links[pair] for pair in sorted(self.links)]
        return tuple(one.standing() for one in series)

    def _era(self, minibatch: int) -> "_Era":
        place = bisect_right(self._eras, minibatch, key=lambda era: era.first)
        return self._eras[max(0, place - 1)]

    def _take_known(self) -> list[tuple[Found, float]]:
        """Those that were found and wait, whose minibatches' sizes are known by now, or do not matter."""
        known: list[tuple[Found, float]] = []
        waiting: list[tuple[Found, float]] = []
        for one in self._waiting:
            (known if isinstance(one[0], LeftOut) or one[0].minibatch in self._sizes else waiting).append(one)
        self._waiting = waiting[-_MOST_WAITING:]
        for number in list(self._sizes)[: max(0, len(self._sizes) - _MOST_SIZES)]:
            del self._sizes[number]
        return known

    def _look_left_out(self, found: LeftOut) -> Alarm | None:
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
        if isinstance(found, LeftOut):
            return self._look_left_out(found)
        era = self._era(found.minibatch)
        size = self._sizes[found.minibatch]
        times = era.expected.of(size)
        if isinstance(found, Work):
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
