"""Improvement of a plan by moving layers and by a deeper warm-up."""

import math
import random
import time
from dataclasses import dataclass, replace
from math import ceil

from ...values.plan import Plan, Stage
from ...values.schedule import lookahead
from ..base import Problem
from ..estimate import crossing_seconds, estimate
from .chain_search import Path
from .frontier_cuts import layer_seconds
from .search_space import Space

SECONDS = 4.0  # of the processor
_TRIED = 2000  # moves of each layer, on average
_POWER = 40
_WARM = 0.02  # of the whole: what a move at the start may make it longer by, about
_MOST = 1e3  # times the period, which is never kept
_ASKED = 256  # moves from one look at the clock to the next
TOO_FEW_IN_FLIGHT = (
    "memory does not suffice for enough minibatches in flight to hide transfers and averaging; simulate the plan"
)


def masks_nearby(problem: Problem, space: Space, path: Path, *, seconds: float = SECONDS) -> list[int]:
    """Return the cut behind each stage: those of the path, or better ones on the same groups."""
    stages, rng = _Stages.of(problem, space, path), random.Random(0)
    layers, best = list(problem.layers), list(stages.stage)
    count, until = _TRIED * len(layers), time.process_time() + seconds
    whole, least, warmth = sum(stages.parts), max(stages.parts), 0.0
    for tried in range(count):
        if tried % _ASKED == 0:  # colder by the moves, or by the clock if there is no time for all of them
            left = min(1 - tried / count, (until - time.process_time()) / seconds)
            if left <= 0:
                break
            warmth = _WARM * left**2
        layer, step = rng.choice(layers), rng.choice((-1, 1))
        if not stages.may_move(layer, step):
            continue
        change = stages.moved(layer, step)
        if change > 0 and rng.random() >= math.exp(-change / (warmth * whole)):
            stages.undo()
            continue
        whole += change
        if (longest := max(stages.parts)) < least:
            least, best = longest, list(stages.stage)
    index_of = {layer: k for k, layer in enumerate(layers)}
    return [sum(1 << index_of[k] for k in layers if best[k] <= stage) for stage in range(len(path))]


