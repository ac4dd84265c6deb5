"""A predictor beside a running job: who may ask one, what it is told, and what a replan makes of its answer."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest
from coded import raises
from command_line import sparsepipe
from dynamics_worlds import KEPT, cpus, network, stump
from nvml_library import BUSY, FIRST, UUID, answering

from sparsepipe import InputError, RunConfig, partition
from sparsepipe.data.shapes import make_shapes
from sparsepipe.monitoring import Factors
from sparsepipe.monitoring.following import DECISIONS
from sparsepipe.monitoring.launching import launch
from sparsepipe.monitoring.predictions import Predictions, check_predictor
from sparsepipe.monitoring.variants import Situation, predicted_factors
from sparsepipe.runtime.processes import rank_readings
from sparsepipe.runtime.processes.rank_readings import forget_gpu, gpu_of
from sparsepipe.util.host import machine_watch
from sparsepipe.util.host.machine_watch import MachineWatch


@pytest.fixture(scope="module")
def here():
    """A predictor that learned from this machine's metrics."""
    with MachineWatch() as watch:
        return stump(tuple(watch.read()))


def test_a_variant_has_the_predictor_that_it_asks_and_no_other(here):
    check_predictor("predicted", here, needed=True)
    check_predictor("epoch", here, needed=True)
    check_predictor("epoch", None, needed=True)
    check_predictor("predicted", None, needed=False)
    check_predictor(None, None, needed=True)
    refused = {
        ("replan.no_predictor", "predicted"): ("predicted", None),
        ("replan.predictor_unused", "live"): ("live", here),
        ("replan.predictor_alone",): (None, here),
        ("predictor.metrics_differ",): ("predicted", stump(("gpu watts",))),
    }
    for error, (replan, predictor) in refused.items():
        with raises(*error) as caught:
            check_predictor(replan, predictor, needed=True)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", ["none", "other"])
def test_run_refuses_in_one_line_before_anything_is_started(tmp_path, given):
    profile = network(12).save(tmp_path / "p.json")
    plan = partition(network(12), cpus(2)).save(tmp_path / "plan.json")
    stump(("gpu watts",)).save(tmp_path / "other")
    data = make_shapes(tmp_path / "shapes", num_train=2, num_test=1, seed=0)
    words = ("run", plan, "--model", "minkvgg11bn-narrow", "--data", data, "--run-dir", tmp_path / "run")
    words += ("--profile", profile, "--replan", "predicted")
    words += () if given == "none" else ("--predictor", tmp_path / given)
    code, out, lines = sparsepipe(*words)
    reasons = {"none": "needs an interference predictor", "other": "other metrics than this machine"}
    assert code == 2 and not out and reasons[given] in lines[-1]
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux tells; other systems have no /proc")
def test_ranks_are_read_by_their_process_ids(tmp_path, here, monkeypatch):
    """None is known before its second reading, after its end, and again before the second of its successor."""
    monkeypatch.setattr(rank_readings, "SECONDS", 0.0)
    (tmp_path / "logs").mkdir()
    profile, sleeping = network(3), [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
    predictions = Predictions(here, tmp_path, profile, cpus(2))
    predictions.look()
    assert predictions.of(0) is None
    for _ in range(2):  # it is started, and started again
        with subprocess.Popen(sleeping, stdout=PIPE) as process:
            assert process.stdout is not None and process.stdout.readline()
            (tmp_path / "logs" / "rank0.pid").write_text(f"{process.pid}\n")
            predictions.look()
            assert predictions.of(0) is None
            predictions.look()
            assert predictions.of(0) == pytest.approx((1 / KEPT,) * 3) and predictions.of(1) is None
            process.kill()
        predictions.look()
        assert predictions.of(0) is None
    predictions.close()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="Linux tells; other systems have no /proc")
def test_ranks_on_gpus_are_read_with_the_gauges_of_their_own_gpu(tmp_path, monkeypatch):
    """Not before they have told which it is; the GPU's number there is another than NVML's."""
    monkeypatch.setattr(rank_readings, "SECONDS", 0.0)
    monkeypatch.setattr(machine_watch, "library", lambda: answering(BUSY))
    with MachineWatch(gpu=UUID) as watch:
        learned = stump(tuple(watch.read()))
    logs, profile = tmp_path / "logs", network(3)
    logs.mkdir()
    (logs / "rank0.pid").write_text(f"{os.getpid()}\n")
    predictions = Predictions(learned, tmp_path, profile, cpus(2), device="cuda")
    for told, expected in ((False, None), (True, (1 / KEPT,) * 3)):
        if told:
            (logs / "rank0.gpu").write_text(f"{UUID}\n")
        predictions.look()
        predictions.look()
        assert predictions.of(0) == (expected and pytest.approx(expected))
    predictions.close()
    forget_gpu(logs, 0)
    assert gpu_of(logs, 0) is None


