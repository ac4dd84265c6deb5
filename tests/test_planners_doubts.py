"""Plans say where they do not fit into memory and which devices they leave unused, whoever made them."""

import json
from dataclasses import replace

import pytest
from coded import mentions, raises

from sparsepipe.cli import main
from sparsepipe.planning import PLANNERS, partition
from sparsepipe.planning.forecast import forecast
from sparsepipe.values.cluster import Cluster, DeviceType, Link
from sparsepipe.values.graph import Layer, LayerGraph
from sparsepipe.values.profile import CostSample, LayerCost, Profile

GB = 1e9


def profile_of(num_layers):
    """Like layers of 1 s and 1 GB of weights."""
    graph = LayerGraph.chain([Layer(f"layer{k}", "", GB) for k in range(num_layers)])
    return Profile(graph, {"d": (LayerCost((CostSample(0, 1.0, 1.0, 10.0),)),) * num_layers})


def cluster_of(count, memory=float("inf")):
    cluster = Cluster.uniform(count, device_type="d", link=Link(1e12))
    kinds = (DeviceType("d", memory),) * count
    return Cluster((replace(cluster.nodes[0], device_types=kinds),), cluster.network)


@pytest.mark.parametrize(
    ("planner", "options"),
    [
        ("pipedream", {}),
        ("pipedream", {"use_memory_constraint": True}),
        ("sparsepipe", {}),
        ("sparsepipe", {"use_memory_constraint": True}),
        ("data-parallel", {}),
        ("model-parallel", {}),
        ("model-parallel", {"stages_per_device": 2}),
    ],
)
def test_a_plan_beyond_the_memory_says_so_under_every_planner(planner, options):
    """PipeDream's plan of resnet101 took 15 of 4 GB, and was printed without a word: its memory rule lets it pass."""
    profile = profile_of(8)
    told = partition(profile, cluster_of(2, 10 * GB), planner=planner, **options).warnings
    assert any("memory: stage" in text and mentions(text, "10 GB") for text in told)
    assert not partition(profile, cluster_of(2, 1000 * GB), planner=planner, **options).warnings


def test_a_simulation_beyond_the_memory_says_so():
    profile = profile_of(8)
    plan = partition(profile, cluster_of(2), planner="data-parallel")
    told = forecast(plan, profile, cluster_of(2, 10 * GB), [1.0] * 8)
    assert mentions(told.beyond_memory(cluster_of(2, 10 * GB)), "rank 0")
    assert told.beyond_memory(cluster_of(2)) == ""


def test_the_command_says_it_on_stderr_and_in_its_documents(tmp_path, capsys):
    path, plan = profile_of(8).save(tmp_path / "profile.json"), tmp_path / "plan.json"
    machines = ["--profile", str(path), "--devices", "2", "--memory", "10e9", "--json"]
    for words in (["plan", "--planner", "pipedream", "--out", str(plan)], ["simulate", str(plan)]):
        assert main([*words, *machines]) == 0
        out, said = capsys.readouterr()
        assert any("memory" in text for text in json.loads(out)["warnings"])
        assert "memory" in said


@pytest.mark.parametrize(("layers", "devices", "stages", "best"), [(37, 2, 19, 18), (37, 3, 13, 12), (37, 4, 10, 9)])
def test_interleaving_never_leaves_a_device_unused(layers, devices, stages, best):
    """19 stages per device left one of two devices unused, and the warning blamed the number of layers."""
    profile, cluster = profile_of(layers), cluster_of(devices)
    with raises("planner.too_many_stages", stages, devices, best):
        partition(profile, cluster, planner="model-parallel", stages_per_device=stages)
    plan = partition(profile, cluster, planner="model-parallel", schedule="1f1b-flush", stages_per_device=best)
    assert (len(plan.ranks), plan.stages_per_rank, plan.warnings) == (devices, best, ())


@pytest.mark.parametrize("planner", PLANNERS)
def test_devices_that_get_no_work_are_counted(planner):
    """Two layers for five devices: replicated over all of them, or what is left unused is told."""
    options = {"use_fewer_machines": True} if planner == "pipedream" else {}
    plan = partition(profile_of(2), cluster_of(5), planner=planner, **options)
    unused = 5 - len(plan.ranks)
    assert [text for text in plan.warnings if "unused" in text] == [
        text for text in plan.warnings if mentions(text, unused, "5 devices")
    ]
    assert bool(unused) == any("unused" in text for text in plan.warnings)
