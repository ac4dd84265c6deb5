"""The share of a merge that one rank reduces: parts come in from all members, their mean goes out to all of them."""

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ....values.replication.base import Merge
from ...failures import PacketMismatch, seconds_left
from ...pipelines.base import Coordinator
from .messages import NO_PAYLOAD, CalledOff, Encoding, Layout, Message, put

_LOOK = 0.25  # seconds between two looks whether those that are missing are still alive
_REMEMBERED = 1000  # merges that are over


@dataclass(frozen=True, eq=False)
class Part:
    """Contribution of one rank of a member to another rank's share."""

    pipeline: int
    names: tuple[str, ...]
    payload: Tensor  # uint8: the encoded pieces, one after the other
    share: tuple[int, int]  # which of how many
    version: int = -1  # of the outer parameters that it starts from, for the rule that has some


@dataclass(eq=False)
class Share:
    """The elements that a rank reduces of one merge. The mean is worked out in the order of the members, in float32:
    the same bits whoever does it, and however its tensors lie among others.
    """

    merge: Merge
    pipeline: int
    layout: Layout
    encoding: Encoding
    parts: dict[int, Tensor] = field(default_factory=dict)  # by member, of all the share's elements
    come: dict[str, set[int]] = field(default_factory=dict)  # by tensor: members whose part is there
    results: dict[str, Tensor] = field(default_factory=dict)  # by tensor, encoded
    versions: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = self.layout.names
        self.share = self.merge.members.index(self.pipeline), len(self.merge.members)
        self.slices = dict(zip(names, self.layout.shares(names, *self.share), strict=True))  # in the rank's vector
        self.places: dict[str, slice] = {}  # in the share
        start = 0
        for name, place in self.slices.items():
            self.places[name] = slice(start, start + place.stop - place.start)
            start = self.places[name].stop
        self.num_elements = start
        self.come = {name: set() for name in names}

    @property
    def missing(self) -> set[int]:
        """The members of which a part has not come."""
        return {member for come in self.come.values() for member in self.merge.members if member not in come}

    def take(self, part: Part) -> None:
        """Take a part, and reduce the tensors of which it was the last."""
        places = [self.places[name] for name in part.names]
        values = self.encoding.decode(part.names, [place.stop - place.start for place in places], part.payload)
        if part.names == self.layout.names:
            self.parts[part.pipeline] = values
        else:
            self.parts.setdefault(part.pipeline, torch.empty(self.num_elements))
            put(self.parts[part.pipeline], places, values)
        self.versions[part.pipeline] = part.version
        for name in part.names:
            self.come[name].add(part.pipeline)
        complete = [name for name in part.names if len(self.come[name]) == len(self.merge.members)]
        if complete and len(complete) == len(self.come):  # of a stage without weights nothing is reduced
            self._reduce(complete, slice(0, self.num_elements))
        else:
            for name in complete:
                self._reduce([name], self.places[name])

    def _reduce(self, names: Sequence[str], place: slice) -> None:
        """Multiply and add in two steps: fused, the last bits would depend on where in memory an element lies."""
        (first, weight), *others = zip(self.merge.members, self.merge.weights, strict=True)
        means = self.parts[first][place] * weight
        for member, weight in others:
            means += self.parts[member][place] * weight
        encoded = self.encoding.reduced(names, [self.slices[name] for name in names], means)
        self.results |= dict(zip(names, encoded, strict=True))


