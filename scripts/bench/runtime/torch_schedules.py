"""torch.distributed.pipelining: Schedule1F1B on the same layers, and what it says to sparse tensors."""

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from sparsepipe.engines import CoordinateSet, Feature, Parts, Subnetwork

from .cases import SGD, Case
from .competitors import counted_loop
from .processes import join
from .rounds import SETTINGS
from .table_cases import Batch, TableCase
from .torch_stages import targets, torch_stage


def role_torch_1f1b(case: Case, folder: Path, seconds: float, cut: int, count: int) -> dict[str, Any]:
    """Dense: the same layers in two stages. Sparse: what happens when its tensors are handed to it.

    `count` micro-batches have the case's batch size each.
    """
    rank, _ = join(folder)
    if isinstance(case, TableCase) and not case.in_parts:
        return _sparse_1f1b(case, case.minibatches(folder), cut, rank)
    return {"samples_per_second": _rate(case, case.network(), folder, seconds, cut=cut, count=count, rank=rank)}


def role_torch_settings(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """Try settings one after the other, each for a short while."""
    rank, _ = join(folder)
    network = case.network()
    rates = [
        _rate(replace(case, batch_size=size), network, folder, seconds, cut=cut, count=count, rank=rank, least=1)
        for cut, count, size in json.loads((folder / SETTINGS).read_text())
    ]
    return {"samples_per_second": rates}


def _rate(
    case: Case, network: Any, folder: Path, seconds: float, *, cut: int, count: int, rank: int, least: int = 4
) -> float:
    """Train by one setting; return samples a second."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B  # here: other roles' memory is told without it

    batches = case.minibatches(folder)
    own = torch_stage(case, network, cut, rank)
    stage = PipelineStage(own.module, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=count, loss_fn=own.loss)
    optimizer = torch.optim.SGD(own.module.parameters(), fused=True, **SGD)
    steps = [list(islice(cycle(batches), first, first + count)) for first in range(len(batches))]
    given = [own.given(step) for step in steps]
    expected = [targets(case, step) for step in steps]

    def step(number: int) -> None:
        args, named = given[number % len(steps)]
        last = {"target": expected[number % len(steps)], "losses": []} if rank == 1 else {}
        schedule.step(*args, **last, return_outputs=False, **named)
        own.share_gradients()
        optimizer.step()
        optimizer.zero_grad()

    return count * counted_loop(step, case, seconds, least=least)[0]


def _sparse_1f1b(case: TableCase, batches: Sequence[Batch], cut: int, rank: int) -> dict:
    """Hand coordinates and features of minibatches of different sizes to torch's own schedule."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    network, chosen = case.network(), case.chosen_engine()
    ids = [row.id for row in network.rows]

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            own = ids[:cut] if rank == 0 else ids[cut:]
            self.inner = Subnetwork(network, chosen, own).train()

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
