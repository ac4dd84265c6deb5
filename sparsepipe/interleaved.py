"""The order of interleaved stages: every rank has several, a lap of the ranks apart (Narayanan et al., SC 2021, 2.2).

With flushes, shorter stages fill and drain the pipeline faster: with v stages a rank, the bubble is v times smaller,
for v times the transfers. Two ranks, four stages, two minibatches of a step (time runs right):

    rank 0   0F0 0F1 2F0 2F1     2B0     2B1 0B0     0B1 0U0 2U0
    rank 1       1F0 1F1 3F0 3B0 3F1 3B1 1B0     1B1 1U0 3U0

Minibatches go in groups of as many as a lap has stages: a group does one lap before it does the next.

Without flushes nothing is filled or drained. What shorter stages give then is balance: more cuts leave ranks with more
equal work where single layers are large. The order is that of a timed run (`continuous`); equal stages come to this,
over and over:

    rank 0   0F5 2F4 2B3 2U3 0B2 0U2
    rank 1   1F4 3F3 3B3 3U3 1B2 1U2
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from .timed_order import BACKWARD, Ordered, Part, timed_order


def forwards(minibatches: Sequence[int], stages: Sequence[int], lap: int) -> list[tuple[int, int]]:
    """Return (stage, minibatch) of each forward of a rank with these stages, in order."""
    groups = (minibatches[first : first + lap] for first in range(0, len(minibatches), lap))
    return [(stage, m) for group in groups for stage in stages for m in group]


def step(minibatches: Sequence[int], stages: Sequence[int], lap: int) -> list[tuple[str, int, int]]:
    """Return ("F" or "B", stage, minibatch) of one step of a rank: warm-up, one forward one backward, drain.

    A last group that is not whole gets the order of one that is, without what is not there: nobody then waits for more
    than in an order without deadlock.
    """
    padded = [*minibatches, *[_NONE] * (-len(minibatches) % lap)]
    ahead, behind = forwards(padded, stages, lap), forwards(padded, stages[::-1], lap)
    warmup = min(len(ahead), 2 * (lap - 1 - stages[0]) + (len(stages) - 1) * lap)
    order = [("F", *one) for one in ahead[:warmup]]
    for forward, backward in zip(ahead[warmup:], behind, strict=False):
        order += [("F", *forward), ("B", *backward)]
    order += [("B", *one) for one in behind[len(ahead) - warmup :]]
    return [action for action in order if action[2] != _NONE]


_NONE = -1  # no minibatch


def continuous(count: int, paces: Sequence[float], lap: int) -> Ordered:
    """Order the first `count` minibatches of an endless run, without flushes, through stages that take `paces` seconds.

    Ranks are counted from 0 in pipeline order. Each takes its stages' forwards and backwards in turn: of those that it
    can run, the one whose last run is longest ago. So the order becomes a cycle in which everything has its place, and
    the busiest rank hardly ever waits. No more minibatches are in flight than 1F1B has with a rank for each stage.
    """
    endless = count + len(paces)
    positions = {k: _Position(range(k, len(paces), lap), paces, endless) for k in range(lap)}
    found = timed_order(positions, lambda stage, _: stage % lap, len(paces), range(endless))
    return replace(found, parts={k: [part for part in own if part[2] < count] for k, own in found.parts.items()})


_STEADY = (8, 24)  # times as many minibatches as there are stages


@lru_cache(maxsize=64)  # asked for again wherever a plan is judged once more
def steady_period(paces: tuple[float, ...], lap: int) -> float:
    """Return the seconds per minibatch of `continuous` once the pipeline is full.

    Where two ranks have nearly as much to do, the order comes to its cycle late, in a step that may cost a minibatch's
    time: the mean is over many.
    """
    depth, (first, last) = len(paces), _STEADY
    ends = continuous(last * depth, paces, lap).ends
    seconds = ends["B", depth - 1, last * depth] - ends["B", depth - 1, first * depth]
    busiest = max(sum(paces[k::lap]) for k in range(lap))  # a window of whole minibatches may miss part of a cycle
    return max(seconds / ((last - first) * depth) / sum(_PARTS.values()), busiest)


class _Position:
    """A rank by its place in the lap: what its stages have done, and whose turn it is."""

    def __init__(self, stages: Sequence[int], paces: Sequence[float], count: int) -> None:
        self.paces, self.count = paces, count
        self.turns = [(op, stage) for op in "BF" for stage in reversed(stages)]  # longest ago first
        self.done = dict.fromkeys(self.turns, 0)

    def candidates(self) -> Iterator[Part]:
        for op, stage in self.turns:
            m = self.done[op, stage]
            held_back = stage == 0 and op == "F" and m >= self.done["B", 0] + len(self.paces)
            if m < self.count and not held_back:
                yield op, stage, m

    def seconds(self, part: Part) -> float:
        return _PARTS[part[0]] * self.paces[part[1]]

    def finish(self, part: Part) -> None:
        op, stage, m = part
        self.done[op, stage] = m + 1
        self.turns.remove((op, stage))
        self.turns.append((op, stage))


_PARTS: Mapping[str, float] = {"F": 1.0, "B": BACKWARD}  # of 3: thirds of a pace would not add up
