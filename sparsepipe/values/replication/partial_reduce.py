"""Partial reduce: pipelines that are ready at about the same time average their weights; no one waits long."""

from dataclasses import dataclass
from typing import ClassVar

from ...errors import InputError
from ...util.io.fields import flag, integer, number
from .base import Arithmetic, Groups, Merge
from .gathering import Gathering, several


@dataclass(frozen=True)
class PartialReduce:
    """The mean of the weights of those pipelines that are ready, after every `every` updates.

    Source: Miao et al., "SDPipe: A Semi-Decentralized Framework for Heterogeneity-aware Pipeline-parallel Training",
    VLDB 2023: groups of those that are ready, wait budgets, forced synchronisation; partial reduce itself: Miao et al.,
    SIGMOD 2021. The first that is ready waits for others up to its budget of seconds, then all that have come are a
    group. The budget is `patience` times the seconds since that pipeline contributed last, so that it suits slow and
    fast machines equally: by default a half if the pipeline trains on meanwhile, which costs it nothing, and
    a twentieth where it does not `overlap`.

    With `wait` the budget is SDPipe's: each pipeline's begins with so many seconds; after a group of one it is `grow`
    times as long, to at most `most_wait`, after a larger one `shrink` times, to at least `least_wait`. SDPipe has 1 ms,
    between 0.01 and 10 ms: those limits are a hundredth and ten times of `wait` if not given.

    So that no set of pipelines averages among itself alone for good, the graph of the averages is connected at least
    every `rounds` rounds; a round is as many contributions as there are live pipelines. If the groups have not
    connected it by themselves, the next group is forced: it waits, however long, for whom it takes. SDPipe counts
    likewise (10 rounds), but restarts its count only at forced ones, cuts groups of more than 8 pipelines into pairs,
    and forces those by a barrier of all; here groups are formed in the same way for any number.

    Each of a group counts equally: the mixing matrix is doubly stochastic. Optimizer state stays local.
    Batch-norm statistics are averaged with the weights.
    """

    name: ClassVar[str] = "partial-reduce"
    arithmetic: ClassVar[Arithmetic] = Arithmetic.MEAN_WEIGHTS
    summary: ClassVar[str] = "weights of those that are ready together, within a wait budget (SDPipe)"

    patience: float | None = None
    wait: float | None = None
    least_wait: float | None = None
    most_wait: float | None = None
    grow: float = 2.0
    shrink: float = 0.9
    rounds: int = 10
    every: int = 1
    overlap: bool = True

    def __post_init__(self) -> None:
        for option in ("grow", "shrink"):
            number(getattr(self, option), f"{self.name}: {option}")
        for option in ("patience", "wait", "least_wait", "most_wait"):
            if getattr(self, option) is not None:
                number(getattr(self, option), f"{self.name}: {option}")
        for option in ("rounds", "every"):
            integer(getattr(self, option), f"{self.name}: {option}", least=1)
        flag(self.overlap, f"{self.name}: overlap")
        if self.grow < 1 or self.shrink > 1:
            raise InputError(
                "replication.growth",
                f"{self.name}: grow is {self.grow:g} and shrink is {self.shrink:g}, expected grow of at least 1 and "
                "shrink of at most 1",
            )
        if self.wait is None:
            if self.least_wait is not None or self.most_wait is not None:
                raise InputError(
                    "replication.limits_without_wait",
                    f"{self.name}: least_wait and most_wait limit wait, but wait is missing; add it",
                )
            return
        if self.patience is not None:
            raise InputError(
                "replication.patience_and_wait",
                f"{self.name}: patience and wait both limit how long a group waits; give only one of them",
            )
        least, most = self.limits(self.wait)
        if not least <= self.wait <= most:
            raise InputError(
                "replication.wait",
                f"{self.name}: wait is {self.wait:g}, but its limits are {least:g} and {most:g} s; set it within them",
            )

    @property
    def share(self) -> float:
        """The budget as a share of the seconds between a pipeline's contributions, where `wait` is not given."""
        if self.patience is not None:
            return self.patience
        return 0.5 if self.overlap else 0.05

    def limits(self, wait: float) -> tuple[float, float]:
        """The shortest and the longest budget, in seconds."""
        least = wait / 100 if self.least_wait is None else self.least_wait
        return least, wait * 10 if self.most_wait is None else self.most_wait

    def groups(self, num_pipelines: int, *, seed: int = 0) -> Groups:
        return _ReadyGroups(several(num_pipelines, self.name), self)


