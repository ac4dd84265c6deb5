"""Jobs on this machine: they end, fail, are killed and are cancelled as they should, and leave nobody behind."""

import json
import os
import pty
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import pytest
from coded import raises
from processes import ENOUGH, processes_of, until
from runtime_jobs import NORMED, PLAIN, REPOSITORY, plan_of, settings, shapes

from scripts.free_port import free_port
from sparsepipe import RunFailed
from sparsepipe.launching import attach, launch
from sparsepipe.launching.prepare import prepare
from sparsepipe.records import Origin, RunRecord
from sparsepipe.runtime.training_state.checkpoint import latest
from sparsepipe.runtime.worker.run import run
from sparsepipe.runtime.workloads.resolved import resolve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PLAN = plan_of(PLAIN, [[0], [1]], schedule="1f1b-flush", num_microbatches=2)
ALONE = plan_of(PLAIN, [[0]], schedule="1f1b-flush", num_microbatches=2)
FOREVER = {"epochs": 10_000, "checkpoint_every": 3}
DAWDLES = "jitter:rank=0,p=1,seconds=0.1"  # so that a run of a few minibatches is not over before it is killed


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> Path:
    return shapes(tmp_path_factory.mktemp("clouds"))


def _workers(folder: Path) -> dict[int, int]:
    """Process ids of the workers by rank."""
    found = {}
    for path in (folder / "logs").glob("rank*.pid"):
        found[int(path.stem.removeprefix("rank"))] = int(path.read_text() or 0)
    return found


def _nobody_is_left(folder: Path, *, but: Collection[int] = ()) -> None:
    """Wait for the end of all processes that name the folder: one that is killed has yet to be given a processor."""
    until(lambda: not processes_of(folder).keys() - set(but), "end of all processes")


def _step(job, minibatch: int) -> None:
    until(lambda: any(row.get("minibatch", -1) >= minibatch for row in job.rows), f"minibatch {minibatch}")


def test_a_job_runs_to_its_end_and_can_be_followed(tmp_path, clouds) -> None:
    job = launch(PLAN, settings(clouds, epochs=2, validate=True), run_dir=tmp_path / "run", stragglers=DAWDLES)
    assert job.running
    with pytest.raises(TimeoutError, match="0.05 s"):
        job.wait(timeout=0.05)
    seen: list[dict] = []
    summary = job.wait(timeout=ENOUGH, on_row=seen.append)
    assert not job.running
    assert summary["minibatches"] == 10 and summary["run_dir"] == str(tmp_path / "run")
    assert seen == list(job.rows) == job.poll() == job.record.metrics()
    assert job.poll() == []
    assert job.record.status["state"] == "finished"
    assert job.record.origin["facts"]["data"] == "shapes"
    job.cancel()  # too late, and harmless
    assert job.record.status["state"] == "finished"
    _nobody_is_left(tmp_path / "run")
    with raises("run_dir.taken"):
        launch(PLAN, settings(clouds), run_dir=tmp_path / "run")


def _listening(pids: set[int]) -> set[str]:
    """Local addresses of the TCP sockets that these processes listen on."""
    inodes = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(link.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                found.add(columns[1].split(":")[0])
    return found


def test_a_cancelled_job_is_gone_at_once_and_listened_to_nobody_outside(tmp_path, clouds) -> None:
    job = launch(PLAN, settings(clouds, **FOREVER), run_dir=tmp_path / "run", port=free_port())
    _step(job, 0)
    environment = Path(f"/proc/{_workers(tmp_path / 'run')[0]}/environ").read_bytes().split(b"\0")
    assert {b"GLOO_SOCKET_IFNAME=lo", b"NCCL_SOCKET_IFNAME=lo"} <= set(environment)
    status = job.record.status
    listening = _listening({status["guard"], status["launcher"], *_workers(tmp_path / "run").values()})
    assert listening == {"0100007F"}, "127.0.0.1, and nothing else"
    job.cancel()
    assert not job.running
    _nobody_is_left(tmp_path / "run")
    assert job.record.status["state"] == "cancelled"
    with raises("run.failed", "cancelled"):
        job.wait()
    assert job.record.metrics("step"), "the record stays"


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path, clouds) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with raises("port.in_use", port):
            launch(PLAN, settings(clouds), run_dir=tmp_path / "run", port=port)
    assert not (tmp_path / "run").exists()
    with raises("port.malformed", port=70000):
        launch(PLAN, settings(clouds), run_dir=tmp_path / "run", port=70000)


