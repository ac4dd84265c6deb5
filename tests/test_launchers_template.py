"""Jobs after a process's first are forked from a template: they start at once, and are else what the first is."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from processes import ENOUGH, until
from runtime_jobs import PLAIN, REPOSITORY, plan_of, settings, shapes

from sparsepipe import RunFailed
from sparsepipe.launching import launch
from sparsepipe.launching.local import launch_local
from sparsepipe.launching.local.warm_start import Starter, _standing
from sparsepipe.launching.lock import is_held
from sparsepipe.records import RunRecord
from sparsepipe.util.host.forked import fork

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PLAN = plan_of(PLAIN, [[0], [1]], schedule="1f1b-flush", num_microbatches=2)
FOREVER = {"epochs": 10_000, "checkpoint_every": 3}
NAME = "sparsepipe.launching.local.template"


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> Path:
    return shapes(tmp_path_factory.mktemp("clouds"))


@pytest.fixture(scope="module")
def warm(tmp_path_factory, clouds) -> Iterator[list[float]]:
    """The losses of the first job of a process that had no template, and has one now."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_local, "_STARTER", Starter())
        job = launch(PLAN, settings(clouds, epochs=1), run_dir=tmp_path_factory.mktemp("warm") / "run")
        assert _parent(_guard(job)) == os.getpid()
        job.wait(timeout=ENOUGH)
        yield [row["loss"] for row in job.record.metrics("step")]


