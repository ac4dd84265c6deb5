"""What a plan's diff says."""

import json
import re
from dataclasses import replace

import pytest

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Link, Plan, Profile, Stage, partition


@pytest.fixture
def profile():
    graph = LayerGraph.chain(Layer(f"l{k}", "", 10.0) for k in range(6))
    return Profile(graph, {"d": tuple(LayerCost((CostSample(1, 1 + k % 2, 2, 3),)) for k in range(6))})


def stages(*parts):
    return tuple(Stage(tuple(layers.split()), ranks) for layers, ranks in parts)


def test_layers_and_ranks_that_move_are_named():
    before = Plan(stages(("l0 l1", (0,)), ("l2 l3 l4 l5", (1, 2))))
    after = Plan(stages(("l0 l1 l2 l3", (0, 1)), ("l4 l5", (3,))))
    found = before.diff(after)
    assert [str(move) for move in found.layers] == ["l2 … l3 (2): stage 1 → stage 0"]
    assert [str(move) for move in found.ranks] == [
        "1: stage 1 → stage 0",
        "2: stage 1 → no stage",
        "3: no stage → stage 1",
    ]
    assert found.moves()[0] == "layers l2 … l3 (2): stage 1 → stage 0" and found.moves()[1].startswith("rank 1: ")
    single = before.diff(Plan(stages(("l0 l1 l2", (0,)), ("l3 l4 l5", (1, 2)))))
    assert single.moves() == ["layer l2: stage 1 → stage 0"], "one, not layers"
    assert not found.same
    assert found.speedup is None


def test_a_rank_of_interleaved_stages_is_in_all_of_them():
    before = Plan(stages(("l0 l1 l2", (0,)), ("l3 l4 l5", (1,))))
    after = Plan(stages(("l0", (0,)), ("l1 l2", (1,)), ("l3", (0,)), ("l4 l5", (1,))))
    assert [str(move) for move in before.diff(after).ranks] == [
        "0: stage 0 → stages 0 and 2",
        "1: stage 1 → stages 1 and 3",
    ]
    assert after.diff(after).same and not before.diff(after).same
    assert json.loads(json.dumps(before.diff(after).to_json()))["ranks"][0]["after"] == [0, 2]


def test_a_plan_does_not_differ_from_itself(profile):
    plan = partition(profile, Cluster.uniform(2, device_type="d"))
    found = plan.diff(plan)
    assert found.same
    assert found.speedup == 1
    assert not found.moves()


def test_period_gap_times_and_memory_stand_side_by_side(profile):
    cluster = Cluster.uniform(3, device_type="d", link=Link(10.0))
    slow, best = (partition(profile, cluster, planner=name) for name in ("data-parallel", "optimal"))
    found = slow.diff(best)
    assert found.periods == (slow.estimate.period_seconds, best.estimate.period_seconds)
    assert found.gaps == (None, 0.0)
    assert found.speedup == slow.estimate.period_seconds / best.estimate.period_seconds
    first = found.stages[0][0]
    assert first[0] == slow.estimate.stages[0].compute_seconds
    assert first[3] == slow.estimate.stages[0].memory_bytes
    assert first[4] == slow.estimate.stages[0].sent_bytes == 0
    assert found.stages[0][1][4] == best.estimate.stages[0].sent_bytes
    assert found.stages[1][0] is None
    headline = str(found).splitlines()[0]
    assert headline.startswith("data-parallel → optimal: ")
    assert headline.endswith("gap unknown → 0%")
    assert json.loads(json.dumps(found.to_json()))["speedup"] == found.speedup


def test_what_a_stage_does_not_do_has_a_dash():
    """Stages of one replica averaged "in 0.00 ms", and the only stage of a plan sent "in 0.00 ms"."""
    costs = tuple(LayerCost((CostSample(0, 0.01, 0.02, 1e6),)) for _ in range(4))
    profile = Profile(LayerGraph.chain(tuple(Layer(f"l{k}", "", 2e6) for k in range(4))), {"gpu": costs}, (10.0,))
    cluster = Cluster.uniform(2, device_type="gpu", link=Link(1e9, 1e-5))
    whole, cut = (partition(profile, cluster, planner=name) for name in ("data-parallel", "model-parallel"))
    head, *stages = (re.split("  +", line) for line in str(cut).splitlines()[1:4])
    assert [stage[head.index("averaging")] for stage in stages] == ["–", "–"]
    head, stage = (re.split("  +", line) for line in str(whole).splitlines()[1:3])
    assert stage[head.index("transfer")] == "–" and stage[head.index("averaging")] != "–"
    head, stage = (re.split("  +", line) for line in str(whole.diff(cut)).splitlines()[1:3])
    assert stage[head.index("averaging")].endswith(" ms → –")
    assert " 0.00 ms" not in f"{whole}{cut}{whole.diff(cut)}"


def test_sharding_shares_and_schedule_that_change_are_named():
    """Two plans of the same layers on the same ranks: "the same", though one shares its scenes and the other not."""
    stage = Stage(("l0", "l1"), (0, 1))
    before = Plan((stage,))
    after = Plan((replace(stage, sharding="space", shares=(2, 1), recompute=True),), "gpipe", num_microbatches=4)
    found = before.diff(after)
    assert found.same and not before.diff(before).settings
    changes = {name: values for name, *values in found.settings}
    assert changes["stage 0, sharding"] == ["none", "space"] and changes["stage 0, shares"] == ["1, 1", "2, 1"]
    assert {"schedule", "num microbatches", "stage 0, recompute"} < changes.keys()
    segmented = Plan((replace(stage, segments=(("l0", "l1"), ("l1", "l1"))),))
    assert before.diff(segmented).settings == (("stage 0, segments", "none", "l0 … l1, l1"),)
    assert all(line in str(found) for line in found.changed_settings())
