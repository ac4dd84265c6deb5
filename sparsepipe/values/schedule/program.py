"""A plan compiled for a number of minibatches: each rank's actions, their inputs, and the weights that they use.

The deadlock check, the simulator, the memory estimate and the runtime read this value and nothing else, so that they
cannot drift apart.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module
from math import lcm
from typing import NamedTuple

from ...errors import InputError
from ...util.text.numbers import number_of
from ..plan import Estimate, Plan, StageEstimate
from . import one_forward_one_backward
from .actions import Action, Op, fed_by, feeds
from .interleaved import evaluation_order
from .one_forward_one_backward import lookahead, num_rounds, round_length, round_minibatches, turns_of, warmup

Order = Callable[[Plan, int], dict[int, tuple[Action, ...]]]


class Held(NamedTuple):
    """Contents of a rank's memory for one stage: weight versions and minibatches in flight."""

    versions: set[int]  # of the weights, each named by the updates it is made of
    minibatches: set[int]  # in flight: their forward has been run, and of their backward not all


def order_of(plan: Plan) -> Order:
    """The order function that the plan's schedule names, of stages on ranks of their own or of interleaved ones.

    Raises InputError for a schedule that is unknown, and for more or fewer stages on a rank than it allows.
    """
    rules, count = plan.rules, plan.stages_per_rank
    if reason := rules.check_stages_per_rank(count):
        raise InputError("schedule.microbatch_count", f"schedule {plan.schedule!r} {reason}, but this plan has {count}")
    name = rules.interleaved_order if count > 1 and rules.interleaved_order else rules.order
    order: Order = import_module(f".{name}", __package__).order
    return order


_MOST_FORWARDS = 2**24  # of all stages together, until a plan is steady
Moment = tuple[int | None, tuple[tuple[int, int], ...]]


def compile(plan: Plan, num_minibatches: int) -> "Program":
    """Decide once what every rank does on `num_minibatches`, from an empty pipeline to an empty pipeline."""
    return Program(plan.one(), num_minibatches)


def compile_until_steady(plan: Plan) -> "Program":
    """Compile a plan for as many minibatches as show the most that it ever holds.

    Several rounds beyond the deepest warm-up, or all of a step. Steps that are not whole rounds of a stage's replicas
    begin at each of their turns in time: all of these are seen.
    """
    # What an order depends on, and nothing else: a plan is compiled so for its estimate, its memory and its trace.
    paces = plan.estimate and Estimate(0.0, tuple(StageEstimate(e.compute_seconds) for e in plan.estimate.stages))
    return _until_steady(replace(plan.one(), planner="", warnings=(), estimate=paces, provenance=None))


@lru_cache(maxsize=8)  # of large plans each holds many thousand actions
def _until_steady(plan: Plan) -> "Program":
    rounds = [stage.round for stage in plan.stages]
    if plan.flushes:
        return _bounded(plan, lcm(plan.num_microbatches, *rounds))
    lengths = [round_length(plan, s) for s in range(len(plan.stages))]
    turns = [lcm(length, rank_lengths) - length for length, rank_lengths in zip(lengths, rounds, strict=True)]
    depth = max(warmup(plan, s, other) for s, rank_lengths in enumerate(plan.stages) for other in rank_lengths.ranks)
    ranks = sum(len(stage.ranks) for stage in plan.stages)
    return _bounded(plan, max(lengths) * plan.stages_per_rank * (depth + 3) + max(turns) + ranks)


def _bounded(plan: Plan, num_minibatches: int) -> "Program":
    """Raise InputError for more actions than memory holds: numbers of a plan may be small, and their product not."""
    if num_minibatches * len(plan.stages) > _MOST_FORWARDS:
        raise InputError(
            "schedule.too_many_minibatches",
            f"{number_of(len(plan.stages), 'stage')} repeat their schedule only after {num_minibatches} minibatches, "
            f"expected at most {_MOST_FORWARDS // len(plan.stages)}; lower microbatches, accumulation, warm-up or "
            "shares",
        )
    return Program(plan, num_minibatches)


