"""Runs of the real runtime for tests: several plans in one set of worker processes, since starting torch is slow."""

import json
import multiprocessing
import os
import random
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import load_file

from sparsepipe.data import make_shapes
from sparsepipe.networks import INPUT, Row, network
from sparsepipe.runtime import RunConfig
from sparsepipe.util.io.files import read_json, read_rows, write_json
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.trace import Span, Trace

REPOSITORY = Path(__file__).resolve().parent.parent
PLAIN, NORMED, UNET = "minkvgg11-narrow", "minkvgg11bn-narrow", "minkunet14a-narrow"
FAMILIES = ("box", "cone", "sphere")


def shapes(folder: Path) -> Path:
    """Write 18 training and 9 test shapes of three classes."""
    from sparsepipe.data.shapes import FAMILIES as known

    return make_shapes(folder / "shapes", num_train=6, num_test=3, families=sorted(known)[:3])


def settings(data: Path, **changes) -> RunConfig:
    """Quick settings: 5 minibatches an epoch, the last of two samples."""
    config = RunConfig(
        model=PLAIN,
        data=str(data),
        voxel_size=0.12,
        batch_size=4,
        num_points=128,
        engine="native",
        learning_rate=0.01,
        momentum=0.9,
        weight_decay=1e-3,
        threads=1,
        validate=False,
        timeout_seconds=60,
    )
    return replace(config, **changes)


def branching_order(rows: Sequence[Row], seed: int) -> list[str]:
    """List the layers in another order than the rows' in which each comes after all that it needs: cut, it parts
    branches of the network."""
    draw, left, order = random.Random(seed), list(rows), []
    while left:
        known = {INPUT, *order}
        row = draw.choice([row for row in left if known.issuperset(row.inputs)])
        left.remove(row)
        order.append(row.id)
    return order


def plan_of(
    model: str,
    ranks: Sequence[Sequence[int]],
    *,
    shares: dict[int, tuple[int, ...]] | None = None,
    cuts: Sequence[int] | None = None,
    branching: int | None = None,
    segments: dict[int, tuple[tuple[int, int], ...]] | None = None,
    **options,
) -> Plan:
    """Cut a model's layers into one stage for each entry of `ranks`: at `cuts`, evenly unless given.

    They are cut in the order of its rows, or in a branching one drawn by the seed `branching`. `segments`: stage →
    [first, end) of each recomputed segment of it; others recompute all if `recompute`.
    """
    rows = network(model, num_classes=3).rows
    ids = [row.id for row in rows] if branching is None else branching_order(rows, branching)
    even = [round(k * len(ids) / len(ranks)) for k in range(1, len(ranks))]
    bounds = [0, *(even if cuts is None else cuts), len(ids)]
    recompute, stages = options.pop("recompute", False), []
    for k, (start, stop, own) in enumerate(zip(bounds, bounds[1:], ranks, strict=False)):
        layers, places = tuple(ids[start:stop]), (segments or {}).get(k, ())
        named = tuple((layers[first], layers[end - 1]) for first, end in places)
        again = recompute and not named
        stages.append(Stage(layers, tuple(own), (shares or {}).get(k, ()), recompute=again, segments=named))
    return Plan(tuple(stages), **options)


@dataclass(frozen=True)
class Job:
    """One run; `folder` may hold an earlier run to resume."""

    name: str
    plan: Plan
    config: RunConfig
    resume: bool = False
    folder: str | None = None


