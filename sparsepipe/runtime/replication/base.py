"""What keeps the weights of a stage's replicas consistent: what they average, when, and with whom."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from torch import Tensor

from ...networks.batch_norm import Group


class Replication(Protocol):
    """One replica of a stage, among the others.

    A round is the minibatches of one update (`Program.members`), shared out to the replicas. All replicas come to
    `mean` once a round, with the same weights before it and the same mean after it. Whatever waits for other replicas
    raises DeadlinePassed or PeerLost.
    """

    @property
    def num_replicas(self) -> int: ...

    @property
    def overlaps(self) -> bool:
        """Return whether gradients set out while the last backward of a round continues, within `overlap`."""
        ...

    def overlap(
        self, weights: Sequence[Tensor], gathered: Sequence[Tensor | None] | None
    ) -> AbstractContextManager[None]:
        """Let gradients set out as autograd finds them: to be entered around this replica's last backward of a round.

        `weights` are the leaves that the backward meets, `gathered` the sums of their gradients over the replica's
        earlier minibatches of the round, if there were any. Only where it `overlaps`; `complete` follows.
        """
        ...

    def complete(self, gradients: Sequence[Tensor | None]) -> None:
        """Let those gradients of that backward set out which have not yet: `gradients` has an entry for each weight."""
        ...

    def mean(
        self,
        weights: Sequence[Tensor],
        gathered: Callable[[], list[Tensor | None]],
        num_minibatches: int,
        *,
        what: str,
    ) -> list[Tensor | None]:
        """Return the mean gradient of each weight over a round of `num_minibatches`: each minibatch weighs the same.

        None for a weight that the loss of no minibatch of the round reaches, on no replica. If some reach it, the
        others count as zeros. `gathered` gives the sums over this replica's minibatches; it is not asked if they have
        set out. `what` is named if it waits too long.
        """
        ...

    def average_buffers(self, buffers: Sequence[Tensor], share: float) -> None:
        """Make floating-point buffers, in place, their mean over the replicas, weighted by shares that sum to 1."""
        ...

    def broadcast(self, values: Tensor, source: int, *, what: str) -> None:
        """Make `values`, in place, those of the replica on rank `source`. All replicas come here."""
        ...

    @property
    def statistics(self) -> Group | None:
        """With whom batch norms share the statistics of a minibatch; None: with no one."""
        ...

    def take_waited(self) -> float:
        """Return the seconds that batch norms waited for other replicas since the last call."""
        ...
