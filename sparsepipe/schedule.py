"""Schedules as data: for each rank, the ordered actions it performs. The simulator and the runtime obey the same lists.

One-forward-one-backward on two stages, three minibatches (time runs right):

    stage 0   0F0 0F1 0B0 0U0 0F2 0B1 0U1 0B2 0U2
    stage 1       1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2

F is the forward and B the backward of a minibatch. `zero-bubble` cuts the backward in two: B is then the gradients of
what arrived alone, and W those of the weights. U averages the gradients of one round over the stage's replicas and
updates the weights. A round is `num_microbatches` minibatches for schedules that flush, and for asynchronous ones the
minibatches after which every replica of that stage has had its share (1 without replication), `accumulation` times.
A rank that serves several stages has the actions of all of them in one list (interleaved.py).
Which weights a forward meets is `forward_versions`' to say.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from math import ceil, lcm
from typing import NamedTuple

from . import interleaved
from .errors import InputError
from .plan import Plan, Stage
from .schedule_rules import SCHEDULE_RULES
from .timed_order import BACKWARD, Part, timed_order
from .zero_bubble import Replica


class Op(StrEnum):
    FORWARD = "F"
    BACKWARD = "B"
    UPDATE = "U"
    WEIGHTS = "W"  # gradients of the weights, where the schedule does not leave them to B


class Action(NamedTuple):
    stage: int
    op: Op
    minibatch: int  # for an update: the round

    def __str__(self) -> str:
        return f"{self.stage}{self.op}{self.minibatch}"

    @classmethod
    def parse(cls, text: str) -> "Action":
        found = re.fullmatch(r"(\d+)([FBUW])(\d+)", text)
        if not found:
            raise InputError(f"{text!r} is not an action: expected stage, F, B, U or W, minibatch, such as 1F3")
        return cls(int(found[1]), Op(found[2]), int(found[3]))


def round_length(plan: Plan, stage: int) -> int:
    """Minibatches of one update of `stage`."""
    if plan.flushes:
        return plan.num_microbatches
    if plan.weights == "2bw":
        return max(plan.num_microbatches, _least_double_buffered(plan))
    return plan.stages[stage].round * plan.accumulation


def _least_double_buffered(plan: Plan) -> int:
    """Fewest minibatches of a step with which two versions do: no forward runs ahead of the step before its own.

    PipeDream-2BW asks for as many as there are stages (Narayanan et al., ICML 2021, section 3.1).
    """
    return max(1, *(lookahead(plan, s) for s in range(len(plan.stages))))


def num_rounds(plan: Plan, stage: int, num_minibatches: int) -> int:
    """Updates of `stage` in `num_minibatches`; the last round may be shorter."""
    return ceil(num_minibatches / round_length(plan, stage))


def round_minibatches(plan: Plan, stage: int, index: int, num_minibatches: int) -> range:
    """The minibatches of one round."""
    length = round_length(plan, stage)
    return range(index * length, min((index + 1) * length, num_minibatches))


def lookahead(plan: Plan, stage: int) -> int:
    """Run forwards up to so many minibatches beyond the next backward.

    1F1B keeps every later rank busy: ⌈later ranks / own ranks⌉ minibatches of each replica (PipeDream, SOSP 2019,
    section 3.2), and so does an imported warm-up, times the replicas. Unequal replicas look ahead by the later ranks
    alone: rounding up would let one with a small share wait for a minibatch that no earlier stage may send yet. A stage
    never looks further ahead than those before it, so the lists cannot deadlock.
    """
    own = plan.stages[stage]
    replicas = len(own.ranks)
    if own.warmup is not None:
        return own.warmup * replicas
    if plan.rules.one_minibatch_at_a_time:
        return 0
    if plan.schedule == "gpipe":
        return plan.num_microbatches
    later = sum(len(other.ranks) for other in plan.stages[stage + 1 :])
    return ceil(later / replicas) * replicas if len(set(own.shares)) == 1 else later


def warmup(plan: Plan, stage: int, rank: int) -> int:
    """Forwards that `rank` runs before its first backward."""
    own, ahead = plan.stages[stage], lookahead(plan, stage)
    first = own.turns.index(own.ranks.index(rank))
    return len(_turns_of(own, rank, range(first + 1, first + 1 + ahead)))


def actions(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Every action of every rank, in order, for `num_minibatches` from an empty pipeline to an empty pipeline."""
    if plan.rules.splits_backward:
        return _zero_bubble_actions(plan, num_minibatches)
    if plan.laps > 1:
        if not plan.flushes:
            return _continuous_actions(plan, num_minibatches)
        return {rank: _interleaved_actions(plan, rank, num_minibatches) for rank in plan.ranks}
    return {
        rank: _rank_actions(plan, s, rank, num_minibatches)
        for s, stage in enumerate(plan.stages)
        for rank in stage.ranks
    }


