"""When the results of a merge are there: each stage's layers travel to where they are reduced, and back."""

from dataclasses import dataclass, field

from ..costs import MergeCosts, Place
from ..replication.base import Merge


@dataclass
class Exchange:
    """One merge under way: which stages have their part ready, and when each has the result."""

    merge: Merge
    decided: float  # seconds
    decided_by: int | None  # the pipeline that came last; None: the time was up
    sizes: MergeCosts
    ready: dict[Place, float] = field(default_factory=dict)  # when a stage's part was, and the merge decided
    results: dict[Place, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        partner = self.merge.partner
        self.members = self.merge.members if partner is None else (*self.merge.members, partner)
        places = [place for k in self.members for place in self.sizes.stages(k)]
        self.peers = {one: self.sizes.peers(one, self.members) for one in places}
        self.seconds = {place: self.sizes.seconds(place, self.members) for place in places}
        if partner is not None:  # gives what it has
            self.ready |= dict.fromkeys(self.sizes.stages(partner), self.decided)

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
    sizes: MergeCosts
    server: ServerPorts
    results: dict[Place, float] = field(default_factory=dict)

    @property
    def bytes(self) -> float:
        return 2 * sum(map(self.sizes.of, self.sizes.stages(self.merge.members[0])))

    def come(self, place: Place, now: float) -> list[Place]:
        """A stage's part is ready: it takes its turn at the server."""
        server, seconds = self.server, self.sizes.server_seconds(place)
        server.entering = max(now, self.decided, server.entering) + seconds
        server.leaving = max(server.entering, server.leaving) + seconds
        self.results[place] = server.leaving
        return [place]

    def last_ready(self, place: Place) -> Place:
        return place
