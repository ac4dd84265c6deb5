"""Plans along orders of the devices near that of a plan: of devices two change places, or one goes elsewhere.

Slices of an order are groups of a plan (search_space.py), so that an order says which devices are together, on which
nodes, and which stages are neighbours. If there are too many of them to prove which is the best, those are looked at
that differ from one whose plan is the best so far by a change, at random; one that is as good is continued from, too.
"""

import random
import time
from collections.abc import Sequence

from ..base import Problem
from ..cuts import Cuts
from .chain_search import Path, along_chain
from .search_space import Rules, Space, order_space

SECONDS = 1.5  # of the processor
_SAME = 1e-9
_MOVED = 0.3  # of the changes are devices that go elsewhere


def order_of(space: Space, path: Path) -> list[int]:
    """The devices by class in the order of a path, from the end of the pipeline; those it leaves out come last."""
    groups = space.model.groups
    left, order = [len(device_class.ranks) for device_class in groups.classes], list[int]()
    for group, _, _ in reversed(path):
        for kind, count in enumerate(groups.counts[group].tolist()):
            order += [kind] * count
            left[kind] -= count
    return order + [kind for kind, count in enumerate(left) for _ in range(count)]


def paths_nearby(
    problem: Problem,
    rules: Rules,
    cuts: Cuts,
    order: Sequence[int],
    *,
    low: float,
    high: float,
    seconds: float = SECONDS,
) -> list[tuple[Space, Path]]:
    """Return paths of periods that fall from `high`, that of a plan along `order`, to `low` at best."""
    rng, until, found, best = random.Random(0), time.process_time() + seconds, list[tuple[Space, Path]](), list(order)
    while high > low * (1 + _SAME) and time.process_time() < until:
        tried = _changed(best, rng)
        if tried == best or not (space := order_space(problem, rules, cuts, tried)):
            continue
        path = along_chain(space.model, space.moves, high * (1 + _SAME))
        if not isinstance(path, list):
            continue
        best, period = tried, space.model.period(path)
        if period < high * (1 - _SAME):
            found.append((space, path))
            high = period
    return found


def _changed(order: Sequence[int], rng: random.Random) -> list[int]:
    changed_order = list(order)
    first, second = rng.randrange(len(changed_order)), rng.randrange(len(changed_order))
    if rng.random() < _MOVED:
        changed_order.insert(second, changed_order.pop(first))
    else:
        changed_order[first], changed_order[second] = changed_order[second], changed_order[first]
    return changed_order
