"""What the answer about waiting says of averages that change nothing, as they have one pipeline, or are not made."""

from collections.abc import Sequence

from ..util.text.counting import number_of
from ..views.plots.outcomes import Outcome
from ..views.ties import in_bold

_MOST = 0.5  # of the averages: fewer with one pipeline are not worth a word


def alone_told(outcomes: Sequence[Outcome], *, minibatches: int) -> str:
    """Say under which rules there was no average, or all or most had one pipeline in them; empty if there is none.

    `minibatches`: of each pipeline on average. As Markdown, sentences that follow others.
    """
    shares = {
        outcome.rule: outcome.group_sizes.get(1, 0) / sum(outcome.group_sizes.values())
        for outcome in outcomes
        if outcome.group_sizes
    }
    none = [outcome.rule for outcome in outcomes if not outcome.group_sizes]
    each = number_of(minibatches, "minibatch")
    missed = f" Under {in_bold(none)} no average was made: in {each} each, the pipelines for one were never all ready."
    groups = {
        "all averages": ([rule for rule, share in shares.items() if share == 1], "never"),
        "most averages": ([rule for rule, share in shares.items() if _MOST < share < 1], "seldom"),
    }
    return (missed if none else "") + "".join(
        f" Under {in_bold(rules)} {which} had one pipeline in them and so changed nothing: in {each} each, another one "
        f"was {often} ready at the same time, or had ended by then."
        for which, (rules, often) in groups.items()
        if rules
    )
