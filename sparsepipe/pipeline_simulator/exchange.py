"""When the results of a merge are there: each stage's layers travel to where they are reduced, and back.

Of each layer every member reduces an equal part (as in runtime/replication/between_pipelines/mean.py): with n members a
stage sends (n − 1)/n of its bytes, and gets as many back, once to be reduced and once as the result. Pieces of a stage
for several others share its port; they travel beside activations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..cluster import Cluster, Link
from ..plan import Plan
from ..replication.base import Merge

Place = tuple[int, int]  # (pipeline, stage)


class Bytes:
    """Bytes of layers that stages of different pipelines have in common."""

    def __init__(self, plans: Sequence[Plan], cluster: Cluster, layer_bytes: Mapping[str, float]) -> None:
        self.plans, self.cluster, self._layer_bytes = plans, cluster, layer_bytes
        self._layers = {
            (k, s): set(stage.layers) for k, plan in enumerate(plans) for s, stage in enumerate(plan.stages)
        }
        self._known: dict[tuple[Place, Place], float] = {}

    def stages(self, pipeline: int) -> list[Place]:
        return [(pipeline, s) for s in range(len(self.plans[pipeline].stages))]

    def of(self, place: Place) -> float:
        return self.shared(place, place)

    def shared(self, one: Place, other: Place) -> float:
        if (one, other) not in self._known:
            both = self._layers[one] & self._layers[other]
            self._known[one, other] = float(sum(self._layer_bytes[id] for id in both))
        return self._known[one, other]

    def link(self, one: Place, other: Place) -> Link:
        """The link between the replicas that exchange weights for their stages: the first of each."""
        first, second = (self.plans[k].stages[s].ranks[0] for k, s in (one, other))
        return self.cluster.link(first, second)


@dataclass
class Exchange:
    """One merge under way: which stages have their part ready, and when each has the result."""

    merge: Merge
    decided: float  # seconds
    decided_by: int | None  # the pipeline that came last; None: the time was up
    sizes: Bytes
    ready: dict[Place, float] = field(default_factory=dict)  # when a stage's part was, and the merge decided
    results: dict[Place, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        partner = self.merge.partner
        self.members = self.merge.members if partner is None else (*self.merge.members, partner)
        places = [place for k in self.members for place in self.sizes.stages(k)]
        self.peers = {
            one: [other for other in places if other[0] != one[0] and self.sizes.shared(one, other)] for one in places
        }
        self.seconds = {place: self._seconds(place) for place in places}
        if partner is not None:  # gives what it has
            self.ready |= dict.fromkeys(self.sizes.stages(partner), self.decided)

    def _seconds(self, place: Place) -> float:
        """Seconds of sending a stage's pieces to be reduced elsewhere; getting its results takes as long."""
        links = [(self.sizes.link(place, peer), self.sizes.shared(place, peer)) for peer in self.peers[place]]
        count = len(self.members)
        return max((link.latency for link, _ in links), default=0.0) + sum(
            size / count / link.bandwidth for link, size in links
        )

    @property
    def bytes(self) -> float:
        """All that is sent."""
        count = len(self.members)
        pairs = ((one, other) for one, peers in self.peers.items() for other in peers)
        return 2 * sum(self.sizes.shared(*pair) / count for pair in pairs)

    @property
    def complete(self) -> bool:
        """Whether all results are known."""
        return len(self.results) == len(self.peers)

    def come(self, place: Place, now: float) -> list[Place]:
        """A stage's part is ready; return the stages whose result is known by that."""
        self.ready[place] = max(now, self.decided)
        found = []
        for one, peers in self.peers.items():
            around = {one, *peers}
            needed = around.union(*(self.peers[other] for other in around))
            if one not in self.results and needed <= self.ready.keys():
                reduced = (
                    max(self.ready[own] + self.seconds[own] for own in (other, *self.peers[other])) for other in around
                )
                self.results[one] = max(reduced) + self.seconds[one]
                found.append(one)
        return found

    def call_off(self, now: float) -> list[Place]:
        """A member is gone: those stages whose result is not known yet get none; return them."""
        missing = [place for place in self.peers if place not in self.results]
        self.results |= dict.fromkeys(missing, now)
        self.ready = {place: self.ready.get(place, now) for place in self.peers}
        return missing

    def last_ready(self, place: Place) -> Place:
        """The stage for whose part the result of `place` waited longest."""
        around = {place, *self.peers[place]}
        needed = sorted(around.union(*(self.peers[other] for other in around)))
        return max(needed, key=lambda one: self.ready[one])


@dataclass
class ServerPorts:
    """When the parameter server's port is free, for what comes in and for what goes out."""

    entering: float = 0.0
    leaving: float = 0.0


@dataclass
class Push:
    """One merge with a parameter server: each stage's change goes there, and the server's weights come back."""

    merge: Merge
    decided: float
    decided_by: int | None
    sizes: Bytes
    server: ServerPorts
    results: dict[Place, float] = field(default_factory=dict)

    @property
    def bytes(self) -> float:
        return 2 * sum(map(self.sizes.of, self.sizes.stages(self.merge.members[0])))

    def come(self, place: Place, now: float) -> list[Place]:
        """A stage's part is ready: it takes its turn at the server."""
        nodes, server = self.sizes.cluster.nodes, self.server
        link = self.sizes.cluster.network if len(nodes) > 1 else nodes[0].link
        seconds = link.transfer_time(self.sizes.of(place)) if self.sizes.of(place) else 0.0
        server.entering = max(now, self.decided, server.entering) + seconds
        server.leaving = max(server.entering, server.leaving) + seconds
        self.results[place] = server.leaving
        return [place]

    def last_ready(self, place: Place) -> Place:
        return place