@dataclass(frozen=True, eq=False)
class Program:
    """Result of `compile`. Lists are made when first asked for, and kept as long as the program."""

    plan: Plan
    num_minibatches: int

    @cached_property
    def actions(self) -> Mapping[int, tuple[Action, ...]]:
        """Every action of every rank, in order."""
        return order_of(self.plan)(self.plan, self.num_minibatches)

    def actions_of(self, rank: int) -> tuple[Action, ...]:
        """The actions of one rank. Does not build the other ranks' lists if the schedule allows it."""
        if "actions" in vars(self) or order_of(self.plan) is not one_forward_one_backward.order:
            return self.actions[rank]
        (stage,) = self.plan.stages_of(rank)
        return one_forward_one_backward.rank_order(self.plan, stage, rank, self.num_minibatches)

    @cached_property
    def evaluation(self) -> Mapping[int, tuple[Action, ...]]:
        """Every forward of every rank, in order: what evaluates the minibatches without training on them."""
        return evaluation_order(self.plan, self.num_minibatches)

    def rank_of(self, stage: int, minibatch: int) -> int:
        """The rank that runs a minibatch in a stage; if all do, the first, which sends what they made."""
        return self.plan.stages[stage].replica(minibatch)

    def receivers(self, stage: int, minibatch: int) -> tuple[int, ...]:
        """The ranks of a stage that receive a minibatch: one, or all that share its scenes."""
        known = self.plan.stages[stage]
        return known.ranks if known.shares_scenes else (known.replica(minibatch),)

    def target(self, stage: int, op: Op) -> int | None:
        """The other stage that needs the results of `op` in `stage`; None if no other does."""
        return feeds(stage, op, len(self.plan.stages))

    def source(self, stage: int, op: Op) -> int | None:
        """The other stage whose results `op` in `stage` needs; None if it needs none."""
        return fed_by(stage, op, len(self.plan.stages))

    def inputs(self, action: Action) -> list[Action]:
        """The actions whose results this one consumes, in this stage and in others."""
        s, op, m = action
        if op is Op.UPDATE:
            return [self.last(s, k) for k in self.members(s, m)]
        if op is Op.BACKWARD_WEIGHT:
            return [Action(s, Op.BACKWARD_INPUT, m)]
        required = [] if op is Op.FORWARD else [Action(s, Op.FORWARD, m)]
        source = self.source(s, op)
        if source is None:
            return required
        return [*required, Action(source, op, m) if op is Op.FORWARD else self.backward(source, m)]

    @cached_property
    def _split(self) -> frozenset[tuple[int, int]]:
        """The (stage, minibatch) whose backward is split."""
        if not self.plan.rules.splits_backward:
            return frozenset()
        late = (action for todo in self.actions.values() for action in todo if action.op is Op.BACKWARD_WEIGHT)
        return frozenset((action.stage, action.minibatch) for action in late)

    def backward(self, stage: int, minibatch: int) -> Action:
        """The action that makes the gradients of a stage's input: B, or I where the backward is split."""
        split = (stage, minibatch) in self._split
        return Action(stage, Op.BACKWARD_INPUT if split else Op.BACKWARD, minibatch)

    def last(self, stage: int, minibatch: int) -> Action:
        """The action that finishes a minibatch in a stage, its gradients complete: B, or W where it is split."""
        split = (stage, minibatch) in self._split
        return Action(stage, Op.BACKWARD_WEIGHT if split else Op.BACKWARD, minibatch)

    def members(self, stage: int, index: int) -> range:
        """The minibatches that update `index` of a stage is made of; its replicas average over them."""
        return round_minibatches(self.plan, stage, index, self.num_minibatches)

    def num_updates(self, stage: int) -> int:
        return num_rounds(self.plan, stage, self.num_minibatches)

    @cached_property
    def weights(self) -> Mapping[tuple[int, int], int]:
        """For each (stage, minibatch), the weights that its forward meets, as the number of updates they are made of.

        flush: those of its step. stash: the newest there are. vertical-sync: as many updates as in the first stage, so
        that all stages use the same (PipeDream, SOSP 2019, section 3.3). 2bw: those of the step before the last
        finished one, so that two versions do (Narayanan et al., ICML 2021, equation 1).
        """
        return _VERSIONS[self.plan.weights](self)

    def holdings(self, rank: int) -> Iterator[tuple[Action, dict[int, Held]]]:
        """Yield each action of `rank` and what the rank then holds of each of its stages, at the action's fullest.

        Weight versions are the newest, and those of minibatches in flight or, where the policy says so, to come. What
        is yielded changes with the next action.
        """
        todo, rank_actions, flush = self.actions_of(rank), self.plan.stages_of(rank), self.plan.flushes
        # What a rank's own list tells need not be asked of the other ranks'.
        local = flush or _VERSIONS[self.plan.weights] is _newest
        uses = _updates_before_forwards(todo) if local else self.weights
        users = Counter((s, uses[s, m]) for s, op, m in todo if op is Op.FORWARD)  # whose backward is to come
        held, newest = {s: Held({0}, set()) for s in rank_actions}, dict.fromkeys(rank_actions, 0)
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
            if op in (Op.BACKWARD, Op.BACKWARD_WEIGHT):  # its last
                held[s].minibatches.discard(m)
                version = uses[s, m]
                users[s, version] -= 1
                if version < newest[s] and not users[s, version]:
                    held[s].versions.discard(version)

    def moments(self, rank: int) -> frozenset[Moment]:
        """(stage at work, (weight versions, minibatches in flight) of each of the rank's stages): all that differ.

        In an update no stage is at work.
        """
        cached_moments = self._moments
        if rank not in cached_moments:
            counts = dict.fromkeys(self.plan.stages_of(rank), (0, 0))
            recent_moments, last = set[Moment](), None
            for action, held in self.holdings(rank):
                # An action changes what its own stage holds: as it begins, and again once it is over.
                for stage in counts if last is None else {last, action.stage}:
                    counts[stage] = len(held[stage].versions), len(held[stage].minibatches)
                last = action.stage
                recent_moments.add((None if action.op is Op.UPDATE else last, tuple(counts.values())))
            cached_moments[rank] = frozenset(recent_moments)
        return cached_moments[rank]

    @cached_property
    def _moments(self) -> dict[int, frozenset[Moment]]:
        return {}

    def num_versions(self, stage: int, rank: int) -> int:
        """Most weight versions of a stage that `rank` holds: the newest, and of minibatches in flight or to come."""
        return 1 if self.plan.flushes else max(versions for versions, _ in self._counts(stage, rank))

    def in_flight(self, stage: int, rank: int) -> int:
        """Most minibatches whose forward `rank` has run in a stage and whose backward it has not, all of it."""
        plan = self.plan
        if plan.flushes and order_of(plan) is one_forward_one_backward.order:
            # Steps need not be whole rounds, so they differ in how many minibatches a rank gets.
            own_stage, ahead = plan.stages[stage], min(1 + lookahead(plan, stage), plan.num_microbatches)
            return max(len(turns_of(own_stage, rank, range(k, k + ahead))) for k in range(own_stage.round))
        return max(minibatches for _, minibatches in self._counts(stage, rank))

    def _counts(self, stage: int, rank: int) -> list[tuple[int, int]]:
        """(weight versions, minibatches in flight) that `rank` holds of a stage, at one moment after the other."""
        index = self.plan.stages_of(rank).index(stage)
        return [held[index] for _, held in self.moments(rank)]


