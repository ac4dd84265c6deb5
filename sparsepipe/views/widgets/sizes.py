"""Sizes of samples in the partition explorer: how they vary, and what each order of minibatches loses under a plan."""

import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...data.order import ORDERS
from ...errors import InputError
from ...planning.orders import (
    OrderForecast,
    lognormal_sizes,
    simulate_orders,
    sizes_of_profile,
    synchronous_step,
)
from ...planning.run_estimate import stage_costs
from ...util.derived import Kept, remembered
from ...util.text.numbers import duration, number_of
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.profile import Profile
from .. import plots
from ..colors import edge_of
from ..plots.theme import RUN_COLORS
from .pipelines_planning import PipelinesAnswer
from .planning import Answer

SEED = 0
_FEWEST, _MOST, _PASSES = 64, 256, 1024  # minibatches that are simulated, and those times stages
_COSTS = 2**16  # minibatches times layers, which are evaluated for each of them
_MOST_PASSES, _MOST_SAMPLES = 2**14, 2**13  # beyond them a simulation takes seconds
_EACH = 24  # minibatches of each of several pipelines, at least
_BINS = 12
_PROBES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of a mean minibatch: sizes at which two plans' stages take the same time


class Superseded(Exception):
    """The orders of a plan are no longer asked for."""


@dataclass(frozen=True)
class AskedSizes:
    """An answer whose orders are to be compared. `cv`: of lognormal sizes; None: as the profile counted its data's.

    `serial`: of the answer's picture.
    """

    answer: Answer | PipelinesAnswer
    cv: float | None
    serial: int

    @property
    def batch_size(self) -> int:
        """Samples of a minibatch; 1 if unknown."""
        return self.answer.settings.batch_size or self.answer.problem.profile.batch_size or 1

    @property
    def distribution(self) -> str:
        """The distribution of sizes, as `simulate --sizes` takes it."""
        return "profile" if self.cv is None else f"lognormal:cv={self.cv:g}"


@dataclass(frozen=True)
class SizesForecast:
    """Sizes of samples, and the epochs of their minibatches under a plan."""

    counts: tuple[int, ...]  # of samples in each of equal steps on a logarithmic axis
    least: float
    most: float
    mean: float
    cv: float
    orders: tuple[OrderForecast, ...]
    seconds: float  # of simulating them

    @property
    def lower_bound(self) -> float:
        """Time over equal minibatches that no order takes less than, however samples are dealt to minibatches."""
        return min(_over(epoch, epoch.lower_bound_seconds) for epoch in self.orders)

    def epochs(self, machine: str) -> list[plots.OrderedEpoch]:
        """Return what a figure draws of them."""
        return [
            plots.OrderedEpoch(
                epoch.order, machine, _over(epoch, epoch.seconds), _over(epoch, epoch.lower_bound_seconds)
            )
            for epoch in self.orders
        ]


class SizesForecasts:
    """Compares orders of minibatches under plans, with sizes in the proportions of `profile`.

    Plans whose stages take the same time share a forecast. May be called from several threads, one at a time works.
    """

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._turn = threading.Lock()
        self._remembered: Kept = {}

    def forecast(self, asked: AskedSizes, superseded: Callable[[], bool] = lambda: False) -> SizesForecast:
        """Simulate an epoch in each order, or return what was simulated before.

        Raises Superseded once `superseded` says so, and InputError for what would take too long or cannot run.
        """
        # A copy remembers by itself: the planner's tables of the explorer's profile stay.
        profile = replace(asked.answer.problem.profile)
        key = _key(asked, profile)
        with self._turn:
            return remembered(self._remembered, "orders", key, lambda: self._simulated(asked, profile, superseded))

    def _simulated(self, asked: AskedSizes, profile: Profile, superseded: Callable[[], bool]) -> SizesForecast:
        plan, cluster = asked.answer.plan, asked.answer.cluster
        count = _count(plan, asked.batch_size)
        began = time.perf_counter()
        samples = self._samples(asked, profile, count * asked.batch_size)
        orders: list[OrderForecast] = []
        for order in ORDERS:
            if superseded():
                raise Superseded
            orders += simulate_orders(
                plan, profile, cluster, samples, batch_size=asked.batch_size, orders=[order], seed=SEED
            )
        seconds = time.perf_counter() - began
        drawn = np.asarray(samples)
        mean, deviation = float(drawn.mean()), float(drawn.std())
        if asked.cv is None:
            spread, ratio = self.profile.origin["sample_sizes"], self._ratio(asked, profile)
            counts, least, most = spread["histogram"], ratio * spread["least"], ratio * spread["most"]
        else:
            least, most = float(drawn.min()), float(drawn.max())
            counts = np.histogram(np.log(drawn), _BINS)[0].tolist()
        return SizesForecast(tuple(counts), least, most, mean, deviation / mean, tuple(orders), seconds)

    def _samples(self, asked: AskedSizes, profile: Profile, count: int) -> Sequence[float]:
        if asked.cv is not None:
            return lognormal_sizes(asked.cv, count, mean=profile.size() / asked.batch_size, seed=SEED)
        ratio = self._ratio(asked, profile)
        return [ratio * size for size in sizes_of_profile(self.profile, count, seed=SEED)]

    def _ratio(self, asked: AskedSizes, profile: Profile) -> float:
        """Size of a sample at the settings, over that in the profile given."""
        before = self.profile.size() / (self.profile.batch_size or asked.batch_size)
        return profile.size() / asked.batch_size / before


