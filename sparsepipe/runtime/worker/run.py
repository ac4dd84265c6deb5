"""One rank's run from its folder: what `python -m sparsepipe.runtime` does."""

import gc
import hashlib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...errors import InputError
from ...records.run_progress import num_processes, went_back
from ...records.trace_file import bytes_of_rank
from ...util.io.files import cut_torn_row
from ...values.plan import Plan
from ...values.schedule import compile_until_steady
from ..config import RunConfig
from ..plan_fit import ForwardOnly
from ..processes.identity import Identity
from ..processes.process import Process
from ..rendezvous.store import KeyedStore
from ..reporting.metrics import began
from ..reporting.recorder import Recorder, forget_rows
from ..training_state import checkpoint
from ..training_state.checkpoint_folders import folder_of
from ..workloads import open_workload
from ..workloads.base import Workload
from .connections import Connections, check_ranks
from .join import joined
from .replanning import Replanning
from .straggler import Straggler
from .worker import Worker

if TYPE_CHECKING:
    from .pipeline_worker import Member


def run(
    run_dir: Path,
    plan: Plan,
    config: RunConfig,
    *,
    resume: bool = False,
    workload: Workload | None = None,
) -> None:
    """Run this process's rank of `plan` to its end, with its record in `run_dir`: of forwards alone if that says so.

    `workload` is what `config` names unless given. With `resume` it continues from the newest checkpoint, from the
    start if there is none.
    Raises InputError for a plan, data or a checkpoint that do not fit, and what the failures module names.
    """
    workload = workload or open_workload(run_dir, config)
    workload.check(plan)
    identity, timeout = Identity.from_environment(), config.timeout_seconds
    check_ranks(plan, identity.world_size, num_processes=num_processes(run_dir, plan))
    told: dict[str, Any] = {"device": config.device, "threads": config.threads, "encrypt": config.encrypt}
    with joined(identity, run_dir=run_dir, timeout=timeout, **told) as process:
        if forwards := ForwardOnly.of_run(run_dir):
            from .inference import infer  # a run that trains needs none of it

            if process.hosts:
                _check_data(process, workload)
            origin = _origin(run_dir, process)
            infer(process, run_dir, plan, config, workload=workload, forwards=forwards, origin=origin)
            return
        member = None
        if identity.pipeline is not None:
            from .pipeline_worker import Member  # a run of one pipeline needs none of it

            member = Member.of(identity, run_dir, timeout=timeout, encryption=process.encryption)
        straggler = Straggler.of(config, identity)
        train(process, run_dir, plan, config, workload=workload, resume=resume, straggler=straggler, member=member)


def train(
    process: Process,
    run_dir: Path,
    plan: Plan,
    config: RunConfig,
    *,
    workload: Workload,
    resume: bool = False,
    opening: int = 0,
    straggler: Straggler | None = None,
    member: "Member | None" = None,
) -> None:
    """Run a process's rank of `plan` to its end, or of the plans that come after it while it runs.

    The process may continue afterwards, with an `opening` above those that were used: one more for each change of the
    plan that was asked for.
    `member`: the plan is one of several pipelines; if it continues from, the others say.
    """
    if process.hosts:
        _check_data(process, workload)
    connections = Connections.open(
        compile_until_steady(plan),
        process,
        opening=opening,
        synchronise=config.synchronised_batch_norm,
        share_memory=config.shared_memory,
    )
    if member is not None:
        found = member.checkpoint()
        _keep_rows(run_dir, process)
    else:
        found = _agree(run_dir, process, workload) if resume else None
    recorder = Recorder(
        run_dir,
        rank=process.rank,
        stage=next(iter(plan.stages_of(process.rank)), None),
        origin=_origin(run_dir, process),
        heartbeats=process.heartbeats,
        trace_bytes=bytes_of_rank(process.world_size),
        epoch_minibatches=workload.epoch_minibatches,
    )
    try:
        parts: dict[str, Any] = {"connections": connections, "workload": workload, "recorder": recorder}
        parts["straggler"] = straggler
        if member is not None:
            from .pipeline_worker import PipelineWorker

            worker: Worker = PipelineWorker(run_dir, plan, config, **parts, member=member)
        else:
            worker = Worker(run_dir, plan, config, **parts)
        worker.control.replanning = Replanning(run_dir, worker, process, opening=opening)
        _leave_out_of_searches()
        connections = worker.run(found)
    finally:
        recorder.close()
        gc.unfreeze()  # they go with the plan
    connections.close()


