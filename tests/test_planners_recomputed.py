"""Plans that recompute only what a memory limit requires, compared with every choice of layers and cuts."""

import random
from dataclasses import replace
from itertools import pairwise, product
from math import inf

import pytest
from coded import raises
from test_recomputation import choices, drawn_stage

from sparsepipe import (
    Cluster,
    CostSample,
    InputError,
    Layer,
    LayerCost,
    LayerGraph,
    Plan,
    Profile,
    Stage,
    partition,
    regret,
)
from sparsepipe.planning import Problem, estimate
from sparsepipe.planning.exact.recomputed_segments import cheapest_segments
from sparsepipe.planning.forecast import forecast
from sparsepipe.planning.orders import partition_with_sizes
from sparsepipe.planning.run_estimate import stage_costs


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("waiting", [0, 1, 3])
def test_segments_of_a_stage_are_about_the_cheapest_that_fit(seed: int, waiting: int) -> None:
    """Bytes are counted in cells, and kept bytes in steps, so that a choice may be a little dearer."""
    stage = drawn_stage(6, seed)
    every = [(held.peak + waiting * held.kept, stage.recomputed_seconds(s)) for s, held in _held(stage)]
    least, most, dearer = min(need for need, _ in every), stage.whole.peak + waiting * stage.whole.kept, []
    for share in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0):
        room = least + share * (most - least)
        best = min(seconds for need, seconds in every if need <= room)
        segments = cheapest_segments(stage, room, waiting)
        assert segments is not None or share < 0.2
        if segments is not None:
            held = stage.held(segments)
            assert held.peak + waiting * held.kept <= room * (1 + 1e-9)
            assert stage.recomputed_seconds(segments) >= best
            dearer.append(stage.recomputed_seconds(segments) / best if best else 1.0)
    assert sum(dearer) / len(dearer) < 1.2 and dearer[-1] == 1


def _held(stage):
    return [(segments, stage.held(segments)) for segments in choices(stage)]


def chain(seed: int, count: int = 6) -> Profile:
    """A chain of layers at two sizes of minibatches."""
    drawn = random.Random(seed)
    costs = []
    for _ in range(count):
        forward, saved, temporary = drawn.uniform(1, 4), drawn.uniform(2, 9), drawn.uniform(0, 3)
        samples = (
            CostSample(v, forward * v, 2 * forward * v, v, saved_bytes=saved * v, forward_temporary_bytes=temporary * v)
            for v in (10, 80)
        )
        costs.append(LayerCost(tuple(samples)))
    graph = LayerGraph.chain(Layer(f"l{k}", "", 5.0) for k in range(count))
    return Profile(graph, {"d": tuple(costs)}, (10.0, 20.0, 80.0))


def every_plan(profile: Profile, num_devices: int):
    """All contiguous cuts on up to so many devices without replicas, with every set of recomputed segments."""
    ids = [layer.id for layer in profile.graph.layers]
    for inner in product([False, True], repeat=len(ids) - 1):
        ends = [0, *(k + 1 for k, cut in enumerate(inner) if cut), len(ids)]
        if len(ends) - 1 <= num_devices:
            options = [list(_stages(tuple(ids[a:b]), rank)) for rank, (a, b) in enumerate(pairwise(ends))]
            yield from (Plan(stages) for stages in product(*options))


def _stages(layers: tuple[str, ...], rank: int):
    yield Stage(layers, (rank,), recompute=True)
    for cuts in product("kbm", repeat=len(layers)):  # kept, begins a segment, goes on with one
        if not any(b == "m" and a == "k" for a, b in pairwise("k" + "".join(cuts))):
            begins = [k for k, cut in enumerate(cuts) if cut == "b"]
            ends = [next((k for k in range(b + 1, len(cuts)) if cuts[k] != "m"), len(cuts)) for b in begins]
            segments = tuple((layers[b], layers[e - 1]) for b, e in zip(begins, ends, strict=True))
            yield Stage(layers, (rank,), segments=segments)


