"""The order of stages on ranks of their own: forwards run `lookahead` minibatches beyond the next backward.

One forward, one backward on two stages, three minibatches (time runs right):

    stage 0   0F0 0F1 0B0 0U0 0F2 0B1 0U1 0B2 0U2
    stage 1       1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2

With the whole step as lookahead it is GPipe's order, with none one minibatch at a time.
"""

from math import ceil

from ..plan import Plan, Stage
from .actions import Action, Op


# Rounds: the minibatches of each replica and of each update, and how far forwards run ahead of backwards
def round_length(plan: Plan, stage: int) -> int:
    """Minibatches of one update of `stage`."""
    if plan.flushes:
        return plan.num_microbatches
    if plan.updates_by_step:
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
    """Return how many minibatches forwards may run beyond the next backward.

    1F1B keeps every later rank busy: ⌈later ranks / own ranks⌉ minibatches of each replica (PipeDream, SOSP 2019,
    section 3.2), and so does an imported warm-up, times the replicas. Unequal replicas look ahead by the later ranks
    alone: rounding up would let one with a small share wait for a minibatch that no earlier stage may send yet. A stage
    never looks further ahead than those before it, so the lists cannot deadlock.
    """
    own_stage = plan.stages[stage]
    replicas = own_stage.num_replicas
    if own_stage.warmup is not None:
        return own_stage.warmup * replicas
    if plan.rules.one_minibatch_at_a_time:
        return 0
    if plan.rules.all_forwards_first:
        return plan.num_microbatches
    later = sum(other.num_replicas for other in plan.stages[stage + 1 :])
    return ceil(later / replicas) * replicas if len(set(own_stage.shares)) == 1 else later


def warmup(plan: Plan, stage: int, rank: int) -> int:
    """Forwards that `rank` runs before its first backward."""
    own_stage, ahead = plan.stages[stage], lookahead(plan, stage)
    if own_stage.shares_scenes:
        return ahead
    first = own_stage.turns.index(own_stage.ranks.index(rank))
    return len(turns_of(own_stage, rank, range(first + 1, first + 1 + ahead)))


def turns_of(stage: Stage, rank: int, span: range) -> list[int]:
    """The minibatches of `span` that `rank` runs."""
    if stage.shares_scenes:
        return list(span)
    rank_index = stage.ranks.index(rank)
    own_turns = [k for k, turn in enumerate(stage.turns) if turn == rank_index]
    first = span.start - span.start % stage.round
    turns = [base + k for base in range(first, span.stop, stage.round) for k in own_turns]
    return [m for m in turns if span.start <= m < span.stop]


def together(plan: Plan, stage: int, minibatch: int, num_minibatches: int) -> range:
    """The minibatches in the same batch-norm group as `minibatch`, including it: replicas run them together.

    A last round in which some replicas have no minibatch is run by each alone.
    """
    count = plan.stages[stage].num_replicas
    start = minibatch - minibatch % count
    return range(start, start + count) if start + count <= num_minibatches else range(minibatch, minibatch + 1)


def paces(plan: Plan) -> list[float]:
    """Each stage's seconds, forward and backward, as the planner expects them; equal ones without an estimate."""
    return [e.compute_seconds for e in plan.estimate.stages] if plan.estimate else [1.0] * len(plan.stages)


def rank_order(plan: Plan, s: int, rank: int, num_minibatches: int) -> tuple[Action, ...]:
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
        mine, begun, index = turns_of(plan.stages[s], rank, span), 0, rounds.start
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


def order(plan: Plan, num_minibatches: int) -> dict[int, tuple[Action, ...]]:
    """Each rank's actions."""
    return {
        rank: rank_order(plan, s, rank, num_minibatches) for s, stage in enumerate(plan.stages) for rank in stage.ranks
    }
