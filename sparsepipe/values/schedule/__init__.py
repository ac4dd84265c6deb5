"""Schedules as data: for each rank, the ordered actions it performs. The simulator and the runtime obey the same lists.

    actions.py                  what an action is, and who feeds whom
    one_forward_one_backward.py                   which minibatches a replica takes, and which an update is made of
    one_forward_one_backward.py, interleaved.py, looped_bfs.py, zero_bubble.py, interleaved_zero_bubble.py, zbv.py,
    dualpipe_v.py               one order function each, which a row of schedule_rules.py names
    list_scheduler.py, steps.py what they share: an order found by timing; one of a step, repeated step by step
    program.py                  a plan compiled: all that the simulator, the runtime and the memory estimate ask
    check.py                    whether a program deadlocks; minibatches that several pipelines take together

A round is `num_microbatches` minibatches for schedules that flush, and for asynchronous ones the minibatches after
which every replica of that stage has had its share (1 without replication), `accumulation` times.
"""

from collections.abc import Mapping

from ..plan import Plan
from ..schedule_rules import SCHEDULE_RULES
from .actions import Action, Op, fed_by, feeds
from .check import check_rule, check_runs, refuse_stuck, unit_length
from .interleaved import steady_period
from .one_forward_one_backward import lookahead, round_length, together, warmup
from .program import Held, Program, compile, compile_until_steady
from .zero_bubble import weights_share

SCHEDULES: Mapping[str, str] = {name: rules.summary for name, rules in SCHEDULE_RULES.items()}


def actions(plan: Plan, num_minibatches: int) -> Mapping[int, tuple[Action, ...]]:
    """Compile the ordered actions of every rank. The pipeline is empty before and after them.

    Args:
        plan: The plan.
        num_minibatches: Number of minibatches.

    Returns:
        Rank → its actions.

    Raises:
        InputError: A plan that cannot run.

    Example:
        >>> print(*sp.actions(plan, 2)[1])
        1F0 1B0 1U0 1F1 1B1 1U1

    See also:
        background/schedules, `SCHEDULES`, `inputs`
    """
    return compile(plan, num_minibatches).actions


def inputs(action: Action, plan: Plan, num_minibatches: int) -> list[Action]:
    """List the actions that an action depends on.

    Args:
        action: The action.
        plan: The plan.
        num_minibatches: Number of minibatches.

    Returns:
        The actions whose results the action needs.

    Raises:
        InputError: A plan that cannot run.

    Example:
        >>> print(*sp.inputs(sp.Action.parse("1F1"), plan, 2))
        0F1

    See also:
        background/schedules, `actions`
    """
    return compile(plan, num_minibatches).inputs(action)


__all__ = [
    "SCHEDULES",
    "Action",
    "Held",
    "Op",
    "Program",
    "actions",
    "check_rule",
    "check_runs",
    "compile",
    "compile_until_steady",
    "fed_by",
    "feeds",
    "inputs",
    "lookahead",
    "refuse_stuck",
    "round_length",
    "steady_period",
    "together",
    "unit_length",
    "warmup",
    "weights_share",
]