@pytest.mark.parametrize("seed", range(2))
def test_a_plan_under_a_limit_is_near_the_best_of_all_choices(seed: int) -> None:
    profile = chain(seed, 4)
    free = Cluster.uniform(2, device_type="d")
    problem = Problem(profile, free)
    judged = [(estimate(plan, problem), plan) for plan in every_plan(profile, 2)]
    needs = sorted(max(part.memory_bytes for part in found.stages) for found, _ in judged)
    limits = [1.02 * needs[int(share * (len(needs) - 1))] for share in (0.05, 0.1, 0.3, 1.0)]
    over = []
    for limit in limits:
        limited = Cluster.uniform(2, device_type="d", memory_bytes=limit)
        best = min(e.period_seconds for e, _ in judged if all(s.memory_bytes <= limit for s in e.stages))
        plan = partition(profile, limited, recompute=True)
        expected = plan.check(profile.graph, limited).estimate
        assert all(part.memory_bytes <= limit * (1 + 1e-9) for part in expected.stages)
        assert expected == replace(estimate(plan, Problem(profile, limited, recompute=True)), **_facts(expected))
        assert expected.lower_bound_seconds <= best * (1 + 1e-9)
        over.append(expected.period_seconds / best)
        try:
            whole = partition(profile, limited, recompute=True, segments=False).estimate.period_seconds
        except InputError:
            whole = inf
        assert expected.period_seconds <= whole * (1 + 1e-9)
    assert max(over) < 1.1 and over[-1] <= 1 + 1e-9  # without a limit that binds, nothing is recomputed
    assert not any(stage.recomputes for stage in plan.stages)


def _facts(expected) -> dict:
    return {"lower_bound_seconds": expected.lower_bound_seconds, "plan_seconds": expected.plan_seconds}


def test_the_largest_minibatch_decides_what_is_recomputed() -> None:
    """Its memory must do, and the mean minibatch pays for it in time."""
    profile = chain(0)
    cluster = Cluster.uniform(
        2, device_type="d", memory_bytes=1.05 * _need(partition(profile, Cluster.uniform(2, device_type="d")))
    )
    plans = [partition(profile, cluster, recompute=True, largest_size=size) for size in (None, 80, "0.1k")]
    for plan, size in zip(plans, (79.0, 80.0, 100.0), strict=True):
        assert plan.estimate.memory_size == pytest.approx(size, rel=0.02)
        assert _need(plan) <= cluster.device_types[0].memory_bytes
    assert plans[0].estimate.period_seconds < plans[2].estimate.period_seconds
    assert any(stage.recomputes for stage in plans[2].stages)
    kept = partition(profile, cluster, largest_size=100)
    assert _need(kept) <= cluster.device_types[0].memory_bytes
    assert plans[2].estimate.period_seconds < kept.estimate.period_seconds
    with raises("planner.no_plan"):
        partition(profile, cluster, recompute=True, largest_size=8000)


def _need(plan: Plan) -> float:
    return max(part.memory_bytes for part in plan.estimate.stages)


def test_reports_of_a_plan_with_segments_count_them() -> None:
    """The simulator has the estimate's time and bytes; orders plan for their largest minibatch; the regret is none."""
    profile, free = chain(0), Cluster.uniform(2, device_type="d")
    limited = Cluster.uniform(2, device_type="d", memory_bytes=0.7 * _need(partition(profile, free)))
    plan = partition(profile, limited, recompute=True)
    assert any(stage.segments for stage in plan.stages)
    told = forecast(plan, profile, limited, [plan.estimate.memory_size] * 12)
    assert max(told.peak_bytes.values()) == pytest.approx(_need(plan))
    told = forecast(plan, profile, limited, [plan.estimate.size] * 60)
    assert 1 / told.minibatches_per_second == pytest.approx(plan.estimate.period_seconds, rel=0.01)
    again, _ = stage_costs(plan, profile, limited, [plan.estimate.size])
    kept = tuple(replace(stage, recompute=False, segments=()) for stage in plan.stages)
    assert (again > stage_costs(replace(plan, stages=kept), profile, limited, [plan.estimate.size])[0]).any()
    assert regret(plan, profile, limited, draws=20, least_uncertainty=0.05).median >= 0
    (best, *_) = partition_with_sizes(profile, limited, [20.0, 60.0, 90.0] * 4, batch_size=1, recompute=True)
    assert best.plan.estimate.memory_size == 90
