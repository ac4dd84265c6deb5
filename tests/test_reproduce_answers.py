"""What answers say: which plans wait, and why a run is not as fast as predicted."""

from dataclasses import replace
from unittest.mock import Mock

import pandas as pd
import pytest
from coded import mentions

from sparsepipe import CostSample, Layer, LayerCost, LayerGraph, Plan, Profile, Stage
from sparsepipe.planning import comparable
from sparsepipe.planning.forecast import minibatches_of_a_step, steady_rate
from sparsepipe.planning.simulator import simulate
from sparsepipe.records import Origin, RunRecord
from sparsepipe.study import cached_runs
from sparsepipe.study.cached_runs import (
    explain_prediction,
    explain_throughput,
    explain_waiting,
    minibatches_in_flight,
    throughput_markdown,
)
from sparsepipe.util.io.files import write_json, write_rows
from sparsepipe.values.cluster import Cluster, Link
from sparsepipe.values.plan import Estimate, StageEstimate
from sparsepipe.views.markup import unescaped


@pytest.fixture
def averaging():
    """Two replicas that average slowly before one of the same pace: with 1F1B's own warm-up the replicas wait."""
    graph = LayerGraph.chain([Layer(name, name, 4_000_000) for name in ("a", "b")])
    costs = (LayerCost((CostSample(100, 0.05, 0.05, 4000),)), LayerCost((CostSample(100, 0.03, 0.03, 4000),)))
    profile = Profile(graph, {"t": costs}, (100.0,), {"model": "m"})
    cluster = Cluster.uniform(3, device_type="t", link=Link(1e9, 1e-3))
    return profile, cluster


def plans_of(profile, cluster, warmups):
    for name, warmup in warmups.items():
        first, second = Stage(("a",), (0, 1), (1, 1), warmup=warmup), Stage(("b",), (2,))
        yield Plan((first, second), planner=name)


def test_a_plan_that_has_too_few_minibatches_in_flight_is_told(averaging):
    profile, cluster = averaging
    plans = comparable(plans_of(profile, cluster, {"shallow": 0, "deep": 3}), profile, cluster)
    assert [minibatches_in_flight(plan) for plan in plans] == [2, 8]
    counts = [100.0] * 40
    seconds = {p.planner: 1 / steady_rate(simulate(p, profile, cluster, counts), p, 40) for p in plans}
    told = explain_waiting(plans, seconds)
    assert told.startswith("Simulated, **shallow** takes") and mentions(told, "2 minibatches")
    assert mentions(told, "deep has 8") and told.count("Simulated") == 1
    assert not explain_waiting(plans[1:], seconds), "nobody to compare with"


def test_four_steps_of_a_plan_have_a_middle_half(averaging):
    """In 16 minibatches rounds of five have none: what filling takes was said to be of the middle half."""
    profile, cluster = averaging
    (plan,) = comparable([Plan((Stage(("a",), (0, 1), (3, 2)), Stage(("b",), (2,))))], profile, cluster)
    assert minibatches_of_a_step(plan) == 5
    for minibatches, whole in ((16, True), (20, False)):
        trace = simulate(plan, profile, cluster, [100.0] * minibatches)
        assert (steady_rate(trace, plan, minibatches) == minibatches / trace.makespan) == whole


def test_paces_have_units_and_as_many_digits_as_each_other():
    """Answers showed a table of samples_per_second with all its digits."""
    speeds = pd.DataFrame({"strategy": ["one process", "2 pipelines (a_b)"], "samples_per_second": [214.03, 1033.871]})
    speeds["predicted_samples_per_second"], speeds["speedup_over_first"] = [240.1, None], [1.0, 4.8305]
    head, _, first, second = throughput_markdown(speeds).splitlines()
    assert unescaped(head) == "| strategy | measured (samples/s) | predicted (samples/s) | over one process |"
    assert first == "| one process | 214 | 240 | 1.00 × |" and second.endswith("| 1,034 | – | 4.83 × |")
    assert "a_b" not in second, "names are escaped"
    speeds["validation_accuracy"] = [0.91249, float("nan")]
    *_, first, second = throughput_markdown(speeds).splitlines()
    assert first.endswith("| 91.2% |") and second.endswith("| – |")


def test_a_line_of_a_replay_names_its_schedule(averaging, tmp_path, monkeypatch, capsys):
    """Three schedules of one plan were three lines "emulation of optimal: …", one like the other."""
    monkeypatch.setattr(cached_runs, "launch", lambda *plan, **how: Mock())
    profile, cluster = averaging
    for plan in (*plans_of(profile, cluster, {"optimal": 0}), Plan((Stage(("a", "b"), (0,)),), planner="alone")):
        cached_runs.emulated(tmp_path, plan, profile, cluster, 2)
    first, second = capsys.readouterr().out.splitlines()
    assert mentions(first, "1f1b", "3 processes", "2 minibatches")
    assert mentions(second, "1 process"), "one stage: schedules do not differ"


