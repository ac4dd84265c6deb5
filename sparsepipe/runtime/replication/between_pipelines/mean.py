"""The weighted mean of a vector over the members of a merge: each rank reduces a share of every tensor that it holds.

    own vector ── share of member q ──► ranks of q that hold the same tensors      one piece to each rank, and
        ▲                               sum in the order of members, float32       one piece back
        └──────── means ◄───────────────┘

With n members each element travels twice for all but one of them, as in a ring all-reduce; but no one needs to be cut
equally, and who is gone is missed by those alone who need its part.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ....values.replication.base import Merge
from ...failures import PacketMismatch
from .messages import Encoding, Layout, put
from .peers import Link, Peers, called_off
from .reduction import Part, Reduction, Reductions, Share


@dataclass(frozen=True, eq=False)
class Contribution:
    """Contribution of a rank, on its way to a merge."""

    number: int  # among those of its pipeline
    update: int  # after which its pipeline contributed
    snapshot: Tensor  # float32 [elements]: weights and buffers as they were then
    change: Tensor | None = None  # by what they had changed, for a rule that counts this


@dataclass(frozen=True, eq=False)
class Merged:
    """Result of a merge for one rank."""

    correction: Tensor  # what to add to the newest weights and buffers
    result: Tensor | None = None  # what is to be where the snapshot was: to be taken as it is where nobody trained on
    facts: dict[str, Any] = field(default_factory=dict)


class Merging(Protocol):
    """One stage's part in the merges of a rule: `contribute` and `applied` in the thread that trains, `merge` in
    another.

    What training needs of it besides weights is its state, float32 and named KIND:NAME like an optimizer's.
    """

    def contribute(self, number: int, update: int, snapshot: Tensor) -> Contribution:
        """Put forward what a stage has now."""
        ...

    def merge(self, merge: Merge, contribution: Contribution) -> Merged:
        """Carry out a merge with its other members. Raises CalledOff if it comes to nothing for this rank."""
        ...

    def applied(self, contribution: Contribution, merged: Merged | None) -> None:
        """Note that the result of a merge is now in the weights; None: it has no result."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what whoever takes this stage's weights needs, too."""
        ...

    def kept(self) -> dict[str, Tensor]:
        """Return what whoever holds these layers next needs in the same pipeline, alongside their weights."""
        ...

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from another pipeline's state. Names that are not this stage's are left alone."""
        ...


def distance(difference: Tensor, mean: Tensor) -> float:
    """Return by how much weights are away from their mean: ||difference|| / ||mean||, 0 if there are none."""
    norm = float(mean.norm())
    return float(difference.norm()) / norm if norm else 0.0


class Mean(NamedTuple):
    """Result of a merge."""

    values: Tensor  # float32 [elements of the rank]
    bytes: int  # sent and received by this rank
    versions: dict[int, int]  # by member


@dataclass(eq=False)
class MeanExchange:
    """One rank's part in the means of some tensors. One thread calls it; others answer by `reductions`."""

    pipeline: int
    layout: Layout
    encoding: Encoding
    peers: Peers
    reductions: Reductions
    timeout: float
    what: str = "reduce"  # the request that the others' `reductions` answer

    def mean(self, merge: Merge, own: Tensor, *, version: int = -1) -> Mean:
        """Return the mean of a merge to which this rank contributes `own`.

        Raises CalledOff if a member is gone, or does not come within the timeout.
        """
        deadline = time.monotonic() + self.timeout
        reduction, asked = self.reductions.of(merge.number), list[_Asked]()
        try:
            here = Share(merge, self.pipeline, self.layout, self.encoding)
            reduction.begin(here, self._part(own, here.share, self.layout.names, version))
            for index, member in enumerate(merge.members):
                if member == self.pipeline:
                    continue
                for route in self.peers.routes(member, self.layout.names, deadline=deadline):
                    share = (index, len(merge.members))
                    asked.append(_Asked(member, share, route.link, route.names, route.link.bytes))
                    self._ask(merge, asked[-1], self._part(own, share, route.names, version), deadline)
            found = self._gathered(merge, reduction, asked, deadline)
        except BaseException as error:
            reduction.call_off(str(error))
            self.peers.drop([one.link for one in asked])
            raise
        finally:
            self.reductions.end(merge.number)
        return found

    def _part(self, own: Tensor, share: tuple[int, int], names: Sequence[str], version: int) -> Part:
        payload = self.encoding.contributed(names, self.layout.shares(names, *share), own)
        return Part(self.pipeline, tuple(names), payload, share, version)

    def _ask(self, merge: Merge, asked: "_Asked", part: Part, deadline: float) -> None:
        index, count = part.share
        facts = {"what": self.what, "merge": merge.number, "pipeline": self.pipeline, "version": part.version}
        facts |= {"index": index, "count": count, "names": list(part.names)}
        with called_off(asked.member):
            asked.link.ask(facts, part.payload, deadline=deadline)

    def _gathered(self, merge: Merge, reduction: Reduction, asked: Sequence["_Asked"], deadline: float) -> Mean:
        """Bring the shares together: this rank's own, and those of the ranks that were asked."""

        def look(missing: set[int]) -> None:
            for member in missing - {self.pipeline}:
                self.peers.look(member, [one.link.holder.address for one in asked if one.member == member])

        values = torch.empty(self.layout.num_elements)
        means, versions = reduction.results(self.layout.names, deadline=deadline, look=look)
        own = (merge.members.index(self.pipeline), len(merge.members))
        self._put(values, self.layout.names, own, torch.cat(means) if means else values.view(torch.uint8))
        for one in asked:
            with called_off(one.member):
                wanted, address = self._bytes(one.names, one.share), one.link.holder.address
                answer = one.link.answer(
                    wanted, deadline=deadline, look=partial(self.peers.look, one.member, [address])
                )
                versions |= _versions(answer.facts)
            self._put(values, one.names, one.share, answer.payload)
        return Mean(values, sum(one.link.bytes - one.before for one in asked), versions)

    def _bytes(self, names: Sequence[str], share: tuple[int, int]) -> int:
        sizes = [place.stop - place.start for place in self.layout.shares(names, *share)]
        return sum(self.encoding.num_bytes(name, size) for name, size in zip(names, sizes, strict=True))

    def _put(self, values: Tensor, names: Sequence[str], share: tuple[int, int], payload: Tensor) -> None:
        places = self.layout.shares(names, *share)
        put(values, places, self.encoding.decode(names, [place.stop - place.start for place in places], payload))


