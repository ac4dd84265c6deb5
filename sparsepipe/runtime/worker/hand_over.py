"""What changes hands where a job switches to another plan: layers, with all that training has made of them.

    before   rank 0: a b c   rank 1: d e        c travels from rank 0 to rank 1, with its optimizer's state and its
    after    rank 0: a b     rank 1: c d e      running statistics; a, b, d and e stay where they are in memory

The pipeline is empty: of each weight there is one version. Replicas of a stage hold the same, their running statistics
averaged. The old stages keep what they have until the new plan has begun: both see the same tensors, which no one
changes meanwhile.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from ...values.plan import Plan
from ..processes.process import Process
from ..training_state.checkpoint import belongs
from ..transport.state_transfer import StateTransfer
from .stage_replica import StageReplica


def source_of(stage: int, target: int, before: Plan) -> int:
    """Return the rank that gives layers of one of the old stages to rank `target`: itself, if it holds them."""
    holders = before.stages[stage].ranks
    return target if target in holders else holders[target % len(holders)]


def layers_of(rank: int, plan: Plan) -> Sequence[str]:
    """Return the layers that a rank holds under a plan."""
    return [id for k in plan.stages_of(rank) for id in plan.stages[k].layers]


class HandOver:
    """This rank's part in it."""

    def __init__(self, process: Process, *, before: Plan, after: Plan, own: Mapping[int, StageReplica]) -> None:
        """`own`: this rank's stages under the plan before. All ranks come here. Raises DeadlinePassed or PeerLost."""
        self._after, self._rank = after, process.rank
        self._kept: dict[str, Tensor] = {}
        outgoing: dict[int, dict[str, Tensor]] = {}
        for k, replica in own.items():
            tensors = replica.tensors()
            for target in after.ranks:
                given = dict(replica.kept)
                given |= tensors if source_of(k, target, before) == self._rank else {}
                wanted = set(layers_of(target, after))
                found = {key: tensor for key, tensor in given.items() if belongs(key, wanted, layers=before.layers)}
                (self._kept if target == self._rank else outgoing.setdefault(target, {})).update(found)
        self.transfer = StateTransfer.of(process, outgoing)

    def finish(self, own: Mapping[int, StageReplica]) -> None:
        """Send and receive, and give this rank's stages under the new plan what they are made of.

        All ranks come here, with the room that they need. Raises DeadlinePassed or PeerLost.
        """
        received = {key: tensor.clone() for key, tensor in self.transfer.run().items()}  # not a view of all that came
        tensors = self._kept | received
        for replica in own.values():
            wanted = set(replica.own.layers)
            layers = self._after.layers
            found = {key: tensor for key, tensor in tensors.items() if belongs(key, wanted, layers=layers)}
            replica.adopt(found)
