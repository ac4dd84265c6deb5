"""Strategies over clusters: simulated points agree with closed forms, published profiles are found or done without."""

from dataclasses import replace

import pytest

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Link, Plan, Profile, Stage, partition, plots
from sparsepipe.planning import Problem
from sparsepipe.profiling import profile_model
from sparsepipe.study.machines import Machines, published, published_dense, slower_copies
from sparsepipe.study.strategy_grid import ONE, PLANNERS, one_device, simulated, traffic


def known():
    costs = tuple(LayerCost((CostSample(0, 0.1, 0.2, 1e6),)) for _ in range(8))
    layers = tuple(Layer(f"conv{k}", "", 1e6) for k in range(8))
    return Machines(Profile(LayerGraph.chain(layers), {"gpu": costs}), 16, "by hand")


def test_points_are_what_a_balanced_chain_allows():
    cluster, profile = known().alike(4), known().profile
    plans = {name: partition(profile, cluster, planner=planner) for name, planner in PLANNERS.items()}
    plans[ONE] = one_device(profile, cluster)
    found = {point.strategy: point for point in simulated(plans, known(), cluster)}
    assert set(found) == set(plans) and {point.devices for point in found.values()} == {4}
    one = 16 / (8 * 0.3)
    assert found["one device"].samples_per_second == pytest.approx(one)
    assert found["model parallel"].samples_per_second == pytest.approx(4 * one, rel=0.005)  # transfers delay a little
    assert found["optimal"].samples_per_second == pytest.approx(found["optimal"].bound_samples_per_second, rel=5e-3)
    assert found["data parallel"].samples_per_second < 4 * one


def test_traffic_in_closed_form():
    given = known()
    problem = Problem(given.profile, Cluster.uniform(3, device_type="gpu", link=Link(1e9)))
    ids = [layer.id for layer in given.profile.graph.layers]
    plan = Plan((Stage(tuple(ids[:4]), (0, 1)), Stage(tuple(ids[4:]), (2,))))
    crossing, averaged = traffic(plan, problem)
    assert crossing == pytest.approx(2e6)  # one output forwards, its gradient backwards
    assert averaged == pytest.approx(2 * 4e6 / 2)  # a ring of two sends 2 × 4 MB after every two minibatches


def test_without_an_optimal_plan_there_is_no_bound():
    cluster = known().alike(2)
    (point,) = simulated({ONE: one_device(known().profile, cluster)}, known(), cluster, label="two")
    assert point.bound_samples_per_second is None and point.cluster == "two"


def test_points_of_machines_whose_samples_nobody_knows_are_in_minibatches():
    """The exported table of PipeDream's networks had minibatches/s in `samples_per_second`."""
    given = replace(known(), batch_size=None)
    cluster = given.alike(2)
    plans = {ONE: one_device(given.profile, cluster), "optimal": partition(given.profile, cluster)}
    points = simulated(plans, given, cluster, label="net")
    table = plots.speedups_table(points)
    assert "samples_per_second" not in table and table.speedup[0] == 1 < table.speedup[1]
    assert table.minibatches_per_second[0] == pytest.approx(1 / (8 * 0.3))
    assert "minibatches_per_second" not in plots.speedups_table(simulated(plans, known(), cluster, label="net"))


def test_the_published_profiles_are_part_of_the_package(monkeypatch):
    for name in ("SPARSEPIPE_REFERENCE", "SPARSEPIPE_DATA"):
        monkeypatch.delenv(name, raising=False)
    found = published()
    assert found.profile.device_types == ("RTX", "TITAN V", "TITAN Xp") and found.batch_size == 64
    assert len(found.mixes["2 × TITAN V + 2 × TITAN Xp"].devices) == 4


def test_pipedreams_profiles_are_used_where_they_are(shared_reference, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("SPARSEPIPE_REFERENCE", str(shared_reference))
    found = published_dense(["vgg16", "lenet"])
    assert list(found) == ["vgg16"] and found["vgg16"].profile.device_types == ("V100",)
    assert "lenet" in capsys.readouterr().out
    monkeypatch.setenv("SPARSEPIPE_REFERENCE", str(tmp_path))
    assert published_dense(["vgg16"]) == {} and "left out" in capsys.readouterr().out


def test_copies_of_this_machine_are_assumed_to_be_slower():
    settings = {"voxel_size": 0.2, "batch_size": 4, "num_points": 64}
    own = profile_model("minkvgg11bn-narrow", "digits", **settings, engine="native", repeats=1)
    found = slower_copies(own, 4, "slower devices assumed")
    assert found.profile.device_types == ("full speed", "¾ speed", "½ speed")
    fast, slow = (sum(found.profile.time(range(5), kind)) for kind in ("full speed", "½ speed"))
    assert slow == pytest.approx(2 * fast)
    assert found.profile.update_rates["½ speed"] == 2 * found.profile.update_rates["full speed"] > 0
    assert found.batch_size == 4 and found.said == "slower devices assumed"
    assert found.profile.origin["assumed_speeds"]["½ speed"] == 0.5