def test_ranks_on_other_hosts_are_asked_for_and_known_by_what_comes_from_there(tmp_path, here, monkeypatch):
    """Of a rank that its host tells nothing new of, nothing is known; a host with other metrics is told by its rank."""
    monkeypatch.setattr(rank_readings, "SECONDS", 0.0)
    logs = tmp_path / "logs"
    logs.mkdir()
    assert not rank_readings.are_asked_for(tmp_path)
    predictions = Predictions(here, tmp_path, network(3), cpus(2))
    assert rank_readings.are_asked_for(tmp_path)
    rank_readings.write(logs, 1, dict.fromkeys(here.metrics, 0.5))
    predictions.look()
    assert predictions.of(1) == pytest.approx((1 / KEPT,) * 3) and predictions.of(0) is None
    os.utime(logs / "rank1.machine.json", (0, 0))
    predictions.look()
    assert predictions.of(1) is None
    rank_readings.write(logs, 1, {"gpu watts": 1.0})
    with raises("predictor.metrics_differ", "host of rank 1"):
        predictions.look()
    for damaged in ("[]", '{"ran": "much"}', '{"ran": NaN}', "{", "9" * 10**5):
        (logs / "rank1.machine.json").write_text(damaged)
        with pytest.raises(InputError, match="rank1.machine.json") as told:
            predictions.look()
        assert "\n" not in str(told.value)
    predictions.close()
    rank_readings.forget(tmp_path)
    assert not rank_readings.are_asked_for(tmp_path) and not list(logs.iterdir())


def test_a_predictor_of_processors_is_refused_for_a_run_on_gpus_and_the_other_way_round(here, monkeypatch):
    monkeypatch.setattr(
        machine_watch, "library", lambda: answering({**BUSY, ("nvmlDeviceGetPowerUsage", FIRST): 70_000})
    )
    with MachineWatch(gpu=0) as watch:
        of_gpus = stump(tuple(watch.read()))
    check_predictor("predicted", of_gpus, needed=True, device="cuda")
    check_predictor("predicted", here, needed=True, device="cpu")
    for predictor, device in ((of_gpus, "cpu"), (here, "cuda")):
        with raises("predictor.metrics_differ", "'gpu"):
            check_predictor("predicted", predictor, needed=True, device=device)


def test_what_the_predictor_does_not_know_is_as_measured():
    profile, plan = network(4), partition(network(4), cpus(2))
    now = Situation(plan, plan, profile, cpus(2), Factors((2.0, 1.0)), 100)
    assert predicted_factors(now) == {0: (2.0,) * 4}
    assert predicted_factors(replace(now, predict=lambda rank: None)) == {0: (2.0,) * 4}
    told = (1.0, 3.0, 3.0, 3.0)
    assert predicted_factors(replace(now, predict=lambda rank: told)) == {0: told}, "of those that changed alone"


@pytest.mark.slow
def test_a_running_job_is_cut_anew_as_the_predictor_expects_its_layers(tmp_path, here):
    """It expects four times as long, whatever was measured, and so says DynPipe's planner what the change gains."""
    profile, cluster = network(seconds=[0.006] * 12), cpus(2)
    config = RunConfig("net", "replay", engine="replay", batch_size=1, minibatches=60, timeout_seconds=120)
    settings = {"profile": profile, "cluster": cluster, "stragglers": "slow:rank=1,factor=4,from=20"}
    told = list[str]()
    where = {"run_dir": tmp_path / "run", "replan": "predicted", "predictor": here, "tell": told.append}
    job = launch(partition(profile, cluster), config, **where, **settings)
    assert job.wait(timeout=300)["minibatches"] == 60
    rows = [json.loads(line) for line in (job.record.folder / DECISIONS).read_text().splitlines()]
    assert any(row["event"] == "changed" for row in rows) and not any("no longer" in line for line in told)
    first = next(row for row in rows if row.get("changes"))
    assert "DynPipe's planner expects" in first["reason"] and job.record.plans[1:]
