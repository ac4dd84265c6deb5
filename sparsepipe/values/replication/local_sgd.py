"""Local SGD: pipelines train on their own and average their weights every so many updates."""

from dataclasses import dataclass
from typing import ClassVar

from ...util.io.fields import flag, integer
from .base import Arithmetic, Groups
from .gathering import Everybody, several


@dataclass(frozen=True)
class LocalSgd:
    """The mean of the weights of all pipelines, after every `every` updates of each.

    Source: Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019: workers step on their own and average
    once in a while. Each pipeline counts equally, so that the mixing matrix is doubly stochastic.
    `every=1,overlap=false` is an all-reduce of weights; with plain SGD it is the one of gradients but for rounding.

    Optimizer state stays local: momentum and Adam's moments are neither averaged nor reset. Batch-norm statistics are
    averaged with the weights.
    """

    name: ClassVar[str] = "local-sgd"
    arithmetic: ClassVar[Arithmetic] = Arithmetic.MEAN_WEIGHTS
    summary: ClassVar[str] = "weights of all pipelines every so many updates (local SGD, Stich)"

    every: int = 8
    overlap: bool = True

    def __post_init__(self) -> None:
        integer(self.every, f"{self.name}: every", least=1)
        flag(self.overlap, f"{self.name}: overlap")

    def groups(self, num_pipelines: int, *, seed: int = 0) -> Groups:
        return Everybody(several(num_pipelines, self.name))
