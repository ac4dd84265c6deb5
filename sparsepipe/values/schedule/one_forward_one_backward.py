"""The order of stages on ranks of their own: forwards run `lookahead` minibatches beyond the next backward.

One forward, one backward on two stages, three minibatches (time runs right):

    stage 0   0F0 0F1 0B0 0U0 0F2 0B1 0U1 0B2 0U2
    stage 1       1F0 1B0 1U0 1F1 1B1 1U1 1F2 1B2 1U2

With the whole step as lookahead it is GPipe's order, with none one minibatch at a time.
"""

from ..plan import Plan
from .actions import Action, Op
from .rounds import lookahead, num_rounds, round_length, round_minibatches, turns_of


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
