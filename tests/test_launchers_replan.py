"""Jobs whose plan is changed while they run, by whoever may: their processes stay, and what cannot be is refused."""

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
from coded import mentions, raises
from command_line import sparsepipe
from pipeline_jobs import pipelines_of
from processes import ENOUGH, until
from runtime_jobs import NORMED, PLAIN, plan_of, settings, shapes

from sparsepipe import Cluster, CostSample, DeviceType, InputError, LayerCost, Node, Profile
from sparsepipe.launching import Job, attach, launch
from sparsepipe.launching.replan import request_replan
from sparsepipe.launching.supervisor import COMMANDS
from sparsepipe.networks import network
from sparsepipe.records import RunRecord
from sparsepipe.records.run_progress import num_processes
from sparsepipe.runtime import commands
from sparsepipe.runtime.training_state.checkpoint import latest
from sparsepipe.values.plan import Estimate, Plan, StageEstimate

FLUSH = {"schedule": "1f1b-flush", "num_microbatches": 2}
PLAN, OTHER, SWAPPED = (
    plan_of(PLAIN, ranks, cuts=(cut,), **FLUSH) for ranks, cut in (([[0], [1]], 5), ([[0], [1]], 9), ([[1], [0]], 7))
)
slow = pytest.mark.slow
UNTOLD = "the plan's memory need could not be checked before the run"
pytestmark = pytest.mark.filterwarnings(f"ignore:{UNTOLD}")  # of plans by hand for runs without a profile

# The first of two stages holds two minibatches of a step of two, what each of its layers keeps of them: of 9 layers 180
# MB, of 16 layers 320 MB. The last holds one: of 24 layers 240 MB. Weights and what training keeps of them: 10 MB.
BEYOND, KEPT, DEVICE = plan_of(PLAIN, [[0], [1]], cuts=(16,), **FLUSH), 10e6, 300e6


@pytest.fixture(scope="module")
def clouds(tmp_path_factory) -> Path:
    return shapes(tmp_path_factory.mktemp("clouds"))


def _step(job: Job, minibatch: int) -> None:
    until(lambda: any(row.get("minibatch", -1) >= minibatch for row in job.rows), f"minibatch {minibatch}")


def _trained(job: Job) -> list[int]:
    return sorted(row["minibatch"] for row in job.record.metrics("step"))


def _workers(folder: Path) -> list[int]:
    return [int((folder / f"logs/rank{rank}.pid").read_text()) for rank in (0, 1)]


def _profile(kept: float = KEPT) -> Profile:
    """Every layer keeps so many bytes of a minibatch from its forward to its backward."""
    graph = network(PLAIN, num_classes=3).graph()
    sample = CostSample(1, 0.001, 0.002, 1e3, saved_bytes=kept)
    return Profile(graph, {"cpu": (LayerCost((sample,)),) * len(graph.layers)}, (1.0,), size_unit="samples")


def _devices(*memory: float) -> Cluster:
    return Cluster((Node("here", tuple(DeviceType("cpu", each) for each in memory)),))


def test_the_guard_says_which_commands_a_run_hears() -> None:
    assert COMMANDS == commands.COMMANDS


@slow
@pytest.mark.timeout(300)
def test_a_job_goes_on_under_another_plan(tmp_path, clouds) -> None:
    """From a cell, from the command line, and by whoever decides; the record says what it followed and what it cost."""
    folder, plan_file = tmp_path / "run", SWAPPED.save(tmp_path / "swapped.json")
    job = launch(PLAN, settings(clouds, batch_size=1, epochs=10_000, checkpoint_every=0), run_dir=folder)
    _step(job, 4)
    workers = _workers(folder)
    first = job.replan(OTHER, reason="the first")
    assert job.record.plan == OTHER and first is not None and first > 4
    code, out, lines = sparsepipe("runs", "replan", folder, plan_file, "--reason", "the second", "--json")
    told = json.loads(out)
    assert code == 0 and told["minibatch"] > first and told["reason"] == "the second" and told["run"] == "run"
    (untold,) = told["warnings"]
    assert untold.startswith(UNTOLD) and untold.endswith("without a profile")
    assert lines == [f"warning: {untold}"]
    with raises("replan.same_plan"):
        attach(folder).replan(SWAPPED)
    large = replace(OTHER, estimate=Estimate(1.0, (StageEstimate(1.0, memory_bytes=1e15),) * 2))
    with raises("memory.too_little", "2000000.0"):
        job.replan(large)  # where there is no profile its own estimate is believed
    with pytest.warns(UserWarning, match=UNTOLD):
        assert job.replan(PLAN, predicted_gain_seconds=2.5, wait=False) is None
    until(lambda: len(job.record.metrics("replan")) == 3, "the third")
    assert _workers(folder) == workers, "the processes stay"
    job.stop()
    summary = job.wait(timeout=ENOUGH)
    done = summary["minibatches"]
    assert job.state == "stopped" and _trained(job) == list(range(done)) and latest(folder).minibatches == done
    rows = job.record.metrics("replan")
    assert [row["reason"] for row in rows] == ["the first", "the second", ""]
    assert [row["predicted_gain_seconds"] for row in rows] == [None, None, 2.5]
    assert [row["minibatch"] for row in rows[:2]] == [first, told["minibatch"]]
    assert [replan["minibatch"] for replan in summary["replans"]] == [row["minibatch"] for row in rows]
    for row in rows:
        assert row["pause_seconds"] == pytest.approx(sum(row["parts"].values()), abs=1e-5) and row["moved_bytes"] > 0
    assert [plan for _, plan in job.record.plans] == [PLAN, OTHER, SWAPPED, PLAN]
    assert [first for first, _ in job.record.plans] == [0, *(row["minibatch"] for row in rows)]
    left = sorted(path.name for path in (folder / "control").iterdir())
    assert left == ["taken.json"] and not list((folder / "logs").glob(".[ab]*"))
    with raises("run.not_running", "stopped"):
        request_replan(folder, OTHER)


