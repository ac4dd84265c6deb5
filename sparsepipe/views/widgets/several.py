"""Several pipelines as settings: how many, the rule by which they average, and who is slow."""

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import InputError
from ...values.stragglers import Stragglers

MINIBATCHES = 24  # of each pipeline on average, to simulate

NOBODY, PIPELINE, SLOW = "none", "one slow pipeline", "one slow rank"
JITTER, STOP, TYPED = "ranks sleep at random", "one rank stops once", "as typed below"


@dataclass(frozen=True)
class HeldUp:
    """A straggler as picked in the widgets, before ranks are known. Its `kind` selects the fields that count.

    `pipeline`: by its number, all of whose ranks are slow. `text`: as the command line takes it.
    """

    kind: str = NOBODY
    pipeline: int = 0
    rank: int = 0
    factor: float = 1.0
    chance: float = 0.0
    seconds: float = 0.0
    text: str = ""

    def stragglers(self, pipelines: Sequence[Sequence[int]], *, minibatches: int) -> Stragglers:
        """Return it for pipelines of these ranks, each of which trains so many minibatches.

        Raises InputError for a text that cannot be read, and for a pipeline that does not exist.
        """
        rank, seconds = f"rank={self.rank}", f"seconds={self.seconds:g}"
        if self.kind == PIPELINE:
            ranks = self._pipeline(pipelines)
            return Stragglers.parse(";".join(f"slow:rank={one},factor={self.factor:g}" for one in ranks))
        given = {
            SLOW: f"slow:{rank},factor={self.factor:g}",
            JITTER: f"jitter:p={self.chance:g},{seconds}",
            STOP: f"stop:{rank},at={minibatches // 4},{seconds}",
            TYPED: self.text,
        }
        return Stragglers.parse(given.get(self.kind, ""))

    def _pipeline(self, pipelines: Sequence[Sequence[int]]) -> Sequence[int]:
        """The ranks of the slow pipeline."""
        if self.pipeline < len(pipelines):
            return pipelines[self.pipeline]
        raise InputError(
            "straggler.pipeline_unknown",
            f"straggler slow: pipeline {self.pipeline} does not exist, expected 0 to {len(pipelines) - 1}; lower it, "
            "or plan more pipelines",
        )


@dataclass(frozen=True)
class Several:
    """Number of pipelines, synchronization scheme as on the command line, and straggler."""

    count: int
    rule: str
    held_up: HeldUp = HeldUp()