@lru_cache(maxsize=256)  # asked for again and again: by the worker, its segments, who knows the versions
def _rank_actions(plan: Plan, s: int, rank: int, num_minibatches: int) -> tuple[Action, ...]:
    """From flush to flush: a step of a flush schedule, all minibatches of an asynchronous one."""
    count = num_rounds(plan, s, num_minibatches)
    if plan.flushes:
        segments = [(round_minibatches(plan, s, k, num_minibatches), range(k, k + 1)) for k in range(count)]
    else:
        segments = [(range(num_minibatches), range(count))]
    done: list[Action] = []
    ahead, length = lookahead(plan, s), round_length(plan, s)
    forward, backward, update = Op.FORWARD, Op.BACKWARD, Op.UPDATE
    for span, rounds in segments:
        mine, begun, index = _turns_of(plan.stages[s], rank, span), 0, rounds.start
        for m in [*mine, num_minibatches]:
            # A replica without a minibatch in a round takes part in its averaging all the same. While it waits there
            # for the others, stages after it may need the forwards that they look ahead to: those come first.
            while index < rounds.stop and (stop := min((index + 1) * length, num_minibatches)) <= m:
                while begun < len(mine) and mine[begun] < stop + ahead:
                    done.append(Action(s, forward, mine[begun]))
                    begun += 1
                done.append(Action(s, update, index))
                index += 1
            if m == num_minibatches:
                break
            while begun < len(mine) and mine[begun] <= m + ahead:
                done.append(Action(s, forward, mine[begun]))
                begun += 1
            done.append(Action(s, backward, m))
    return tuple(done)


@lru_cache(maxsize=256)
def _interleaved_actions(plan: Plan, rank: int, num_minibatches: int) -> tuple[Action, ...]:
    """Step after step; all of the rank's stages are updated at a step's end, when the gradients of all are there."""
    own, done = plan.stages_of(rank), list[Action]()
    for k in range(num_rounds(plan, own[0], num_minibatches)):
        mine = _turns_of(plan.stages[own[0]], rank, round_minibatches(plan, own[0], k, num_minibatches))
        done += [Action(s, Op(op), m) for op, s, m in interleaved.step(mine, own, plan.lap)]
        done += [Action(s, Op.UPDATE, k) for s in own]
    return tuple(done)