def _of_its_step(program: Program) -> Mapping[tuple[int, int], int]:
    count = program.plan.num_microbatches
    return {(s, m): m // count for s, m in _everywhere(program)}


def _of_the_step_before(program: Program) -> Mapping[tuple[int, int], int]:
    length = round_length(program.plan, 0)
    return {(s, m): max(0, m // length - 1) for s, m in _everywhere(program)}


def _newest(program: Program) -> Mapping[tuple[int, int], int]:
    newest: dict[tuple[int, int], int] = {}
    for todo in program.actions.values():
        newest |= _updates_before_forwards(todo)
    return newest


def _of_the_first_stage(program: Program) -> Mapping[tuple[int, int], int]:
    newest = _newest(program)
    return {(s, m): newest[0, m] for s, m in _everywhere(program)}


def _everywhere(program: Program) -> Iterator[tuple[int, int]]:
    return ((s, m) for s in range(len(program.plan.stages)) for m in range(program.num_minibatches))


def _updates_before_forwards(todo: Sequence[Action]) -> dict[tuple[int, int], int]:
    updates, found = Counter[int](), {}
    for s, op, m in todo:
        if op is Op.FORWARD:
            found[s, m] = updates[s]
        updates[s] += op is Op.UPDATE
    return found


_VERSIONS: Mapping[str, Callable[[Program], Mapping[tuple[int, int], int]]] = {
    "flush": _of_its_step,
    "2bw": _of_the_step_before,
    "stash": _newest,
    "vertical-sync": _of_the_first_stage,
}
