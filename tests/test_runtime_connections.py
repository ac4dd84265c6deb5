"""Connections of a plan, closed and opened again for another one by processes that stay."""

import gc
import threading
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from runtime_jobs import NORMED, PLAIN, Job, Result, plan_of, run_jobs, run_ranks, same_training, settings, shapes

from sparsepipe.runtime import RunConfig
from sparsepipe.runtime.transport.channel import tag_of
from sparsepipe.runtime.transport.packet import BACKWARD, FORWARD
from sparsepipe.runtime.worker.connections import _ways, boundaries
from sparsepipe.util.io.files import read_json, write_json
from sparsepipe.values.plan import Plan
from sparsepipe.values.schedule import compile

FLUSH = {"schedule": "1f1b-flush", "num_microbatches": 2}


def test_boundaries_are_those_of_the_program():
    """Four stages on two ranks: every cut, in both directions."""
    plan = plan_of(PLAIN, [[0], [1], [0], [1]], schedule="1f1b-flush", num_microbatches=2)
    found = [(one.direction, one.cut, one.source.ranks, one.target.ranks) for one in boundaries(compile(plan, 2))]
    forwards = [(FORWARD, cut, (1 - cut % 2,), (cut % 2,)) for cut in (1, 2, 3)]
    backwards = [(BACKWARD, cut, (cut % 2,), (1 - cut % 2,)) for cut in (1, 2, 3)]
    assert sorted(found) == sorted(forwards + backwards)


def test_a_socket_carries_what_no_memory_does():
    program = compile(plan_of(PLAIN, [[0, 1], [2]]), 1)
    to_last, back = tag_of(FORWARD, 1), tag_of(BACKWARD, 1)
    assert _ways(program, 0, ()) == ({(2, to_last)}, {(2, back)})
    assert _ways(program, 2, ()) == ({(0, back), (1, back)}, {(0, to_last), (1, to_last)})
    assert _ways(program, 2, (1,)) == ({(0, back)}, {(0, to_last)})
    assert _ways(program, 2, (0, 1)) == (set(), set())
    assert _ways(compile(plan_of(PLAIN, [[0, 1], [0, 1]]), 1), 0, ()) == (set(), set()), "each works on its own packets"


@pytest.mark.slow
@pytest.mark.parametrize("share_memory", [True, False], ids=["shared memory", "sockets"])
def test_a_run_goes_on_under_another_plan_in_the_same_processes(tmp_path, share_memory):
    """An epoch under each plan, none of which leaves anything open, trains as one process does."""
    data = shapes(tmp_path)
    config = settings(data, shared_memory=share_memory)
    ranks = ([[0], [1]], [[1], [0]], [[0], [1], [0], [1]], [[0], [1]])
    plans = [plan_of(PLAIN, own, cuts=cuts, **FLUSH) for own, cuts in zip(ranks, ((5,), (9,), None, (7,)), strict=True)]
    found = _one_after_the_other(tmp_path, plans, config)
    one = run_jobs(tmp_path, [Job("one", plan_of(PLAIN, [[0]], **FLUSH), replace(config, epochs=len(plans)))])["one"]
    same_training(found, one)


@pytest.mark.slow
def test_groups_of_replicas_are_opened_and_closed_with_a_plan(tmp_path):
    """Batch norms that share statistics within a pass, gradients that are averaged, and stages without replicas: as
    where each plan is a job of its own."""
    data = shapes(tmp_path)
    config = settings(data, model=NORMED, synchronised_batch_norm=True)
    plans = [plan_of(NORMED, own, **FLUSH) for own in ([[0, 1]], [[0], [1]], [[0, 1], [0, 1]], [[0, 1]])]
    found = _one_after_the_other(tmp_path, plans, config)
    anew = [
        Job(f"{k}", plan, replace(config, epochs=k + 1), resume=k > 0, folder="anew") for k, plan in enumerate(plans)
    ]
    same_training(found, run_jobs(tmp_path, anew)["3"])