class Result:
    """What a run left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rows(self, event: str) -> list[dict]:
        return [row for row in read_rows(self.folder / "metrics.jsonl") if row["event"] == event]

    @property
    def losses(self) -> list[float]:
        """The loss of every minibatch, in order."""
        rows = sorted(self.rows("step"), key=lambda row: row["minibatch"])
        assert [row["minibatch"] for row in rows] == list(range(len(rows))), "each minibatch once"
        return [row["loss"] for row in rows]

    def tensors(self, kind: str = "weight") -> dict[str, torch.Tensor]:
        """Tensors of the last checkpoint by name: of kind weight, velocity or buffer."""
        folder = max((self.folder / "checkpoints").glob("minibatch-*"))
        files = read_json(folder / "manifest.json")["files"]
        found = {key: tensor for name in files for key, tensor in load_file(folder / name).items()}
        return {key.split(":")[1]: tensor for key, tensor in found.items() if key.startswith(kind)}


def one_at_a_time(trace: Trace, rank: int) -> list[Span]:
    """Assert that no two spans of a rank overlap; return them in order."""
    spans = sorted((span for span in trace.spans if span.rank == rank), key=lambda span: span.start)
    assert all(a.end <= b.start + 2e-6 for a, b in zip(spans, spans[1:], strict=False)), "one thing at a time"
    return spans


def same_training(one: Result, other: Result) -> None:
    """Assert that two runs had the same losses and left the same state, to the bit."""
    assert one.losses == other.losses
    for kind in ("weight", "velocity", "buffer"):
        tensors = one.tensors(kind)
        for key, tensor in other.tensors(kind).items():
            assert torch.equal(tensors[key], tensor), (kind, key)


def run_ranks(
    work: Callable[..., None], count: int, *arguments: object, logs: Path, limit: float, more: Mapping[str, str]
) -> None:
    """Call `work(*arguments, rank)` in one process a rank, with `more` in its environment and its words in `logs`.

    The processes are forked from one that has imported torch and the runtime, and done nothing else: each that imports
    them itself takes two seconds. Fails with what they wrote where one fails or they take longer than `limit` seconds.
    """
    paths = [logs / f"worker{rank}.log" for rank in range(count)]
    told = {"WORLD_SIZE": str(count), **more}
    ranks = [rank_process(work, rank, *arguments, log=path, more=told) for rank, path in enumerate(paths)]
    deadline = time.monotonic() + limit
    try:
        for rank in ranks:
            rank.start()
        while any(rank.exitcode is None for rank in ranks):
            failed = [rank for rank in ranks if rank.exitcode not in (None, 0)]
            assert not failed and time.monotonic() < deadline, _told(paths)
            time.sleep(0.02)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    assert all(rank.exitcode == 0 for rank in ranks), _told(paths)


def rank_process(
    work: Callable[..., None], rank: int, *arguments: object, log: Path, more: Mapping[str, str]
) -> multiprocessing.process.BaseProcess:
    """Return the process that calls `work(*arguments, rank)`, not started yet; see `run_ranks`."""
    context = multiprocessing.get_context("forkserver")
    _start_forkserver(context)
    return context.Process(target=_one_rank, args=(work, arguments, rank, log, more))


@cache
def _start_forkserver(context: multiprocessing.context.ForkServerContext) -> None:
    """Start the process that ranks are forked from, with what tests of ranks import."""
    ours = ["sparsepipe.runtime.worker.run", "sparsepipe.engines.native", "runtime_jobs", "engine_clouds"]
    context.set_forkserver_preload(["pytest", *ours])
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    with patch.dict(os.environ, {"PYTHONPATH": path}):  # Python 3.11 gives it this process's sys.path too late
        forkserver.ensure_running()


def _one_rank(work: Callable[..., None], arguments: Sequence, rank: int, log: Path, more: Mapping[str, str]) -> None:
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.environ |= {"RANK": str(rank), **more}
    try:
        work(*arguments, rank)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # as a rank's own process ends: torch cannot always take a process group down
    os._exit(0)


def _told(paths: Sequence[Path]) -> str:
    found = ((path.name, path.read_text() if path.exists() else "") for path in paths)
    return "\n".join(f"--- {name}\n{text[-3000:]}" for name, text in found)


def run_jobs(folder: Path, jobs: Sequence[Job], *, limit: float = 480) -> dict[str, Result]:
    """Run the jobs one after the other in one set of processes. Fails with the first traceback where one does."""
    folders = {}
    for job in jobs:
        where = folder / (job.folder or job.name)
        (where / "logs").mkdir(parents=True, exist_ok=True)
        folders[job.name] = where
    todo = [
        {
            "folder": str(folders[job.name]),
            "plan": job.plan.to_json(),
            "config": job.config.to_json(),
            "resume": job.resume,
        }
        for job in jobs
    ]
    write_json(folder / "jobs.json", todo)
    world_size = max(len(job.plan.ranks) for job in jobs)
    more = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "SPARSEPIPE_LAUNCH": str(time.time_ns())}
    run_ranks(_work, world_size, folder, logs=folder, limit=limit, more=more)
    return {name: Result(where) for name, where in folders.items()}


def _work(folder: Path, rank: int) -> None:
    """Take this rank's part in every job that has one."""
    from sparsepipe.runtime.worker.run import run

    launch = os.environ["SPARSEPIPE_LAUNCH"]
    for number, entry in enumerate(json.loads((folder / "jobs.json").read_text())):
        plan = Plan.from_json(entry["plan"])
        if rank in plan.ranks:
            os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(len(plan.ranks))}
            os.environ["SPARSEPIPE_LAUNCH"] = f"{launch}-{number}"  # meet anew
            run(Path(entry["folder"]), plan, RunConfig.from_json(entry["config"]), resume=entry["resume"])


class FixedChoice:
    """In the place of a rank's memory: the same choice for every minibatch."""

    def __init__(self, choice) -> None:
        self.choice = choice

    def open(self, *_) -> None: ...

    begin = leave = open

    def enter(self, *_):
        return self.choice
