"""Facts of each pipeline schedule and of each weight policy, as rows of two tables.

A new schedule is one row here and one file in the schedule family, with its order function. No other code compares
names: it asks a fact, so that a new row is planned, simulated, drawn and run like the others.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class WeightRules:
    """Properties of a policy for weight versions."""

    summary: str  # what a minibatch meets
    flushes: bool = False  # the pipeline is empty at every update, so that there is one version
    updates_by_step: bool = False  # after `num_microbatches` minibatches; else after each round of a stage's replicas
    same_everywhere: bool = False  # a minibatch meets the same version in all stages: all update equally often


@dataclass(frozen=True)
class ScheduleRules:
    """Properties of a schedule, besides its order, for planners, simulator, runtime and figures."""

    weights: tuple[str, ...]  # policies it can keep, its default first
    summary: str  # what it does and who proposed it
    order: str  # the module of the schedule family whose `order` says who does what
    interleaved_order: str = ""  # likewise for several stages on each rank; the same when empty
    stages_per_rank: tuple[int, int | None] = (1, 1)  # fewest and most; None: no limit
    placement: Literal["loop", "v"] = "loop"  # of several stages on each rank: see `position`
    splits_backward: bool = False  # gradients of the input (I) and of the weights (W) may be two actions
    all_forwards_first: bool = False  # a step's backwards begin when its forwards are done
    one_forward_one_backward: bool = False  # a deeper warm-up hides transfers and averaging
    one_minibatch_at_a_time: bool = False  # no two minibatches are in the pipeline together
    planned_as: str = ""  # the schedule whose closed form stands for its own; its own when empty
    simulated: bool = False  # no closed form says what a step takes: estimates simulate one

    @property
    def interleaves(self) -> bool:
        """Return whether a rank may serve several stages."""
        return self.stages_per_rank[1] != 1

    def position(self, stage: int, pipeline_size: int) -> int:
        """Return the position in the pipeline, of `pipeline_size`, whose ranks serve a stage.

        Two stages on each of three ranks: 0 1 2 0 1 2 in a loop, 0 1 2 2 1 0 in a V, whose lowest rank has two
        neighbouring stages.
        """
        lap, place = divmod(stage, pipeline_size)
        return pipeline_size - 1 - place if self.placement == "v" and lap % 2 else place

    def check_stages_per_rank(self, count: int) -> str:
        """Return what is wrong with `count` stages on each rank; empty if they are allowed."""
        fewest, most = self.stages_per_rank
        if fewest <= count and (most is None or count <= most):
            return ""
        if most == 1:
            return "does not interleave stages"
        return f"puts {fewest if fewest == most else f'at least {fewest}'} stages on each device"


WEIGHT_RULES: Mapping[str, WeightRules] = {
    "stash": WeightRules("each stage keeps the weights of a minibatch's forward for its backward"),
    "vertical-sync": WeightRules("as stash, and a minibatch meets one version in all stages", same_everywhere=True),
    "2bw": WeightRules("two versions: the newest, and the one before for minibatches under way", updates_by_step=True),
    "flush": WeightRules(
        "one version: the pipeline is empty when weights are updated", flushes=True, updates_by_step=True
    ),
}

SCHEDULE_RULES: Mapping[str, ScheduleRules] = {
    "1f1b": ScheduleRules(
        ("stash", "vertical-sync", "2bw"),
        "asynchronous, each backward with the weights of its forward (PipeDream); stages may share ranks",
        "one_forward_one_backward",
        "interleaved",
        (1, None),
        one_forward_one_backward=True,
    ),
    "2bw": ScheduleRules(
        ("2bw",),
        "asynchronous, two weight versions, one update per step (PipeDream-2BW)",
        "one_forward_one_backward",
    ),
    "1f1b-flush": ScheduleRules(
        ("flush",),
        "one forward, one backward, weights updated once per step (DAPPLE); stages may share ranks",
        "one_forward_one_backward",
        "interleaved",
        (1, None),
        one_forward_one_backward=True,
    ),
    "zero-bubble": ScheduleRules(
        ("flush",),
        "1f1b-flush whose weight gradients fill idle time, weights updated once per step (ZB-H1)",
        "zero_bubble",
        splits_backward=True,
        # No closed form says what a step of it takes: no longer than one of 1F1B.
        planned_as="1f1b-flush",
    ),
    "interleaved-zero-bubble": ScheduleRules(
        ("flush",),
        "several stages per device, weight gradients fill idle time, weights updated once per step (ZB-H1)",
        "interleaved_zero_bubble",
        stages_per_rank=(2, None),
        splits_backward=True,
        simulated=True,
    ),
    "zbv": ScheduleRules(
        ("flush",),
        "two stages per device in a V, weight gradients fill idle time, weights updated once per step (ZB-V)",
        "zbv",
        stages_per_rank=(2, 2),
        placement="v",
        splits_backward=True,
        simulated=True,
    ),
    "dualpipe-v": ScheduleRules(
        ("flush",),
        "two stages per device in a V, forwards of one overlap backwards of the other, weights updated once "
        "per step (DualPipeV)",
        "dualpipe_v",
        stages_per_rank=(2, 2),
        placement="v",
        splits_backward=True,
        simulated=True,
    ),
    "1f1b-v": ScheduleRules(
        ("stash", "vertical-sync"),
        "asynchronous, two stages per device in a V, so that both ends of a skip connection are on one device",
        "interleaved",
        stages_per_rank=(2, 2),
        placement="v",
    ),
    "gpipe": ScheduleRules(
        ("flush",),
        "all forwards, then all backwards, weights updated once per step (GPipe)",
        "one_forward_one_backward",
        all_forwards_first=True,
    ),
    "looped-bfs": ScheduleRules(
        ("flush",),
        "all forwards of a rank's first stage, then of its next, then all backwards, weights updated once per step "
        "(breadth-first)",
        "looped_bfs",
        stages_per_rank=(1, None),
        all_forwards_first=True,
    ),
    "sequential": ScheduleRules(
        ("flush",),
        "one minibatch in the pipeline at a time",
        "one_forward_one_backward",
        one_minibatch_at_a_time=True,
    ),
}
WEIGHT_POLICIES: Mapping[str, tuple[str, ...]] = {name: rules.weights for name, rules in SCHEDULE_RULES.items()}
INTERLEAVING = tuple(name for name, rules in SCHEDULE_RULES.items() if rules.interleaves)
