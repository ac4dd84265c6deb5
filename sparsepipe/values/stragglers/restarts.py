"""What a simulated job of one pipeline does once a rank is killed, as a run with `max_restarts` does.

    0 … 5 | 6 … 9 ✗        6 … 11 | 12 …     epochs of 6; a rank is killed at minibatch 9
    epoch    lost   restart  trained again

All ranks begin again from the last checkpoint, which the end of an epoch leaves: what was trained since is trained
again. If there is none they begin from the first minibatch. Writing a checkpoint takes no time here.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...util.io.quantities import TIME
from ..trace import Span
from . import Stragglers

RESTART_SECONDS = 5.0  # from the death of a rank until its job trains again: processes begin and take weights

# (first minibatch, past the last) → what all ranks do for these, from an empty pipeline to an empty one, from 0 seconds
# on; minibatches numbered from 0.
Simulated = Callable[[int, int], Sequence[Span]]


@dataclass(frozen=True)
class Restart:
    """A rank was killed, and all ranks of its job began again."""

    rank: int
    minibatch: int  # which it would have begun
    killed_at_seconds: float
    restart_seconds: float  # from then until all train again
    first_minibatch: int  # that is trained then: the first since the last checkpoint
    lost_seconds: float  # these, and those since the last checkpoint

    def note(self) -> str:
        """Say in a few words what it cost."""
        return (
            f"rank {self.rank} is killed {TIME.shown(self.killed_at_seconds)} after the beginning; all ranks train "
            f"again {TIME.shown(self.restart_seconds)} later, from minibatch {self.first_minibatch} on: "
            f"{TIME.shown(self.lost_seconds)} lost"
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def with_restart(
    simulated: Simulated,
    stragglers: Stragglers,
    num_minibatches: int,
    *,
    restart_seconds: float,
    epoch_minibatches: int | None,
) -> tuple[list[Span], Restart | None]:
    """Return the spans of a run of so many minibatches, and its restart, if a rank was killed.

    It is killed instead of a forward that it would begin, and once: ranks of the life after live on, as a run's do.
    What others were at work on then ends there. `epoch_minibatches`: after so many the pipeline runs empty and leaves a
    checkpoint; None: not before the end.
    """
    epoch = epoch_minibatches or max(num_minibatches, 1)
    shifted_spans, restart, first, begin = list[Span](), None, 0, 0.0
    while first < num_minibatches:
        own_spans = [
            span._replace(start=begin + span.start, end=begin + span.end, minibatch=first + span.minibatch)
            for span in simulated(first, min(first + epoch, num_minibatches))
        ]
        death = None if restart else _first_death(own_spans, stragglers)
        if death is None:
            shifted_spans += own_spans
            begin = max((span.end for span in own_spans), default=begin)
            first += epoch
            continue
        shifted_spans += [
            span._replace(end=min(span.end, death.start)) for span in own_spans if span.start < death.start
        ]
        lost = death.start - begin + restart_seconds
        restart = Restart(death.rank, death.minibatch, death.start, restart_seconds, first, lost)
        begin = death.start + restart_seconds
    return shifted_spans, restart


def _first_death(spans: Sequence[Span], stragglers: Stragglers) -> Span | None:
    """The first forward instead of which a rank is killed."""
    dying = (span for span in spans if span.kind == "forward" and stragglers.kills(span.rank, span.minibatch))
    return min(dying, key=lambda span: span.start, default=None)