class Reduction:
    """A share on its way: parts may come before this rank has come to the merge itself."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._early: list[Part] = []
        self._share: Share | None = None
        self._off: str | None = None

    def put(self, part: Part) -> None:
        with self._changed:
            if self._share is None:
                self._early.append(part)
            else:
                self._take(part)
            self._changed.notify_all()

    def begin(self, share: Share, own: Part) -> None:
        """This rank has come to the merge, and contributes its own part."""
        with self._changed:
            self._share = share
            for part in (*self._early, own):
                self._take(part)
            self._early.clear()
            self._changed.notify_all()

    def call_off(self, why: str) -> None:
        with self._changed:
            self._off = self._off or why
            self._changed.notify_all()

    def results(
        self, names: Sequence[str], *, deadline: float, look: Callable[[set[int]], None] | None = None
    ) -> tuple[list[Tensor], dict[int, int]]:
        """Return the encoded means of some tensors' shares, and the members' versions, once they exist.

        `look` is called with the members that are missing where none of them has come for a while; it raises CalledOff
        where they are gone.
        """
        while True:
            with self._changed:
                if self._off is not None:
                    raise CalledOff(self._off)
                share = self._share
                if share is not None and all(name in share.results for name in names):
                    return [share.results[name] for name in names], dict(share.versions)
                missing = set() if share is None else share.missing
                come = self._changed.wait(min(seconds_left(deadline), _LOOK))
            if come:
                continue  # perhaps it was what is missing
            if time.monotonic() >= deadline:
                raise CalledOff(f"no part of pipelines {sorted(missing)} has come")
            if look is not None:
                look(missing)

    def _take(self, part: Part) -> None:
        share = self._share
        assert share is not None
        if part.pipeline in share.merge.members and part.share == share.share:
            share.take(part)
        else:
            told = f"pipeline {part.pipeline} and share {part.share}, here {share.merge.members} and {share.share}"
            self._off = f"members of merge {share.merge.number} do not agree: {told}"


class Reductions:
    """The merges that this rank reduces a share of. It answers "reduce": a part, for the mean of all parts."""

    def __init__(self, layout: Layout, encoding: Encoding, *, timeout: float) -> None:
        self._layout, self._encoding, self._timeout = layout, encoding, timeout
        self._lock = threading.Lock()
        self._open: dict[int, Reduction] = {}
        self._over: OrderedDict[int, None] = OrderedDict()

    def of(self, merge: int) -> Reduction:
        """Return a merge's reduction. Raises CalledOff if it is over for this rank."""
        with self._lock:
            if merge in self._over:
                raise CalledOff(f"merge {merge} is over")
            return self._open.setdefault(merge, Reduction())

    def end(self, merge: int) -> None:
        """This rank needs nothing more of a merge; who waits for its share still gets it."""
        with self._lock:
            self._open.pop(merge, None)
            self._over[merge] = None
            if len(self._over) > _REMEMBERED:
                self._over.popitem(last=False)

    def close(self) -> None:
        """Call off what this rank will not come to any more."""
        with self._lock:
            for reduction in self._open.values():
                reduction.call_off("it ends")

    def payload_bytes(self, facts: Mapping[str, Any]) -> int:
        names, share = self._asked(facts)
        sizes = [place.stop - place.start for place in self._layout.shares(names, *share)]
        return sum(self._encoding.num_bytes(name, size) for name, size in zip(names, sizes, strict=True))

    def answer(self, request: Message) -> tuple[Mapping[str, Any], Tensor]:
        facts = request.facts
        names, share = self._asked(facts)
        reduction = self.of(facts["merge"])
        reduction.put(Part(facts["pipeline"], names, request.payload, share, facts["version"]))
        found, versions = reduction.results(names, deadline=time.monotonic() + self._timeout)
        return {"versions": sorted(versions.items())}, torch.cat(found) if found else request.payload

    def _asked(self, facts: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[int, int]]:
        """Return the tensors of a request, and which share of how many this rank reduces."""
        names, index, count = facts.get("names"), facts.get("index"), facts.get("count")
        if not all(isinstance(facts.get(key), int) for key in ("merge", "pipeline", "version")):
            raise PacketMismatch("merge.no_numbers", "a merge message lacks the values")
        if not isinstance(index, int) or not isinstance(count, int) or not 0 <= index < count:
            raise PacketMismatch(
                "merge.share_unknown", f"a merge message names the unknown share {index!r} of {count!r}"
            )
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise PacketMismatch("merge.no_names", "a merge message lacks the tensor names")
        if len(set(names)) < len(names) or not self._layout.places.keys() >= set(names):
            raise PacketMismatch("merge.tensors_unknown", "a merge message names unknown tensors")
        return tuple(names), (index, count)


