"""Several pipelines as settings: how many, the rule by which they average, and who is slow."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..stragglers import Stragglers
from ..stragglers.kinds import check_rank

MINIBATCHES = 24  # of each pipeline on average, to simulate

NOBODY, PIPELINE, SLOW = "nobody", "one pipeline is slow", "one rank is slow"
JITTER, STOP, TYPED = "ranks sleep by chance", "one rank stops once", "as typed below"


@dataclass(frozen=True)
class HeldUp:
    """What was picked of a straggler, before it is known which ranks a pipeline has. Its `kind` says what else counts.

    `rank`: of PIPELINE any one of the pipeline's. `text`: as the command line takes it.
    """

    kind: str = NOBODY
    rank: int = 0
    factor: float = 1.0
    chance: float = 0.0
    seconds: float = 0.0
    text: str = ""

    def stragglers(self, pipelines: Sequence[Sequence[int]], *, minibatches: int) -> Stragglers:
        """Return it for pipelines of these ranks, each of which trains so many minibatches.

        Raises InputError for a text that cannot be read, and for a slow pipeline of a rank that is in none.
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
        """The ranks of the pipeline that has `rank`."""
        for ranks in pipelines:
            if self.rank in ranks:
                return ranks
        check_rank(self.rank, 1 + max(rank for ranks in pipelines for rank in ranks), "slow")
        raise InputError(f"straggler slow: rank {self.rank} is in no pipeline: its device stays unused")


@dataclass(frozen=True)
class Several:
    """How many pipelines, the rule as the command line takes it, and who is slow."""

    count: int
    rule: str
    held_up: HeldUp = HeldUp()
