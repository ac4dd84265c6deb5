"""Factors: how many times as long as expected each rank, and each link between two ranks, takes now."""

import math
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple

from ..errors import InputError
from ..util.io.fields import integer, number, shown
from ..util.text.numbers import number_of
from ..values.cluster import Cluster, Link
from ..values.costs import ports
from ..values.plan import Plan
from ..values.profile import CostSample, Profile
from ..values.trace import Span

FORMAT = "sparsepipe-factors-1"
LEAST, MOST = 1e-2, 1e6  # times as long: what takes longer stands still
_DIGITS = 2  # of a factor in the name of a device type: devices closer to each other than that are alike
_SECONDS = tuple(
    item.name for item in fields(CostSample) if not item.name.endswith(("size", "bytes", "pairs"))
)  # of a cost sample: what a slow device takes longer for

Pair = tuple[int, int]


@dataclass(frozen=True)
class Factors:
    """Store the slowdown of each device and link vs profile. A factor of 2 means twice the time.

    Attributes:
        ranks: Factor of each device, in the order of ranks.
        links: Pair of ranks (lower rank first) → factor of the link. Default: 1.

    Raises:
        InputError: No ranks, an unknown pair of ranks, or a factor outside the range 0.01 to 1,000,000.

    Example:
        >>> slow = sp.monitoring.Factors((1.0, 2.0))
        >>> sp.partition(*slow.scaled(profile, cluster)).estimate.period_seconds > plan.estimate.period_seconds
        True

    See also:
        guides/online_repartitioning, `monitoring.Watch`
    """

    ranks: tuple[float, ...]
    links: Mapping[Pair, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.ranks:
            raise InputError("factors.no_ranks", "rank factors are missing, expected one per device")
        for rank, factor in enumerate(self.ranks):
            _factor(factor, f"factor of rank {rank}")
        for (low, high), factor in self.links.items():
            if not 0 <= low < high < len(self.ranks):
                raise InputError(
                    "factors.link_unknown",
                    f"a link factor names ranks {low} and {high}, expected two of the "
                    f"{number_of(len(self.ranks), 'rank')}, the lower first",
                )
            _factor(factor, f"factor of the link between ranks {low} and {high}")

    @classmethod
    def none(cls, num_ranks: int) -> "Factors":
        """Return factors of 1 for all devices and links."""
        return cls((1.0,) * num_ranks)

    @property
    def changed(self) -> bool:
        """Return whether any factor differs from 1."""
        return any(factor != 1 for factor in (*self.ranks, *self.links.values()))

    def link(self, a: int, b: int) -> float:
        """Return the factor of the link between two ranks, in any order."""
        return self.links.get((min(a, b), max(a, b)), 1.0)

    def scaled(self, profile: Profile, cluster: Cluster) -> tuple[Profile, Cluster]:
        """Return profile and cluster with the present slowdowns, for planners and the simulator.

        A rank with a factor other than 1 becomes a device of its own type, such as "cpu ×1.8". Its times are multiplied
        by the factor, rounded to two decimals so that identical ranks keep one type; its memory stays. A cluster has
        one link inside each node and one between nodes: each gets the largest factor of the pairs of ranks that share
        it. Raises InputError if the number of factors differs from that of the devices, or a type was not profiled.
        """
        if len(self.ranks) != len(cluster.devices):
            raise InputError(
                "factors.rank_count",
                f"factors are given for {number_of(len(self.ranks), 'rank')}, but the cluster has "
                f"{number_of(len(cluster.devices), 'device')}; give one per device",
            )
        kinds = [device.type.name for device in cluster.devices]
        now = [_type_now(kind, factor) for kind, factor in zip(kinds, self.ranks, strict=True)]
        slower = dict(zip(now, kinds, strict=True))
        links = self._slowest_links(cluster)
        nodes, first = [], 0
        for node in cluster.nodes:
            types = tuple(replace(kind, name=now[rank][0]) for rank, kind in enumerate(node.device_types, start=first))
            nodes.append(replace(node, device_types=types, link=_slower_link(node.link, links.get(node.name, 1.0))))
            first += len(types)
        return _with_slower(profile, slower), Cluster(tuple(nodes), _slower_link(cluster.network, links.get(None, 1.0)))

    def _slowest_links(self, cluster: Cluster) -> dict[str | None, float]:
        """The largest factor of the pairs of ranks within each node, by its name, and between nodes (None)."""
        counts: dict[str | None, int] = {node.name: math.comb(len(node.device_types), 2) for node in cluster.nodes}
        counts[None] = math.comb(len(cluster.devices), 2) - sum(counts.values())
        known: dict[str | None, list[float]] = {}
        for (low, high), factor in self.links.items():
            a, b = (cluster.devices[rank].node.name for rank in (low, high))
            known.setdefault(a if a == b else None, []).append(factor)
        return {where: max(found if len(found) == counts[where] else [1.0, *found]) for where, found in known.items()}

    def to_json(self) -> dict[str, Any]:
        """Return the factors as stored in a file or a row of a record."""
        return {
            "format": FORMAT,
            "ranks": list(self.ranks),
            "links": [[low, high, factor] for (low, high), factor in sorted(self.links.items())],
        }

    @classmethod
    def from_json(cls, document: object) -> "Factors":
        """Read the output of `to_json`. Raises InputError for anything else."""
        if not isinstance(document, Mapping) or document.get("format") != FORMAT:
            raise InputError(
                "factors.malformed",
                f"slowdown factors are {shown(document)}, expected an object with format {FORMAT!r}",
            )
        ranks, links = document.get("ranks"), document.get("links", [])
        if not isinstance(ranks, list):
            raise InputError("factors.ranks_malformed", f"rank factors are {shown(ranks)}, expected a list of numbers")
        if not isinstance(links, list) or not all(isinstance(link, list) and len(link) == 3 for link in links):
            raise InputError(
                "factors.links_malformed",
                f"link factors are {shown(links)}, expected a list of [rank, rank, factor]",
            )
        return cls(
            tuple(_factor(factor, f"factor of rank {rank}") for rank, factor in enumerate(ranks)),
            {
                (integer(low, "rank of a link"), integer(high, "rank of a link")): number(factor, "factor of a link")
                for low, high, factor in links
            },
        )


def _factor(value: Any, what: str) -> float:
    if not LEAST <= number(value, what) <= MOST:
        raise InputError(
            "factors.out_of_range",
            f"{what} is {shown(value)}, expected a factor from {LEAST:g} to {MOST:g} (1: as fast as profiled)",
        )
    return float(value)


def _type_now(kind: str, factor: float) -> tuple[str, float]:
    """The name of a device type that takes `factor` times as long, and the factor that it stands for."""
    factor = round(factor, _DIGITS)
    return (kind if factor == 1 else f"{kind} ×{factor:g}"), factor


def _with_slower(profile: Profile, slower: Mapping[tuple[str, float], str]) -> Profile:
    """Add device types to a profile: `slower` says of each name and factor of which type's costs it is a multiple.

    The origin of the numbers stays what it was.
    """
    costs, rates, overheads = dict(profile.costs), dict(profile.update_rates), dict(profile.step_overheads)
    for (name, factor), kind in slower.items():
        profile.measured_sizes(kind)  # refuses a type that was not profiled, as planners do
        if name in costs:
            continue
        costs[name] = tuple(cost.changed(partial(_slower_sample, factor=factor)) for cost in profile.costs[kind])
        if kind in rates:
            rates[name] = rates[kind] * factor
        if kind in overheads:
            overheads[name] = overheads[kind].slower(1 / factor)
    return replace(profile, costs=costs, update_rates=rates, step_overheads=overheads)


def _slower_sample(sample: CostSample, factor: float) -> CostSample:
    return replace(sample, **{name: getattr(sample, name) * factor for name in _SECONDS})


def _slower_link(link: Link, factor: float) -> Link:
    return link if factor == 1 else Link(link.bandwidth / factor, link.latency * factor)


_PENDING = 4096  # minibatches or transfers that wait for their other half, at the most: more than any plan has
_SHORTEST = 1e-6  # seconds: what was timed as less took no time that a clock tells
_WAITED = 0.5  # of a transfer's time, at the least, somebody waited for it: else it may have been there long before


# Times of ranks and links from spans: seconds of work on a minibatch, and seconds of a transfer
class MinibatchWork(NamedTuple):
    """A rank's forward and backward of one minibatch, of all its stages, are done."""

    rank: int
    minibatch: int
    seconds: float


class Transfer(NamedTuple):
    """A payload went from a rank to another, and was there at `end`, or before where it was not `waited` for.

    Whether it crossed `cut` (between stages cut − 1 and cut) forwards says how many bytes it had.
    """

    rank: int
    peer: int
    minibatch: int
    forwards: bool
    cut: int
    start: float
    end: float
    waited: bool = True


class LeftOutWork(NamedTuple):
    """A rank that the plan leaves out took so many seconds over the work that it is timed on (worker/targets.py)."""

    rank: int
    minibatch: int  # that the others were at
    seconds: float
    end: float  # when it was done, in the run's seconds


def left_out_of(rows: Iterable[Mapping[str, Any]]) -> list[LeftOutWork]:
    """Times of ranks that are left out, from rows of a run's metrics."""
    names = ("rank", "minibatch", "probe_seconds", "seconds")
    whole = (row for row in rows if row["event"] == "left_out" and all(name in row for name in names))
    return [LeftOutWork(*(row[name] for name in names)) for row in whole if row["probe_seconds"] >= _SHORTEST]


class WorkOfRanks:
    """Adds up the forward and backward spans of a rank's stages, minibatch by minibatch.

    A minibatch that is done again, as after a crash, counts for what it took the second time.
    """

    def __init__(self, plan: Plan) -> None:
        self._stages = {rank: plan.stages_of(rank) for rank in plan.ranks}
        self._open: dict[tuple[int, int], dict[int, tuple[float, bool]]] = {}  # → stage → (seconds, whether done)

    def take(self, span: Span) -> MinibatchWork | None:
        """Take a span, those of a rank in the order of time; return the work that it ends, if it ends one."""
        stages = self._stages.get(span.rank, ())
        if span.kind not in ("forward", "backward", "weights") or span.stage not in stages:
            return None
        key = span.rank, span.minibatch
        if span.kind == "forward":
            self._begin(key, span)
            return None
        if span.stage not in self._open.get(key, ()):
            return None  # its forward was left out
        seconds, _ = self._open[key][span.stage]
        # Of a backward in two halves, weights end it: the first is named I.
        self._open[key][span.stage] = seconds + span.seconds, span.kind == "weights" or "I" not in span.name
        parts = self._open[key]
        if len(parts) < len(stages) or not all(done for _, done in parts.values()):
            return None
        del self._open[key]
        return MinibatchWork(span.rank, span.minibatch, sum(seconds for seconds, _ in parts.values()))

    def _begin(self, key: tuple[int, int], span: Span) -> None:
        self._open.setdefault(key, {})[span.stage] = span.seconds, False
        if len(self._open) > _PENDING:
            del self._open[next(iter(self._open))]


class TransfersOfLinks:
    """Finds transfers: in a simulation they are spans; in a run, from where a sender sends to where a receiver waits.

    Clocks of several hosts that differ by more than a transfer lasts tell of none: its end would be before its start.
    """

    def __init__(self, *, simulated: bool) -> None:
        self._simulated = simulated
        self._working: dict[int, tuple[str, int]] = {}  # rank → (name, minibatch) of its newest forward or backward
        self._halves: dict[tuple[int, int, int, bool, int], Span] = {}  # a send or a wait whose other half is to come

    def take(self, span: Span) -> Transfer | None:
        """Take a span, those of a rank in the order of time; return the transfer that is known now, if one is."""
        if span.kind in ("forward", "backward"):
            self._working[span.rank] = span.name, span.minibatch
        if span.kind not in ("send", "wait") or span.peer < 0 or span.minibatch < 0:
            return None
        forwards, sends = "F" in span.name, span.kind == "send"
        cut = span.stage + 1 if forwards is sends else span.stage
        ends = (span.rank, span.peer) if sends else (span.peer, span.rank)
        if self._simulated:
            return Transfer(*ends, span.minibatch, forwards, cut, span.start, span.end)
        if sends and self._working.get(span.rank) != (span.name, span.minibatch):
            return None  # of a validation, whose minibatches are others
        return self._joined((*ends, span.minibatch, forwards, cut), span)

    def _joined(self, key: tuple[int, int, int, bool, int], span: Span) -> Transfer | None:
        other = self._halves.pop(key, None)
        if other is None or other.kind == span.kind:
            self._halves[key] = span
            if len(self._halves) > _PENDING:
                del self._halves[next(iter(self._halves))]
            return None
        sent, waited = (span, other) if span.kind == "send" else (other, span)
        under_way = waited.end - sent.start
        if under_way <= 0:
            return None
        return Transfer(*key, sent.start, waited.end, waited.seconds >= _WAITED * under_way)


class Ports:
    """Says how long a transfer was under way, without what it waited for others at the ports of its devices."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._free: dict[Hashable, float] = {}  # port → when its last transfer ended

    def seconds(self, one: Transfer, expected: float) -> float:
        """Return the seconds; at the most so many, and as expected for its ports, of one that no one waited for."""
        both = ports(self._cluster, one.rank, one.peer, forward=one.forwards)
        begin = max([one.start, *(self._free.get(port, one.start) for port in both)])
        end = one.end if one.waited else min(one.end, begin + expected)
        for port in both:
            self._free[port] = max(end, self._free.get(port, end))
        return max(one.end - begin, 0.0)