def test_a_killed_worker_is_named_and_the_run_resumes(tmp_path, clouds) -> None:
    config = settings(clouds, epochs=10_000, checkpoint_every=1, keep_checkpoints=3)
    job = launch(PLAN, config, run_dir=tmp_path / "run")
    _step(job, 6)
    status = job.record.status
    assert _listening({status["guard"], status["launcher"], *_workers(tmp_path / "run").values()}) <= {"0100007F"}
    os.kill(_workers(tmp_path / "run")[1], signal.SIGKILL)
    with raises("run.failed", "rank 1 (stage 1): killed by signal 9 (SIGKILL"):
        job.wait(timeout=ENOUGH)
    _nobody_is_left(tmp_path / "run")
    status = job.record.status
    assert (status["state"], status["rank"], status["stage"]) == ("failed", 1, 1)
    before = {row["minibatch"]: row["loss"] for row in job.record.metrics("step")}
    assert job.record.trace().spans

    short = settings(clouds, epochs=max(before) // 5 + 2)
    resumed = launch(PLAN, short, run_dir=tmp_path / "run", resume=True)
    resumed.wait(timeout=ENOUGH)
    after = {row["minibatch"]: row["loss"] for row in resumed.record.metrics("step")}
    assert len(after) == len(resumed.record.metrics("step")) == short.epochs * 5, "each minibatch once"
    assert all(after[m] == loss for m, loss in before.items()), "losses go on as if nothing had happened"
    assert resumed.rows[0]["event"] == "resume", "what was told before is not told again"
    assert [row["minibatch"] for row in resumed.rows if row["event"] == "step"] == [
        m for m in sorted(after) if m >= resumed.rows[0]["minibatches"]
    ]


def test_a_killed_worker_is_started_again_where_that_is_allowed(tmp_path, clouds) -> None:
    """Through sockets, from checkpoints written alongside the training; the others here share memory."""
    config = settings(clouds, epochs=5, max_restarts=2, shared_memory=False, asynchronous_checkpoints=True)
    job = launch(PLAN, config, run_dir=tmp_path / "run", stragglers=DAWDLES)
    _step(job, 6)
    os.kill(_workers(tmp_path / "run")[0], signal.SIGKILL)
    seen: list[dict] = []
    summary = job.wait(timeout=ENOUGH, on_row=seen.append)
    assert summary["minibatches"] == 25
    assert [row["event"] for row in seen].count("resume") == 1
    whole = RunRecord.create(tmp_path / "whole", ALONE, config.to_json(), Origin())
    run(whole.folder, ALONE, config)  # stages change no bit
    losses = [{row["minibatch"]: row["loss"] for row in record.metrics("step")} for record in (job.record, whole)]
    assert losses[0] == losses[1] and len(losses[0]) == 25


@pytest.mark.parametrize("where", ["behind sockets", "in synchronised batch norm"])
def test_a_killed_worker_is_the_one_named_whatever_its_peers_were_at(tmp_path, clouds, where: str) -> None:
    """What gloo throws in a peer was taken for an error of the peer's own, which no restart could mend."""
    if where == "behind sockets":
        plan, changes = PLAN, {"shared_memory": False}
    else:
        plan = plan_of(NORMED, [[0, 1]], schedule="1f1b")
        changes = {"model": NORMED, "synchronised_batch_norm": True}
    job = launch(plan, settings(clouds, epochs=10_000, max_restarts=1, **changes), run_dir=tmp_path / "run")
    _step(job, 2)
    os.kill(_workers(tmp_path / "run")[1], signal.SIGKILL)
    log = tmp_path / "run" / "logs" / "launcher.log"
    until(lambda: "restarting" in log.read_text(), "a restart")
    job.cancel()
    named = r"rank 1 \(stage \d\): killed by signal 9 \(SIGKILL\); restarting"
    assert re.search(named, log.read_text()), log.read_text()


def test_a_job_whose_workers_are_killed_again_and_again_ends_with_one_line(tmp_path, clouds) -> None:
    job = launch(PLAN, settings(clouds, max_restarts=1), run_dir=tmp_path / "run")
    killed = [0]
    for _ in range(2):
        until(lambda: _workers(tmp_path / "run").get(1, 0) not in killed, "start of rank 1")
        killed.append(_workers(tmp_path / "run")[1])
        os.kill(killed[-1], signal.SIGKILL)
    with raises("run.failed", "rank 1 (stage 1): killed by signal 9 (SIGKILL"):
        job.wait(timeout=ENOUGH)
    _nobody_is_left(tmp_path / "run")


def test_a_resumed_run_is_not_taken_for_what_it_was_before(tmp_path, clouds) -> None:
    """Until its guard spoke, its record told how it had ended: nobody could cancel it then."""
    launch(PLAN, settings(clouds, epochs=1), run_dir=tmp_path / "run").wait(timeout=ENOUGH)
    job = launch(PLAN, settings(clouds, **FOREVER), run_dir=tmp_path / "run", resume=True, detach=True)
    assert job.record.status["state"] in ("started", "running")
    attach(tmp_path / "run").cancel()
    with raises("run.failed", "cancelled"):
        job.wait(timeout=ENOUGH)
    _nobody_is_left(tmp_path / "run")


def test_a_run_about_to_start_is_neither_taken_for_a_dead_one_nor_started_twice(tmp_path, clouds) -> None:
    """Its guard has not yet said that it is there: whoever attached then wrote that it was killed."""
    record, (lock,) = prepare(PLAN, resolve(settings(clouds)), run_dir=tmp_path / "run", resume=False)
    job = attach(tmp_path / "run")
    with pytest.raises(TimeoutError):
        job.wait(timeout=0.5)
    assert record.status == {"state": "started"}
    with raises("run_dir.in_use"):
        launch(PLAN, settings(clouds), run_dir=tmp_path / "run", resume=True)
    os.close(lock)  # as when its guard is killed
    with raises("run.failed", "its supervisor was killed"):
        job.wait(timeout=ENOUGH)


def test_a_guard_kills_no_worker_of_another_run(tmp_path) -> None:
    """A process id in a run's folder may have become that of another run's worker."""
    sleep = "import time; time.sleep(600)"
    words = [sys.executable, "-c", sleep, "sparsepipe.runtime", "--run-dir"]
    own, other = tmp_path / "run", tmp_path / "other"
    workers = [subprocess.Popen([*words, str(folder)]) for folder in (own, other)]
    (own / "logs").mkdir(parents=True)
    for rank, worker in enumerate(workers):
        (own / "logs" / f"rank{rank}.pid").write_text(f"{worker.pid}\n")
        until(lambda pid=worker.pid: b"--run-dir" in Path(f"/proc/{pid}/cmdline").read_bytes(), "exec")
    guard = REPOSITORY / "sparsepipe" / "launching" / "supervisor.py"
    subprocess.run([sys.executable, "-I", str(guard), "-1", str(own), "true"], check=True, timeout=ENOUGH)
    assert workers[0].wait(timeout=ENOUGH) == -signal.SIGKILL
    assert workers[1].poll() is None
    workers[1].kill()
    workers[1].wait()


def test_a_full_disk_that_takes_no_last_word_either_ends_the_wait_with_one_line(tmp_path, clouds) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk: run it as root")
    try:
        # Neither checkpoints nor the file where workers meet: removed, they would make room for the last word.
        config = settings(clouds, epochs=10_000, checkpoint_every=0)
        job = launch(PLAN, config, run_dir=disk / "run", port=free_port())
        _step(job, 0)
        _fill(disk / "filling")
        told = r"run: rank \d \(stage \d\): No space left on device: .*run is full; free some space on it \(status"
        with pytest.raises(RunFailed, match=told) as caught:
            job.wait(timeout=ENOUGH)
        assert "\n" not in str(caught.value) and not job.running
        _nobody_is_left(disk / "run")
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def _fill(path: Path) -> None:
    """Take all that is free on a disk."""
    with path.open("wb", buffering=0) as file:
        for size in (2**20, 2**12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)


def test_a_disk_that_takes_no_more_ends_the_run_with_one_line_and_loses_nothing(tmp_path, clouds) -> None:
    """A limit on the size of files stands for a full disk: writes fail in the same places."""
    first = settings(clouds, epochs=1)
    run(RunRecord.create(tmp_path / "run", ALONE, first.to_json(), Origin()).folder, ALONE, first)
    kept = latest(tmp_path / "run")
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, most[1]))  # less than a shard has
    try:
        job = launch(PLAN, settings(clouds, epochs=2, max_restarts=3), run_dir=tmp_path / "run", resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    with raises("run.failed", "rank", "stage", "too large", "logs/rank"):
        job.wait(timeout=ENOUGH)
    assert "\n" not in job.record.status["reason"]
    assert latest(tmp_path / "run").manifest == kept.manifest, "the last good checkpoint is kept"
    assert not list((tmp_path / "run" / "logs").glob("*before-1*")), "no restart: it would be full again"
    run(tmp_path / "run", ALONE, settings(clouds, epochs=2), resume=True)
    assert latest(tmp_path / "run").minibatches == 10


def test_a_worker_that_stands_still_is_named_after_the_deadline(tmp_path, clouds) -> None:
    job = launch(PLAN, settings(clouds, timeout_seconds=8, **FOREVER), run_dir=tmp_path / "run")
    _step(job, 5)
    os.kill(_workers(tmp_path / "run")[1], signal.SIGSTOP)
    named = r"rank 0 \(stage 0\): DeadlinePassed: .* waited 8 s for .*; rank 1 has been in \w+ .*for \d+\.\d s"
    with pytest.raises(RunFailed, match=named):
        job.wait(timeout=ENOUGH)
    _nobody_is_left(tmp_path / "run")  # a stopped process is ended too


def test_a_detached_job_outlives_its_parent_and_is_found_again(tmp_path, clouds) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}"}
    command = [sys.executable, "-c", PARENT, *_parent(clouds, str(tmp_path / "run"), "detach")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "running\n"
        parent.kill()
    job = attach(tmp_path / "run")
    assert job.running
    before = len(job.record.metrics("step"))
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        job.wait()
    assert job.running, "an interrupted cell leaves it alone"
    until(lambda: len(job.rows) > before + 3, "more rows")
    with raises("run_dir.in_use"):
        launch(PLAN, settings(clouds), run_dir=tmp_path / "run", resume=True)
    job.cancel()
    assert not job.running
    _nobody_is_left(tmp_path / "run")
    assert job.record.status["state"] == "cancelled"
    late = attach(tmp_path / "run")
    with raises("run.failed", "cancelled"):
        late.wait(timeout=ENOUGH)
    assert late.rows == tuple(job.record.metrics())


# It imports no torch, which would take it seconds.
PARENT = """
import json, sys, time
from sparsepipe.launching import launch
from sparsepipe.values.plan import Plan
from sparsepipe.runtime import RunConfig
plan, config = map(json.loads, sys.argv[1:3])
job = launch(Plan.from_json(plan), RunConfig.from_json(config), run_dir=sys.argv[3], detach="detach" in sys.argv)
while not job.poll():
    time.sleep(0.05)
print("running", flush=True)
time.sleep(600)
"""


def _parent(clouds: Path, *more: str) -> list[str]:
    """What PARENT is told: a run that goes on for ever."""
    return [json.dumps(PLAN.to_json()), json.dumps(settings(clouds, epochs=10_000).to_json()), *more]


def test_nobody_is_left_when_a_terminal_is_closed(tmp_path, clouds) -> None:
    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests that nohup started ignore it
        os.environ["PYTHONPATH"] = f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}"
        os.execv(sys.executable, [sys.executable, "-c", PARENT, *_parent(clouds, str(tmp_path / "run"))])
    assert os.read(terminal, 100).strip() == b"running"
    os.close(terminal)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGHUP
    _nobody_is_left(tmp_path / "run")
    until(lambda: RunRecord.load(tmp_path / "run").status["state"] == "cancelled", "cancelled")