@slow
@pytest.mark.timeout(300)
def test_what_cannot_be_is_refused_and_the_job_goes_on(tmp_path, clouds) -> None:
    """Before anything is asked where that can be seen here; else by the job, in control/refused.json."""
    folder = tmp_path / "run"
    config = settings(clouds, batch_size=1, epochs=10_000, checkpoint_every=0)
    job = launch(PLAN, config, run_dir=folder, profile=_profile(), cluster=_devices(DEVICE, DEVICE))
    _step(job, 2)
    status = (folder / "status.json").read_text()
    of_before = {name: value for name, value in json.loads(status).items() if name != "commands"}
    (folder / "status.json").write_text(json.dumps(of_before))
    with raises("replan.old_version"):
        job.replan(OTHER)
    (folder / "status.json").write_text(status)
    bad: dict[str, Plan] = {
        "different graph": plan_of(NORMED, [[0], [1]], **FLUSH),
        r"uses ranks \[0, 1, 2\], but this job has \[0, 1\]": plan_of(PLAIN, [[0], [1], [2]], **FLUSH),
        "already follows this plan": PLAN,
        # By hand, so that its bytes are those of the run's profile; and one whose estimate is of other minibatches.
        "stage 0 needs 330.1 MB on a device of type 'cpu', which has 300 MB": BEYOND,
        "stage 0 needs 330.1 MB on a device": replace(
            BEYOND, estimate=Estimate(1.0, (StageEstimate(1.0, memory_bytes=1.0),) * 2)
        ),
    }
    for message, plan in bad.items():
        with pytest.raises(InputError, match=message) as caught:
            job.replan(plan)
        assert "\n" not in str(caught.value)
    with raises("plan.not_a_plan"):
        job.replan(tmp_path / "plan.json")
    code, out, lines = sparsepipe("runs", "replan", folder, BEYOND.save(tmp_path / "beyond.json"))
    assert code == 2 and not out and len(lines) == 1 and mentions(lines[0], "stage 0")
    assert not (folder / "control").exists() and job.record.plan == PLAN, "nothing was asked"
    done = len(_trained(job))
    until(lambda: len(_trained(job)) > done, "it trains on under the old plan")
    os.kill(_workers(folder)[1], signal.SIGSTOP)
    try:
        request_replan(folder, OTHER)
        with raises("replan.asked_already"):
            job.replan(SWAPPED)
    finally:
        os.kill(_workers(folder)[1], signal.SIGCONT)
    until(lambda: job.record.plan == OTHER, "the first of both")
    # What whoever asks could not see: the workers look for themselves.
    token = _left(folder, plan_of(NORMED, [[0], [1]], **FLUSH).to_json())
    until(lambda: commands.refused_plan(folder, token), "refused")
    assert "different graph" in commands.refused_plan(folder, token)
    token = _left(folder, {"format": "sparsepipe-plan-1", "stages": 3})
    until(lambda: commands.refused_plan(folder, token), "refused")
    assert "not a plan" in commands.refused_plan(folder, token)
    assert job.record.plan == OTHER
    until(lambda: not list((folder / "control").glob("plan-*")), "nothing is left of them")
    assert job.replan(PLAN) is not None, "the next one is heard"
    job.stop()
    done = job.wait(timeout=ENOUGH)["minibatches"]
    assert _trained(job) == list(range(done))


