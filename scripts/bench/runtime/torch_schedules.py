"""torch.distributed.pipelining: Schedule1F1B on the same layers, and what it says to sparse tensors."""

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from sparsepipe.engines import CoordinateSet, Feature, Parts, Subnetwork

from .cases import SGD, Batch, Case, minibatches
from .competitors import counted_loop, whole
from .processes import join


class _Dropout(nn.Module):
    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, rows: Tensor) -> Tensor:
        return functional.dropout(rows, self.probability, self.training)


def role_torch_1f1b(case: Case, folder: Path, seconds: float, cut: int, count: int) -> dict[str, Any]:
    """Dense: the same layers in nn.Sequential stages. Sparse: what happens when its tensors are handed to it.

    `count` micro-batches have the case's batch size each.
    """
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # here: other roles' memory is told without it

    rank, _ = join(folder)
    network, chosen = whole(case)
    batches = minibatches(case, folder)
    if not case.images:
        return _sparse_1f1b(network, chosen, batches, cut, rank)
    layers = [
        _Dropout(row.args["probability"]) if row.kind == "dropout" else network.get_submodule(row.id)
        for row in network.table
    ]
    module = nn.Sequential(*(layers[:cut] if rank == 0 else layers[cut:]))
    stage = PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=count, loss_fn=functional.cross_entropy)
    optimizer = torch.optim.SGD(module.parameters(), fused=True, **SGD)
    steps = [list(islice(cycle(batches), first, first + count)) for first in range(len(batches))]
    images = [torch.cat([batch.images for batch in step]) for step in steps]
    labels = [torch.cat([batch.labels for batch in step]) for step in steps]

    def step(number: int, batch: Any) -> None:
        if rank == 0:
            schedule.step(images[number % len(steps)])
        else:
            schedule.step(target=labels[number % len(steps)], losses=[])
        optimizer.step()
        optimizer.zero_grad()

    return {"samples_per_second": count * counted_loop(step, case, seconds)}


def _sparse_1f1b(network: Subnetwork, chosen: Any, batches: Sequence[Batch], cut: int, rank: int) -> dict:
    """Hand coordinates and features of minibatches of different sizes to torch's own schedule."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    ids = [row.id for row in network.table]

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            own = ids[:cut] if rank == 0 else ids[cut:]
            self.inner = Subnetwork(network.network, chosen, own).train()

        def forward(self, coordinates: Tensor, features: Tensor) -> Any:
            stride = (1, 1, 1) if rank == 0 else (2, 2, 2)
            name = "input" if rank == 0 else ids[cut - 1]
            parts = Parts((CoordinateSet(stride, coordinates.int()),), {name: Feature(features, 0)})
            outputs = self.inner(chosen.join(parts), minibatch=0)
            if rank == 1:
                return chosen.rows(outputs[ids[-1]])
            out = chosen.split({ids[cut - 1]: outputs[ids[cut - 1]]})
            return out.coordinate_sets[0].coordinates.float(), out.features[ids[cut - 1]].rows

    try:
        stage = PipelineStage(Half(), rank, 2, torch.device("cpu"))
        schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=functional.cross_entropy)
        some = batches[:4]
        if rank == 0:  # split by rows, as it does with every tensor
            schedule.step(torch.cat([b.coordinates for b in some]).float(), torch.cat([b.features for b in some]))
        else:
            schedule.step(target=torch.cat([b.labels for b in some]), losses=[])
    except Exception as error:  # noqa: BLE001 - whatever it says is the result
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    return {"error": "it ran, but on minibatches cut by rows: samples are torn apart"}