def _parent(pid: int) -> int | None:
    """The parent's process id; None where the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _words(pid: int) -> list[str]:
    return [word for word in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0") if word]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _guard(job) -> int:
    until(lambda: "guard" in job.record.status, "the supervisor")
    return job.record.status["guard"]


def _begun(job) -> dict[str, int]:
    """Process ids of a job that trains."""
    until(lambda: job.rows, "a minibatch")
    return _pids(job.record)


def _pids(record: RunRecord) -> dict[str, int]:
    status = record.status
    ranks = {path.stem: int(path.read_text()) for path in (record.folder / "logs").glob("rank*.pid")}
    return {"template": _parent(status["guard"]), "guard": status["guard"], "launcher": status["launcher"], **ranks}


def test_the_next_job_is_forked_and_is_what_the_first_was(tmp_path, clouds, warm) -> None:
    with launch(PLAN, settings(clouds, **FOREVER), run_dir=tmp_path / "run") as job:
        pids = _begun(job)
        words = {name: _words(pid) for name, pid in pids.items()}
        own = ["--run-dir", str(tmp_path / "run")]
        assert words["template"][1:] == ["-P", "-m", NAME]
        assert words["launcher"][1:] == ["-P", "-m", "sparsepipe.launching.local", *own]
        assert words["guard"][1] == "-I" and words["guard"][2].endswith("launching/supervisor.py")
        assert words["guard"][4:] == [str(tmp_path / "run"), *words["launcher"]]
        assert words["rank0"][1:] == words["rank1"][1:] == ["-P", "-m", "sparsepipe.runtime", *own]
        assert [_parent(pids[name]) for name in ("launcher", "rank0", "rank1")] == [
            pids["guard"],
            *[pids["launcher"]] * 2,
        ]
        sessions = {os.getsid(pid) for pid in pids.values()} | {os.getsid(0)}
        assert len(sessions) == 6, "each in one of its own"
        assert len(list(Path(f"/proc/{pids['template']}/task").iterdir())) == 1
        opened = {str(path.readlink()).split(":")[0] for path in Path(f"/proc/{pids['template']}/fd").iterdir()}
        assert opened <= {os.devnull, "socket", "anon_inode"}, "no file of any job"
        job.cancel()
    assert job.record.status["state"] == "cancelled" and job.record.status["reason"] == "cancelled"
    del pids["template"]
    until(lambda: not any(map(_alive, pids.values())), "end of all processes")
    again = launch(PLAN, settings(clouds, epochs=1), run_dir=tmp_path / "again")
    again.wait(timeout=ENOUGH)
    assert [row["loss"] for row in again.record.metrics("step")] == warm


def test_a_supervisor_that_is_stopped_hears_that_it_is_to_end(tmp_path, clouds, warm) -> None:
    job = launch(PLAN, settings(clouds, **FOREVER), run_dir=tmp_path / "run")
    pids = _begun(job)
    os.kill(pids["guard"], signal.SIGSTOP)
    job.cancel()
    assert job.record.status["state"] == "cancelled"
    del pids["template"]
    until(lambda: not any(map(_alive, pids.values())), "end of all processes")


@pytest.mark.parametrize("what", ["a limit", "permissions", "cores", "a variable that is no matter"])
def test_how_a_process_stands_is_what_a_fork_cannot_take_over(monkeypatch, what: str) -> None:
    before = _standing(dict(os.environ))
    most, mask, cores = resource.getrlimit(resource.RLIMIT_NOFILE), os.umask(0o022), os.sched_getaffinity(0)
    os.umask(mask)
    assert _standing(dict(os.environ)) == before
    try:
        if what == "a limit":
            resource.setrlimit(resource.RLIMIT_NOFILE, (most[0] - 1, most[1]))
        elif what == "permissions":
            os.umask(0o077)
        elif what == "cores":
            os.sched_setaffinity(0, {min(cores)})
        else:
            monkeypatch.setenv("SPARSEPIPE_CACHE", "elsewhere")
        assert (_standing(dict(os.environ)) == before) == (
            what == "a variable that is no matter" or (what == "cores" and len(cores) == 1)
        )
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)
        os.umask(mask)
        os.sched_setaffinity(0, cores)


def test_a_template_that_was_killed_or_does_not_fit_is_replaced_and_its_jobs_go_on(
    tmp_path, clouds, warm, monkeypatch
) -> None:
    """Libraries have read the environment in it: where that has changed the next job begins as the first."""
    job = launch(PLAN, settings(clouds, **FOREVER), run_dir=tmp_path / "run")
    pids = _begun(job)
    os.kill(pids["template"], signal.SIGKILL)
    until(lambda: not _alive(pids["template"]), "its end")
    other = launch(PLAN, settings(clouds, epochs=1), run_dir=tmp_path / "other")
    assert _parent(_guard(other)) == os.getpid()
    other.wait(timeout=ENOUGH)
    third = launch(PLAN, settings(clouds, **FOREVER), run_dir=tmp_path / "third")
    after = _parent(_guard(third))
    assert after not in (None, os.getpid(), pids["template"])
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "5")
    fourth = launch(PLAN, settings(clouds, epochs=1), run_dir=tmp_path / "fourth")
    assert _parent(_guard(fourth)) == os.getpid()
    until(lambda: not _alive(after), "end of the one that fits no longer")
    assert third.running and job.running
    for one in (job, third, fourth):
        one.cancel()


def _interrupted_when(happened: Callable[[], bool]) -> threading.Thread:
    """Interrupt this process's main thread once something has happened."""

    def interrupt() -> None:
        until(happened, "what the interrupt waits for")
        time.sleep(0.2)  # so that the request is sent
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    return thread


@pytest.mark.parametrize("ended_by", ["an interrupt after its answer", "a delay"])
def test_a_launch_that_is_interrupted_or_delayed_costs_that_launch_alone(
    tmp_path, clouds, warm, monkeypatch, ended_by: str
) -> None:
    """The template's late answer was taken for that of the next launch, whose run seemed to have lost its guard."""
    with launch(PLAN, settings(clouds, epochs=1), run_dir=tmp_path / "before") as job:
        if (template := _parent(_guard(job))) == os.getpid():  # there was none: this job leaves one
            job.wait(timeout=ENOUGH)
            second = launch(PLAN, settings(clouds, epochs=1), run_dir=tmp_path / "second")
            template = _parent(_guard(second))
            second.wait(timeout=ENOUGH)
        job.wait(timeout=ENOUGH)
    folder = tmp_path / "run"
    if ended_by == "a delay":
        launch_local._STARTER._template._end.settimeout(0.3)
        os.kill(template, signal.SIGSTOP)
        with pytest.raises(RunFailed, match="the run again"):
            launch(PLAN, settings(clouds, epochs=1), run_dir=folder)
    else:
        receive = socket.recv_fds

        def late(*given):
            answer = receive(*given)
            until(lambda: not asked.is_alive(), "the interrupt")
            return answer

        monkeypatch.setattr(socket, "recv_fds", late)
        asked = _interrupted_when((folder / "status.json").exists)
        with pytest.raises(KeyboardInterrupt):
            launch(PLAN, settings(clouds, **FOREVER), run_dir=folder)
        asked.join()
        monkeypatch.undo()
    until(lambda: not _alive(template), "the end of the template that failed")
    until(lambda: not is_held(folder), "the end of what it may have begun")
    assert RunRecord.load(folder).status["state"] in ("started", "cancelled")
    job = launch(PLAN, settings(clouds, epochs=1), run_dir=tmp_path / "again")
    job.wait(timeout=ENOUGH)
    assert [row["loss"] for row in job.record.metrics("step")] == warm


