"""Units: as many minibatches as make whole updates of every stage, after which replicas' turns begin again.

Several pipelines take minibatches by units, and number what they contribute to averages by them.
"""

from math import lcm

from ...errors import InputError
from ..plan import Plan
from ..replication.base import Arithmetic
from .rounds import round_length


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
                f"replication {rule.name} averages gradients before every step, but stages of "
                f"pipeline {k} make one after {', '.join(map(str, lengths))} minibatches, all of them after {whole}: "
                "choose a rule that averages weights, such as partial-reduce, or replicas and steps that fit",
                name=rule.name,
            )
