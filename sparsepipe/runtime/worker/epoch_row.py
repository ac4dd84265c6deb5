"""What the ranks know together of an epoch: its losses, its pace, how busy its stages were, and what they held."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ...trace import SPAN_KINDS
from ..reporting import metrics
from .context import WorkerContext

_WHAT = "end of an epoch"


@dataclass
class EpochSoFar:
    """What was trained of an epoch under plans before this one."""

    tables: list[Tensor] = field(default_factory=list)  # as EpochExecutor.table, of all ranks
    sent_bytes: float = 0.0  # by this rank


def summed(tables: Mapping[int, Tensor], context: WorkerContext, num_minibatches: int) -> Tensor:
    """Return what all ranks measured of each minibatch: as EpochExecutor.table, of which each rank has some rows, or
    none where the plan leaves it out."""
    own = torch.zeros(num_minibatches, 5, dtype=torch.float64)
    for table in tables.values():
        own += table
    return context.process.sum(own, what=_WHAT)


def epoch_row(
    context: WorkerContext, table: Tensor, started: float, *, stages: Sequence[int], before: EpochSoFar
) -> dict[str, Any]:
    """Bring together what the ranks know of an epoch, whose last part is `table`, begun at `started`.

    `stages`: this rank's. What was trained before the last part counts in the losses; pace, shares and memory are of
    the plan that the epoch ended under. Every rank comes here.
    """
    process, plan = context.process, context.plan
    times, samples, *_ = table.unbind(dim=1)
    window = metrics.steady_window(times.tolist(), plan)
    start, end = (float(times[k]) for k in window) if window else (started, float(times.max()))
    spans = context.recorder.restart()
    seconds = torch.zeros(len(plan.stages), len(SPAN_KINDS), dtype=torch.float64)
    for k in stages:
        busy = metrics.busy_seconds([span[1:] for span in spans if span[0] == k], start, end)
        seconds[k] = torch.tensor([busy[kind] for kind in SPAN_KINDS], dtype=torch.float64)
    process.sum(seconds, what=_WHAT)
    summaries = metrics.stage_summaries(
        plan, [dict(zip(SPAN_KINDS, row, strict=True)) for row in seconds.tolist()], end - start
    )
    memory = torch.zeros(process.world_size, 2, dtype=torch.float64)
    memory[context.rank] = torch.tensor([context.memory.bytes(), context.memory.held_bytes], dtype=torch.float64)
    process.sum(memory, what=_WHAT)
    for entry in summaries:
        most = memory[entry["ranks"]].amax(dim=0).tolist()
        entry |= dict(zip(metrics.MEMORY, map(int, most), strict=True))
    sent = torch.tensor([before.sent_bytes + context.exchange.sent_bytes], dtype=torch.float64)
    return {
        "train": _train(torch.cat([*before.tables, table]), context),
        "samples_per_second": metrics.pace(times.tolist(), samples.tolist(), window, started),
        "sent_bytes": int(process.sum(sent, what=_WHAT)),
        "stages": summaries,
    }


def _train(table: Tensor, context: WorkerContext) -> dict[str, float]:
    """Return the mean loss of what was trained, and the share of it that was right where that is counted."""
    _, _, losses, counted, correct = table.unbind(dim=1)
    total = max(float(counted.sum()), 1.0)
    found = {"loss": float((losses * counted).sum()) / total}
    if context.workload.tally().counts_correct:
        found["accuracy"] = float(correct.sum()) / total
    return found
