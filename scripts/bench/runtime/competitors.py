"""What trains without this project's runtime: a plain loop of torch, and DistributedDataParallel."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from .cases import SGD, Case
from .processes import join
from .table_cases import Batch


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


def role_single(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    module = case.whole()
    optimizer = torch.optim.SGD(module.parameters(), fused=True, **SGD)

    def step(number: int, batch: Batch) -> None:
        module(batch, number).backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"samples_per_second": _loop(step, case, case.minibatches(folder), seconds)}


def role_ddp(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    join(folder)
    wrapped = nn.parallel.DistributedDataParallel(case.whole(), gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(wrapped.parameters(), fused=True, **SGD)
    batches = case.minibatches(folder)

    def step(number: int) -> None:
        wrapped(batches[(number + 4 * dist.get_rank()) % len(batches)], number).backward()
        optimizer.step()
        optimizer.zero_grad()

    rate, steps = counted_loop(step, case, seconds)
    # All that was sent: two steps before those that were counted, and the weights, once.
    return {"samples_per_second": 2 * rate, "minibatches": steps + 3}


def counted_loop(step: Any, case: Case, seconds: float, *, least: int = 4) -> tuple[float, int]:
    """Run as many steps as fit into about `seconds`, the same number on both ranks.

    Returns samples a second of one rank, and the number.
    """
    step(0)
    start = time.perf_counter()
    step(1)
    estimate = torch.tensor([time.perf_counter() - start])
    dist.all_reduce(estimate, op=dist.ReduceOp.MAX)
    count = max(least, int(seconds / float(estimate)))
    dist.barrier()
    start = time.perf_counter()
    for number in range(count):
        step(number)
    dist.barrier()
    return count * case.batch_size / (time.perf_counter() - start), count