def _one_after_the_other(folder: Path, plans: list[Plan], config: RunConfig) -> Result:
    run_dir = folder / "run"
    (run_dir / "logs").mkdir(parents=True)
    write_json(folder / "todo.json", {"plans": [plan.to_json() for plan in plans], "config": config.to_json()})
    more = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    run_ranks(_work, 2, folder, logs=folder, limit=240, more=more)
    return Result(run_dir)


def _work(folder: Path, rank: int) -> None:
    """Train an epoch under one plan after the other, and look what each leaves open."""
    from sparsepipe.runtime.processes.identity import Identity
    from sparsepipe.runtime.worker.join import joined
    from sparsepipe.runtime.worker.run import train
    from sparsepipe.runtime.workloads import open_workload

    todo, run_dir = read_json(folder / "todo.json"), folder / "run"
    config = RunConfig.from_json(todo["config"])
    options = {"device": "cpu", "threads": 1, "timeout": 60}
    with joined(Identity.from_environment(), run_dir=run_dir, **options) as process:
        settled, files = _open(), sorted(path.name for path in (run_dir / "logs").iterdir())
        for k, document in enumerate(todo["plans"]):
            own = replace(config, epochs=k + 1)
            plan, workload = Plan.from_json(document), open_workload(run_dir, own)
            train(process, run_dir, plan, own, workload=workload, resume=k > 0, opening=k)
            del workload
            assert _settles(settled), f"after plan {k}: {_open()}, before: {settled}"
            left = {path.name for path in (run_dir / "logs").iterdir()} - {*files, "clock.json"}
            assert not left, left
        programs = [compile(Plan.from_json(document), 4) for document in todo["plans"][:2]]
        _two_at_once(process, programs, config.shared_memory)
        assert _settles(settled), f"after two at once: {_open()}, before: {settled}"
        _opened_in_vain(process, programs[0])
        assert _settles(settled), f"after one that was not opened: {_open()}, before: {settled}"


def _two_at_once(process, programs, share_memory: bool) -> None:
    """The next plan's connections are open before this one's close, and carry what goes over them."""
    from sparsepipe.runtime.worker.connections import Connections

    options = {"share_memory": share_memory, "synchronise": True}
    both = [Connections.open(one, process, opening=100 + k, **options) for k, one in enumerate(programs)]
    for connections in both:
        for k, group in connections.replicas.items():
            assert float(group.sum(torch.ones(1), what=f"stage {k}")) == 2.0
        connections.close()


def _opened_in_vain(process, program) -> None:
    """Rank 1 does not come: rank 0 says so, and lets go of what it had opened."""
    from sparsepipe.runtime.failures import DeadlinePassed
    from sparsepipe.runtime.worker.connections import Connections

    if process.rank == 0:
        process.store.set_timeout(timedelta(seconds=1))
        for opening, share_memory in ((200, False), (201, True)):
            with pytest.raises(DeadlinePassed, match="rank 0 waited 1 s"):
                Connections.open(program, replace(process, timeout=1.0), opening=opening, share_memory=share_memory)
        process.store.set_timeout(timedelta(seconds=60))
    process.barrier("a plan that was not opened")
    Connections.open(program, process, opening=202).close()  # the job goes on, and opens another


def _open() -> dict[str, list[str]]:
    """What this process has open or mapped for other processes: descriptors, threads of ours, shared memory."""
    gc.collect()
    targets = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(path.readlink()).partition(":")[0])
        except FileNotFoundError:
            continue  # the listing's own
    maps = [
        line.split("/")[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:sparsepipe" in line
    ]
    threads = [thread.name for thread in threading.enumerate()]
    return {"descriptors": sorted(targets), "threads": sorted(threads), "shared memory": sorted(maps)}


def _settles(before: dict[str, list[str]]) -> bool:
    """Whether nothing is open that was not: connections of gloo are closed by threads of its own."""
    deadline = time.monotonic() + 60
    while any(_more(before[kind], now) for kind, now in _open().items()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _more(before: list[str], now: list[str]) -> bool:
    return any(now.count(name) > before.count(name) for name in set(now))
