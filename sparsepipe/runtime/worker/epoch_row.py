"""What the ranks know together of an epoch: its losses, its pace, how busy its stages were, and what they held."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...losses.base import mean_of
from ...trace import SPAN_KINDS
from ..reporting import metrics
from .context import WorkerContext

_WHAT = "end of an epoch"


@dataclass(frozen=True)
class EpochSoFar:
    """What the minibatches of an epoch add up to that are trained: under plans before, and before the run resumed."""

    minibatches: int = 0
    loss: float = 0.0  # means times what they are over
    counted: float = 0.0  # samples, or what else the loss is a mean over
    correct: float = 0.0  # of these
    samples: float = 0.0
    sent_bytes: float = 0.0  # by this rank, and of what came before the run resumed by all, on rank 0

    def with_part(self, table: Tensor, sent_bytes: float) -> "EpochSoFar":
        """Add what comes next: `table` of all ranks, as EpochExecutor.table.

        Minibatch by minibatch, so that the sums have the same bits wherever the run was stopped between.
        """
        _, of_samples, losses, of_counted, of_correct = table.numpy().T
        start = np.array([[self.loss, self.counted, self.correct, self.samples]])
        rows = np.concatenate([start, np.stack([losses * of_counted, of_counted, of_correct, of_samples], axis=1)])
        loss, counted, correct, samples = np.add.accumulate(rows, axis=0)[-1].tolist()
        minibatches, sent = self.minibatches + len(table), self.sent_bytes + sent_bytes
        return EpochSoFar(minibatches, loss, counted, correct, samples, sent)

    def train(self, *, counts_correct: bool) -> dict[str, float | None]:
        """Return the mean loss, the share that was right if that is counted, and over how many they are."""
        scores = {"loss": mean_of(self.loss, self.counted)}
        if counts_correct:
            scores["accuracy"] = mean_of(self.correct, self.counted)
        return scores | {
            "samples": int(self.samples),
            "counted": int(self.counted),
            "minibatches": self.minibatches,
        }


class TrainedEpochs:
    """The `rows` of a run's epochs under its plans, and what the epoch adds up to that is being trained."""

    def __init__(self) -> None:
        self.earlier: list[Mapping[str, Any]] = []  # rows of epochs that ended before this run was resumed
        self.rows: list[dict[str, Any]] = []
        self.so_far = EpochSoFar()
        self.unfinished: EpochSoFar | None = None  # for a checkpoint within an epoch: its bytes are those of all ranks
        self.last_table = torch.zeros(1, 5, dtype=torch.float64)  # of the part that ended last, of all ranks
        self._first = 0  # of the rows, that ended under this plan

    def add_part(self, table: Tensor, sent_bytes: float) -> None:
        """Add a part of an epoch: `table` of all ranks, as EpochExecutor.table."""
        self.last_table, self.so_far = table, self.so_far.with_part(table, sent_bytes)

    def end_part(self, *, whole: bool, sent_bytes: float) -> None:
        """Note whether the epoch is `whole` now, and the bytes that all ranks sent in it."""
        self.unfinished = None if whole else replace(self.so_far, sent_bytes=sent_bytes)

    def resume(self, sums: EpochSoFar, *, leads: bool) -> None:
        """Go on within an epoch: the rank that `leads` has the bytes that were sent before."""
        self.unfinished, self.so_far = sums, sums if leads else replace(sums, sent_bytes=0.0)

    def take_over(self, before: "TrainedEpochs") -> None:
        """Go on from what was trained under the plan before."""
        self.earlier, self.rows, self._first = before.earlier, before.rows, len(before.rows)
        self.so_far, self.unfinished = before.so_far, before.unfinished

    def of_plan(self, num_stages: int) -> list[Mapping[str, Any]]:
        """Return the rows of this process's plan; if there are none, those of as many stages before."""
        return [*self.rows[self._first :]] or [row for row in self.earlier if len(row["stages"]) == num_stages]


def summed(tables: Mapping[int, Tensor], context: WorkerContext, num_minibatches: int) -> Tensor:
    """Return what all ranks measured of each minibatch: as EpochExecutor.table, of which each rank has some rows, or
    none where the plan leaves it out.
    """
    own = torch.zeros(num_minibatches, 5, dtype=torch.float64)
    for table in tables.values():
        own += table
    return context.process.sum(own, what=_WHAT)


def epoch_row(
    context: WorkerContext, table: Tensor, started: float, *, stages: Sequence[int], so_far: EpochSoFar
) -> dict[str, Any]:
    """Bring together what the ranks know of an epoch, whose last part is `table`, begun at `started`.

    `stages`: this rank's. `so_far`: all of the epoch, `table` included, which losses and bytes are of; pace, shares and
    memory are of its last part. Every rank comes here.
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
    sent = torch.tensor([so_far.sent_bytes], dtype=torch.float64)
    return {
        "train": so_far.train(counts_correct=context.workload.tally().counts_correct),
        "samples_per_second": metrics.pace(times.tolist(), samples.tolist(), window, started),
        "sent_bytes": int(process.sum(sent, what=_WHAT)),
        "stages": summaries,
    }
