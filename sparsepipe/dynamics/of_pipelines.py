"""The drift of several pipelines: a watch for each, whose ranks and links have their numbers among those of all."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ..cluster import Cluster
from ..plan import Plan
from ..profile import Profile
from ..trace import Span
from .alarms import Alarm, Standing
from .drift import Watch, factors_of
from .factors import Factors, Pair
from .series import Series

Found = tuple[Iterable[Span], Mapping[int, float]]  # spans, and sizes of minibatches by their numbers


class Watches:
    """Watches the ranks and links of a run of several pipelines, each of which is held against its own plan.

    Each has minibatches of its own, so that nobody need be as far as the others. Links between pipelines, over which
    they average, are not watched; what a transfer waits for another pipeline's at a port that both use counts as its
    own link's time.
    """

    def __init__(self, profile: Profile, cluster: Cluster, plan: Plan, *, first_minibatch: int = 0) -> None:
        """`cluster`: the devices of all. `first_minibatch`: spans of those before it, under another plan, are left out.

        Raises InputError where the plan is not one for the profile's network and the cluster's devices.
        """
        plan.check(profile.graph, cluster)
        self.cluster, self.alarms = cluster, list[Alarm]()
        self._first = first_minibatch
        self._ranks = [plan.ranks_of(k) for k in range(len(plan.pipelines))]
        self._watches = [Watch(profile, cluster, own) for own in plan.pipelines]

    def see(self, found: Sequence[Found]) -> list[Alarm]:
        """Take what is new of each pipeline, by its number, with ranks from 0 as in its own folder of the record.

        Returns the alarms that all this raises, in the order of time.
        """
        alarms = []
        for k, (watch, (spans, sizes)) in enumerate(zip(self._watches, found, strict=True)):
            alarms += [replace(one, pipeline=k) for one in watch.see(self._among_all(k, spans), sizes)]
        alarms.sort(key=lambda one: one.seconds)
        self.alarms += alarms
        return alarms

    @property
    def factors(self) -> Factors:
        """Every device and link of all pipelines as it is now, as `Watch.factors` has them of one.

        A rank that was slow from the beginning on is one beside the quickest of all pipelines.
        """
        ranks: dict[int, Series] = {}
        links: dict[Pair, Series] = {}
        for watch in self._watches:
            ranks |= watch.ranks
            links |= watch.links
        return factors_of(self.cluster, ranks, links)

    @property
    def standings(self) -> tuple[Standing, ...]:
        """Of one pipeline after the other, every rank in order, then every link that anybody waited for."""
        return tuple(replace(one, pipeline=k) for k, watch in enumerate(self._watches) for one in watch.standings)

    def _among_all(self, k: int, spans: Iterable[Span]) -> Iterator[Span]:
        ranks = self._ranks[k]
        for span in spans:
            if span.minibatch >= self._first and span.rank < len(ranks):
                peer = ranks[span.peer] if 0 <= span.peer < len(ranks) else span.peer
                yield span._replace(rank=ranks[span.rank], peer=peer)
