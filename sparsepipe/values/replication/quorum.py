"""Quorum: a merge is made of whoever has come when a grace window after the first few has ended."""

from dataclasses import dataclass
from typing import ClassVar

from ...errors import InputError
from ...util.io.fields import flag, integer, number
from .base import Arithmetic, Groups, Merge
from .gathering import Gathering, several


@dataclass(frozen=True)
class Quorum:
    """The mean of the weights of a quorum and of those that come within a grace window after it, by samples.

    Source: Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training", 2026 (arXiv 2604.21428):
    minimum quorum, adaptive grace window, merges weighted by what each was trained on. There a merge is an outer step
    of one fragment of the weights after the other, by tokens and tokens a step; here it is a mean, by samples.

    A window of `grace` seconds opens when `quorum` pipelines (by default more than half of them) have contributed; it
    closes when all live ones have, or its time is up. With fewer live pipelines than the quorum, all of them are
    enough. `adaptive` closes it as soon as none of those missing is expected in it: each is expected as long after its
    last contribution as that came after the one before.

    Each counts for the samples that it was trained on since its last merge. The weights of a merge sum to 1; the mixing
    matrix is doubly stochastic only where all have as many. Optimizer state stays local. Batch-norm statistics are
    averaged with the weights, by samples too.
    """

    name: ClassVar[str] = "quorum"
    arithmetic: ClassVar[Arithmetic] = Arithmetic.MEAN_WEIGHTS
    summary: ClassVar[str] = "weights of a quorum and who comes in a grace window, by samples (Decoupled DiLoCo)"

    quorum: int | None = None
    grace: float = 0.05
    adaptive: bool = False
    every: int = 1
    overlap: bool = True

    def __post_init__(self) -> None:
        if self.quorum is not None:
            integer(self.quorum, f"{self.name}: quorum", least=1)
        number(self.grace, f"{self.name}: grace")
        integer(self.every, f"{self.name}: every", least=1)
        for option in ("adaptive", "overlap"):
            flag(getattr(self, option), f"{self.name}: {option}")

    def groups(self, num_pipelines: int, *, seed: int = 0) -> Groups:
        several(num_pipelines, self.name)
        quorum = num_pipelines // 2 + 1 if self.quorum is None else self.quorum
        if quorum > num_pipelines:
            raise InputError(
                "replication.quorum",
                f"{self.name}: quorum = {quorum} of {num_pipelines} pipelines; expected at most as many",
                quorum=quorum,
                num_pipelines=num_pipelines,
            )
        return _Window(num_pipelines, quorum=quorum, grace=self.grace, adaptive=self.adaptive)


class _Window(Gathering):
    """Those that wait, and when the window closes that the quorum has opened."""

    def __init__(self, num_pipelines: int, *, quorum: int, grace: float, adaptive: bool) -> None:
        super().__init__(num_pipelines)
        self._quorum, self._grace, self._adaptive = quorum, grace, adaptive
        self._closes: float | None = None
        self._last: dict[int, float] = {}  # when a pipeline contributed last
        self._between: dict[int, float] = {}  # and how long after the time before

    def next_deadline(self) -> float | None:
        return self._closes

    def arrived(self, pipeline: int, *, now: float) -> None:
        if pipeline in self._last:
            self._between[pipeline] = now - self._last[pipeline]
        self._last[pipeline] = now
        if self._closes is None and len(self.waiting) >= self._quorum:
            self._closes = now + self._grace

    def left(self, pipeline: int) -> None:
        self._last.pop(pipeline, None)
        self._between.pop(pipeline, None)
        if len(self.waiting) < self._quorum:
            self._closes = None  # one of the quorum is gone

    def complete(self) -> bool:
        missing = self.live - self.waiting.keys()
        if self._closes is None or not self._adaptive:
            return not missing
        return not any(self._expected(pipeline) <= self._closes for pipeline in missing)

    def _expected(self, pipeline: int) -> float:
        """When a pipeline comes next, in seconds; at once if it has come too seldom to tell."""
        return self._last.get(pipeline, 0.0) + self._between[pipeline] if pipeline in self._between else float("-inf")

    def close(self) -> Merge:
        self._closes = None
        members = sorted(self.waiting)
        samples = [self.waiting[member].samples for member in members]
        total = sum(samples)
        return self.merge(members, weights=[count / total for count in samples] if total else None)
