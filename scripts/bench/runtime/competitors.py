"""What trains without this project's runtime: a plain loop of torch, and DistributedDataParallel."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import Tensor, nn

from sparsepipe.engines import Engine, Subnetwork

from .cases import SGD, Batch, Case, case_engine, case_network, minibatches
from .processes import join


def _loop(step: Any, case: Case, batches: Sequence[Batch], seconds: float, *, warmup: int = 2) -> float:
    """Return samples a second of `step(number, minibatch)` over `seconds`."""
    for k in range(warmup):
        step(k, batches[k % len(batches)])
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        batch = batches[count % len(batches)]
        step(count, batch)
        count += 1
    return count * case.batch_size / (time.perf_counter() - start)


def whole(case: Case) -> tuple[Subnetwork, Engine]:
    """Return the network of a case in one piece, and its engine."""
    chosen = case_engine(case)
    return Subnetwork(case_network(case), chosen).train(), chosen


def role_single(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    module, chosen = whole(case)
    optimizer = torch.optim.SGD(module.parameters(), fused=True, **SGD)
    last = module.network.rows[-1].id

    def step(number: int, batch: Batch) -> None:
        outputs = module({"input": chosen.tensor(batch)}, minibatch=number, keep=(last,))
        functional.cross_entropy(chosen.rows(outputs[last]), batch.labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"samples_per_second": _loop(step, case, minibatches(case, folder), seconds)}


class _Whole(nn.Module):
    """A network from minibatch to loss, as DistributedDataParallel wants it."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.inner, self.engine = whole(case)

    def forward(self, batch: Batch, number: int) -> Tensor:
        last = self.inner.network.rows[-1].id
        outputs = self.inner({"input": self.engine.tensor(batch)}, minibatch=number, keep=(last,))
        return functional.cross_entropy(self.engine.rows(outputs[last]), batch.labels)


def role_ddp(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    join(folder)
    wrapped = nn.parallel.DistributedDataParallel(_Whole(case), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), fused=True, **SGD)
    batches = minibatches(case, folder)

    def step(number: int, batch: Batch) -> None:
        wrapped(batches[(number + 4 * dist.get_rank()) % len(batches)], number).backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"samples_per_second": 2 * counted_loop(step, case, seconds)}


def counted_loop(step: Any, case: Case, seconds: float) -> float:
    """Run as many steps as fit into about `seconds`, the same number on both ranks; return samples a second of one."""
    empty = None
    step(0, empty)
    start = time.perf_counter()
    step(1, empty)
    estimate = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(estimate, op=dist.ReduceOp.MAX)
    count = max(4, int(seconds / float(estimate)))
    dist.barrier()
    start = time.perf_counter()
    for number in range(count):
        step(number, empty)
    dist.barrier()
    return count * case.batch_size / (time.perf_counter() - start)
