"""One of two stages of a network as torch's own schedules take it: a module, what it is given, and its loss."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn

from sparsepipe.engines import Subnetwork

from .cases import Case
from .module_cases import PLAIN_LOSSES, ModuleCase, packed_target
from .table_cases import Batch, sequential


@dataclass(frozen=True)
class TorchStage:
    """`given` makes the arguments of a step, by position and by name, of the minibatches that are its micro-batches."""

    module: nn.Module
    given: Callable[[Sequence[Batch]], tuple[tuple[Tensor, ...], dict[str, Tensor]]]
    loss: Callable[[Any, Tensor], Tensor]
    shared: tuple[Tensor, ...] = ()  # weights that both stages have: their gradients are added up once per step

    def share_gradients(self) -> None:
        for weight in self.shared:
            assert weight.grad is not None, "both stages use what they share"
            dist.all_reduce(weight.grad)


def torch_stage(case: Case, network: Any, cut: int, rank: int) -> TorchStage:
    """Return the stage of a rank: the layers before the cut, or those behind it."""
    if isinstance(case, ModuleCase):
        return _of_traced(case, network, cut, rank)
    subnetwork = Subnetwork(network, case.chosen_engine()).train()
    ids = [row.id for row in network.rows]
    module = sequential(subnetwork, ids[:cut] if rank == 0 else ids[cut:])
    return TorchStage(
        module,
        lambda batches: ((torch.cat([batch.images for batch in batches]),) if rank == 0 else (), {}),
        functional.cross_entropy,
    )


def targets(case: Case, batches: Sequence[Batch]) -> Tensor:
    """Return the targets of minibatches that are micro-batches of one step."""
    each = [packed_target(batch) if isinstance(case, ModuleCase) else batch.target for batch in batches]
    return torch.cat(each)


class _WithContiguousGradient(torch.autograd.Function):
    """A tensor as it is, whose gradient is contiguous: torch's schedules send no others, an LSTM's are not."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].contiguous()


class Half(nn.Module):
    """Layers of a traced module between positional tensors that cross and named ones that the minibatch brings."""

    def __init__(self, network: Any, ids: Sequence[str], *, before: Sequence[str], after: Sequence[str]) -> None:
        super().__init__()
        self.inner = network.build(ids, engine=None).train()
        self.inner.draws_by_layer = False  # as a plain module's dropout does
        self.before, self.after, self.outputs = tuple(before), tuple(after), tuple(network.outputs)
        read = {name for row in self.inner.table for name in row.inputs}
        self.reads = tuple(name for name in network.inputs if name in read)

    def forward(self, *received: Tensor, **named: Tensor) -> Any:
        values = dict(zip(self.before, map(_WithContiguousGradient.apply, received), strict=True))
        values |= {name: named[f"input_{i}"] for i, name in enumerate(self.reads)}
        found = self.inner(values, minibatch=0, keep=self.after or self.outputs)
        if not self.after:
            return self.inner.result(found)
        return tuple(found[name].contiguous() for name in self.after)  # torch's schedules send no others

    def named(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {f"input_{i}": tensors[name] for i, name in enumerate(self.reads)}


def _of_traced(case: ModuleCase, network: Any, cut: int, rank: int) -> TorchStage:
    """Weights that both sides of the cut use are in both stages, whose gradients are added up."""
    ids = [row.id for row in network.rows]
    alive = network.alive(set(ids[:cut]))
    lent = [row for row in network.rows[:cut] if row.kind == "parameter" and set(row.outputs) & set(alive)]
    crossing = [name for name in alive if not any(name in row.outputs for row in lent)]
    if rank == 0:
        half = Half(network, ids[:cut], before=(), after=crossing)
    else:
        half = Half(network, [*(row.id for row in lent), *ids[cut:]], before=crossing, after=())

    def given(batches: Sequence[Batch]) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        bound = [network.arguments.bind(batch.inputs) for batch in batches]
        return (), half.named({name: torch.cat([each[name] for each in bound]) for name in bound[0]})

    weights = dict(half.inner.named_parameters())
    shared = tuple(weights[key] for row in lent for key in row.keys)
    return TorchStage(half, given, PLAIN_LOSSES[case.loss_name], shared)
