"""Greedy list scheduling: an idle rank runs its first candidate that is ready. The order is that of a timed run.

An order found so cannot deadlock: it has been run.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .actions import Op, feeds

Part = tuple[str, int, int]  # the letter of an operation, stage, minibatch
BACKWARD_PER_FORWARD = 2.0  # times a forward: a matrix product has two gradients


class Rank(Protocol):
    """Interface of a rank for the scheduler: the actions it could run next, by preference, and their seconds."""

    def candidates(self) -> Iterable[Part]:
        """The parts it may run now as far as it is concerned, the most wanted first."""

    def seconds(self, part: Part) -> float: ...

    def finish(self, part: Part) -> None:
        """Note that an action is done."""


@dataclass(frozen=True)
class Ordered:
    """Ordered actions of every rank, with their times."""

    parts: Mapping[int, list[Part]]
    ends: Mapping[Part, float]


def timed_order(
    ranks: Mapping[int, Rank], serving: Callable[[int, int], int], num_stages: int, first: Sequence[int]
) -> Ordered:
    """Run `ranks` on the minibatches `first` of the first stage. `serving(stage, minibatch)` names a rank.

    A forward waits for that of the stage before, a backward or its input's half for its own forward and for the stage
    after; the weights' half waits for nothing. Sending takes no time.
    """
    parts: dict[int, list[Part]] = {rank: [] for rank in ranks}
    ends: dict[Part, float] = {}
    arrived = {(True, 0, m) for m in first}  # (forward or backward, stage, minibatch)
    running: list[tuple[float, int, Part]] = []  # heap of (end, rank, part)
    busy: set[int] = set()
    targets = {(op.value, s): feeds(s, op, num_stages) for op in Op for s in range(num_stages)}

    def begin(rank: int, now: float) -> None:
        rank_actions = ranks[rank]
        for part in () if rank in busy else rank_actions.candidates():
            if part[0] == "W" or (part[0] == "F", part[1], part[2]) in arrived:
                parts[rank].append(part)
                busy.add(rank)
                heapq.heappush(running, (now + rank_actions.seconds(part), rank, part))
                return

    for rank in ranks:
        begin(rank, 0.0)
    while running:
        now = running[0][0]
        woken: set[int] = set()
        while running and running[0][0] == now:  # all that ends now has ended before anything begins
            _, rank, part = heapq.heappop(running)
            busy.discard(rank)
            ends[part] = now
            ranks[rank].finish(part)
            woken.add(rank)
            op, stage, m = part
            forward, target = op == "F", targets[op, stage]
            if target is None and forward:  # the last stage's forward is what its own backward waits for
                forward, target = False, stage
            if target is not None:
                arrived.add((forward, target, m))
                woken.add(serving(target, m))
        for rank in woken:
            begin(rank, now)
    return Ordered(parts, ends)
