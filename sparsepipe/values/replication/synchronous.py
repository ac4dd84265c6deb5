"""Schemes in which all replicas average at the same step: all-reduce, local SGD, DiLoCo."""

from dataclasses import dataclass
from typing import ClassVar

from ...errors import InputError
from ...util.io.fields import flag, integer, number, shown
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


@dataclass(frozen=True)
class DiLoCo:
    """An outer step of SGD with Nesterov momentum, every `every` updates of each pipeline.

    Source: Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023 (arXiv
    2311.08105): an outer Nesterov step, with rate 0.7 and momentum 0.9, on what many inner steps changed. Its H is 500;
    50 is as long as an epoch of a small data set. The outer gradient is the mean over all live pipelines, with equal
    weights, of

        weights after the last outer step - weights now

    With H = 1, rate 1 and no momentum it is an average of weights. `bits=8` sends these changes as 8-bit integers with
    a scale for each piece; what rounding lost is added to the next ones where `error_feedback` is on.

    The inner optimizer's state stays local, neither averaged nor reset. The outer momentum is identical in all
    pipelines; one that joins takes it with the weights. Batch-norm statistics are averaged as they are: they have no
    gradient, and the outer step does not apply to them.
    """

    name: ClassVar[str] = "diloco"
    arithmetic: ClassVar[Arithmetic] = Arithmetic.OUTER_STEP
    summary: ClassVar[str] = "changes of weights in many updates are an outer optimizer's gradient (DiLoCo)"

    every: int = 50
    outer_rate: float = 0.7
    momentum: float = 0.9
    nesterov: bool = True
    bits: int = 32  # of each number that is sent: 32 or 8
    error_feedback: bool = True  # of 8 bits
    overlap: bool = True

    def __post_init__(self) -> None:
        integer(self.every, f"{self.name}: every", least=1)
        number(self.outer_rate, f"{self.name}: outer_rate")
        if number(self.momentum, f"{self.name}: momentum") >= 1:
            raise InputError(
                "replication.momentum", f"{self.name}: momentum is {self.momentum}, expected at least 0 and below 1"
            )
        if self.bits not in (8, 32) or isinstance(self.bits, float):
            raise InputError("replication.bits", f"{self.name}: bits is {shown(self.bits)}, expected 8 or 32")
        for option in ("nesterov", "error_feedback", "overlap"):
            flag(getattr(self, option), f"{self.name}: {option}")

    def groups(self, num_pipelines: int, *, seed: int = 0) -> Groups:
        return Everybody(several(num_pipelines, self.name))
