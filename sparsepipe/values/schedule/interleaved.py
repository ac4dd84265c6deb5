"""The order of interleaved stages: every rank has several, a lap of the ranks apart (Narayanan et al., SC 2021, 2.2).

With flushes, shorter stages fill and drain the pipeline faster: with v stages per rank, the bubble is v times smaller,
for v times the transfers. Two ranks, four stages, two minibatches of a step (time runs right):

    rank 0   0F0 0F1 2F0 2F1     2B0     2B1 0B0     0B1 0U0 2U0
    rank 1       1F0 1F1 3F0 3B0 3F1 3B1 1B0     1B1 1U0 3U0

Minibatches go in groups of as many as a lap has stages: a group does one lap before it does the next.

Without flushes nothing is filled or drained. What shorter stages give then is balance: more cuts leave ranks with more
equal work where single layers are large. The order is that of a timed run (`continuous`); equal stages come to this,
over and over:

    rank 0   0F5 2F4 2B3 2U3 0B2 0U2
    rank 1   1F4 3F3 3B3 3U3 1B2 1U2

In a V ("1f1b-v") the order is found in the same way: only the ranks of the stages differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from ..plan import Plan
from .actions import Action, Op
from .list_scheduler import BACKWARD_PER_FORWARD, Ordered, Part, timed_order
from .one_forward_one_backward import num_rounds, paces, round_minibatches, turns_of


def forwards(minibatches: Sequence[int], stages: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Return (stage, minibatch) of each forward of a rank with these stages, in order."""
    groups = (minibatches[first : first + size] for first in range(0, len(minibatches), size))
    return [(stage, m) for group in groups for stage in stages for m in group]


def step(minibatches: Sequence[int], stages: Sequence[int], size: int) -> list[tuple[str, int, int]]:
    """Return ("F" or "B", stage, minibatch) of one step of a rank: warm-up, one forward one backward, drain.

    A last group that is not whole gets the order of one that is, without what does not exist: no one then waits for
    more than in an order without deadlock.
    """
    padded = [*minibatches, *[_NONE] * (-len(minibatches) % size)]
    ahead, behind = forwards(padded, stages, size), forwards(padded, stages[::-1], size)
    warmup = min(len(ahead), 2 * (size - 1 - stages[0]) + (len(stages) - 1) * size)
    order = [("F", *ahead_action) for ahead_action in ahead[:warmup]]
    for forward, backward in zip(ahead[warmup:], behind, strict=False):
        order += [("F", *forward), ("B", *backward)]
    order += [("B", *ahead_action) for ahead_action in behind[len(ahead) - warmup :]]
    return [action for action in order if action[2] != _NONE]


_NONE = -1  # no minibatch


Positions = tuple[tuple[int, ...], ...]  # the stages of each rank
_STEADY = (8, 24)  # times as many minibatches as there are stages: between these a pace is measured


@lru_cache(maxsize=64)  # a plan is compiled once for each number of minibatches: for its memory, its trace, its run
def continuous(count: int, stage_paces: tuple[float, ...], positions: Positions) -> Ordered:
    """Order the first `count` minibatches of an endless run, without flushes, through stages of these paces.

    Ranks are counted from 0 in pipeline order; `positions[k]` are the stages of rank k. Each takes its stages' forwards
    and backwards in turn: of those that it can run, the one whose last run is longest ago. So the order becomes a cycle
    in which everything has its place, and the busiest rank hardly ever waits. No more minibatches are in flight than
    1F1B has with a rank for each stage.
    """
    ordered = _endless(max(count, _STEADY[1] * len(stage_paces)), stage_paces, positions)
    return replace(ordered, parts={k: [part for part in own if part[2] < count] for k, own in ordered.parts.items()})


@lru_cache(maxsize=16)  # the first minibatches are ordered alike whatever comes behind: few are as many as for the pace
def _endless(count: int, stage_paces: tuple[float, ...], positions: Positions) -> Ordered:
    endless = count + len(stage_paces)
    ranks = {k: _Position(stages, stage_paces, endless) for k, stages in enumerate(positions)}
    rank_of = {stage: k for k, stages in enumerate(positions) for stage in stages}
    return timed_order(ranks, lambda stage, _: rank_of[stage], len(stage_paces), range(endless))


@lru_cache(maxsize=64)  # asked for again wherever a plan is judged once more
def steady_period(stage_paces: tuple[float, ...], positions: Positions) -> float:
    """Return the seconds per minibatch of `continuous` once the pipeline is full.

    If two ranks have nearly as much to do, the order comes to its cycle late, in a step that may cost a minibatch's
    time: the mean is over many.
    """
    depth, (first, last) = len(stage_paces), _STEADY
    ends = continuous(last * depth, stage_paces, positions).ends
    seconds = ends["B", depth - 1, last * depth] - ends["B", depth - 1, first * depth]
    # A window of whole minibatches may miss part of a cycle.
    busiest = max(sum(stage_paces[k] for k in stages) for stages in positions)
    return max(seconds / ((last - first) * depth) / sum(_PARTS.values()), busiest)


class _Position:
    """A rank by its place in the pipeline: what its stages have done, and whose turn it is."""

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


_PARTS: Mapping[str, float] = {"F": 1.0, "B": BACKWARD_PER_FORWARD}  # of 3: thirds of a pace would not add up


def order(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Each rank's actions, of all its stages."""
    if plan.flushes:
        return {rank: _steps_of(plan, rank, num_minibatches) for rank in plan.ranks}
    return _without_flushes(plan, num_minibatches)


def _steps_of(plan: Plan, rank: int, num_minibatches: int) -> tuple[Action, ...]:
    """Step after step; all of the rank's stages are updated at a step's end, when the gradients of all exist."""
    stages_of_rank, done = plan.stages_of(rank), list[Action]()
    for k in range(num_rounds(plan, stages_of_rank[0], num_minibatches)):
        mine = turns_of(
            plan.stages[stages_of_rank[0]], rank, round_minibatches(plan, stages_of_rank[0], k, num_minibatches)
        )
        done += [Action(s, Op(op), m) for op, s, m in step(mine, stages_of_rank, plan.pipeline_size)]
        done += [Action(s, Op.UPDATE, k) for s in stages_of_rank]
    return tuple(done)


def _without_flushes(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Interleaved without flushes: a stage is updated after the last backward of each of its rounds.

    Replicas have equal shares: all follow the same order, each on its own minibatches. One without a minibatch in the
    last round takes part in its updates where the others have them.
    """
    count = num_rounds(plan, 0, num_minibatches) * plan.accumulation  # of each replica, in whole rounds
    lists = {}
    for position, parts in continuous(count, tuple(paces(plan)), plan.positions).parts.items():
        team = plan.stages[position]
        for rank in team.ranks:
            mine = turns_of(team, rank, range(count * team.round))
            todo = []
            for op, s, k in parts:
                if mine[k] < num_minibatches:
                    todo.append(Action(s, Op(op), mine[k]))
                if op == "B" and (k + 1) % plan.accumulation == 0:
                    todo.append(Action(s, Op.UPDATE, k // plan.accumulation))
            lists[rank] = tuple(todo)
    return lists


def evaluation_order(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Each rank's forwards alone, of all its stages: a group of as many minibatches as ranks in one after the other."""
    whole = range(num_minibatches)
    return {
        rank: tuple(
            Action(s, Op.FORWARD, m)
            for s, m in forwards(turns_of(plan.stages[rank_stages[0]], rank, whole), rank_stages, plan.pipeline_size)
        )
        for rank in plan.ranks
        for rank_stages in [plan.stages_of(rank)]
    }
