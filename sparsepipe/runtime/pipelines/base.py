"""What a rank of one pipeline asks of the others: a coordinator for words, and an averager for weights.

    coordinator process     who takes which minibatch, which merges there are, who is alive: control messages alone
    averager in each rank   weights, straight from the ranks that hold a layer to those that hold it elsewhere

A run of one pipeline has neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ...replication.base import Merge


class Address(NamedTuple):
    """Where a rank of another pipeline takes weights, and the secret that it wants to hear first."""

    host: str
    port: int
    secret: str  # hexadecimal


@dataclass(frozen=True)
class Holder:
    """A rank that exchanges the weights of some layers: one replica of a stage in each pipeline does it for all."""

    pipeline: int
    rank: int  # within its pipeline
    layers: tuple[str, ...]
    address: Address


class Coordinator(Protocol):
    """The coordinator as a rank sees it. Every call is a short message to another process and back.

    It may be replaced while the run goes on: calls wait for the new one. They raise DeadlinePassed where none comes.
    """

    pipeline: int
    num_pipelines: int

    def register(self, holder: Holder, *, attempt: int) -> None:
        """Say where this rank takes weights. `attempt` tells a restarted pipeline's ranks from those before."""
        ...

    def holders(self, pipeline: int) -> Sequence[Holder]:
        """Return the ranks of a live pipeline that exchange weights; none where it is not alive."""
        ...

    def take_minibatch(self, epoch: int, place: int) -> int | None:
        """Return which minibatch of the epoch's order is the pipeline's own number `place` in that epoch.

        All ranks of a pipeline get the same answer; the first to ask takes it from the queue. None: the epoch has no
        more, for this `place` and all after it.
        """
        ...

    def take_rest(self, epoch: int) -> Sequence[int]:
        """Return the minibatches that are left of an epoch and fill no whole step, if this pipeline gets them."""
        ...

    def done(self, epoch: int, place: int, row: Mapping[str, Any]) -> None:
        """Say that an update contains a minibatch, with its row for the run's metrics. One rank of a pipeline."""
        ...

    def contribute(self, update: int, *, samples: int) -> int:
        """Contribute after `update` (numbers of updates of the pipeline): the number of the contribution. One rank of
        a pipeline; the others see it by `contribution`."""
        ...

    def contribution(self, update: int) -> int | None:
        """Return the number of the pipeline's contribution after an update; None where it made none then."""
        ...

    def merge_of(self, contribution: int, *, wait: float) -> Merge | None:
        """Return the merge that a contribution of this pipeline is in, None while undecided after `wait` seconds."""
        ...

    def merged(self, merge: Merge, facts: Mapping[str, Any]) -> None:
        """Say that this rank has taken the result of a merge: update, distance from the mean, bytes, seconds waited."""
        ...


class Averager(Protocol):
    """One stage replica's part in the averages between pipelines, called by the executor around each update."""

    def before_step(self, gradients: list[Tensor], update: int, *, samples: int) -> list[Tensor]:
        """Return the gradients to step with: the mean over the pipelines where the rule averages gradients."""
        ...

    def after_step(self, update: int, *, samples: int) -> None:
        """Contribute the newest weights where one is due, and take the results that have come.

        Raises DeadlinePassed where the rule waits and nobody answers.
        """
        ...

    def finish(self) -> None:
        """Average with all live pipelines, at the end of the run: they end with the same weights."""
        ...

    def close(self) -> None:
        """Stop serving weights."""
        ...
