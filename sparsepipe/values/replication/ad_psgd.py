"""AD-PSGD: each pipeline averages with one other at random, which does not wait for it."""

import random
from dataclasses import dataclass
from typing import ClassVar

from ...util.derived.seeds import derived_seed
from ...util.io.fields import flag, integer
from .base import Arithmetic, Groups, Merge
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
