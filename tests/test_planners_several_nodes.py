"""Branching networks and steps that flush on several nodes: bounds and plans against a search of every move and cut."""

import itertools
import random
from contextlib import contextmanager
from unittest import mock

import pytest

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
    Profile,
    partition,
)
from sparsepipe.planning.base import Problem
from sparsepipe.planning.cuts import Cuts
from sparsepipe.planning.device_groups import device_classes
from sparsepipe.planning.exact import improvement, narrow_cut_bound, optimal, relaxed_bound, search_space, walk_bound
from sparsepipe.planning.exact.frontier_cuts import FrontierCuts, ListedCuts, seconds_and_weights
from sparsepipe.planning.exact.graph_search import StageEnds
from sparsepipe.planning.exact.known_plans import Found, Known
from sparsepipe.planning.exact.like_node_search import row_bound
from sparsepipe.planning.exact.like_nodes import like_nodes
from sparsepipe.planning.exact.min_period import minimise_period
from sparsepipe.planning.exact.narrow_cut_bound import CutProfile
from sparsepipe.planning.exact.optimal import Optimal
from sparsepipe.planning.exact.placed_stages import Placements
from sparsepipe.planning.exact.relaxed_bound import placed_bound, work_bound
from sparsepipe.planning.exact.search_space import Rules, spaces


def random_problem(seed):
    """A branching network on up to three nodes, alike or not, whose links differ, under schedules that flush or not."""
    rng = random.Random(seed)
    count, types, wobble = rng.randint(2, 7), "abc"[: rng.randint(1, 3)], rng.choice([0, 0.3])
    edges = [pair for pair in itertools.combinations(range(count), 2) if rng.random() < 0.35]
    layers = [Layer(f"l{k}", "", rng.choice([0, 1, 5, 20]) * rng.random()) for k in range(count)]
    base = [(rng.choice([0.1, 1, 3]) * rng.random(), rng.choice([0, 0.5, 2, 10]) * rng.random()) for _ in layers]
    costs = {
        kind: tuple(
            LayerCost((CostSample(0, t * slow * rng.uniform(1 - wobble, 1 + wobble), t * slow, size),))
            for t, size in base
        )
        for kind, slow in zip(types, (1, 1.5, 2.5), strict=False)
    }

    def node(name):
        own = tuple(DeviceType(rng.choice(types)) for _ in range(rng.randint(1, 2)))
        return Node(name, own, Link(rng.choice([1, 3, 10, 1e3]), rng.choice([0, 0, 0.05])))

    first, several = node("n0"), range(1, rng.randint(2, 3))
    alike = rng.random() < 0.6
    nodes = [first, *(Node(f"n{k}", first.device_types, first.link) if alike else node(f"n{k}") for k in several)]
    network = Link(rng.choice([0.5, 2, 8]), rng.choice([0, 0.1]))
    profile = Profile(LayerGraph(tuple(layers), tuple(edges)), costs, update_rates={"a": rng.choice([0, 0.2])})
    return Problem(profile, Cluster(tuple(nodes), network), *rng.choice([("1f1b", 1), ("1f1b-flush", 5)]))


def best_of_all(problem):
    """The least period, by every move on the nodes as they are."""
    with mock.patch.object(search_space, "_swapped_moves", return_value=None):
        (space,) = spaces(problem, Rules())
    assert space.complete and space.moves.swaps is None
    return min(found.value for found in Optimal()._minimise(problem, space)[0])


