"""Plans whose devices share each scene: what they say, what they cost, what is refused."""

from dataclasses import replace

import pytest
from coded import raises

from sparsepipe import (
    Cluster,
    CostSample,
    DeviceType,
    InputError,
    Layer,
    LayerCost,
    LayerGraph,
    Link,
    Node,
    Plan,
    Profile,
    partition,
    simulate,
)
from sparsepipe.values.schedule import Action, Op, compile

MEMORY = 1e9
ROWS = 10_000.0  # voxels of every layer


def profile():
    """Three layers with kernel maps, each with 64 numbers a voxel; one kind of device is twice as fast."""

    def costs(factor):
        sample = CostSample(ROWS, factor, 2 * factor, ROWS * 256, kernel_map_pairs=9 * ROWS, kernel_map_seconds=0.01)
        return tuple(LayerCost((replace(sample, kernel_map_pairs=9 * ROWS + k, saved_bytes=4e8),)) for k in range(3))

    graph = LayerGraph.chain([Layer(f"conv{k}", "", 1e3) for k in range(3)])
    return Profile(graph, {"fast": costs(1.0), "slow": costs(2.0)})


def cluster(*kinds, memory=float("inf")):
    return Cluster((Node("a", tuple(DeviceType(kind, memory) for kind in kinds), Link(1e9)),), Link(1e9))


def test_a_plan_for_shared_scenes_is_kept_and_says_so():
    plan = partition(profile(), cluster("fast", "fast"), planner="space")
    (stage,) = plan.stages
    assert stage.shares_scenes and stage.ranks == (0, 1) and stage.round == stage.num_replicas == 1
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.to_json()["stages"][0]["sharding"] == "space" and "space" in str(plan)
    replicas = partition(profile(), cluster("fast", "fast"), planner="data-parallel")
    assert "sharding" not in replicas.to_json()["stages"][0]


def test_every_rank_takes_part_in_every_minibatch():
    plan = partition(profile(), cluster("fast", "fast", "fast"), planner="space")
    actions = compile(plan, 3).actions
    expected = [Action(0, op, m) for m in range(3) for op in (Op.FORWARD, Op.BACKWARD, Op.UPDATE)]
    assert all(list(actions[rank]) == expected for rank in range(3))


def test_faster_devices_get_larger_parts_and_parts_add_up_to_the_work():
    given = profile()
    plan = partition(given, cluster("fast", "slow"), planner="space")
    assert plan.stages[0].shares == (2, 1)
    one = partition(given, cluster("fast"), planner="data-parallel").estimate.period_seconds
    halo = plan.estimate.stages[0].sent_bytes / 1e9
    assert plan.estimate.period_seconds == pytest.approx(one * 2 / 3 + halo, rel=1e-6)
    trace = simulate(plan, given, plan_cluster := cluster("fast", "slow"), [ROWS] * 4)
    assert len(plan_cluster.devices) == 2
    assert trace.makespan == pytest.approx(4 * plan.estimate.period_seconds, rel=0.02)


def test_a_scene_beyond_each_devices_memory_is_divided():
    small = cluster("fast", "fast", memory=MEMORY)
    with pytest.raises(InputError) as refused:
        partition(profile(), cluster("fast", memory=MEMORY))
    assert "space" in str(refused.value)
    plan = partition(profile(), small, planner="space")
    assert 0.5e9 < plan.estimate.stages[0].memory_bytes < MEMORY


def test_stages_beside_one_that_shares_scenes_are_refused():
    plan = partition(profile(), cluster("fast", "fast"), planner="model-parallel")
    shared = replace(plan, stages=(replace(plan.stages[0], sharding="space"), plan.stages[1]))
    with raises("plan.violations"):
        shared.check(profile().graph)
    entry = plan.to_json()
    entry["stages"][0]["sharding"] = "time"
    with pytest.raises(InputError):
        Plan.from_json(entry)
