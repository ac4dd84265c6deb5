"""Jobs that are asked to stop: they end at a whole update, with a checkpoint, and go on from it."""

import os
import signal
import time
from argparse import Namespace
from pathlib import Path

import pytest
from coded import mentions, raises
from processes import ENOUGH, until
from runtime_jobs import PLAIN, plan_of, settings, shapes

from sparsepipe.cli.run_verbs import runs_stop
from sparsepipe.launching import Job, attach, launch
from sparsepipe.runtime import commands
from sparsepipe.runtime.training_state.checkpoint import latest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PLAN = plan_of(PLAIN, [[0], [1]], schedule="1f1b-flush", num_microbatches=2)


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> Path:
    return shapes(tmp_path_factory.mktemp("clouds"))


def _step(job: Job, minibatch: int) -> None:
    until(lambda: any(row.get("minibatch", -1) >= minibatch for row in job.rows), f"minibatch {minibatch}")


def _trained(job: Job) -> list[int]:
    return sorted(row["minibatch"] for row in job.record.metrics("step"))


def test_a_job_stops_and_goes_on(tmp_path, clouds) -> None:
    """Epochs of 18 minibatches, steps of two; whoever looks at the run stops it, not who launched it."""
    folder = tmp_path / "run"
    job = launch(PLAN, settings(clouds, batch_size=1, epochs=10_000, checkpoint_every=0), run_dir=folder)
    _step(job, 20)
    answer = runs_stop(Namespace(run=folder)).document
    done = answer["minibatches"]
    assert answer == {"run": "run", "state": "stopped", "minibatches": done}
    assert job.wait(timeout=ENOUGH)["minibatches"] == done and job.state == "stopped"
    assert mentions(job.record.status["reason"], done)
    assert latest(folder).minibatches == done and _trained(job) == list(range(done)) and done % 18 % 2 == 0
    assert commands.taken(folder) == ("stop", done) and not (folder / "logs/.announcement").exists()
    assert attach(folder).wait(timeout=ENOUGH)["minibatches"] == done, "whoever comes later is told the same"
    with raises("run.not_running", "stopped"):
        runs_stop(Namespace(run=folder))
    job.stop()  # too late, and harmless
    commands.ask(folder, "stop")  # left by somebody who came too late: not for the next launch
    epochs = done // 18 + 1
    on = launch(PLAN, settings(clouds, batch_size=1, epochs=epochs), run_dir=folder, resume=True)
    assert on.wait(timeout=ENOUGH)["minibatches"] == 18 * epochs and on.state == "finished"
    assert _trained(on) == list(range(18 * epochs)) and on.record.status["state"] == "finished"
    assert not list((folder / "control").iterdir())


def test_a_job_whose_worker_is_killed_before_it_has_stopped_stops_after_its_restart(tmp_path, clouds) -> None:
    folder = tmp_path / "run"
    job = launch(PLAN, settings(clouds, epochs=10_000, max_restarts=1), run_dir=folder)
    _step(job, 10)
    worker = int((folder / "logs/rank1.pid").read_text())
    os.kill(worker, signal.SIGSTOP)  # so that it cannot come to where it would stop
    job.stop()
    time.sleep(0.5)
    assert job.running
    os.kill(worker, signal.SIGKILL)
    done = job.wait(timeout=ENOUGH)["minibatches"]
    assert job.state == "stopped" and latest(folder).minibatches == done and _trained(job) == list(range(done))
    assert job.record.metrics("resume"), "it was started again"
