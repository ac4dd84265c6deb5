"""DynPipe's planner: its simulator's published values, and its choices against every choice, simulated one by one."""

from itertools import combinations

import numpy as np
import pytest
from coded import raises

from sparsepipe import CostSample, Layer, LayerCost, LayerGraph, Link, Profile, partition, simulate
from sparsepipe.monitoring import Factors
from sparsepipe.planning import Problem
from sparsepipe.planning.published.dynpipe import DynPipe, pace, recut
from sparsepipe.records.formats.dynpipe import BANDWIDTH, load_layer_lists
from sparsepipe.values.cluster import Cluster


def column(values):
    return np.array(values, dtype=float)[:, None] / 1e3


@pytest.mark.parametrize(
    ("forward", "backward", "transfer", "published"),
    [
        ([1, 9, 1], [1, 3, 3], [0, 0], 11.9355),
        ([1, 1], [3, 3], [1], 5.0),
        ([1] * 4, [2] * 4, [0] * 3, 3.0),
        ([1] * 4, [2] * 4, [1] * 3, 4.5),
        ([1, 2, 1, 1], [2, 4, 2, 2], [0.5] * 3, 5.93478),
        ([1, 3], [2, 6], [0.5], 8.94792),
    ],
)
def test_the_simulator_says_what_the_original_does(forward, backward, transfer, published):
    """Values of SEEDS.md, in milliseconds."""
    found = pace(column(forward), column(backward), column(transfer))
    assert found * 1e3 == pytest.approx([published], abs=5e-5)


def test_many_pipelines_are_simulated_as_each_by_itself():
    draw = np.random.default_rng(0)
    forward, backward, transfer = (draw.random((4 - k, 20)) for k in (0, 0, 1))
    together = pace(forward, backward, transfer)
    alone = [pace(forward[:, [k]], backward[:, [k]], transfer[:, [k]])[0] for k in range(20)]
    assert together.tolist() == alone


@pytest.fixture(scope="module")
def vgg16(shared_data):
    folder = shared_data / "dynpipe_logs/runtime/image_classification"
    return load_layer_lists(folder / "vgg16_data_1_for_.txt", device_type="gpu")


def gpus(count):
    return Cluster.uniform(count, device_type="gpu", link=Link(BANDWIDTH))


def sizes(plan):
    return [len(stage.layers) for stage in plan.stages]


def by_brute_force(profile, before, slower, top_k=2):
    """The choice of A6 in SEEDS.md, step by step: the slow and simple way."""
    costs = [profile.cost(k, "gpu") for k in range(len(profile.graph.layers))]
    f, b = [c.forward for c in costs], [c.backward for c in costs]
    c = [cost.output_bytes / BANDWIDTH for cost in costs[:-1]]
    weight = [f[0] + b[0] + c[0]]
    weight += [f[k] + b[k] + c[k - 1] + c[k] for k in range(1, len(f) - 1)] + [f[-1] + b[-1] + c[-1]]
    candidates, first = [], 0
    for size in before:
        heaviest = sorted(range(first, first + size), key=lambda k: weight[k], reverse=True)[:top_k]
        candidates += [k + 1 for k in sorted(heaviest)]
        first += size
    found = []
    for cuts in combinations(candidates[:-1], len(before) - 1):
        bounds = [0, *cuts, len(f)]
        own = list(zip(bounds, bounds[1:], strict=False))
        forward, backward = ([slower[s] * sum(x[i:j]) for s, (i, j) in enumerate(own)] for x in (f, b))
        seconds = pace(np.array(forward)[:, None], np.array(backward)[:, None], np.array([[c[k - 1]] for k in cuts]))
        found.append((seconds[0], [j - i for i, j in own]))
    return min(found, key=lambda one: one[0])


