"""Plans whose devices share each scene: what they say, what they cost, what is refused."""

import itertools
import random
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
from sparsepipe.planning.base import Problem
from sparsepipe.planning.cost_draws import CostDraws, DrawSettings
from sparsepipe.planning.estimate import beyond_memory, estimate, forward_estimate
from sparsepipe.planning.simulator.bound import lower_bound
from sparsepipe.planning.space import shared_stage
from sparsepipe.values.costs import OPTIMIZER_SLOTS, MemoryNeed
from sparsepipe.values.schedule import Action, Op, compile
from sparsepipe.values.schedule_rules import SCHEDULE_RULES

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
    alone = partition(profile(), cluster("fast"), planner="space")
    assert not alone.stages[0].shares_scenes, "one device has whole scenes"


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


def test_each_device_has_all_weights_with_their_gradients_and_its_part_of_the_rest():
    need = MemoryNeed(parameter_bytes=100.0, saved_bytes=40.0, incoming_bytes=8.0, working_bytes=160.0)
    waiting, working = 2 * 8 / 4 + 40 / 4, 60 / 4  # of two minibatches in flight
    expected = 100 * (1 + OPTIMIZER_SLOTS) + 100 + waiting + working
    assert need.part(0.25).total(versions=1, minibatches=2) == expected
    assert need.part(1.0) == need


def test_inference_is_estimated_with_a_part_of_each_scene_on_each_device():
    devices = cluster("fast", "slow")
    problem = replace(Problem(profile(), devices), forward_only=True)
    alone = replace(Problem(profile(), cluster("fast")), forward_only=True)
    shared = problem.plan([shared_stage(problem, problem.layers, range(2))], "by hand")
    whole = alone.plan([alone.stage(alone.layers, range(1))], "by hand")
    assert shared.stages[0].shares == (2, 1)
    halo = problem.table.halo_seconds(devices, shared.stages[0], problem.layers)[0]
    expected, one = forward_estimate(shared, problem), forward_estimate(whole, alone)
    assert expected.period_seconds == pytest.approx(one.period_seconds * 2 / 3 + halo)
    weights = problem.table.parameter_bytes.sum()
    bytes_alone, bytes_shared = (each.stages[0].memory_bytes - weights for each in (one, expected))
    assert bytes_shared == pytest.approx(bytes_alone * 2 / 3)


def test_interleaved_stages_that_share_scenes_are_refused():
    plan = partition(profile(), cluster("fast", "fast"), planner="space")
    first, *rest = plan.stages[0].layers
    stages = tuple(replace(plan.stages[0], layers=own) for own in ((first,), tuple(rest)))
    with raises("plan.violations"):
        replace(plan, stages=stages, estimate=None).check(profile().graph)
    entry = plan.to_json()
    entry["stages"][0]["sharding"] = "time"
    with pytest.raises(InputError):
        Plan.from_json(entry)


def drawn(rng, num_layers=4):
    """Layers with kernel maps on two kinds of devices, with links and memory that matter."""

    def costs(slow, base):
        samples = [
            CostSample(
                ROWS,
                seconds * slow,
                2 * seconds * slow,
                num_bytes,
                kernel_map_pairs=9 * ROWS + k,
                kernel_map_seconds=0.01,
                saved_bytes=saved,
            )
            for k, (seconds, num_bytes, saved) in enumerate(base)
        ]
        return tuple(LayerCost((sample,)) for sample in samples)

    base = [(rng.uniform(0.1, 2), rng.choice([1e6, 3e7]), rng.choice([1e8, 4e8])) for _ in range(num_layers)]
    graph = LayerGraph.chain([Layer(f"conv{k}", "", rng.choice([1e3, 1e7])) for k in range(num_layers)])
    given = Profile(graph, {"fast": costs(1.0, base), "slow": costs(2.0, base)})
    types = tuple(DeviceType(rng.choice(["fast", "slow"]), rng.choice([6e8, 1.2e9, float("inf")])) for _ in range(3))
    by_name = {kind.name: kind for kind in types}
    nodes = (Node("a", tuple(by_name[kind.name] for kind in types), Link(rng.choice([1e7, 1e9]), 0.001)),)
    return given, Cluster(nodes, Link(1e9))


def every_plan(problem):
    """Yield all plans of consecutive layers on consecutive devices: alone, as replicas or sharing scenes."""
    layers, size = problem.layers, len(problem.cluster.devices)
    for used, num_stages in itertools.product(range(1, size + 1), range(1, size + 1)):
        cuts = itertools.combinations(range(1, len(layers)), num_stages - 1)
        groups = itertools.combinations(range(1, used), num_stages - 1)
        for cut, group in itertools.product([*cuts], [*groups]):
            runs = [layers[a:b] for a, b in itertools.pairwise((0, *cut, len(layers)))]
            teams = [range(a, b) for a, b in itertools.pairwise((0, *group, used))]
            for kinds in itertools.product(*([False, True] if len(team) > 1 else [False] for team in teams)):
                yield problem.plan(
                    [
                        shared_stage(problem, run, team) if shared else problem.stage(run, team)
                        for run, team, shared in zip(runs, teams, kinds, strict=True)
                    ],
                    "brute force",
                )