def test_what_cannot_run_is_refused_before_anything_starts(tmp_path, clouds) -> None:
    with raises("launcher.unknown", "local", name="cloud"):
        launch(PLAN, settings(clouds), run_dir=tmp_path / "run", launcher="cloud")
    with raises("plan.violations", "the plan cannot run", "conv1_2"):
        launch(PLAN, settings(clouds, model="minkvgg16bn"), run_dir=tmp_path / "run")
    with raises("plan.ranks_not_of_job", "[0, 2]", "1"):
        launch(plan_of(PLAIN, [[0], [2]]), settings(clouds), run_dir=tmp_path / "run")
    with raises("setting.float16_without_flush", weights="stash") as caught:
        launch(plan_of(PLAIN, [[0], [1]]), settings(clouds, precision="float16"), run_dir=tmp_path / "run")
    assert list(caught.value.settings) == ["precision"], "which the command line writes as its option"
    shared = settings(clouds, synchronised_batch_norm=True)
    with raises("batch_norm.unequal_shares", "0", shares="(2, 1)"):
        launch(plan_of(PLAIN, [[0, 1], [2]], shares={0: (2, 1)}), shared, run_dir=tmp_path / "run")
    odd = plan_of(PLAIN, [[0, 1], [2]], schedule="gpipe", num_microbatches=3)
    with raises("batch_norm.part_of_round", "3 minibatches", "2 replicas", "0"):
        launch(odd, shared, run_dir=tmp_path / "run")
    segmented = plan_of(PLAIN, [[0, 1], [2]], segments={0: ((0, 2),)})
    with raises("batch_norm.segments", stage=0):
        launch(segmented, shared, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_that_is_not_there_is_one_line(tmp_path) -> None:
    with raises("dataset.not_found", "nowhere"):
        launch(PLAN, settings(tmp_path / "nowhere"), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"validation_split": "nope"}, ("dataset.split_unknown", "nope", "train, test")),
        ({"loss_args": '{"width": 1}'}, ("loss.setting_unknown", "classes", "width", "it has num_classes, auxiliary")),
        (
            {"loss": "tokens", "loss_args": '{"width": 1}'},
            ("loss.setting_unknown", "tokens", "width", "it has label_smoothing"),
        ),
        ({"task": "parts"}, ("dataset.task_unknown", "parts", "classification or segmentation")),
        ({"augmentation": "shift"}, ("augmentation.unknown", "shift", "shapes")),
        ({"device": "cuda"}, ("device.no_cuda", "cuda")),
        ({"data": __file__}, ("dataset.not_found", "test_launchers.py", "is a file")),
    ],
)
def test_what_is_not_here_is_refused_before_anything_starts(tmp_path, clouds, given, error, monkeypatch) -> None:
    """Workers told it, once the run had a folder."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with raises(*error):
        launch(PLAN, settings(clouds).replace(**{"validate": True} | given), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_data_without_the_usual_split_to_validate_on_are_refused_before_anything_starts(tmp_path, clouds) -> None:
    shutil.copytree(clouds, tmp_path / "data")
    for folder in (tmp_path / "data").glob("*/test"):
        shutil.rmtree(folder)
    with raises("dataset.split_unknown", "train", name="test"):
        launch(PLAN, settings(tmp_path / "data", validate=True), run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_whose_folder_is_taken_away_ends_and_says_so(tmp_path, clouds) -> None:
    """It trained on for hundreds of minibatches, and made the folder anew for its checkpoints."""
    job = launch(PLAN, settings(clouds, **FOREVER), run_dir=tmp_path / "run")
    until(lambda: any((tmp_path / "run" / "checkpoints").glob("minibatch-*")), "a checkpoint")
    pids = set(_workers(tmp_path / "run").values())
    (tmp_path / "run").rename(tmp_path / "other")
    with raises("run.failed", "run: the run directory is missing", "run was moved or removed during"):
        job.wait(timeout=ENOUGH)
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), "end of the workers")
    _nobody_is_left(tmp_path / "run")
    assert not (tmp_path / "run").exists(), "not made again"
    assert RunRecord.load(tmp_path / "other").status["state"] == "failed"


def test_a_run_without_a_status_is_cancelled_and_what_killed_ones_left_is_removed(tmp_path, clouds) -> None:
    """Cancel never returned where status.json was gone; old secrets and named pipes stayed in the folder."""
    logs = tmp_path / "run" / "logs"
    logs.mkdir(parents=True)
    left = [logs / ".rendezvous-1-2-0", logs / ".lifeline-99", tmp_path / "run" / ".status.json.0a1b2c3d"]
    for path in left:
        path.touch()
    own = launch(PLAN, settings(clouds, **FOREVER), run_dir=tmp_path / "run", detach=True)
    _step(own, 0)
    assert not any(path.exists() for path in left)
    secret = [path for path in logs.glob(".*") if path.name.startswith((".rendezvous-", ".lifeline-", ".lock"))]
    assert len(secret) == 3 and {path.stat().st_mode & 0o777 for path in secret} == {0o600}
    (tmp_path / "run" / "status.json").unlink()
    job = attach(tmp_path / "run")
    job.cancel()
    assert job.state == "cancelled"
    until(lambda: own.state == "cancelled", "the job that launched it follows by itself")
    _nobody_is_left(tmp_path / "run")
    assert not list(logs.glob(".lifeline-*"))


def test_a_folder_whose_name_is_no_utf8_is_one_line(tmp_path, clouds) -> None:
    """The reason was torch's "incompatible constructor arguments"."""
    with raises("run_dir.not_utf8"):
        launch(PLAN, settings(clouds), run_dir=os.fsdecode(os.fsencode(tmp_path) + b"/run-\xff"))
    assert not list(tmp_path.iterdir())