@pytest.mark.parametrize("seed", range(7))
def test_no_walk_is_shorter_than_the_best_plan(seed):
    problem = random_problem(seed)
    best, profile = best_of_all(problem), CutProfile.of(ListedCuts.of(problem))
    for most_groups in (walk_bound._MOST_GROUPS, 0):  # on the nodes as they are, and joined
        with mock.patch.object(walk_bound, "_MOST_GROUPS", most_groups):
            assert walk_bound.walk_bound(problem, profile, low=0.0, high=2 * best) <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_no_row_of_all_cuts_is_shorter_than_the_best_plan(seed):
    """With all cuts of an amount of work taken together: exact amounts, some, and what frontiers leave."""
    problem = random_problem(seed)
    best, listed = best_of_all(problem), ListedCuts.of(problem)
    for bins in (20_000, 4):
        with mock.patch.object(narrow_cut_bound, "_WORK_BINS", bins):
            rows = [CutProfile.of(listed).by_work()]
        frontier = FrontierCuts.of(problem, units=bins, sums=seconds_and_weights(problem))
        rows.append(CutProfile.of_frontier(frontier))
        for row, high in itertools.product(rows, (best, 1.5 * best)):
            assert (row_bound(problem, row, low=0.0, high=high) or 0.0) <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_no_placed_stages_of_a_branching_network_are_shorter_than_the_best_plan(seed):
    """Its cuts are taken for a chain, whether or not the one holds the other."""
    problem = random_problem(seed)
    if problem.synchronous:
        return
    best, every = best_of_all(problem), Cuts.of(problem.table, problem.layers, limit=10**6)
    placed = Placements.of(problem, every)
    for high in (best, 2 * best):
        assert placed_bound(placed, low=0.0, high=high) <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_the_whole_work_at_the_best_prices_takes_no_longer_than_the_best_plan(seed):
    """And at least as long as at prices by the seconds of the whole network."""
    problem = random_problem(seed)
    with mock.patch.object(search_space, "_swapped_moves", return_value=None):
        (space,) = spaces(problem, Rules())
    fixed = space.model.work[-1] / space.moves.spare[0]
    assert fixed * (1 - 1e-9) <= work_bound(problem) <= best_of_all(problem) * (1 + 1e-9)


def test_layers_are_shared_out_to_the_types_that_are_good_at_them():
    """Two types, each three times as fast at one of two layers: both are done in 1 s, 2 s by prices of the whole."""
    costs = {
        kind: tuple(LayerCost((CostSample(1, t, 0.0, 0.0),)) for t in own)
        for kind, own in {"a": (1.0, 3.0), "b": (6.0, 1.0)}.items()
    }
    profile = Profile(LayerGraph.chain([Layer("x"), Layer("y")]), costs)
    problem = Problem(profile, Cluster((Node("n", (DeviceType("a"), DeviceType("b")), Link(1.0)),), Link(1.0)))
    assert work_bound(problem) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(4))
def test_layers_that_move_make_a_plan_no_longer_and_never_better_than_the_best(seed):
    """From cuts along one order; a move is told as the cost model tells it."""
    problem = random_problem(seed)
    if problem.synchronous:
        return
    with mock.patch.object(search_space, "_swapped_moves", return_value=None):
        (space,) = spaces(problem, Rules())
    order, best = space.model.cuts.in_order, best_of_all(problem)
    path = minimise_period(StageEnds(space.model.along(order)), space.moves)[-1]
    path = [(group, int(order[first]), int(order[last])) for group, first, last in path]
    known = Known()
    known.add([Found(space, path, space.model.period(path))])
    Optimal()._with_layers_moved(problem, known)
    moved = known.best
    assert best * (1 - 1e-9) <= moved.value <= space.model.period(path)
    masks = moved.space.masks(moved.path)
    assert all(a & ~b == 0 and a != b for a, b in itertools.pairwise([0, *masks])) and set(masks) <= set(
        space.model.cuts.masks
    )


@pytest.mark.parametrize("seed", range(4))
def test_what_moves_add_is_what_stages_and_boundaries_take(seed):
    problem, rng = random_problem(seed), random.Random(seed)
    with mock.patch.object(search_space, "_swapped_moves", return_value=None):
        (space,) = spaces(problem, Rules())
    path = max(Optimal()._minimise(problem, space)[0], key=lambda found: len(found.path)).path
    stages = improvement._Stages.of(problem, space, path)
    for _ in range(30):
        layer, step = rng.choice(problem.layers), rng.choice((-1, 1))
        if not stages.may_move(layer, step):
            continue
        stages.moved(layer, step)
        if rng.random() < 0.3:
            stages.undo()
        masks = [
            0,
            *(sum(1 << k for k, own in enumerate(problem.layers) if stages.stage[own] <= s) for s in range(len(path))),
        ]
        place = {mask: cut for cut, mask in enumerate(space.model.cuts.masks)}
        now = [
            (group, place[a], place[b]) for (group, _, _), (a, b) in zip(path, itertools.pairwise(masks), strict=True)
        ]
        seconds = [
            *(float(space.model.seconds(*one)) for one in now),
            *(space.model.boundary(a[0], b[0], a[2]) for a, b in itertools.pairwise(now)),
        ]
        assert stages.parts == pytest.approx(
            [improvement._part(one / stages.scale) for one in seconds], rel=1e-6, abs=1e-12
        )


