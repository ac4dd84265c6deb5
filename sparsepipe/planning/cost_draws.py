"""Draws of the costs that a profile leaves open: times of layers within their uncertainty, and sizes of minibatches.

A drawn time is the profile's time × a factor. Measurement errors differ between layers, device types, forward and
backward; errors of extrapolation to another size are common to all layers of a device type. Factors are lognormal with
median 1, because times are positive and their errors are relative. The mean size of minibatches is drawn by the
bootstrap: as many of the profile's typical minibatches, with repetition. Links and bytes at one size count as known.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..errors import InputError
from ..util.io.fields import MOST
from ..util.io.settings import Number, Settings, WholeNumber, setting
from ..values.costs import Array, LayerTable, boundary_link, copies, port_loads
from ..values.plan import Plan
from ..values.profile import CostSample, Profile
from .base import Problem
from .cuts import Index
from .estimate import (
    Seconds,
    between_hosts,
    kinds_of,
    largest,
    network_rates,
    once_a_round,
    plan_period,
    step_work,
)

_LONGEST = 7 * 24 * 3600.0  # seconds
_SEED = 62  # of this stream of random numbers
_FORWARD, _BACKWARD = 0, 1


@dataclass(frozen=True, repr=False)
class DrawSettings(Settings):
    """Draws of uncertain costs, for `--regret` and `--robust`."""

    draws: int = setting(200, WholeNumber(20, 10_000), "number of draws of the profile's costs")
    draw_seed: int = setting(0, WholeNumber(0, 2**63), "random seed of the draws")
    least_uncertainty: float = setting(
        0.0, Number(0, 1), "least relative standard deviation of a layer's time, for profiles without spread", unit="S"
    )
    draw_seconds: float = setting(
        60.0,
        Number(0, _LONGEST, above=True),
        "time limit of the draws in seconds; a report then uses the draws made so far",
        unit="S",
    )


@dataclass(frozen=True, eq=False)
class CostDraws:
    """Draws of the costs of a problem. Each draw is a profile, `profile(k)`; arrays have all draws at once."""

    problem: Problem
    types: tuple[str, ...]
    factors: Array  # [types, forward and backward, layers, draws], on seconds
    chosen: Index | None  # [draws, sizes]: which of the profile's typical minibatches; None if they do not vary
    shares: Array  # [types, forward and backward, layers]: relative standard deviation of each factor

    @classmethod
    def of(cls, problem: Problem, settings: DrawSettings) -> "CostDraws":
        """Draw costs within the uncertainty of the problem's profile."""
        profile, count = problem.profile, settings.draws
        types = tuple(kind.name for kind in problem.cluster.device_types)
        known = np.array([profile.layer_uncertainty(name, problem.size) for name in types])  # [types, 2, passes, L]
        measuring, extrapolating = np.maximum(known[:, 0], settings.least_uncertainty), known[:, 1]
        random = np.random.default_rng((settings.draw_seed, _SEED))
        of_layers = random.standard_normal((*measuring.shape, count))
        of_types = random.standard_normal((len(types), 1, 1, count))
        factors = np.exp(_deviation(measuring) * of_layers + _deviation(extrapolating) * of_types)
        varies = len(set(profile.sizes)) > 1
        chosen = random.integers(len(profile.sizes), size=(count, len(profile.sizes))) if varies else None
        return cls(problem, types, factors, chosen, np.hypot(measuring, extrapolating))

    @property
    def count(self) -> int:
        return int(self.factors.shape[-1])

    @cached_property
    def sizes(self) -> Array:
        """Mean size of a minibatch in each draw, [draws]."""
        if self.chosen is None:
            return np.full(self.count, self.problem.size)
        means: Array = np.array(self.problem.profile.sizes)[self.chosen].mean(axis=1)
        return means

    @cached_property
    def table(self) -> LayerTable:
        """Costs of the layers with a column for each draw. Memory is that of minibatches of mean size."""
        table = LayerTable.of(self.problem.profile, self.sizes, self.types)
        drawn = {name: self.factors[k] for k, name in enumerate(self.types)}
        return replace(
            table,
            forward={name: table.forward[name] * factors[_FORWARD] for name, factors in drawn.items()},
            backward={name: table.backward[name] * factors[_BACKWARD] for name, factors in drawn.items()},
        )

    def profile(self, draw: int) -> Profile:
        """Return the profile of one draw."""
        profile, costs, overheads = self.problem.profile, {}, {}
        computing = [k for k in range(len(profile.graph.layers)) if k not in profile.graph.input_layers]
        for name, (forward, backward) in zip(self.types, self.factors[..., draw].tolist(), strict=True):
            costs[name] = tuple(
                replace(cost, samples=tuple(_slower(sample, *factors) for sample in cost.samples))
                for cost, *factors in zip(profile.costs[name], forward, backward, strict=True)
            )
            if overhead := profile.step_overheads.get(name):  # counted with the first and the last layer
                overheads[name] = replace(
                    overhead,
                    input_seconds=overhead.input_seconds * forward[computing[0]],
                    loss_seconds=overhead.loss_seconds * forward[computing[-1]],
                )
        sizes = profile.sizes if self.chosen is None else tuple(profile.sizes[k] for k in self.chosen[draw])
        rates = {name: rate for name, rate in profile.update_rates.items() if name in costs}
        return replace(profile, costs=costs, sizes=sizes, update_rates=rates, step_overheads=overheads)

    def take(self, chosen: Index) -> "CostDraws":
        """Return some of the draws."""
        sizes = None if self.chosen is None else self.chosen[chosen]
        return replace(self, factors=self.factors[..., chosen], chosen=sizes)

    def without(self, device_type: str, layer: int) -> "CostDraws":
        """Return the same draws with the time of one layer on one device type as it is in the profile."""
        factors = self.factors.copy()
        factors[self.types.index(device_type), :, layer] = 1.0
        return replace(self, factors=factors)

    def periods(self, plan: Plan) -> Array:
        """Return the period of a plan in each draw, in seconds per minibatch [draws]: as `estimate` has it.

        Raises InputError for a plan whose period has no closed form.
        """
        if plan.rules.simulated or plan.stages_per_rank > 1:
            raise InputError(
                "regret.of_schedule",
                f"the regret requires one stage per device and a schedule with a closed form: {plan.schedule!r} of "
                "this plan is simulated, or interleaves; give {schedule}",
                setting={"schedule": "1f1b"},
            )
        problem, table, index = self.problem, self.table, self.problem.graph.index
        layers = [[index[id] for id in stage.layers] for stage in plan.stages]
        before, transfers = set(problem.graph.input_layers), np.zeros(1)
        ports, sent = list[Seconds]([0.0]), [np.zeros(1) for _ in plan.stages]
        for k, pair in enumerate(zip(plan.stages, plan.stages[1:], strict=False)):
            before |= set(layers[k])
            apart = between_hosts(problem, pair)
            crossing = table.payload(before, between_hosts=apart)
            link = boundary_link(problem.cluster, (*pair[0].ranks, *pair[1].ranks))
            loads, packets = port_loads(problem.cluster, pair, network=apart), copies(pair)
            forward, backward = (link.latency + size / link.bandwidth for size in crossing)
            ports.append(np.maximum(loads[0] * forward, loads[1] * backward))
            transfers = transfers + packets[0] * forward + packets[1] * backward
            if apart:
                sent[k : k + 2] = [size + crossing[0] + crossing[1] for size in sent[k : k + 2]]
        stages, latencies, works = list[Seconds](), list[Seconds](), list[Seconds]()
        for k, stage in enumerate(plan.stages):
            seconds = {
                kind: table.seconds[kind][layers[k]].sum(axis=0)
                + (table.forward[kind][table.recomputed(stage)].sum(axis=0) if stage.recomputes else 0.0)
                for kind in kinds_of(problem, stage)
            }
            halos = sum(table.parts_seconds(problem.cluster, plan, k, layers[k]))
            of_replicas = [
                part * seconds[kind] + table.reading_again(plan, k, kind) + rate * sent[k] + halos
                for kind, rate, part in zip(
                    kinds_of(problem, stage), network_rates(problem, stage), stage.parts_of_work(), strict=True
                )
            ]
            averaging, update = once_a_round(plan, problem, stage, layers[k])
            compute = largest([times * share for times, share in zip(of_replicas, stage.rank_turns, strict=True)])
            stages.append(compute / stage.round + update + averaging)
            latencies.append(largest(of_replicas))
            works.append(step_work(plan, stage, of_replicas, averaging + update))
        period = plan_period(plan, stages, latencies, works, [*ports, 0.0], transfers)
        return np.broadcast_to(np.asarray(period), (self.count,))


def _deviation(share: Array) -> Array:
    """Standard deviation of the logarithm of lognormal factors with these relative standard deviations, [..., 1]."""
    deviation: Array = np.sqrt(np.log1p(share**2))[..., None]
    return deviation


def _slower(sample: CostSample, forward: float, backward: float) -> CostSample:
    """The sample with times so many times as long."""
    return replace(
        sample,
        forward=min(sample.forward * forward, MOST),
        backward=min(sample.backward * backward, MOST),
        forward_spread=sample.forward_spread * forward,
        backward_spread=sample.backward_spread * backward,
        kernel_map_seconds=sample.kernel_map_seconds * forward,
    )
