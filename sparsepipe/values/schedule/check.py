"""Deadlock check: execute a program's lists without time, each action as soon as its inputs are done."""

from collections.abc import Mapping
from math import lcm

from ...errors import InputError
from ..plan import Plan
from ..replication.base import Arithmetic
from .actions import Action, Op
from .one_forward_one_backward import round_length, together
from .program import Program


def check_runs(program: Program, *, synchronised: bool = False) -> None:
    """Raise InputError when the lists would deadlock. The message shows, per rank, where it stands.

    `synchronised`: replicas wait for each other in the forwards and backwards of a round.
    """
    todo = program.actions
    position_of_rank = dict.fromkeys(todo, 0)
    done: set[Action] = set()
    moved = True
    while moved:
        moved = False
        for rank, waiting in todo.items():
            while position_of_rank[rank] < len(waiting):
                action = waiting[position_of_rank[rank]]
                if not done.issuperset(program.inputs(action)):
                    break
                if synchronised and not _all_there(action, program, done, position_of_rank):
                    break
                done.add(action)
                position_of_rank[rank] += 1
                moved = True
    refuse_stuck(program, {rank: todo[rank][at] for rank, at in position_of_rank.items() if at < len(todo[rank])})


def refuse_stuck(program: Program, stuck: Mapping[int, Action]) -> None:
    """Raise InputError naming the action at which each of the `stuck` ranks waits for ever."""
    if stuck:
        where = ", ".join(f"rank {rank} waits at {action}" for rank, action in sorted(stuck.items()))
        raise InputError("schedule.deadlock", f"schedule {program.plan.schedule!r} deadlocks for this plan: {where}")


def _all_there(action: Action, program: Program, done: set[Action], place: Mapping[int, int]) -> bool:
    """Return whether every replica is at its part of a pass that they run together, or past it, and has what it
    needs.
    """
    s, op, m = action
    if op not in (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT):
        return True
    for other in together(program.plan, s, m, program.num_minibatches):
        partner = Action(s, op, other) if op is Op.FORWARD else program.backward(s, other)
        rank = program.rank_of(s, other)
        todo = program.actions[rank]
        if partner in done:
            continue
        if place[rank] == len(todo) or todo[place[rank]] != partner:
            return False
        if not done.issuperset(program.inputs(partner)):
            return False
    return True


def unit_length(plan: Plan) -> int:
    """Minibatches of a unit."""
    stages = range(len(plan.stages))
    return lcm(*(round_length(plan, s) for s in stages), *(stage.round for stage in plan.stages))


def check_rule(plan: Plan) -> None:
    """Raise InputError, which says why, where the rule of several pipelines cannot go with the schedule of one of them.

    Gradients are averaged before every step, in all stages of all pipelines at the same ones: each update has to be a
    whole unit.
    """
    rule = plan.replication
    if rule is None or rule.arithmetic is not Arithmetic.MEAN_GRADIENTS:
        return
    for k, pipeline in enumerate(plan.pipelines):
        whole = unit_length(pipeline)
        lengths = sorted({round_length(pipeline, s) for s in range(len(pipeline.stages))})
        if lengths != [whole]:
            raise InputError(
                "schedule.units_differ",
                f"replication {rule.name} averages gradients before every step, but stages of pipeline {k} step "
                f"every {', '.join(map(str, lengths))} minibatches and all stages only every {whole}; choose a "
                "scheme that averages weights, such as partial-reduce",
                name=rule.name,
            )