@pytest.mark.parametrize("before", [(8, 30), (17, 21), (5, 33), (10, 6, 8, 14), (15, 5, 18)])
@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0, 4.0])
def test_its_choices_are_the_best_of_all_that_it_looks_at(vgg16, before, factor):
    for slow in range(len(before)):
        slower = [factor if k == slow else 1.0 for k in range(len(before))]
        now, cluster = Factors(tuple(slower)).scaled(vgg16, gpus(len(before)))
        plan = DynPipe(sizes=before).plan(Problem(now, cluster)).check(now.graph, cluster)
        seconds, expected = by_brute_force(vgg16, before, slower)
        assert sizes(plan) == expected
        assert plan.estimate.period_seconds == pytest.approx(seconds)
        assert plan.ranks == tuple(range(len(before)))


def test_its_choice_for_two_gpus_is_the_plan_that_it_ships(vgg16):
    """vgg16_2.json has [8, 30]: from there, and from what its logs moved to, undisturbed, it goes there."""
    for before in ((8, 30), (17, 21), (10, 28)):
        assert sizes(DynPipe(sizes=before).plan(Problem(vgg16, gpus(2)))) == [8, 30]


def test_the_best_cut_is_often_no_candidate(vgg16):
    """A fault of the original that is kept: from [17, 21] it cannot see the cut that it finds from [8, 30]."""
    now, cluster = Factors((1.0, 2.0)).scaled(vgg16, gpus(2))
    far, near = (DynPipe(sizes=before).plan(Problem(now, cluster)) for before in ((17, 21), (8, 30)))
    assert (sizes(far), sizes(near)) == ([20, 18], [13, 25])
    assert far.estimate.period_seconds > 1.2 * near.estimate.period_seconds
    optimal = partition(now, cluster, planner="optimal", schedule="1f1b")
    assert optimal.estimate.period_seconds < far.estimate.period_seconds


def test_stages_with_replicas_and_what_comes_before_them_stay(vgg16):
    problem = Problem(vgg16, gpus(5))
    layers = problem.layers
    plan = problem.plan(
        [
            problem.stage(layers[:4], (0, 1)),
            problem.stage(layers[4:10], (2,)),
            problem.stage(layers[10:20], (3,)),
            problem.stage(layers[20:], (4,)),
        ],
        "by hand",
    )
    new = recut(plan, problem).check(vgg16.graph, problem.cluster)
    assert new.stages[0] == plan.stages[0] and sizes(new) != sizes(plan)
    assert [stage.ranks for stage in new.stages] == [(0, 1), (2,), (3,), (4,)]
    alone = problem.plan([problem.stage(layers, range(5))], "by hand")
    assert recut(alone, problem).stages == alone.stages


def test_stages_of_one_layer_leave_nothing_to_choose():
    cost = LayerCost((CostSample(0, 1.0, 2.0, 8.0),))
    profile = Profile(LayerGraph.chain(Layer(f"l{k}") for k in range(3)), {"gpu": (cost,) * 3})
    plan = partition(profile, gpus(3), planner="dynpipe")
    assert sizes(plan) == [1, 1, 1] and plan.planner == "dynpipe"
    pace_ = plan.estimate.period_seconds
    assert simulate(plan, profile, gpus(3), [1] * 40).makespan == pytest.approx(40 * pace_, rel=0.2)


@pytest.mark.parametrize(
    ("count", "given", "error"),
    [
        (2, {"top_k": 0}, ("setting.not_whole", "0")),
        (2, {"sizes": (8, 29)}, ("planner.sizes_malformed", "[8, 29]")),
        (2, {"sizes": (38, 0)}, ("setting.not_names", "0")),
        (2, {"sizes": (8, 10, 20)}, ("planner.sizes_malformed", "2 stages")),
        (11, {}, ("planner.too_many_stages", "11 stages")),
    ],
)
def test_what_it_cannot_plan_is_told_in_a_line(vgg16, count, given, error):
    with raises(*error):
        partition(vgg16, gpus(count), planner="dynpipe", **given)