@dataclass(eq=False)
class _Stages:
    """The layers of each stage while they move, with what each stage and boundary adds to the whole."""

    inputs: tuple[tuple[int, ...], ...]
    consumers: tuple[tuple[int, ...], ...]
    seconds: list[list[float]]  # of each layer, by type
    weights: list[float]
    sent: list[float]  # bytes of each layer's output
    rates: list[list[float]]  # of each stage's group
    weight_rates: list[float]
    fixed: list[float]
    links: list[tuple[float, float]]  # of each boundary: seconds of a message, and of a byte, at the busiest port
    stage: list[int]  # of each layer; −1: before all
    times: list[list[float]]  # of each stage, by type
    bytes_of: list[float]  # of weights, of each stage
    count: list[int]  # layers of each stage
    crossing: list[float]  # bytes, of each boundary
    parts: list[float]  # stages, then boundaries
    scale: float  # the period at the start

    @classmethod
    def of(cls, problem: Problem, space: Space, path: Path) -> "_Stages":
        model, graph, table = space.model, problem.graph, problem.table
        every = range(len(graph.layers))
        groups = [group for group, _, _ in path]
        seconds = [layer_seconds(problem, every, name).tolist() for name in model.groups.types]
        stage = [-1] * len(graph.layers)
        for number, (_, first, last) in enumerate(path):
            for layer in model.cuts.between(first, last):
                stage[layer] = number
        network, links = len(model.ports) - 1, []
        for a, b in zip(groups, groups[1:], strict=False):
            number = model.link(a, b)
            link = problem.cluster.network if number == network else model.groups.nodes[number].link
            share = model.network_port if number == network else model.device_port
            carried = float(max(share[a], share[b]))
            links.append((carried * link.latency, carried / link.bandwidth))
        several = problem.easier or len(problem.cluster.nodes) > 1
        sizes = table.between_hosts if several else table.within_host
        moved_layers = cls(
            graph.inputs,
            graph.consumers,
            [list(own) for own in zip(*seconds, strict=True)],
            table.parameter_bytes.tolist(),
            [max(a, b) for a, b in zip(sizes.outputs[:, 0].tolist(), sizes.gradients[:, 0].tolist(), strict=True)],
            model.rates[groups].tolist(),
            model.weight_rates[groups].tolist(),
            model.fixed[groups].tolist(),
            links,
            stage,
            [[0.0] * len(seconds) for _ in path],
            [0.0] * len(path),
            [0] * len(path),
            [0.0] * len(links),
            [],
            model.period(path),
        )
        moved_layers._add_up()
        return moved_layers

    def _add_up(self) -> None:
        for layer, number in enumerate(self.stage):
            if number >= 0:
                self.count[number] += 1
                self._give(layer, number, 1)
            later = max((self.stage[consumer] for consumer in self.consumers[layer]), default=number)
            for boundary in range(max(number, 0), later):
                self.crossing[boundary] += self.sent[layer]
        stages = [self._of_stage(number) for number in range(len(self.count))]
        self.parts = [*stages, *(self._of_boundary(number) for number in range(len(self.links)))]

    def _give(self, layer: int, number: int, sign: int) -> None:
        times = self.times[number]
        for kind, type_seconds in enumerate(self.seconds[layer]):
            times[kind] += sign * type_seconds
        self.bytes_of[number] += sign * self.weights[layer]

    def _of_stage(self, number: int) -> float:
        slowest = max(rate * own for rate, own in zip(self.rates[number], self.times[number], strict=True))
        whole = slowest + self.weight_rates[number] * self.bytes_of[number] + self.fixed[number]
        return _part(whole / self.scale)

    def _of_boundary(self, number: int) -> float:
        once, each = self.links[number]
        return _part((once + each * self.crossing[number]) / self.scale)

    def may_move(self, layer: int, step: int) -> bool:
        """Return whether a layer may go to the stage before its own (−1) or after it (1), which keeps a layer."""
        number = self.stage[layer]
        if not 0 <= number + step < len(self.count) or self.count[number] == 1:
            return False
        if step > 0:
            return all(self.stage[consumer] > number for consumer in self.consumers[layer])
        return all(self.stage[needed] < number for needed in self.inputs[layer])

    def moved(self, layer: int, step: int) -> float:
        """Move a layer; return by how much the whole grows."""
        self._undo = layer, step, list(self.parts)
        before, own_parts = self.stage[layer], self.parts
        self._move(layer, step)
        boundary, first = min(before, before + step), len(self.count)
        change = 0.0
        for place, value in (
            (before, self._of_stage(before)),
            (before + step, self._of_stage(before + step)),
            (first + boundary, self._of_boundary(boundary)),
        ):
            change += value - own_parts[place]
            own_parts[place] = value
        return change

    def undo(self) -> None:
        """Take the last move back."""
        layer, step, parts = self._undo
        self._move(layer, -step)
        self.parts = parts

    def _move(self, layer: int, step: int) -> None:
        number = self.stage[layer]
        boundary = min(number, number + step)
        self._give(layer, number, -1)
        self._give(layer, number + step, 1)
        self.count[number] -= 1
        self.count[number + step] += 1
        around = [layer, *self.inputs[layer]]
        self.crossing[boundary] -= sum(self.sent[one] for one in around if self._crosses(one, boundary))
        self.stage[layer] = number + step
        self.crossing[boundary] += sum(self.sent[one] for one in around if self._crosses(one, boundary))

    def _crosses(self, layer: int, boundary: int) -> bool:
        stage = self.stage
        return stage[layer] <= boundary and any(stage[consumer] > boundary for consumer in self.consumers[layer])


def _part(share: float) -> float:
    """Return the contribution of a stage or boundary with this share of the period."""
    return float(max(min(share, _MOST), 0.0) ** _POWER)


NEGLIGIBLE = 0.05  # of a minibatch in flight: what transfers hold of it may be left out


def deepened(plan: Plan, problem: Problem) -> Plan:
    """Give stages of 1F1B the warm-up that lets the plan keep its period, where memory allows."""
    period = estimate(plan, problem).period_seconds
    if not plan.rules.one_forward_one_backward or len(plan.stages) == 1 or not period > 0:
        return plan
    crossings = crossing_seconds(plan, problem)
    deeper = plan
    for s in reversed(range(len(plan.stages) - 1)):
        own_stage, following = plan.stages[s], plan.stages[s + 1]
        waits = (
            (_together(following) - 1) + (_together(own_stage) - 1) + crossings[s] / period
        )  # for averaging, and transfers
        ahead = lookahead(deeper, s + 1) + _together(following) + waits - NEGLIGIBLE
        if ahead > lookahead(deeper, s):
            stage = replace(own_stage, warmup=ceil(ahead / len(own_stage.ranks)))
            deeper = replace(deeper, stages=(*deeper.stages[:s], stage, *deeper.stages[s + 1 :]))
    limits = [problem.memory_limit(stage) for stage in plan.stages]
    needs = [stage.memory_bytes for stage in estimate(deeper, problem).stages]
    if all(need <= limit for need, limit in zip(needs, limits, strict=True)):
        return deeper
    return replace(plan, warnings=(*plan.warnings, TOO_FEW_IN_FLIGHT))


def _together(stage: Stage) -> int:
    """Minibatches that must have come for a stage's replicas not to wait: a round, of long ones the beginning."""
    return min(stage.round, 2 * len(stage.ranks) - 1)