@pytest.mark.parametrize("seed", range(12))
def test_weighed_stages_equal_brute_force(seed):
    given, devices = drawn(random.Random(seed))
    schedule, count = ("1f1b", 1) if seed % 3 else ("1f1b-flush", 4)
    problem = Problem(given, devices, schedule, count)
    known = [replace(plan, estimate=estimate(plan, problem)) for plan in every_plan(problem)]
    periods = [plan.estimate.period_seconds for plan in known if not beyond_memory(plan, devices)]
    options = {"schedule": schedule, "num_microbatches": count}
    plan = partition(given, devices, planner="space", weigh_stages=True, **options)
    if not periods:
        assert beyond_memory(plan, devices)
        return
    plan.check(given.graph, devices)
    assert not beyond_memory(plan, devices)
    slack = 1e-9 if schedule == "1f1b" else 0.05  # limits of time are tried, not all
    assert min(periods) * (1 - 1e-9) <= plan.estimate.period_seconds <= min(periods) * (1 + slack)
    sizes = [ROWS] * 8
    trace = simulate(plan, given, devices, sizes)
    assert lower_bound(plan, given, devices, sizes) <= trace.makespan * (1 + 1e-9)


def test_a_warning_names_the_kind_of_plan_that_was_chosen():
    """Of these three, a stage of one device and one of two that share scenes are fastest within memory."""
    plan = partition(profile(), cluster("fast", "fast", "fast", memory=MEMORY), planner="space", weigh_stages=True)
    assert [stage.shares_scenes for stage in plan.stages] == [False, True]
    (warning,) = plan.warnings
    assert warning.count("×") == 2  # one shared stage, and stages of which none is shared: replicas do not fit
    with raises("planner.too_many_devices"):
        partition(profile(), cluster(*["fast"] * 33), planner="space", weigh_stages=True)


def mixed(problem):
    """A stage whose devices share scenes, between two others."""
    first, second, last = problem.layers
    return problem.plan(
        [problem.stage([first], [0]), shared_stage(problem, [second], [1, 2]), problem.stage([last], [3])], "by hand"
    )


def test_a_shared_stage_among_others_is_estimated_as_it_is_simulated():
    devices = cluster("fast", "fast", "slow", "fast", memory=MEMORY)
    problem = Problem(profile(), devices)
    plan = mixed(problem)
    plan = replace(plan, estimate=estimate(plan, problem))
    assert Plan.from_json(plan.to_json()) == plan
    count = 40
    trace = simulate(plan, profile(), devices, [ROWS] * count)
    assert trace.makespan == pytest.approx(count * plan.estimate.period_seconds, rel=0.1)
    sent = [(span.rank, span.peer) for span in trace.spans if span.kind == "send"]
    # Forwards go to both parts, and their first sends what both made; so it is with gradients.
    assert {*sent} == {(0, 1), (0, 2), (1, 3), (3, 1), (3, 2), (1, 0)}
    assert all(sent.count(pair) == count for pair in {*sent})
    layers, table = [problem.layers[1]], problem.table
    halos, gathered = table.halo_seconds(devices, plan.stages[1], layers), table.parts_seconds(devices, plan, 1, layers)
    assert all(own[0] > halos[0] > 0 for own in gathered)
    assert "space" in str(plan)
    draws = CostDraws.of(problem, DrawSettings(20))
    of_draw = Problem(draws.profile(1), devices)
    assert draws.periods(plan)[1] == pytest.approx(estimate(plan, of_draw).period_seconds)


@pytest.mark.parametrize("schedule", [name for name, rules in SCHEDULE_RULES.items() if rules.stages_per_rank[0] == 1])
def test_ranks_that_share_scenes_do_the_same_in_every_schedule(schedule):
    devices = cluster("fast", "fast", "slow", "fast")
    plan = mixed(Problem(profile(), devices, schedule, 4))
    plan.check(profile().graph, devices)
    assert plan.stages[1].shares == (2, 1)
    actions = compile(plan, 8).actions
    assert actions[1] == actions[2] and len(actions[1]) >= 3 * 8 - 8
    trace = simulate(plan, profile(), devices, [ROWS] * 8)
    assert trace.makespan >= lower_bound(plan, profile(), devices, [ROWS] * 8) * (1 - 1e-9) > 0
