"""Deepen the warm-up of 1F1B until transfers and averaging are really hidden behind computation.

One-forward-one-backward keeps one minibatch in flight for each rank from a stage on. That is enough where results
arrive at once. Transfers hold minibatches too, as many as they take periods. And replicas average their gradients
together: they begin a round together, so its minibatches must all have come by then, the whole of the next round while
this one is computed.
"""

from dataclasses import replace
from math import ceil

from ...values.plan import Plan, Stage
from ...values.schedule import lookahead
from ..base import Problem
from ..estimate import crossing_seconds, estimate

NEGLIGIBLE = 0.05  # of a minibatch in flight: what transfers hold of it may be left out


def deepened(plan: Plan, problem: Problem) -> Plan:
    """Give stages of 1F1B the warm-up that lets the plan keep its period, where memory allows."""
    period = estimate(plan, problem).period_seconds
    if not plan.rules.one_forward_one_backward or len(plan.stages) == 1 or not period > 0:
        return plan
    crossings = crossing_seconds(plan, problem)
    deeper = plan
    for s in reversed(range(len(plan.stages) - 1)):
        own_stage, following = plan.stages[s], plan.stages[s + 1]
        waits = (
            (_together(following) - 1) + (_together(own_stage) - 1) + crossings[s] / period
        )  # for averaging, and transfers
        ahead = lookahead(deeper, s + 1) + _together(following) + waits - NEGLIGIBLE
        if ahead > lookahead(deeper, s):
            stage = replace(own_stage, warmup=ceil(ahead / len(own_stage.ranks)))
            deeper = replace(deeper, stages=(*deeper.stages[:s], stage, *deeper.stages[s + 1 :]))
    limits = [min(problem.cluster.devices[rank].type.memory_bytes for rank in stage.ranks) for stage in plan.stages]
    needs = [stage.memory_bytes for stage in estimate(deeper, problem).stages]
    if all(need <= limit for need, limit in zip(needs, limits, strict=True)):
        return deeper
    slow = "memory has no room for the minibatches in flight that would hide transfers and averaging: simulate the plan"
    return replace(plan, warnings=(*plan.warnings, slow))


def _together(stage: Stage) -> int:
    """Minibatches that must have come for a stage's replicas not to wait: a round, of long ones the beginning."""
    return min(stage.round, 2 * len(stage.ranks) - 1)