@lru_cache(maxsize=64)
def _continuous_actions(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Interleaved without flushes: a stage is updated after the last backward of each of its rounds.

    Replicas have equal shares: all follow the same order, each on its own minibatches. One without a minibatch in the
    last round takes part in its updates where the others have them.
    """
    count = num_rounds(plan, 0, num_minibatches) * plan.accumulation  # of each replica, in whole rounds
    lists = {}
    for position, parts in interleaved.continuous(count, _paces(plan), plan.lap).parts.items():
        team = plan.stages[position]
        for rank in team.ranks:
            mine = _turns_of(team, rank, range(count * team.round))
            todo = []
            for op, s, k in parts:
                if mine[k] < num_minibatches:
                    todo.append(Action(s, Op(op), mine[k]))
                if op == "B" and (k + 1) % plan.accumulation == 0:
                    todo.append(Action(s, Op.UPDATE, k // plan.accumulation))
            lists[rank] = tuple(todo)
    return lists


def _paces(plan: Plan) -> list[float]:
    """What the planner expects of each stage, forward and backward; equal paces where it said nothing."""
    return [e.compute_seconds for e in plan.estimate.stages] if plan.estimate else [1.0] * len(plan.stages)


def _zero_bubble_actions(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    lists: dict[int, list[Action]] = {rank: [] for rank in plan.ranks}
    for k in range(num_rounds(plan, 0, num_minibatches)):
        for rank, order in _zero_bubble_step(plan, round_minibatches(plan, 0, k, num_minibatches)).items():
            (s,) = plan.stages_of(rank)
            lists[rank] += [*(Action(part_stage, Op(op), m) for op, part_stage, m in order), Action(s, Op.UPDATE, k)]
    return {rank: tuple(todo) for rank, todo in lists.items()}


@lru_cache(maxsize=256)
def _zero_bubble_step(plan: Plan, span: range) -> Mapping[int, list[Part]]:
    """The order of one step, timed by what the planner expects of the stages; equal ones where it said nothing."""
    replicas, paces = {}, _paces(plan)
    for s, stage in enumerate(plan.stages):
        late = weights_share(plan, s)
        for rank, share in zip(stage.ranks, stage.shares, strict=True):
            forward = paces[s] * stage.round / share  # in units that leave equal stages equal: thirds would not add up
            backward = BACKWARD * forward
            parts = {"F": forward, "B": (1 - late) * backward, "W": late * backward}
            turns = _turns_of(stage, rank, span)
            replicas[rank] = Replica(s, turns, parts, lookahead(plan, s), lookahead(plan, 0))
    order = timed_order(replicas, lambda s, m: plan.stages[s].replica(m), len(plan.stages), span)
    assert all(own.done["W"] == len(own.minibatches) for own in replicas.values()), "every part has had its turn"
    return order.parts


def weights_share(plan: Plan, stage: int) -> float:
    """The share of a backward's time that the gradients of the weights take, where they have an action of their own.

    A matrix product's two gradients cost the same. Nobody waits for what the first stage sends back: it does all in B.
    """
    return 0.5 if plan.rules.splits_backward and stage > 0 else 0.0


def _turns_of(stage: Stage, rank: int, span: range) -> list[int]:
    """The minibatches of `span` that `rank` runs."""
    place = stage.ranks.index(rank)
    own = [k for k, turn in enumerate(stage.turns) if turn == place]
    first = span.start - span.start % stage.round
    turns = [base + k for base in range(first, span.stop, stage.round) for k in own]
    return [m for m in turns if span.start <= m < span.stop]


def forward_actions(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Evaluation: the forwards alone."""
    if plan.laps > 1:
        whole = range(num_minibatches)
        return {
            rank: tuple(
                Action(s, Op.FORWARD, m)
                for s, m in interleaved.forwards(_turns_of(plan.stages[own[0]], rank, whole), own, plan.lap)
            )
            for rank in plan.ranks
            for own in [plan.stages_of(rank)]
        }
    return {
        rank: tuple(Action(s, Op.FORWARD, m) for m in _turns_of(stage, rank, range(num_minibatches)))
        for s, stage in enumerate(plan.stages)
        for rank in stage.ranks
    }


def inputs(action: Action, plan: Plan, num_minibatches: int) -> list[Action]:
    """The actions whose results this one consumes. The simulator and the runtime both ask here."""
    s, op, m = action
    if op is Op.FORWARD:
        return [Action(s - 1, op, m)] if s > 0 else []
    if op is Op.BACKWARD:
        later = [Action(s + 1, op, m)] if s + 1 < len(plan.stages) else []
        return [Action(s, Op.FORWARD, m), *later]
    if op is Op.WEIGHTS:
        return [Action(s, Op.BACKWARD, m)]
    last = Op.WEIGHTS if plan.rules.splits_backward else Op.BACKWARD
    return [Action(s, last, k) for k in round_minibatches(plan, s, m, num_minibatches)]


def forward_versions(plan: Plan, num_minibatches: int) -> dict[tuple[int, int], int]:
    """For each (stage, minibatch), the weights that its forward meets, as the number of updates they are made of.

    flush: those of its step. stash: the newest there are. vertical-sync: as many updates as in the first stage, so that
    all stages use the same (PipeDream, SOSP 2019, section 3.3). 2bw: those of the step before the last finished one, so
    that two versions do (Narayanan et al., ICML 2021, equation 1).
    """
    everywhere = [(s, m) for s in range(len(plan.stages)) for m in range(num_minibatches)]
    if plan.flushes:
        return {(s, m): m // plan.num_microbatches for s, m in everywhere}
    if plan.weights == "2bw":
        length = round_length(plan, 0)
        return {(s, m): max(0, m // length - 1) for s, m in everywhere}
    newest: dict[tuple[int, int], int] = {}
    for todo in actions(plan, num_minibatches).values():
        newest |= _updates_before_forwards(todo)
    if plan.weights == "vertical-sync":
        return {(s, m): newest[0, m] for s, m in everywhere}
    return newest


def _updates_before_forwards(todo: Sequence[Action]) -> dict[tuple[int, int], int]:
    updates, found = Counter[int](), {}
    for s, op, m in todo:
        if op is Op.FORWARD:
            found[s, m] = updates[s]
        updates[s] += op is Op.UPDATE
    return found


class Held(NamedTuple):
    """What a rank holds of one of its stages."""

    versions: set[int]  # of the weights, each named by the updates it is made of
    minibatches: set[int]  # in flight: their forward has been run, and of their backward not all


def holdings(plan: Plan, rank: int, num_minibatches: int) -> Iterator[tuple[Action, dict[int, Held]]]:
    """Yield each action of `rank` and what the rank then holds of each of its stages, at the action's fullest.

    Weight versions are the newest, and those of minibatches in flight or, where the policy says so, to come. What is
    yielded changes with the next action.
    """
    todo, own = _actions_of(plan, rank, num_minibatches), plan.stages_of(rank)
    flush = plan.flushes
    if flush or plan.weights == "stash":
        uses = _updates_before_forwards(todo)
    else:
        uses = forward_versions(plan, num_minibatches)
    users = Counter((s, uses[s, m]) for s, op, m in todo if op is Op.FORWARD)  # minibatches whose backward is to come
    held, newest = {s: Held({0}, set()) for s in own}, dict.fromkeys(own, 0)
    last = Op.WEIGHTS if plan.rules.splits_backward else Op.BACKWARD
    for action in todo:
        s, op, m = action
        if op is Op.FORWARD:
            held[s].minibatches.add(m)
        elif op is Op.UPDATE:
            old, newest[s] = newest[s], newest[s] + 1
            held[s].versions.add(newest[s])
            if flush or not users[s, old]:
                held[s].versions.discard(old)
        yield action, held
        if op is last:
            held[s].minibatches.discard(m)
        if op is Op.BACKWARD:
            version = uses[s, m]
            users[s, version] -= 1
            if version < newest[s] and not users[s, version]:
                held[s].versions.discard(version)


@lru_cache(maxsize=256)
def moments(plan: Plan, rank: int) -> frozenset[tuple[int | None, tuple[tuple[int, int], ...]]]:
    """(stage that computes, (weight versions, minibatches in flight) of each of the rank's stages) of its actions.

    All that differ, from an empty pipeline until nothing new comes. In an update no stage computes.
    """
    return frozenset(
        (
            None if action.op is Op.UPDATE else action.stage,
            tuple((len(own.versions), len(own.minibatches)) for own in held.values()),
        )
        for action, held in holdings(plan, rank, _until_steady(plan))
    )


def num_versions(plan: Plan, stage: int, rank: int) -> int:
    """Most weight versions of a stage that `rank` holds: the newest, and of its minibatches in flight or to come."""
    return 1 if plan.flushes else max(versions for versions, _ in _counts(plan, stage, rank))


def _counts(plan: Plan, stage: int, rank: int) -> list[tuple[int, int]]:
    """(weight versions, minibatches in flight) that `rank` holds of a stage, at one moment after the other."""
    place = plan.stages_of(rank).index(stage)
    return [held[place] for _, held in moments(plan, rank)]


def _until_steady(plan: Plan) -> int:
    """Enough minibatches to see the most that is held: several rounds beyond the deepest warm-up, or all of a step.

    Steps that are not whole rounds of a stage's replicas begin at each of their turns in time: all of these are seen.
    """
    if plan.flushes:
        return lcm(plan.num_microbatches, *(stage.round for stage in plan.stages))
    lengths = [round_length(plan, s) for s in range(len(plan.stages))]
    turns = [lcm(length, stage.round) - length for length, stage in zip(lengths, plan.stages, strict=True)]
    depth = max(warmup(plan, s, other) for s, own in enumerate(plan.stages) for other in own.ranks)
    return max(lengths) * plan.laps * (depth + 3) + max(turns) + sum(len(s.ranks) for s in plan.stages)


def _actions_of(plan: Plan, rank: int, num_minibatches: int) -> tuple[Action, ...]:
    """The actions of one rank, without those of the others where they can be had so."""
    if plan.laps == 1 and not plan.rules.splits_backward:
        (stage,) = plan.stages_of(rank)
        return _rank_actions(plan, stage, rank, num_minibatches)
    return actions(plan, num_minibatches)[rank]


def in_flight(plan: Plan, stage: int, rank: int) -> int:
    """Most minibatches whose forward `rank` has run in a stage and whose backward it has not, all of it."""
    if plan.flushes and not plan.rules.splits_backward and plan.laps == 1:
        # Steps need not be whole rounds, so they differ in how many minibatches a rank gets.
        own, ahead = plan.stages[stage], min(1 + lookahead(plan, stage), plan.num_microbatches)
        return max(len(_turns_of(own, rank, range(k, k + ahead))) for k in range(own.round))
    return max(minibatches for _, minibatches in _counts(plan, stage, rank))


def together(plan: Plan, stage: int, minibatch: int, num_minibatches: int) -> range:
    """The minibatches whose forwards and backwards replicas that share statistics run with this one's, it included.

    A last round in which some replicas have no minibatch is run by each alone.
    """
    count = len(plan.stages[stage].ranks)
    start = minibatch - minibatch % count
    return range(start, start + count) if start + count <= num_minibatches else range(minibatch, minibatch + 1)


def check_runs(plan: Plan, num_minibatches: int, *, synchronised: bool = False) -> None:
    """Raise InputError when the lists would deadlock: execute them without time, each action once its inputs are done.

    `synchronised`: replicas wait for each other in the forwards and backwards of a round. The message shows, per rank,
    where it stands.
    """
    todo = actions(plan, num_minibatches)
    place = dict.fromkeys(todo, 0)
    done: set[Action] = set()
    moved = True
    while moved:
        moved = False
        for rank, waiting in todo.items():
            while place[rank] < len(waiting):
                action = waiting[place[rank]]
                if not done.issuperset(inputs(action, plan, num_minibatches)):
                    break
                if synchronised and not _all_there(action, plan, num_minibatches, done, todo, place):
                    break
                done.add(action)
                place[rank] += 1
                moved = True
    stuck = {rank: str(todo[rank][at]) for rank, at in place.items() if at < len(todo[rank])}
    if stuck:
        raise InputError(f"schedule {plan.schedule!r} of this plan deadlocks: rank → action it waits at: {stuck}")


def _all_there(
    action: Action,
    plan: Plan,
    num_minibatches: int,
    done: set[Action],
    todo: Mapping[int, tuple[Action, ...]],
    place: Mapping[int, int],
) -> bool:
    """Whether every replica is at its part of a pass that they run together, or past it, and has what it needs."""
    s, op, m = action
    if op not in (Op.FORWARD, Op.BACKWARD):
        return True
    for other in together(plan, s, m, num_minibatches):
        partner, rank = Action(s, op, other), plan.stages[s].replica(other)
        if partner in done:
            continue
        if place[rank] == len(todo[rank]) or todo[rank][place[rank]] != partner:
            return False
        if not done.issuperset(inputs(partner, plan, num_minibatches)):
            return False
    return True


SCHEDULES: Mapping[str, str] = {name: rules.summary for name, rules in SCHEDULE_RULES.items()}
