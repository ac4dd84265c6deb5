"""Chains of layers on unlike devices, drawn at random: what planners are held against search on."""

from sparsepipe.planning.base import Problem
from sparsepipe.values.cluster import Cluster, DeviceType, Link, Node
from sparsepipe.values.graph import Layer, LayerGraph
from sparsepipe.values.profile import CostSample, LayerCost, Profile


def random_problem(rng, *, layers=(6, 16), most_each=3):
    """A chain on up to three types of devices on up to three nodes, whose averaging and transfers matter."""
    count, types = rng.randint(*layers), "abc"[: rng.randint(1, 3)]
    named = [Layer(f"l{k}", "", rng.choice([0, 1, 5, 20]) * rng.random()) for k in range(count)]
    base = [(rng.choice([0.1, 1, 3, 10]) * rng.random(), rng.choice([0, 0.5, 2, 10]) * rng.random()) for _ in named]
    costs = {
        kind: tuple(LayerCost((CostSample(0, t * slow * rng.uniform(0.7, 1.4), t * slow, size),)) for t, size in base)
        for kind, slow in zip(types, (1, 1.5, 2.5), strict=False)
    }
    nodes = tuple(
        Node(
            f"n{k}",
            tuple(DeviceType(rng.choice(types)) for _ in range(rng.randint(1, most_each))),
            Link(rng.choice([1, 3, 10, 1e3]), rng.choice([0, 0, 0.05])),
        )
        for k in range(rng.randint(1, 3))
    )
    cluster = Cluster(nodes, Link(rng.choice([0.5, 2, 8]), rng.choice([0, 0.1])))
    rates = {kind: rng.choice([0, 0.2]) * rng.random() for kind in costs}
    return Problem(Profile(LayerGraph.chain(named), costs, update_rates=rates), cluster)