def _leave_out_of_searches() -> None:
    """Leave modules and weights, which stay, out of what is searched for garbage between minibatches."""
    gc.freeze()
    gc.enable()


def _check_data(process: Process, workload: Workload) -> None:
    """Raise InputError if this host has other data than that of rank 0: it would train on other samples."""
    number = int.from_bytes(hashlib.sha256(workload.data_digest.encode()).digest()[:6])  # exact in 64 bits
    found = torch.zeros(process.world_size, dtype=torch.float64)
    found[process.rank] = number
    process.sum(found, what="start")
    if found[process.rank] != found[0]:
        raise InputError(
            "pipelines.data_differ",
            f"the data on this host ({workload.num_samples} training samples) differ from those on the host of rank "
            "0; copy the same data to both, or name a manifest, which verifies them",
        )
    if (found != found[0]).any():
        process.barrier("start")  # a rank that has other data tells


def _agree(run_dir: Path, process: Process, workload: Workload) -> checkpoint.Checkpoint | None:
    """Return the checkpoint to continue from: the one that rank 0 finds the newest. It also makes the metrics fit
    it.
    """
    chosen = torch.zeros(1, dtype=torch.float64)
    if process.rank == 0:
        found = checkpoint.latest(run_dir)
        chosen[0] = found.minibatches if found else 0
        forget_rows(run_dir, int(chosen), within=_goes_on_within(int(chosen), workload))
        went_back(run_dir, int(chosen))
    minibatches = int(process.sum(chosen, what="resume"))
    if process.hosts:  # each has the rows, of which one host's go on
        if process.leads_host and process.rank:
            forget_rows(run_dir, minibatches, within=_goes_on_within(minibatches, workload))
        process.barrier("resume")
    return checkpoint.load(folder_of(run_dir, minibatches)) if minibatches else None


def _goes_on_within(minibatches: int, workload: Workload) -> bool:
    """Return whether a run that resumes after so many minibatches trains the rest of an epoch."""
    return minibatches % workload.epoch_minibatches > 0 and minibatches < workload.total_minibatches


def _keep_rows(run_dir: Path, process: Process) -> None:
    """Let the metrics of a pipeline that was started again continue behind whole rows: none of them is done again."""
    if process.rank == 0:
        cut_torn_row(run_dir / "metrics.jsonl")
    process.barrier("start")


def _origin(run_dir: Path, process: Process) -> float:
    """Return when the run began on this process's monotonic clock, which all processes of a host share.

    Ranks of a host agree on it to within 0.1 ms, those of several to within half the time that a word to the store's
    host and back takes, whatever their clocks say.
    """
    started = torch.zeros(1, dtype=torch.float64)
    if process.rank == 0:
        started[0] = began(run_dir)
    process.sum(started, what="start")
    store = process.store  # on rank 0's host, where there are several
    elsewhere = store.ahead_of_here() if isinstance(store, KeyedStore) else 0.0
    return float(started) - elsewhere - _ahead()


def _ahead() -> float:
    """Return by how many seconds the clock is ahead of the monotonic one: of several looks, the one least delayed."""
    looks = [(time.monotonic(), time.time(), time.monotonic()) for _ in range(20)]
    before, now, after = min(looks, key=lambda look: look[2] - look[0])
    return now - (before + after) / 2