def sizes_scene(asked: AskedSizes, forecast: SizesForecast) -> dict[str, object]:
    """Return all that is drawn of a forecast, as JSON-ready values; each order is [name, ratio, text, colour, tip]."""
    unit = asked.answer.problem.profile.size_unit
    rows = [
        [
            epoch.order,
            _over(epoch, epoch.seconds),
            f"{_over(epoch, epoch.seconds):.2f} × balanced",
            edge_of(RUN_COLORS[k % len(RUN_COLORS)]),
            f"An epoch of {epoch.minibatches} minibatches takes {duration(epoch.seconds)}, with equal sizes "
            f"{duration(epoch.balanced_seconds)}. Distance from random order: {epoch.distance:z.2f} (sorted: 1).",
        ]
        for k, epoch in enumerate(forecast.orders)
    ]
    bound = forecast.lower_bound
    rows.append(["any order", bound, f"≥ {bound:.2f} × balanced", "", "No order of these minibatches takes less."])
    return {
        "serial": asked.serial,
        "counts": forecast.counts,
        "axis": [f"{forecast.least:,.0f}", f"{forecast.most:,.0f} {unit}"],
        "orders": rows,
        "told": sizes_text(asked, forecast),
    }


def refused_scene(asked: AskedSizes, error: InputError) -> dict[str, object]:
    """Return what is drawn if the orders of a plan are not compared."""
    return {"serial": asked.serial, "counts": [], "axis": ["", ""], "orders": [], "told": str(error)}


def sizes_text(asked: AskedSizes, forecast: SizesForecast) -> str:
    """Return what was simulated, and what it rests on."""
    plan, unit = asked.answer.plan, asked.answer.problem.profile.size_unit
    whence = "as in the profile's data" if asked.cv is None else "lognormal"
    several = f" (of minibatches {forecast.cv / asked.batch_size**0.5:.2f})" if asked.batch_size > 1 else ""
    minibatches = forecast.orders[0].minibatches
    return (
        f"A sample has {forecast.mean:,.0f} {unit} on average; coefficient of variation {forecast.cv:.2f}{several}, "
        f"{whence}. Simulated on {machine_text(plan)} within {duration(forecast.seconds)}, "
        f"{number_of(minibatches, 'minibatch')} of {number_of(asked.batch_size, 'sample', ',')} in each order, "
        f"seed {SEED}."
    )


def machine_text(plan: Plan) -> str:
    """Return what the orders are compared on: "1 pipeline of 4 stages, 1f1b"."""
    stages = number_of(max(len(pipeline.stages) for pipeline in plan.pipelines), "stage")
    return f"{number_of(len(plan.pipelines), 'pipeline')} of {stages}, {plan.schedule}"


def sizes_figure(asked: AskedSizes, forecast: SizesForecast, *, note: str) -> tuple[go.Figure, pd.DataFrame]:
    """Return the figure of the orders, and its table."""
    epochs = forecast.epochs(machine_text(asked.answer.plan))
    return plots.orders(epochs, note=note), plots.orders_table(epochs)


def sizes_settings(asked: AskedSizes, forecast: SizesForecast) -> dict[str, object]:
    """Return what the figure's provenance says of the sizes."""
    return {
        "distribution": asked.distribution,
        "batch_size": asked.batch_size,
        "minibatches": forecast.orders[0].minibatches,
        "seed": SEED,
    }


def _over(epoch: OrderForecast, seconds: float) -> float:
    """Return seconds over those of equal minibatches; 1 if nothing takes time."""
    return seconds / epoch.balanced_seconds if epoch.balanced_seconds else 1.0


def _count(plan: Plan, batch_size: int) -> int:
    """Minibatches to simulate: whole steps of all pipelines. Raises InputError where those take too long."""
    depth = max(len(pipeline.stages) for pipeline in plan.pipelines)
    most = min(_MOST, _PASSES // depth, _COSTS // len(plan.pipelines[0].layers))
    wanted = max(_FEWEST, _EACH * len(plan.pipelines), most)
    wanted = min(wanted, max(1, _MOST_SAMPLES // batch_size))
    step = synchronous_step(plan)
    count = max(step, wanted // step * step)
    if count * depth > _MOST_PASSES or count * batch_size > _MOST_SAMPLES:
        raise InputError(
            "explorer.epoch_too_long",
            f"{number_of(count, 'minibatch')} of {number_of(batch_size, 'sample', ',')} are too many for the "
            "explorer; save the plan, then run `sparsepipe simulate --order`",
        )
    return count


def _key(asked: AskedSizes, profile: Profile) -> Hashable:
    """Return what a forecast depends on: times of stages and transfers, the schedule, minibatches and their sizes."""
    plan, cluster = asked.answer.plan, asked.answer.cluster
    seconds = stage_costs(plan, profile, cluster, [share * profile.size() for share in _PROBES])[0]
    stages = tuple(
        (
            *(pipeline.schedule, pipeline.weights, pipeline.num_microbatches),
            *((stage.layers, stage.ranks, stage.recompute, stage.segments) for stage in pipeline.stages),
        )
        for pipeline in plan.pipelines
    )
    sizes = (asked.distribution, asked.batch_size, profile.size())
    return (seconds.tobytes(), stages, plan.replication, _links(cluster), asked.answer.settings.compression, *sizes)


def _links(cluster: Cluster) -> Hashable:
    """All of a cluster's links, by the nodes between which they are; memory changes no time."""
    return cluster.network, tuple((node.link, len(node.device_types)) for node in cluster.nodes)
