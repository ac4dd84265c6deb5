"""Who is live and who waits: what the decisions of every rule keep, and the order in which they are made."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ...errors import InputError
from .base import Merge


class Contribution(NamedTuple):
    """A contribution that is in no merge yet."""

    number: int  # among its pipeline's, from 0
    time: float  # when it came, in seconds
    samples: int  # trained on since the one before


class Gathering(ABC):
    """The decisions of one rule in one run (`Groups`), from three questions that the rule answers.

    Contributions wait until the rule finds them `complete`, or until its `next_deadline` has passed; then `close` makes
    one merge of all that wait. What waits is in the order in which it came. A deadline that has passed unnoticed is
    decided before a later contribution is looked at: decisions depend on the times of what came, not on how often
    somebody asked. Who comes exactly at a deadline is still in time; who leaves is in no merge that is not yet made.
    """

    def __init__(self, num_pipelines: int) -> None:
        self.live = set(range(num_pipelines))
        self.waiting: dict[int, Contribution] = {}
        self._num_pipelines = num_pipelines
        self._contributions = [0] * num_pipelines
        self._merges = 0

    @abstractmethod
    def complete(self) -> bool:
        """Return whether those that wait are merged without waiting for anybody else. At least one waits."""

    @abstractmethod
    def close(self) -> Merge:
        """Merge those that wait, by `merge`."""

    def arrived(self, pipeline: int, *, now: float) -> None:  # noqa: B027 - most rules keep nothing of their own
        """A contribution waits now: keep what the rule decides by."""

    def left(self, pipeline: int) -> None:  # noqa: B027
        """A pipeline is no longer live."""

    def joined(self, pipeline: int) -> None:  # noqa: B027
        """A pipeline is live again."""

    def contribute(self, pipeline: int, *, now: float, samples: int) -> list[Merge]:
        """Take a contribution and return what is decided by it. Raises InputError of one that left or still waits."""
        merges = self.expire(now=now) if pipeline in self.waiting else self._overdue(now)
        if pipeline not in self.live:
            raise InputError(
                "replication.not_a_member",
                f"pipeline {pipeline} sent a contribution, but it does not exist or has left",
                pipeline=pipeline,
            )
        if pipeline in self.waiting:
            raise InputError(
                "replication.contributes_twice",
                f"pipeline {pipeline} sent another contribution before its last one was merged",
                pipeline=pipeline,
            )
        self.waiting[pipeline] = Contribution(self._contributions[pipeline], now, samples)
        self._contributions[pipeline] += 1
        self.arrived(pipeline, now=now)
        return merges + self._completed()

    def may_begin(self, pipeline: int) -> bool:
        """Return whether a pipeline may train on: always, but for rules that bound how far it is ahead."""
        return True

    def leave(self, pipeline: int, *, now: float) -> list[Merge]:
        """Wait for a pipeline no more and drop what it contributed; return what is decided by that."""
        if pipeline not in self.live:
            return self._overdue(now)
        self.live.discard(pipeline)
        self.waiting.pop(pipeline, None)
        self.left(pipeline)
        return self._overdue(now) + self._completed()

    def join(self, pipeline: int, *, now: float) -> list[Merge]:
        """Count on a pipeline again. One that was live until now died unnoticed: it leaves first."""
        if not 0 <= pipeline < self._num_pipelines:
            raise InputError(
                "replication.pipeline_unknown",
                f"pipeline {pipeline} tries to join, but only pipelines 0 to {self._num_pipelines - 1} exist",
                pipeline=pipeline,
            )
        merges = self.leave(pipeline, now=now)
        self.live.add(pipeline)
        self.joined(pipeline)
        return merges

    def next_deadline(self) -> float | None:
        """Return when those that wait are merged if no one comes before, None: when they are complete alone."""
        return None

    def expire(self, *, now: float) -> list[Merge]:
        """Merge those whose time has come."""
        deadline = self.next_deadline()
        return [self.close()] if deadline is not None and deadline <= now else []

    def merge(
        self,
        members: Sequence[int],
        *,
        weights: Sequence[float] | None = None,
        partner: int | None = None,
        forced: bool = False,
    ) -> Merge:
        """Take contributions out of those that wait into a merge; each counts equally if no weights are given."""
        members = tuple(sorted(members))
        contributions = tuple(self.waiting.pop(member).number for member in members)
        weights = (1 / len(members),) * len(members) if weights is None else tuple(weights)
        self._merges += 1
        return Merge(self._merges - 1, members, contributions, weights, partner, forced)

    def _overdue(self, now: float) -> list[Merge]:
        deadline = self.next_deadline()
        return [self.close()] if deadline is not None and deadline < now else []

    def _completed(self) -> list[Merge]:
        return [self.close()] if self.waiting and self.complete() else []


class Everybody(Gathering):
    """Decisions of rules that average all live pipelines: once each of them has contributed, however long it takes."""

    def complete(self) -> bool:
        return self.waiting.keys() == self.live

    def close(self) -> Merge:
        return self.merge(list(self.waiting))


def several(num_pipelines: int, rule: str) -> int:
    """Return the number of pipelines. Raises InputError if there is no one to average with."""
    if num_pipelines < 2:
        raise InputError(
            "replication.one_pipeline",
            f"replication {rule} requires at least 2 pipelines, but the plan has {num_pipelines}; omit replication",
        )
    return num_pipelines