def test_a_prediction_of_more_than_all_devices_together_is_told():
    """Two processes were predicted 2,259 samples/s and one 1,026, and nobody said why."""
    names = ["one process", "data parallel × 2", "pipeline × 2 (2bw)"]
    speeds = pd.DataFrame({"strategy": names, "processes": [1, 2, 2]})
    speeds["predicted_samples_per_second"] = [1026.0, 1900.0, 2259.0]
    told = explain_prediction(speeds)
    assert told.startswith(" For pipeline × 2")
    assert mentions(told, "2,259 samples/s", 2, "1,026")
    speeds["predicted_samples_per_second"] = [1026.0, 2052.0, None]
    assert explain_prediction(speeds) == "" and explain_prediction(speeds[1:]) == ""


def record_of(folder, *, speed, load=None, busy=0.8):
    """A finished run whose only stage was predicted to take 10 ms for a minibatch of 16."""
    expected = Estimate(0.01, (StageEstimate(0.01),))
    plan = Plan(
        (Stage(("a",), (0,)),), estimate=expected, warnings=("the layers' sum is 0.5 x a whole step; again", "<b>")
    )
    record = RunRecord.create(folder, plan, {"model": "m", "batch_size": 16}, Origin())
    stage = {"stage": 0, "busy_fraction": busy, "average_fraction": 0.0}
    row = {"event": "summary", "seconds": 1.0, "samples_per_second": speed, "stages": [stage], "load": load}
    write_rows(record.folder / "metrics.jsonl", [row])
    write_json(record.folder / "status.json", {"state": "finished"})
    return record


def test_a_run_that_is_slower_than_predicted_says_what_its_record_knows(tmp_path):
    """Half as fast as predicted: the notebook named the speed alone."""
    assert mentions(explain_throughput(record_of(tmp_path / "a", speed=1590)), "1,590 samples/s", "99%", "1,600")
    told = explain_throughput(record_of(tmp_path / "b", speed=800))
    assert mentions(told, "800 samples/s", "50%", "1,600")
    beside = "takes 16.0 ms per minibatch where its plan says 10.0 ms (1.60\N{NO-BREAK SPACE}×)"
    assert mentions(told, beside, "20%")
    assert mentions(told, "layers&#39", "0.5 ×", "&lt;b&gt")
    busy = explain_throughput(record_of(tmp_path / "c", speed=800, load={"run_queue_wait_share": 0.25}, busy=0.95))
    assert mentions(busy, "25%") and "waits, sends" not in busy
    fast = explain_throughput(record_of(tmp_path / "d", speed=3200, load={"run_queue_wait_share": 0.25}))
    assert fast.startswith("3,200 samples/s, 200% of the 1,600")
    doubt, _, reasons = fast.partition("): ")
    assert mentions(doubt, "25%")
    assert reasons and "processor" not in reasons, "load explains no run that is too fast"
    near = explain_throughput(record_of(tmp_path / "e", speed=1590, load={"run_queue_wait_share": 0.14}))
    assert mentions(near, "14%")
    assert busy.count("25%") == 1


def test_a_device_of_several_stages_waits_only_while_it_works_at_none_of_them(tmp_path):
    record = record_of(tmp_path / "run", speed=800)
    plan = Plan((Stage(("a",), (0,)), Stage(("b",), (1,)), Stage(("c",), (0,)), Stage(("d",), (1,))))
    plan = replace(plan, schedule="1f1b", estimate=Estimate(0.01, (StageEstimate(0.005),) * 4))
    stages = [{"stage": k, "busy_fraction": share} for k, share in enumerate((0.5, 0.2, 0.45, 0.2))]
    row = {"event": "summary", "seconds": 1.0, "samples_per_second": 800, "stages": stages}
    other = RunRecord.create(tmp_path / "other", plan, record.config, Origin())
    write_rows(other.folder / "metrics.jsonl", [row])
    told = explain_throughput(other)
    assert mentions(told, "stage 0") and "waits, sends" not in told, "it works for 95%"
    row["stages"][2]["busy_fraction"] = 0.2
    write_rows(other.folder / "metrics.jsonl", [row])
    assert mentions(explain_throughput(other), "30%")
    assert mentions(explain_throughput(record_of(tmp_path / "none", speed=0)), "0 samples/s", "0%", "1,600")
