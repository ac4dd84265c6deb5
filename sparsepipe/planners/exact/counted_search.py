"""Plans and a bound of a chain on many nodes, by paths that count the devices of each type.

A period below which there is no such path (counted_paths.py) is a bound. Otherwise a path says how many devices of each
type stages have, and whether they are on one node; its devices are put on nodes, and slices of their order searched.
"""

import time
from collections import Counter
from collections.abc import Sequence

from ..base import Problem
from ..cuts import Cuts
from ..device_groups import DeviceClass, device_classes
from .chain_search import Path, along_chain
from .counted_paths import Span, counted_path
from .placed_stages import Placements
from .priced_stages import ever_dearer, too_dear
from .search_space import Rules, Space, order_space

SECONDS = 3.0  # of the processor, after which what is known by then counts
_CLOSE = 0.002  # a gap that is not worth a second
_STEP = 0.004  # of a bound, to the first period that is tried
_SAME = 1e-9


def counted_search(
    problem: Problem, rules: Rules, cuts: Cuts, placed: Placements, *, low: float, high: float, seconds: float = SECONDS
) -> tuple[list[tuple[Space, Path]], float]:
    """Return (paths of periods that fall from `high`, a bound of all periods: `low`, which is one, or more).

    `cuts`: all cuts of a chain; `placed` is of them.
    """
    until, found, step = time.process_time() + seconds, list[tuple[Space, Path]](), _STEP
    least = top = high  # the least period known to have a path, and the longest whose path was of no use on nodes
    while time.process_time() < until:
        if least - low > _CLOSE * high:
            tried = min(low * (1 + step), (low + least) / 2)  # near the bound, where prices leave few ways
        elif high - top > _CLOSE * high:
            tried = (top + high) / 2
        else:
            break
        stages = placed.stages(tried)
        asked = [*ever_dearer(stages.cheapest, placed.available)]
        try:
            spans = None if too_dear(asked[-1]) else counted_path(stages, asked, until=until)
        except TimeoutError:
            break
        if spans is None:
            low, step = tried, 2 * step
            continue
        least = min(least, tried)
        answer = _on_nodes(problem, rules, cuts, placed, spans, high)
        if answer:
            space, path = answer
            high = space.model.period(path)
            found.append(answer)
        top = tried
    return found, low


def _on_nodes(
    problem: Problem, rules: Rules, cuts: Cuts, placed: Placements, spans: Sequence[Span], high: float
) -> tuple[Space, Path] | None:
    """A path below `high` along an order of the devices that spans tell, as short as steps down find."""
    order = order_of_spans(spans, placed.types, device_classes(problem.cluster))
    if not (space := order_space(problem, rules, cuts, order)):
        return None
    best, path = None, along_chain(space.model, space.moves, high * (1 - _SAME))
    while isinstance(path, list):
        best = path
        path = along_chain(space.model, space.moves, space.model.period(path) * (1 - _CLOSE))
    return (space, best) if best else None


def order_of_spans(spans: Sequence[Span], types: Sequence[str], classes: Sequence[DeviceClass]) -> list[int]:
    """The devices by class, from the end of the pipeline; those left out come last.

    Spans on a node, large ones first, go where the least is left beside them. Of the others those with many devices a
    node come first; one after the other, their devices go to the node that has the fewest of them.
    """
    left: dict[str, dict[str, int]] = {}
    place = {(one.node.name, one.type.name): k for k, one in enumerate(classes)}
    for one in classes:
        left.setdefault(one.node.name, dict.fromkeys(types, 0))[one.type.name] = len(one.ranks)
    chosen: dict[int, list[int]] = {}
    for span in sorted(range(len(spans)), key=lambda k: (spans[k].hosts > 1, -sum(spans[k].counts) / spans[k].hosts)):
        counts, hosts = spans[span]
        wanted, own, nodes = dict(zip(types, counts, strict=True)), list[int](), Counter[str]()
        fitting = [name for name in left if all(left[name][kind] >= n for kind, n in wanted.items())]
        if hosts == 1 and fitting:
            nodes[min(fitting, key=lambda name: sum(left[name].values()))] = 0
        for kind, n in sorted(wanted.items(), key=lambda item: item[1]):
            for _ in range(n):
                able = [name for name in nodes if left[name][kind]] if len(nodes) >= hosts or hosts == 1 else []
                able = able or [name for name in left if left[name][kind]]
                if not able:
                    break
                # An even load, and among equals the node where the most is left.
                name = min(able, key=lambda name: (nodes[name], -sum(left[name].values())))
                nodes[name] += 1
                left[name][kind] -= 1
                own.append(place[name, kind])
        chosen[span] = sorted(own)
    rest = [place[name, kind] for name, own in left.items() for kind, n in own.items() for _ in range(n)]
    return [*(k for span in reversed(range(len(spans))) for k in chosen[span]), *rest]