_KINDS = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
)
_TYPES = {str(kind).removeprefix("torch."): kind for kind in _KINDS}
_MOST_BYTES = 2**38  # of a rank's tensors: more is no network


def packed(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Any], Tensor]:
    """Return facts that describe the tensors, and their bytes, uint8 [n]."""
    told = [[name, str(t.dtype).removeprefix("torch."), list(t.shape)] for name, t in tensors.items()]
    pieces = [tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors.values()]
    return {"tensors": told}, torch.cat(pieces) if pieces else NO_PAYLOAD


def packed_bytes(facts: Mapping[str, Any]) -> int:
    """Return how long the payload is that these facts describe. Raises PacketMismatch if they describe none."""
    total = sum(math.prod(shape) * kind.itemsize for _, kind, shape in _described(facts))
    if total > _MOST_BYTES:
        raise PacketMismatch("tensors.too_large", f"a message declares tensors of {total} bytes, which is too large")
    return total


def unpacked(message: Message) -> dict[str, Tensor]:
    """Return the tensors of a message, by name."""
    found, start = {}, 0
    for name, kind, shape in _described(message.facts):
        end = start + math.prod(shape) * kind.itemsize
        found[name] = message.payload[start:end].clone().view(kind).view(shape)
        start = end
    return found


def _described(facts: Mapping[str, Any]) -> list[tuple[str, torch.dtype, list[int]]]:
    try:
        told = [(str(name), _TYPES[kind], [int(size) for size in shape]) for name, kind, shape in facts["tensors"]]
    except (KeyError, TypeError, ValueError):
        raise PacketMismatch("tensors.undescribed", "a message does not describe its tensors") from None
    if any(size < 0 for _, _, shape in told for size in shape):
        raise PacketMismatch("tensors.size_negative", "a message declares tensors with negative sizes")
    return told


_KEPT = 64  # updates that a rank's stages may be apart


class Contributions:
    """One rank's view: its pipeline's last stage's first replica decides, the other ranks ask.

    All stages of a rank share it. If one of them is the last stage, whichever comes to an update first decides for
    it: the rank's others may come before, in the same thread.
    """

    def __init__(self, coordinator: Coordinator, every: int, *, leads: bool) -> None:
        """`leads`: the rank has the last stage's first replica."""
        self._coordinator, self._every, self._leads = coordinator, every, leads
        self._known: dict[int, int | None] = {}
        self._samples = 0
        self.busy: Callable[[], bool] = lambda: False  # whether the last contribution has no outcome yet

    @property
    def samples(self) -> int:
        """Samples of the pipeline since its last contribution; 0 on ranks that do not decide on them."""
        return self._samples if self._leads else 0

    def go_on(self, samples: int) -> None:
        """Go on after so many samples since the last contribution, on whichever rank decides from now on."""
        self._samples = samples if self._leads else 0

    def number(self, update: int, *, samples: int) -> int | None:
        """Return the number of the contribution after an update, None if there is none.

        `samples` have been trained on by the pipeline since the update before.
        """
        if update not in self._known:
            self._samples += samples
            self._known[update] = None if (update + 1) % self._every else self._told(update)
            self._known.pop(update - _KEPT, None)
        return self._known[update]

    def _told(self, update: int) -> int | None:
        if not self._leads:
            return self._coordinator.contribution(update)
        if self.busy():
            self._coordinator.pass_over(update)
            return None
        samples, self._samples = self._samples, 0
        return self._coordinator.contribute(update, samples=samples)