class _ReadyGroups(Gathering):
    """Ready pipelines, each pipeline's budget, and what the groups since the last connection have connected."""

    def __init__(self, num_pipelines: int, rule: PartialReduce) -> None:
        super().__init__(num_pipelines)
        self._rule = rule
        self._budgets = dict.fromkeys(range(num_pipelines), rule.wait or 0.0)  # seconds
        self._last: dict[int, float] = {}  # when a pipeline contributed last
        self._set_of = {pipeline: pipeline for pipeline in range(num_pipelines)}  # of live ones: its connected set
        self._sets = num_pipelines  # so many numbers of sets are used up
        self._merged = 0  # contributions in the groups since all were connected
        self._forced = self._must_connect()  # the next group, decided when the one before is closed

    def next_deadline(self) -> float | None:
        if not self.waiting or self._forced:
            return None
        first, contribution = next(iter(self.waiting.items()))
        return contribution.time + self._budgets[first]

    def arrived(self, pipeline: int, *, now: float) -> None:
        if self._rule.wait is None and pipeline in self._last:
            self._budgets[pipeline] = self._rule.share * (now - self._last[pipeline])
        self._last[pipeline] = now

    def complete(self) -> bool:
        return self.waiting.keys() == self.live or (self._forced and self._connected_by(set(self.waiting)))

    def close(self) -> Merge:
        members, forced = set(self.waiting), self._forced
        if self._rule.wait is not None:
            for member in members:
                self._budgets[member] = self._next_budget(self._budgets[member], alone=len(members) == 1)
        self._merged += len(members)
        self._connect(members)
        if len(set(self._set_of.values())) == 1:
            self._start_anew()
        self._forced = self._must_connect()
        return self.merge(list(members), forced=forced)

    def left(self, pipeline: int) -> None:
        del self._set_of[pipeline]
        self._last.pop(pipeline, None)

    def joined(self, pipeline: int) -> None:
        """Its weights are a live pipeline's, no one says whose: a set of its own, with the first budget."""
        self._budgets[pipeline] = self._rule.wait or 0.0
        self._set_of[pipeline] = self._sets
        self._sets += 1

    def _must_connect(self) -> bool:
        """Return whether the next group has to connect all: after one more of any size there would be no room for
        it.
        """
        return self._merged > (self._rule.rounds - 2) * len(self.live)

    def _connected_by(self, members: set[int]) -> bool:
        touched = {self._set_of[member] for member in members}
        return touched == set(self._set_of.values())

    def _connect(self, members: set[int]) -> None:
        touched = {self._set_of[member] for member in members}
        self._set_of = {
            p: min(touched) if group_number in touched else group_number for p, group_number in self._set_of.items()
        }

    def _start_anew(self) -> None:
        self._set_of = {pipeline: pipeline for pipeline in self._set_of}
        self._merged = 0

    def _next_budget(self, budget: float, *, alone: bool) -> float:
        least, most = self._rule.limits(self._rule.wait or 0.0)
        return min(budget * self._rule.grow, most) if alone else max(budget * self._rule.shrink, least)


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
                f"{self.name}: quorum is {quorum}, but there are {num_pipelines} pipelines; lower it",
                quorum=quorum,
                num_pipelines=num_pipelines,
            )
        return _Window(num_pipelines, quorum=quorum, grace=self.grace, adaptive=self.adaptive)


class _Window(Gathering):
    """Waiting pipelines, and the end of the grace window that the quorum has opened."""

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
        """Return the expected seconds until a pipeline is ready; 0 if it was ready too seldom to predict."""
        return self._last.get(pipeline, 0.0) + self._between[pipeline] if pipeline in self._between else float("-inf")

    def close(self) -> Merge:
        self._closes = None
        members = sorted(self.waiting)
        samples = [self.waiting[member].samples for member in members]
        total = sum(samples)
        return self.merge(members, weights=[count / total for count in samples] if total else None)
