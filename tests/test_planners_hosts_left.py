"""Plans for the hosts that are left: the same on spare devices, by a profile, or of stages that were joined."""

from dataclasses import replace
from pathlib import Path

import pytest
from coded import raises
from hypothesis import given
from hypothesis import strategies as st

from sparsepipe import partition
from sparsepipe.planning.hardware_changes import plan_for_devices_left, plan_for_hosts_left
from sparsepipe.values.cluster import Cluster, DeviceType, Node
from sparsepipe.values.graph import Layer, LayerGraph
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.profile import CostSample, LayerCost, Profile


def hosts(*types):
    nodes = (Node(f"host{k}", (DeviceType(kind),), address=f"10.0.0.{k}") for k, kind in enumerate(types, 1))
    return Cluster(tuple(nodes))


def chain(*sizes, ranks=None, **options):
    """A plan of a chain of layers a, b, c …, so many in each stage."""
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    ranks = ranks or [(k,) for k in range(len(sizes))]
    stages = (
        Stage(tuple(next(letters) for _ in range(size)), own)
        for size, own in zip(sizes, map(tuple, ranks), strict=True)
    )
    return Plan(tuple(stages), **{"schedule": "gpipe", "num_microbatches": 2, **options})


def stages(plan):
    return [("".join(stage.layers), stage.ranks) for stage in plan.stages]


def test_a_spare_host_of_the_same_kind_takes_the_place(tmp_path):
    plan = chain(2, 1, ranks=[[0], [1]])
    found = plan_for_hosts_left(plan, hosts("cpu", "cpu", "cpu"), {"host1"}, profile=tmp_path / "none")
    assert stages(found.plan) == stages(plan)
    assert [stage.nodes for stage in found.plan.stages] == [("host2",), ("host3",)]
    assert [node.name for node in found.cluster.nodes] == ["host2", "host3"]


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ({"host1"}, [("abc", (0,)), ("def", (1,)), ("g", (2,))]),
        ({"host2"}, [("abc", (0,)), ("def", (1,)), ("g", (2,))]),
        ({"host3"}, [("ab", (0,)), ("cdef", (1,)), ("g", (2,))]),
        ({"host2", "host3"}, [("abc", (0,)), ("defg", (1,))]),
        ({"host1", "host2", "host4"}, [("abcdefg", (0,))]),
    ],
)
def test_a_stage_without_a_host_joins_the_neighbour_with_fewer_layers(tmp_path, lost, expected):
    found = plan_for_hosts_left(chain(2, 1, 3, 1), hosts(*["cpu"] * 4), lost, profile=tmp_path / "none")
    assert stages(found.plan) == expected


def test_a_replica_without_a_host_is_left_out_and_ranks_are_counted_anew(tmp_path):
    plan = chain(1, 2, ranks=[[0, 2], [1, 3]])
    found = plan_for_hosts_left(plan, hosts(*["cpu"] * 4), {"host1"}, profile=tmp_path / "none")
    assert stages(found.plan) == [("a", (1,)), ("bc", (0, 2))]
    assert [stage.nodes for stage in found.plan.stages] == [("host3",), ("host2", "host4")]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.data())
def test_every_layer_stays_in_order_and_every_rank_left_works(sizes, data):
    lost = data.draw(st.sets(st.integers(1, len(sizes)), max_size=len(sizes) - 1))
    plan, cluster = chain(*sizes), hosts(*["cpu"] * len(sizes))
    found = plan_for_hosts_left(plan, cluster, {f"host{k}" for k in lost}, profile=Path("nowhere"))
    assert found.plan.layers == plan.layers
    assert sorted(found.plan.ranks) == list(range(len(sizes) - len(lost)))


def test_with_a_profile_the_plan_is_the_planners_for_the_devices_left(tmp_path):
    letters = "abcd"
    costs = [LayerCost((CostSample(1.0, seconds, seconds, 1.0),)) for seconds in (2.0, 2.0, 2.0, 3.0)]
    slower = [LayerCost((CostSample(1.0, 2 * cost.at(1.0).forward, 2 * cost.at(1.0).backward, 1.0),)) for cost in costs]
    graph = LayerGraph.chain([Layer(letter) for letter in letters])
    profile = Profile(graph, {"fast": tuple(costs), "slow": tuple(slower)}, (1.0,))
    profile.save(tmp_path / "profile.json")
    cluster = hosts("fast", "slow", "fast")
    found = plan_for_hosts_left(
        chain(1, 1, 2, schedule="1f1b-flush", num_microbatches=16),
        cluster,
        {"host3"},
        profile=tmp_path / "profile.json",
    )
    best = partition(profile, found.cluster, schedule="1f1b-flush", num_microbatches=16)
    assert stages(found.plan) == stages(best) == [("abc", (0,)), ("d", (1,))] and found.plan.estimate
    assert found.plan.num_microbatches == 16


def test_ranks_left_have_the_numbers_of_their_devices_in_the_order_of_the_hosts(tmp_path):
    """As where Ray had put ranks 0 and 2 on one host, and loses that of rank 1."""
    plan = chain(1, 1, 1, 1, ranks=[[0], [1], [2], [3]])
    left = Cluster((Node("b", (DeviceType("slow"),) * 2), Node("c", (DeviceType("fast"),))))
    types = ("slow", "x", "slow", "fast")
    found = plan_for_devices_left(plan, left, (0, 2, 3), types=types, profile=tmp_path / "none")
    assert stages(found.plan) == [("ab", (0,)), ("c", (1,)), ("d", (2,))]
    found = plan_for_devices_left(
        plan, replace(left, nodes=left.nodes[::-1]), (3, 0, 2), types=types, profile=tmp_path / "none"
    )
    assert stages(found.plan) == [("ab", (1,)), ("c", (2,)), ("d", (0,))]
    assert [stage.nodes for stage in found.plan.stages] == [("b",), ("b",), ("c",)]


def test_no_host_or_interleaved_stages_are_refused_in_a_line(tmp_path):
    with raises("hosts.none_left"):
        plan_for_hosts_left(chain(1, 1), hosts("cpu", "cpu"), {"host1", "host2"}, profile=tmp_path / "none")
    laps = chain(1, 1, 1, 1, ranks=[[0], [1], [0], [1]], schedule="interleaved-zero-bubble")
    with raises("plan.interleaved"):
        plan_for_hosts_left(laps, hosts("cpu", "cpu"), {"host1"}, profile=tmp_path / "none")
