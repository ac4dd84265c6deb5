"""What a schedule and a weight policy are, as rows of facts.

A new schedule is one row here and one order function in the schedule family. No other code compares names: it asks a
fact, so that a new row is planned, simulated, drawn and run wherever its facts are known.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class WeightRules:
    """How a policy keeps versions of the weights."""

    flushes: bool = False  # the pipeline is empty at every update, so that there is one version
    updates_by_step: bool = False  # after `num_microbatches` minibatches; else after each round of a stage's replicas
    same_everywhere: bool = False  # a minibatch meets the same version in all stages: all update equally often


@dataclass(frozen=True)
class ScheduleRules:
    """What planners, the simulator, the runtime and pictures need to know of a schedule, besides its order."""

    weights: tuple[str, ...]  # policies it can keep, its default first
    summary: str  # what it does and who proposed it
    interleaves: bool = False  # a rank may serve several stages
    splits_backward: bool = False  # gradients of the input (B) and of the weights (W) are two actions
    one_forward_one_backward: bool = False  # a deeper warm-up hides transfers and averaging
    one_minibatch_at_a_time: bool = False  # no two minibatches are in the pipeline together
    planned_as: str = ""  # the schedule whose closed form stands for its own; its own when empty


WEIGHT_RULES: Mapping[str, WeightRules] = {
    "stash": WeightRules(),
    "vertical-sync": WeightRules(same_everywhere=True),
    "2bw": WeightRules(updates_by_step=True),
    "flush": WeightRules(flushes=True, updates_by_step=True),
}

SCHEDULE_RULES: Mapping[str, ScheduleRules] = {
    "1f1b": ScheduleRules(
        ("stash", "vertical-sync", "2bw"),
        "asynchronous, each backward with the weights of its forward (PipeDream); stages may share ranks",
        interleaves=True,
        one_forward_one_backward=True,
    ),
    "2bw": ScheduleRules(("2bw",), "asynchronous, two weight versions, one update a step (PipeDream-2BW)"),
    "1f1b-flush": ScheduleRules(
        ("flush",),
        "one forward, one backward, weights updated once a step (DAPPLE); stages may share ranks",
        interleaves=True,
        one_forward_one_backward=True,
    ),
    "zero-bubble": ScheduleRules(
        ("flush",),
        "1f1b-flush whose weight gradients fill the waiting, weights updated once a step (ZB-H1)",
        splits_backward=True,
        # No closed form says what a step of it takes: no longer than one of 1F1B.
        planned_as="1f1b-flush",
    ),
    "gpipe": ScheduleRules(("flush",), "all forwards, then all backwards, weights updated once a step (GPipe)"),
    "sequential": ScheduleRules(("flush",), "one minibatch in the pipeline at a time", one_minibatch_at_a_time=True),
}
WEIGHT_POLICIES: Mapping[str, tuple[str, ...]] = {name: rules.weights for name, rules in SCHEDULE_RULES.items()}
INTERLEAVING = tuple(sorted((name for name, rules in SCHEDULE_RULES.items() if rules.interleaves), reverse=True))
