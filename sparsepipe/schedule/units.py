"""Units: as many minibatches as make whole updates of every stage, after which replicas' turns begin anew.

Several pipelines take minibatches by units, and number what they contribute to averages by them.
"""

from math import lcm

from ..errors import InputError
from ..pipelines import Pipelines
from ..plan import Plan
from ..replication.base import Arithmetic
from .rounds import round_length


def unit_length(plan: Plan) -> int:
    """Minibatches of a unit."""
    stages = range(len(plan.stages))
    return lcm(*(round_length(plan, s) for s in stages), *(stage.round for stage in plan.stages))


def check_rule(pipelines: Pipelines) -> None:
    """Raise InputError, which says why, where the rule of pipelines cannot go with the schedule of one of them.

    Gradients are averaged before every step, in all stages of all pipelines at the same ones: each update has to be a
    whole unit.
    """
    if pipelines.replication.arithmetic is not Arithmetic.MEAN_GRADIENTS:
        return
    for k, plan in enumerate(pipelines.pipelines):
        whole = unit_length(plan)
        lengths = sorted({round_length(plan, s) for s in range(len(plan.stages))})
        if lengths != [whole]:
            raise InputError(
                "schedule.units_differ",
                f"replication {pipelines.replication.name} averages gradients before every step, but stages of "
                f"pipeline {k} make one after {', '.join(map(str, lengths))} minibatches, all of them after {whole}: "
                "choose a rule that averages weights, such as partial-reduce, or replicas and steps that fit",
                name=pipelines.replication.name,
            )