class _Asked(NamedTuple):
    """A request on its way."""

    member: int
    share: tuple[int, int]  # that it reduces: which of how many
    link: Link
    names: tuple[str, ...]
    before: int  # bytes of the link until then


def _versions(facts: Mapping[str, Any]) -> dict[int, int]:
    try:
        return {int(member): int(version) for member, version in facts["versions"]}
    except (KeyError, TypeError, ValueError):
        raise PacketMismatch("mean.no_versions", "a mean lacks the versions of its members") from None


@dataclass(eq=False)
class MeanWeights:
    """The member of `Merging` for Arithmetic.MEAN_WEIGHTS. Buffers are averaged in the same way; it has no state."""

    exchange: MeanExchange

    def contribute(self, number: int, update: int, snapshot: Tensor) -> Contribution:
        return Contribution(number, update, snapshot)

    def merge(self, merge: Merge, contribution: Contribution) -> Merged:
        mean, weights = self.exchange.mean(merge, contribution.snapshot), self.exchange.layout.weights
        correction = mean.values - contribution.snapshot
        away = distance(correction[weights], mean.values[weights])
        return Merged(correction, mean.values, {"distance": away, "bytes": mean.bytes})

    def applied(self, contribution: Contribution, merged: Merged | None) -> None:
        """Nothing is kept of it."""

    def state(self) -> dict[str, Tensor]:
        return {}

    def kept(self) -> dict[str, Tensor]:
        return {}

    def load(self, state: dict[str, Tensor]) -> None:
        """It has none."""
