"""Plans of a branching network along orders of its layers in which those that a type is good at follow one another.

If cuts are too many to search, those along one order of the layers are searched in some milliseconds. Of the stages
that are best for a type (connected_stages.py) as many are drawn at random as it has devices, those that spare the most
more often; layers that must be before the first of them come first, then its own, and so on.
"""

import random
import time

import numpy as np

from ..base import Problem
from ..cuts import Cuts, least_payload_order
from .chain_search import Path, along_chain
from .connected_stages import Connected, ConnectedStages
from .order_search import order_of
from .search_space import Rules, Space, every_move, order_space

SECONDS = 2.0  # of the processor
_USUAL = 12  # of the best stages, that are drawn from
_MOST_MOVES = 20_000  # of all devices; where there are more, those along an order of them are tried
_SAME = 1e-9


def paths_along_connected_stages(
    problem: Problem,
    rules: Rules,
    stages: ConnectedStages,
    near: tuple[Space, Path],
    *,
    low: float,
    high: float,
    seconds: float = SECONDS,
) -> list[tuple[Space, Path]]:
    """Return paths of periods that fall from `high`, that of a path `near` them, to `low` at best.

    No device's memory is looked at.
    """
    kinds = list(dict.fromkeys(device.type.name for device in problem.cluster.devices))
    names = [device.type.name for device in problem.cluster.devices]
    best = [[best_stage for best_stage in stages.best if best_stage.kind == kind] for kind in range(len(kinds))]
    if not stages.best:
        return []
    orders = problem.layers, least_payload_order(problem.table, problem.layers)
    every, devices = every_move(problem, _MOST_MOVES), order_of(*near)
    rng, until, found = random.Random(0), time.process_time() + seconds, list[tuple[Space, Path]]()
    while high > low * (1 + _SAME) and time.process_time() < until:
        drawn = [
            class_best[min(int(rng.expovariate(1 / _USUAL)), len(class_best) - 1)]
            for kind, class_best in zip(kinds, best, strict=True)
            for _ in range(names.count(kind))
            if class_best
        ]
        order = _order(problem.layers, drawn, rng.choice(orders))
        if not order:
            continue
        cuts = Cuts.along(problem.table, order)
        if every:
            space: Space | None = Space.of(problem, rules, cuts, *every, complete=False)
        else:
            space = order_space(problem, rules, cuts, devices)
        while space and isinstance(path := along_chain(space.model, space.moves, high * (1 - _SAME)), list):
            found.append((space, path))
            high, devices = space.model.period(path), order_of(space, path)
    return found


def _order(layers: tuple[int, ...], drawn: list[Connected], usual: tuple[int, ...]) -> tuple[int, ...]:
    """The layers as they `usually` are, but for those of stages that follow one another; none where two share some."""
    region, placed = np.zeros(len(layers), dtype=np.intp), np.zeros(len(layers), dtype=bool)
    for number, one in enumerate(sorted(drawn, key=lambda one: int(one.before.sum()))):
        if (one.layers & placed).any():
            return ()
        region[one.before & ~placed] = 2 * number
        region[one.layers] = 2 * number + 1
        placed |= one.before | one.layers
    region[~placed] = 2 * len(drawn)
    index_of = {layer: k for k, layer in enumerate(usual)}
    return tuple(layers[k] for k in sorted(range(len(layers)), key=lambda k: (region[k], index_of[layers[k]])))
