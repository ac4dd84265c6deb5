"""The checkpoints of a run as its ranks write them together: begun, written, proven by a validation, discarded."""

from collections.abc import Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from ...records.record_files import read_metrics
from ..config import RunConfig
from ..processes.process import Process
from ..reporting import metrics
from ..reporting.memory import worst_load
from ..training_state import checkpoint
from ..training_state.async_checkpoint import Snapshots
from ..training_state.checkpoint_folders import folder_of
from .control import WorkerContext
from .epoch_end import BestEpoch


class RunCheckpoints:
    """Checkpoints in `folder`.

    `unproven`: minibatches of the one whose weights are not validated yet. `best`: knows which one stays for its score.
    """

    def __init__(self, folder: Path, process: Process, config: RunConfig, *, before: "RunCheckpoints | None") -> None:
        """`before`: those of the worker whose place another takes; they continue as they are."""
        self.folder, self.process, self.config = folder, process, config
        self.snapshots: Snapshots = before.snapshots if before else Snapshots(folder, timeout=config.timeout_seconds)
        self.unproven: int | None = None
        self.best: BestEpoch = before.best if before else BestEpoch(config)

    @property
    def keep(self) -> int:
        """Number of checkpoints to keep, plus the one before an unproven checkpoint."""
        return self.config.keep_checkpoints + (self.unproven is not None)

    def begin(self, done: int) -> None:
        """Wait for the last one, and make room for one after `done` minibatches. All ranks come here."""
        self.snapshots.wait()
        if self.process.rank == 0:
            self._prune()
        if self.process.leads_host:
            checkpoint.begin(self.folder, done)
        self.process.barrier("start of a checkpoint")

    def write(
        self,
        done: int,
        shards: Mapping[str, dict[str, Tensor]],
        facts: Mapping[str, Any],
        *,
        num_stages: int,
        last: bool,
    ) -> None:
        """Write this rank's `shards`, and the manifest of `facts` once those of all stages exist."""
        names = {f"stage{k}" for k in range(num_stages)}
        finish = partial(checkpoint.finish, self.folder, done, **facts)
        self.snapshots.write(done, shards=shards, finish=(names, finish) if self.process.rank == 0 else None)
        if last or not self.config.asynchronous_checkpoints:
            self.snapshots.wait()
            self.process.barrier("end of a checkpoint")

    def prove(self) -> None:
        """Let the checkpoint before an epoch's go, once the epoch's weights are known to be of use."""
        self.unproven = None
        if self.process.rank == 0 and self.config.checkpoint_every and not self.snapshots.busy:
            self._prune()

    def _prune(self) -> None:
        checkpoint.prune(self.folder, self.config.keep_checkpoints, best=self.best.minibatches)

    def load_after(self, done: int) -> checkpoint.Checkpoint | None:
        """Return the checkpoint after so many minibatches, once it is whole; None if there is none."""
        self.snapshots.wait()
        folder = folder_of(self.folder, done)
        return checkpoint.load(folder) if folder.exists() else None

    def discard_unproven(self) -> None:
        """Discard the checkpoint of weights that are of no use. All ranks come here."""
        self.snapshots.wait()  # the good one may be under way
        if self.process.rank == 0 and self.unproven is not None:
            checkpoint.discard(self.folder, self.unproven)
        self.process.barrier("end of a checkpoint")


def run_summary(
    context: WorkerContext,
    run_dir: Path,
    done: int,
    *,
    epochs: Sequence[Mapping[str, Any]],
    of_plan: Sequence[Mapping[str, Any]],
    replans: Sequence[dict[str, Any]] = (),
    left_out: Sequence[str] = (),
) -> dict[str, Any]:
    """Sum a run up after `done` minibatches: medians over `epochs`, without the first (it reads the data) if there are
    others; of stages over those `of_plan`, which ended under this plan. There may be none, if pipelines share the
    minibatches. "epochs" are those begun, of which the last may be unfinished.

    `replans`: what changes of the plan cost whose rows of metrics may be on other hosts. `left_out`: names of samples
    that are too large for the memory limit.
    """
    plan, workload = context.plan, context.workload
    steady, found = epochs[1:] or epochs, measured(context, epochs, of_plan=of_plan)
    changes = _replans(context, run_dir, replans)
    return {
        "run_dir": context.process.record or str(run_dir),
        "model": workload.model,
        "engine": found["engine"],
        "schedule": plan.schedule,
        "planner": plan.planner,
        "synthetic": workload.synthetic,
        "minibatches": done,
        "epochs": ceil(done / workload.epoch_minibatches),
        "samples_per_second": median(row["samples_per_second"] for row in steady) if steady else 0.0,
        "train": epochs[-1]["train"] if epochs else {},
        "validation": (epochs[-1]["validation"] or {}) if epochs else {},
        "load": found["load"],
        "stages": found["stages"],
        **({"left_out": {"samples": len(left_out), "names": list(left_out)}} if left_out else {}),
        **({"replans": changes} if changes else {}),
    }


def measured(
    context: WorkerContext, epochs: Sequence[Mapping[str, Any]], *, of_plan: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the engine, the worst load and the medians of the plan's stages, over epochs as `run_summary` has them."""
    steady = epochs[1:] or epochs
    shares = metrics.median_summaries([row["stages"] for row in of_plan[1:] or of_plan])
    return {
        "engine": context.workload.engine_name,
        "load": worst_load(steady),
        "stages": metrics.with_memory(shares, context.plan),
    }


def _replans(context: WorkerContext, run_dir: Path, others: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the costs of plan changes, in order, over all attempts of the run."""
    context.recorder.flush()
    path = run_dir / "metrics.jsonl"
    rows = read_metrics(path, "replan") if path.exists() else []
    own = [{key: value for key, value in row.items() if key not in ("event", "seconds")} for row in rows]
    known = {row["minibatch"] for row in own}
    return sorted([*own, *(row for row in others if row["minibatch"] not in known)], key=lambda row: row["minibatch"])
