"""The zero-bubble order of one step: weight gradients fill the time in which a stage would wait (Qi et al., ICLR 2024).

A backward is cut in two. I, the gradients of the input, is what the stage before waits for; W, the gradients of the
weights, is what no one waits for but the update. No one waits for the first stage: its backwards are whole. Equal
stages, F, I and W of one second each, B of two:

    stage 0   F0 F1    B0    F2 B1    F3 B2    B3
    stage 1      F0 I0 F1 I1 W0 F2 I2 W1 F3 I3 W2 W3

Stages need not be equal: the order is that of a timed run in which every replica, whenever it is free, does the first
of these that it can: a forward that 1F1B would run by then, a backward, the oldest weight gradient. No replica holds
more minibatches than the first stage does under 1F1B (the paper's ZB-H1).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..plan import Plan
from .actions import Action, Op
from .list_scheduler import BACKWARD_PER_FORWARD, Part, timed_order
from .one_forward_one_backward import lookahead, num_rounds, paces, round_minibatches, turns_of


@dataclass
class RankProgress:
    """One rank in the list scheduling of a step: its minibatches, seconds per operation, and what is done."""

    stage: int
    minibatches: Sequence[int]
    backward: str  # "B", or "I" where its W comes later
    lasts: Mapping[str, float]  # seconds of each operation
    ahead: int  # minibatches that forwards may be beyond the next backward
    window: int  # and beyond the oldest weight gradient to come: that is what memory holds
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys("FBIW", 0))

    def candidates(self) -> list[Part]:
        """The operations that it may run next, by preference; whether their inputs are there is not looked at."""
        if not self.minibatches:
            return []
        forward, backward = self._next("F"), self._next(self.backward)
        oldest = self._next("W") if self.backward == "I" else backward  # of those that memory holds
        candidate_orders = []
        if forward <= min(backward + self.ahead, oldest + self.window) and self.done["F"] < len(self.minibatches):
            candidate_orders.append(("F", self.stage, forward))
        if self.done[self.backward] < self.done["F"]:
            candidate_orders.append((self.backward, self.stage, backward))
        if self.done["W"] < self.done["I"]:
            candidate_orders.append(("W", self.stage, oldest))
        return candidate_orders

    def seconds(self, part: Part) -> float:
        return self.lasts[part[0]]

    def finish(self, part: Part) -> None:
        self.done[part[0]] += 1

    @property
    def finished(self) -> bool:
        return self.done["W" if self.backward == "I" else "B"] == len(self.minibatches)

    def _next(self, op: str) -> int:
        done = self.done[op]
        return self.minibatches[done] if done < len(self.minibatches) else self.minibatches[-1] + 1


def order(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Each rank's actions, step after step."""
    lists: dict[int, list[Action]] = {rank: [] for rank in plan.ranks}
    for k in range(num_rounds(plan, 0, num_minibatches)):
        for rank, order in _step(plan, round_minibatches(plan, 0, k, num_minibatches)).items():
            (s,) = plan.stages_of(rank)
            lists[rank] += [*(Action(part_stage, Op(op), m) for op, part_stage, m in order), Action(s, Op.UPDATE, k)]
    return {rank: tuple(todo) for rank, todo in lists.items()}


def _step(plan: Plan, span: range) -> Mapping[int, list[Part]]:
    """The order of one step, timed by what the planner expects of the stages; equal ones where it said nothing."""
    replicas, seconds = {}, paces(plan)
    for s, stage in enumerate(plan.stages):
        late = weights_share(plan, s)
        for rank, share in zip(stage.ranks, stage.rank_turns, strict=True):
            if stage.shares_scenes and rank != stage.ranks[0]:
                continue  # all do as the first does
            forward = seconds[s] * stage.round / share  # in units that leave equal stages equal: thirds do not add up
            backward = BACKWARD_PER_FORWARD * forward
            parts = {"F": forward, "B": backward, "I": (1 - late) * backward, "W": late * backward}
            turns = turns_of(stage, rank, span)
            kind = "I" if late else "B"
            replicas[rank] = RankProgress(s, turns, kind, parts, lookahead(plan, s), lookahead(plan, 0))
    ordered = timed_order(replicas, lambda s, m: plan.stages[s].replica(m), len(plan.stages), span)
    assert all(replica.finished for replica in replicas.values()), "every part has had its turn"
    shared = [(rank, stage.ranks[0]) for stage in plan.stages if stage.shares_scenes for rank in stage.ranks]
    return {**ordered.parts, **{rank: ordered.parts[first] for rank, first in shared}}


def weights_share(plan: Plan, stage: int) -> float:
    """The share of a split backward's time that the gradients of the weights take.

    A matrix product's two gradients cost the same. The first stage's input wants none: its I or B does all there is.
    """
    return 0.5 if plan.rules.splits_backward and stage > 0 else 0.0
