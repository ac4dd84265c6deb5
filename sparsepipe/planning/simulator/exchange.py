"""When the results of a merge exist: each stage's layers travel to where they are reduced, and back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ...values.costs import MergeCosts, Place
from ...values.replication.base import Merge


class Routes:
    """Transfers between stages of pipelines in a merge, and their duration.

    It is the same for every merge of the same pipelines.
    """

    def __init__(self, sizes: MergeCosts, members: Sequence[int]) -> None:
        places = [other_place for k in members for other_place in sizes.stages(k)]
        self.order = {other_place: number for number, other_place in enumerate(places)}
        self.around = {
            other_place: (other_place, *sizes.peers(other_place, members)) for other_place in places
        }  # itself first
        self.seconds = {other_place: sizes.seconds(other_place, members) for other_place in places}
        pairs = ((one, other) for one, around in self.around.items() for other in around[1:])
        self.bytes = 2 * sum(sizes.shared(*pair) / len(members) for pair in pairs)  # all that is sent

    @cached_property
    def needed(self) -> dict[Place, list[Place]]:
        """Return the contributors to a stage's result, in order: its peers, and those that theirs are reduced with."""
        around = self.around
        return {place: sorted({one for other in around[place] for one in around[other]}) for place in around}


@dataclass
class Exchange:
    """One merge under way: which stages have their part ready, and when each has the result."""

    merge: Merge
    decided: float  # seconds
    decided_by: int | None  # the pipeline that came last; None: the time was up
    routes: Routes  # of the members, and the partner where there is one
    ready: dict[Place, float] = field(default_factory=dict)  # when a stage's part was, and the merge decided
    results: dict[Place, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        partner = self.merge.partner
        self.members = members_of(self.merge)
        self._reduced = dict.fromkeys(self.routes.around, 0.0)  # when a stage has reduced the parts that are there
        self._parts = {
            partner_place: len(around) for partner_place, around in self.routes.around.items()
        }  # that it still waits for
        self._sums = dict(self._parts)  # of which a stage's result is put together, that are still missing
        if partner is not None:  # gives what it has
            for partner_place in [partner_place for partner_place in self.routes.around if partner_place[0] == partner]:
                self.come(partner_place, self.decided)

    @property
    def bytes(self) -> float:
        """All that is sent."""
        return self.routes.bytes

    @property
    def complete(self) -> bool:
        """Return whether all results are known."""
        return len(self.results) == len(self.routes.around)

    def come(self, place: Place, now: float) -> list[Place]:
        """A stage's part is ready; return the stages whose result is known by that."""
        around, seconds = self.routes.around, self.routes.seconds
        self.ready[place] = max(now, self.decided)
        sent, results = self.ready[place] + seconds[place], []
        for other in around[place]:
            self._reduced[other] = max(self._reduced[other], sent)
            self._parts[other] -= 1
            if not self._parts[other]:
                for sender_place in around[other]:
                    self._sums[sender_place] -= 1
                    results += [] if self._sums[sender_place] else [sender_place]
        for sender_place in results:
            self.results[sender_place] = (
                max(self._reduced[other] for other in around[sender_place]) + seconds[sender_place]
            )
        return sorted(results, key=self.routes.order.__getitem__)

    def call_off(self, now: float) -> list[Place]:
        """A member is gone: those stages whose result is not known yet get none; return them."""
        missing = [neighbour_place for neighbour_place in self.routes.around if neighbour_place not in self.results]
        self.results |= dict.fromkeys(missing, now)
        self.ready = {neighbour_place: self.ready.get(neighbour_place, now) for neighbour_place in self.routes.around}
        return missing

    def last_ready(self, place: Place) -> Place:
        """The stage for whose part the result of `place` waited longest."""
        return max(self.routes.needed[place], key=self.ready.__getitem__)


def members_of(merge: Merge) -> tuple[int, ...]:
    """The pipelines that send each other something: those that contributed, and the partner that gives what it has."""
    return merge.members if merge.partner is None else (*merge.members, merge.partner)


@dataclass
class ServerPorts:
    """Times at which the parameter server's port is free, for incoming and outgoing transfers."""

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