# It imports no torch, which would take it seconds.
PARENT = """
import json, sys, time
from sparsepipe.launching import launch
from sparsepipe.values.plan import Plan
from sparsepipe.runtime import RunConfig
plan, config = Plan.from_json(json.loads(sys.argv[1])), RunConfig.from_json(json.loads(sys.argv[2]))
launch(plan, config.replace(epochs=1), run_dir=sys.argv[3] + "/first").wait()
job = launch(plan, config, run_dir=sys.argv[3] + "/run")
while not job.poll():
    time.sleep(0.05)
print("running", flush=True)
time.sleep(600)
"""


def test_nobody_is_left_when_a_process_that_has_a_template_is_killed(tmp_path, clouds) -> None:
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}"}
    told = [json.dumps(PLAN.to_json()), json.dumps(settings(clouds, **FOREVER).to_json()), str(tmp_path)]
    words = [sys.executable, "-c", PARENT, *told]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "running\n"
        pids = _pids(RunRecord.load(tmp_path / "run"))
        assert NAME in _words(pids["template"])
        parent.kill()
    until(lambda: not any(map(_alive, pids.values())), "end of all processes")
    until(lambda: RunRecord.load(tmp_path / "run").status["state"] == "cancelled", "cancelled")


@pytest.mark.parametrize("victim", ["guard", "launcher"])
def test_nobody_is_left_when_a_process_above_a_forked_job_is_killed(tmp_path, clouds, warm, victim: str) -> None:
    job = launch(PLAN, settings(clouds, **FOREVER), run_dir=tmp_path / "run")
    pids = _begun(job)
    template = pids.pop("template")
    os.kill(pids[victim], signal.SIGKILL)
    why = {"guard": "its supervisor was killed", "launcher": r"the launcher was ended by signal 9"}[victim]
    with pytest.raises(RunFailed, match=why):
        job.wait(timeout=ENOUGH)
    until(lambda: not any(map(_alive, pids.values())), "end of all processes")
    assert _alive(template), "for the next job"


def test_what_a_fork_returns_or_raises_or_is_killed_by_is_its_code(capfd) -> None:
    """Threads that NumPy's BLAS library had are there again, in both."""
    matrix = np.ones((600, 600))
    assert (matrix @ matrix)[0, 0] == 600
    assert fork(lambda: 7 if (matrix @ matrix)[0, 0] == 600 else 1).wait() == 7
    assert fork(lambda: 1 // 0).wait() == 1
    assert "ZeroDivisionError" in capfd.readouterr().err
    child = fork(lambda: time.sleep(60) or 0)
    assert child.poll() is None
    child.kill()
    assert child.poll() == child.wait() == -signal.SIGKILL


BROUGHT_IN = """
import torch
from pathlib import Path

def asked(*arguments, **options):
    raise AssertionError("the device was asked for")

for name in ("is_available", "device_count", "current_device", "get_device_properties", "_lazy_init"):
    setattr(torch.cuda, name, asked)
from sparsepipe.launching.local import agent
from sparsepipe.launching.local.workers import bring_in
bring_in()
print(len(list(Path("/proc/self/task").iterdir())))
"""


def test_what_workers_are_forked_from_asks_nothing_of_cuda_and_has_no_thread() -> None:
    """CUDA that was used before a fork fails in every child; a lock that another thread held is held for ever."""
    done = subprocess.run([sys.executable, "-c", BROUGHT_IN], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
