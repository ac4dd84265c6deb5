"""Schemes in which replicas run ahead of each other: AD-PSGD and WSP."""

import random
from dataclasses import dataclass
from typing import ClassVar

from ...errors import InputError
from ...util.derived import derived_seed
from ...util.io.fields import flag, integer, number
from .base import SERVER, Arithmetic, Groups, Merge
from .gathering import Gathering, several


@dataclass(frozen=True)
class AdPsgd:
    """The mean of a pipeline's weights and those of a live one drawn at random, after every `every` updates.

    Source: Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018: averages with a
    random other, in which no one waits. The partner does not wait: it gives the weights that it has, and adds what the
    mean differs from them by to those that it has then. So two that draw each other, or a circle of them, cannot wait
    for each other, as in implementations where both block (SDPipe's baseline waits for stragglers in pairs of one
    random order). Both have half the mean: the mixing matrix is doubly stochastic. With a larger `every` the pairs are
    those of NoLoCo (Kolehmainen et al., 2025, arXiv 2506.10911), without its outer momentum.

    Optimizer state stays local. Batch-norm statistics are averaged with the weights.
    """

    name: ClassVar[str] = "ad-psgd"
    arithmetic: ClassVar[Arithmetic] = Arithmetic.PAIR
    summary: ClassVar[str] = "weights with one other pipeline at random, which does not wait (AD-PSGD)"

    every: int = 1
    overlap: bool = True

    def __post_init__(self) -> None:
        integer(self.every, f"{self.name}: every", least=1)
        flag(self.overlap, f"{self.name}: overlap")

    def groups(self, num_pipelines: int, *, seed: int = 0) -> Groups:
        return _Pairs(several(num_pipelines, self.name), seed=seed)


class _Pairs(Gathering):
    """Each contribution is decided as it comes. A pipeline's partners are drawn from a sequence of its own.

    So who is drawn depends on how often a pipeline has contributed and on who is live, not on who came first.
    """

    def __init__(self, num_pipelines: int, *, seed: int) -> None:
        super().__init__(num_pipelines)
        self._draws = [random.Random(derived_seed(seed, "ad-psgd", pipeline)) for pipeline in range(num_pipelines)]

    def complete(self) -> bool:
        return True

    def close(self) -> Merge:
        (pipeline,) = self.waiting
        draw = self._draws[pipeline].random()
        others = sorted(self.live - {pipeline})
        if not others:
            return self.merge([pipeline])
        return self.merge([pipeline], weights=(0.5, 0.5), partner=others[int(draw * len(others))])


@dataclass(frozen=True)
class Wsp:
    """Add the weight changes of `every` updates to a parameter server's weights, and load those.

    Source: Park et al., "HetPipe", USENIX ATC 2020: waves, their aggregated updates, the parameter server, and clocks
    that are bound to each other (wave synchronous parallel). A pipeline's clock is the number of its waves; it takes
    no minibatch while its clock is more than `bound` (HetPipe's D) ahead of the slowest live one. What it had taken by
    then it trains on: what its stages have in flight, as in HetPipe, and what its loaders have read ahead
    (base.py), in runs and simulations in the same way.

    Changes are added up at the server, `scale` of each. HetPipe adds them whole (`scale=1`); by default it is one part
    in as many as there are pipelines, as in SDPipe's copy of it, so that a sample counts for as much as with averages.
    SDPipe's copy keeps the last change of a wave alone: here they are all in it. The server is no average: the mixing
    matrix is not doubly stochastic.

    A pipeline that joins begins with the clock of the slowest. Optimizer state stays local. Batch-norm statistics have
    no changes to add: the server keeps the mean of its own and a pipeline's, by the same share.
    """

    name: ClassVar[str] = "wsp"
    arithmetic: ClassVar[Arithmetic] = Arithmetic.SERVER
    summary: ClassVar[str] = "waves of updates added up at a parameter server, within a bound of clocks (HetPipe)"

    every: int = 4
    bound: int = 4
    scale: float | None = None
    overlap: bool = True

    def __post_init__(self) -> None:
        integer(self.every, f"{self.name}: every", least=1)
        integer(self.bound, f"{self.name}: bound")
        if self.scale is not None and not 0 < number(self.scale, f"{self.name}: scale") <= 1:
            raise InputError("replication.scale", f"{self.name}: scale is {self.scale}, expected above 0 and at most 1")
        flag(self.overlap, f"{self.name}: overlap")

    def groups(self, num_pipelines: int, *, seed: int = 0) -> Groups:
        share = self.scale or 1 / several(num_pipelines, self.name)
        return _Clocks(several(num_pipelines, self.name), bound=self.bound, share=share)


class _Clocks(Gathering):
    """Each wave is merged as it comes; clocks say who may begin the next."""

    def __init__(self, num_pipelines: int, *, bound: int, share: float) -> None:
        super().__init__(num_pipelines)
        self._bound = bound
        self._weights = (share, 1 - share)
        self._clocks = dict.fromkeys(range(num_pipelines), 0)

    def may_begin(self, pipeline: int) -> bool:
        """Return whether its clock is near enough to the slowest's. One that left is bound by no one."""
        if pipeline not in self._clocks:
            return True
        return self._clocks[pipeline] - min(self._clocks.values()) <= self._bound

    def left(self, pipeline: int) -> None:
        del self._clocks[pipeline]

    def joined(self, pipeline: int) -> None:
        self._clocks[pipeline] = min(self._clocks.values(), default=0)

    def complete(self) -> bool:
        return True

    def close(self) -> Merge:
        (pipeline,) = self.waiting
        self._clocks[pipeline] += 1
        return self.merge([pipeline], weights=self._weights, partner=SERVER)
