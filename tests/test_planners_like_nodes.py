"""Nodes that are alike may swap places: a search with one state for all of them finds what the whole one finds."""

import random
from math import comb

import numpy as np
import pytest

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile, partition
from sparsepipe.planning.base import Problem
from sparsepipe.planning.device_groups import device_classes
from sparsepipe.planning.exact.graph_search import StageEnds, over_sets
from sparsepipe.planning.exact.like_nodes import num_moves, symmetric_moves
from sparsepipe.planning.exact.min_period import minimise_period
from sparsepipe.planning.exact.relaxed_bound import CLOSE
from sparsepipe.planning.exact.search_space import Rules, spaces, symmetric_space


def random_problem(seed):
    """A chain on two or three nodes that are alike, with or without one that is not."""
    rng = random.Random(seed)
    layers = [Layer(f"l{k}", "", rng.choice([0, 1, 5, 20]) * rng.random()) for k in range(rng.randint(4, 9))]
    base = [(rng.choice([0.1, 1, 3, 10]) * rng.random(), rng.choice([0, 0.5, 2, 10]) * rng.random()) for _ in layers]
    costs = {
        kind: tuple(LayerCost((CostSample(0, t * slow * rng.uniform(0.7, 1.4), t * slow, size),)) for t, size in base)
        for kind, slow in zip("ab", (1, 1.5), strict=True)
    }
    own = tuple(DeviceType(rng.choice("ab")) for _ in range(rng.randint(1, 2)))
    link = Link(rng.choice([1, 3, 1e3]), rng.choice([0, 0.05]))
    nodes = [Node(f"n{k}", own, link) for k in range(rng.randint(2, 3))]
    if rng.random() < 0.4:
        nodes.insert(rng.randint(0, 2), Node("other", (DeviceType("a"),), Link(2)))
    network = Link(rng.choice([0.5, 2, 8]), rng.choice([0, 0.1]))
    return Problem(Profile(LayerGraph.chain(layers), costs), Cluster(tuple(nodes), network))


@pytest.mark.parametrize("seed", range(10))
def test_swaps_of_like_nodes_lose_no_plan(seed):
    problem = random_problem(seed)
    (whole,) = spaces(problem, Rules())
    fewer = symmetric_space(problem, whole.model.cuts)
    assert len(fewer.moves.source) == num_moves(device_classes(problem.cluster)) - len(fewer.moves.used)
    best = whole.model.period(minimise_period(StageEnds(whole.model), whole.moves)[-1])
    path = minimise_period(StageEnds(fewer.model), fewer.moves)[-1]
    assert fewer.model.period(path) == pytest.approx(best)
    used = sum(fewer.model.groups.counts[group] for group, _, _ in path)
    assert (used <= [len(one.ranks) for one in fewer.model.groups.classes]).all()  # on the nodes themselves
    assert over_sets(StageEnds(fewer.model), fewer.moves, best * (1 - 1e-9)) is None
    again = over_sets(StageEnds(fewer.model), fewer.moves, best * (1 + 1e-9))
    assert fewer.model.period(again) == pytest.approx(best)


def test_one_state_stands_for_all_that_differ_by_like_nodes():
    """Three nodes of two: 3³ states and 6³ moves, ten and 56 of which differ, with those that move nothing."""
    nodes = tuple(Node(f"n{k}", (DeviceType("d"),) * 2, Link(1.0)) for k in range(3))
    classes = device_classes(Cluster(nodes, Link(1.0)))
    counts, moves = symmetric_moves(classes, np.ones(3))
    assert len(counts) == 3**3 - 1 and len(moves.used) == comb(3 + 2, 3) == 10
    assert num_moves(classes) == comb(6 + 2, 3) == 56 and len(moves.source) == 56 - 10
    assert sorted(moves.used) == list(moves.used) and list(moves.spare) == [6 - used for used in moves.used]
    assert list(moves.used[moves.rest]) == [6 - used for used in moves.used]
    assert list(moves.used[moves.target] - moves.used[moves.source]) == list(counts[moves.group].sum(axis=1))
    assert list(counts[moves.group].sum(axis=1)) == list(counts[moves.receiver].sum(axis=1))


@pytest.mark.slow
def test_four_like_nodes_of_three_types_are_planned_near_their_bound():
    """Ten million moves, of which 400,000 differ; along a few orders of the devices gaps were .1 and more."""
    rng = random.Random(1)
    layers = [Layer(f"l{k}", "", rng.choice([0, 1e5, 1e6, 4e6])) for k in range(50)]
    base = [(rng.uniform(1, 10) * 1e-3, rng.uniform(1, 10) * 1e5) for _ in layers]
    costs = {
        kind: tuple(
            LayerCost((CostSample(0, t * slow * rng.uniform(0.8, 1.2), 2 * t * slow, size),)) for t, size in base
        )
        for kind, slow in zip("abc", (1, 1.5, 2), strict=True)
    }
    nodes = tuple(Node(f"n{k}", tuple(map(DeviceType, "aabc")), Link(12e9)) for k in range(4))
    found = partition(Profile(LayerGraph.chain(layers), costs), Cluster(nodes, Link(1.25e9, 1e-5))).estimate
    assert found.gap <= CLOSE  # nearer than that is not worth a second
