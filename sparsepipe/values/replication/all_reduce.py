"""All-reduce: every pipeline averages its gradients with all others before each step."""

from dataclasses import dataclass
from typing import ClassVar

from .base import Arithmetic, Groups
from .gathering import Everybody, several


@dataclass(frozen=True)
class AllReduce:
    """The mean of the gradients of all pipelines, before each step of the optimizer: everybody waits for the slowest.

    Source: data parallelism as in PyTorch DDP (Li et al., VLDB 2020); the baseline "AllReduce" of SDPipe
    (Miao et al., VLDB 2023). Each pipeline counts equally, so that the mixing matrix is doubly stochastic.

    Optimizer state is each pipeline's own and identical in all, since all step with the same gradients from the
    same weights. Batch-norm statistics are averaged with the gradients, by the same weights. It cannot overlap: a step
    needs its gradients.
    """

    name: ClassVar[str] = "all-reduce"
    arithmetic: ClassVar[Arithmetic] = Arithmetic.MEAN_GRADIENTS
    summary: ClassVar[str] = "gradients of all pipelines before each step; everybody waits for the slowest (DDP)"

    @property
    def every(self) -> int:
        return 1

    @property
    def overlap(self) -> bool:
        return False

    def groups(self, num_pipelines: int, *, seed: int = 0) -> Groups:
        return Everybody(several(num_pipelines, self.name))