@pytest.mark.parametrize("seed", range(5))
def test_what_is_too_large_to_search_is_bounded_from_below(seed):
    """A graph of more cuts than are searched is no chain, though its cuts along one order are."""
    problem = random_problem(seed)
    best = best_of_all(problem)
    with mock.patch.object(search_space, "MAX_CUTS", 3), mock.patch.object(optimal, "MAX_CUTS", 3):
        found = Optimal().plan(problem).estimate
    assert found.lower_bound_seconds <= best * (1 + 1e-9) <= found.period_seconds * (1 + 2e-9)


@pytest.mark.parametrize("seed", range(10))
def test_every_move_on_like_nodes_is_asked_where_halving_over_all_cuts_is_too_much(seed):
    problem = random_problem(seed)
    if problem.synchronous or not any(len(own) > 1 for own in like_nodes(device_classes(problem.cluster))):
        return
    best = best_of_all(problem)
    with mock.patch.object(search_space, "SETS_BUDGET", 0):
        found = Optimal().plan(problem).estimate
    assert found.lower_bound_seconds <= best * (1 + 1e-9) <= found.period_seconds * (1 + 2e-9)
    assert found.period_seconds - found.lower_bound_seconds <= relaxed_bound.CLOSE * found.period_seconds


@pytest.mark.parametrize("seed", range(7))
def test_swaps_of_like_nodes_lose_no_plan_of_a_branching_network(seed):
    problem = random_problem(seed)
    answers = itertools.chain([False], itertools.repeat(True))
    with mock.patch.object(search_space, "fits", side_effect=answers):  # every move is too much
        space = next(spaces(problem, Rules()))
    if space.moves.swaps is None:
        return  # no nodes are alike
    assert space.complete
    least = min(Optimal()._minimise(problem, space)[0], key=lambda found: found.value)
    assert least.value == pytest.approx(best_of_all(problem))
    assert Optimal()._plan(problem, least, 0.0).estimate.period_seconds == pytest.approx(least.value)


@contextmanager
def parts_searched():
    """Networks of more than two cuts are too large to search."""
    with mock.patch.object(search_space, "MAX_CUTS", 3), mock.patch.object(optimal, "MAX_CUTS", 3):
        yield


@pytest.mark.parametrize("seed", range(8))
def test_the_gap_closes_and_every_interruption_leaves_an_honest_one(seed):
    """Whenever a search is interrupted its plan takes what was told, and no plan is below its bound."""
    problem, states = random_problem(seed), []
    best = best_of_all(problem)
    with parts_searched():
        whole = Optimal().plan(problem, progress=states.append).estimate
    assert all(a.gap >= b.gap - 1e-12 for a, b in itertools.pairwise(states))
    assert states[-1].period_seconds == pytest.approx(whole.period_seconds)
    for stop in range(0, len(states), 3):
        left = iter(range(stop))

        def interrupt(state, left=left):
            if next(left, None) is None:
                raise KeyboardInterrupt

        with parts_searched():
            plan = Optimal().plan(problem, progress=interrupt)
        estimate = plan.estimate
        assert plan.warnings and estimate.period_seconds == pytest.approx(states[stop].period_seconds)
        assert estimate.lower_bound_seconds <= best * (1 + 1e-9) <= estimate.period_seconds * (1 + 2e-9)
    with parts_searched(), mock.patch.object(optimal, "relaxed_bound", side_effect=KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):  # nobody asked for progress
            Optimal().plan(random_problem(1))


@pytest.mark.parametrize("seed", range(8))
def test_a_warm_start_is_never_lost(seed):
    """From the best plan of all, a search of some cuts alone ends with one as good, and with a bound of all."""
    problem = random_problem(seed)
    best = Optimal().plan(problem)
    with parts_searched():
        again = Optimal().plan(problem, warm_start=best).estimate
    assert again.period_seconds == pytest.approx(best.estimate.period_seconds)
    assert again.lower_bound_seconds <= best.estimate.period_seconds * (1 + 1e-9)


def test_a_warm_start_is_a_plan_of_these_layers_by_this_planner():
    problem, other = random_problem(0), random_problem(1)
    plan = Optimal().plan(problem)
    for start, of, options in (
        (plan, other, {}),
        ("plan.json", problem, {}),
        (plan, problem, {"planner": "data-parallel"}),
        (plan, problem, {"objective": "latency"}),
    ):
        with pytest.raises(InputError) as error:
            partition(of.profile, of.cluster, warm_start=start, **options)
        assert error.value.code in ("plan.violations", "planner.warm_start")