def _left(folder: Path, document: object) -> str:
    """Leave a request as another program might."""
    token = f"{random.getrandbits(32):08x}"
    (folder / f"control/plan-{token}.json").write_text(json.dumps(document))
    (folder / "control/request.json").write_text(json.dumps({"command": "replan", "plan": token}))
    return token


def test_a_plan_beyond_the_memory_of_devices_or_of_this_machine_is_not_launched(tmp_path, clouds) -> None:
    """Whoever made it, by the profile that the run is held against; of several pipelines each is looked at."""
    config, folder = settings(clouds, batch_size=1), tmp_path / "run"
    two = pipelines_of(PLAIN, [[0]], [[1]], rule="partial-reduce")
    large = replace(PLAN, estimate=Estimate(1.0, (StageEstimate(1.0, memory_bytes=1.0),) * 2))
    for plan, memory, kept, told in (
        (BEYOND, (DEVICE, DEVICE), KEPT, "stage 0 needs 330.1 MB on a device of type 'cpu', which has 300 MB"),
        (two, (400e6, DEVICE), 1.1 * KEPT, "pipeline 1: the plan does not fit into memory: stage 0 needs"),
        (PLAN, (float("inf"),) * 2, 1e14, "needs 3400000.0 GB, but this job has .* GB"),
        (large, (float("inf"),) * 2, 1e14, "needs 3400000.0 GB, but this job has .* GB"),
    ):
        with pytest.raises(InputError, match=told) as caught:
            launch(plan, config, run_dir=folder, profile=_profile(kept), cluster=_devices(*memory))
        assert "\n" not in str(caught.value) and not folder.exists()


@slow
@pytest.mark.timeout(300)
def test_ranks_that_are_left_out_stay_through_a_crash_and_a_resumption(tmp_path, clouds, undisturbed) -> None:
    """Rank 0, who leads, is left out; the job starts again, is stopped, resumed, and takes it back."""
    folder, alone = tmp_path / "run", plan_of(PLAIN, [[1]], **FLUSH)
    config = settings(clouds, epochs=10_000, max_restarts=1)
    job = launch(PLAN, config, run_dir=folder)
    _step(job, 2)
    assert job.replan(alone) is not None and num_processes(folder, alone) == 2
    os.kill(_workers(folder)[1], signal.SIGKILL)
    with raises("replan.ranks_not_of_job", "[0, 1, 2]", "[0, 1]"):
        job.replan(plan_of(PLAIN, [[0], [1], [2]], **FLUSH))
    until(lambda: any(row["event"] == "resume" for row in job.rows), "it starts again")
    job.stop()
    job.wait(timeout=ENOUGH)
    assert job.record.plan == alone
    with raises("plan.ranks_not_of_job", "[1]", "0"):
        launch(alone, config, run_dir=tmp_path / "anew")
    job = launch(alone, config, run_dir=folder, resume=True)
    until(lambda: any(row["event"] == "step" for row in job.rows), "it goes on")
    assert job.replan(SWAPPED) is not None
    _step(job, 39)
    job.stop()
    done = job.wait(timeout=ENOUGH)["minibatches"]
    assert _trained(job) == list(range(done))
    losses = {row["minibatch"]: row["loss"] for row in job.record.metrics("step")}
    assert {minibatch: losses[minibatch] for minibatch in undisturbed} == undisturbed


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, clouds) -> dict[int, float]:
    """The losses of 40 minibatches in one process."""
    plan = plan_of(PLAIN, [[0]], **FLUSH)
    job = launch(plan, settings(clouds, epochs=8), run_dir=tmp_path_factory.mktemp("undisturbed") / "run")
    job.wait(timeout=ENOUGH)
    return {row["minibatch"]: row["loss"] for row in job.record.metrics("step")}


@slow
@pytest.mark.timeout(300)
def test_a_rank_killed_during_a_move_leaves_the_old_plan_or_the_new(tmp_path, clouds, undisturbed) -> None:
    """The job starts again from its checkpoint, and trains each minibatch once, as one that nobody disturbed."""
    chance, folder = random.Random(0), tmp_path / "run"
    dawdles = "jitter:rank=0,p=1,seconds=0.1"  # so that it is not over before the rank is killed
    job = launch(PLAN, settings(clouds, epochs=8, max_restarts=1), run_dir=folder, stragglers=dawdles)
    _step(job, 7)
    workers = _workers(folder)
    request_replan(folder, SWAPPED)
    time.sleep(chance.uniform(0.0, 0.4))
    os.kill(chance.choice(workers), signal.SIGKILL)
    assert job.wait(timeout=ENOUGH)["minibatches"] == 40 and job.state == "finished"
    assert {row["minibatch"]: row["loss"] for row in job.record.metrics("step")} == undisturbed
    assert _trained(job) == list(range(40)) and RunRecord(folder).plan in (PLAN, SWAPPED)
