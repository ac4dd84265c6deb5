"""Compare the orders in which minibatches of several sizes come: what each loses under a plan, and how random it is."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

import numpy as np

from ..data.order import ORDERS, SHUFFLE, compose
from ..errors import InputError
from ..util.io.fields import number
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from . import PlanSettings, partition, planners_with
from .exact.optimal import CONTIGUOUS, PERIOD
from .run_estimate import largest_size, stage_costs
from .simulator import simulate
from .simulator.bound import lower_bound


@dataclass(frozen=True, slots=True)
class OrderForecast:
    """Simulated time of an epoch in one order of its minibatches."""

    order: str
    minibatches: int
    seconds: float
    balanced_seconds: float  # of as many minibatches that each cost the mean of all
    lower_bound_seconds: float  # no order of these minibatches takes less
    distance: float  # from random order: see `distance_from_random`

    @property
    def lost_seconds(self) -> float:
        """Seconds lost to sizes; below 0 if small minibatches fill and drain the pipeline."""
        return self.seconds - self.balanced_seconds

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "lost_seconds": self.lost_seconds}


@dataclass(frozen=True, slots=True)
class PlanWithSizes:
    """A plan, and what an epoch of samples of several sizes takes under it."""

    plan: Plan
    forecast: OrderForecast


def partition_with_sizes(
    profile: Profile,
    cluster: Cluster,
    sample_sizes: Sequence[float],
    *,
    batch_size: int | None = None,
    voxels: float | None = None,
    seconds: float | None = None,
    kept_bytes: float | None = None,
    order: str = SHUFFLE,
    seed: int = 0,
    **settings: Any,
) -> list[PlanWithSizes]:
    """Partition a network for minibatches of varying size, with the fastest plan first.

    On devices with a memory limit, plans are for the largest minibatch that may come, unless `largest_size` is given.

    `partition` uses the mean minibatch only, but more stages and replicas wait longer for large minibatches. This
    function simulates an epoch for the best plan of each number of stages. Planners and cost models without a limit on
    the number of stages have one plan.

    Args:
        profile: Costs of the layers on every device type of the cluster.
        cluster: The devices and links.
        sample_sizes: Size of each sample of an epoch, in the profile's `size_unit`.
        batch_size: Samples per minibatch. Default: that of the profile.
        voxels: Budget of a minibatch in the profile's `size_unit`, instead of `batch_size`.
        seconds: Budget of a minibatch in seconds on the slowest stage.
        kept_bytes: Budget of a minibatch in bytes of activation memory on one stage.
        order: Order of the minibatches: "shuffle", "snake" or "planned".
        seed: Random seed of the order.
        settings: Settings of `partition`, such as `planner`.

    Returns:
        All plans with their forecasts, sorted by the time of an epoch.

    Raises:
        InputError: As in `partition` and `simulate_orders`.

    Example:
        >>> from sparsepipe.planning.orders import partition_with_sizes
        >>> best = partition_with_sizes(profile, cluster, [900.0, 1_100.0] * 8, batch_size=2)[0]
        >>> best.forecast.seconds > 0
        True

    See also:
        guides/scenes_of_varying_size, `partition`
    """
    if settings.get("objective", PERIOD) != PERIOD:
        text = f"varying sizes are planned only for training; omit objective, or set it to {PERIOD!r}"
        raise InputError("planner.sizes_of_training", text)
    if len(sample_sizes) and any(kind.memory_bytes < inf for kind in cluster.device_types):
        count = batch_size or profile.batch_size or 1
        most = voxels or (0.0 if seconds or kept_bytes else sum(sorted(sample_sizes)[-count:]))
        settings = {"largest_size": float(max([most, *sample_sizes]))} | settings
    plans = [partition(profile, cluster, **settings)]
    limits_stages = settings.get("planner", PlanSettings.planner) in planners_with("most_stages")
    if limits_stages and settings.get("cost_model") != CONTIGUOUS:
        while (stages := len(plans[-1].stages)) > 1:
            try:
                plans.append(partition(profile, cluster, **settings | {"most_stages": stages - 1}))
            except InputError as error:
                if error.code != "planner.no_plan":  # fewer stages need more memory than there is
                    raise
                break
    forecasts = []
    for plan in plans:
        budget = plan_budget(plan, profile, cluster, voxels=voxels, seconds=seconds, kept_bytes=kept_bytes)
        forecasts += simulate_orders(
            plan, profile, cluster, sample_sizes, batch_size=batch_size, budget=budget, orders=[order], seed=seed
        )
    pairs = map(PlanWithSizes, plans, forecasts)
    return sorted(pairs, key=lambda pair: pair.forecast.seconds)


def plan_budget(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    voxels: float | None = None,
    seconds: float | None = None,
    kept_bytes: float | None = None,
) -> float | None:
    """Return a minibatch's budget of size under a plan: `voxels`, or the most within `seconds` or `kept_bytes` on every
    stage by the profile. None without any of them. Raises InputError if no minibatch is.
    """
    if seconds is None and kept_bytes is None:
        return voxels
    return largest_size(plan, profile, cluster, seconds=seconds, kept_bytes=kept_bytes)


def simulate_orders(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    sample_sizes: Sequence[float],
    *,
    batch_size: int | None = None,
    budget: float | None = None,
    orders: Sequence[str] = ORDERS,
    seed: int = 0,
) -> list[OrderForecast]:
    """Simulate an epoch for several orders of its minibatches.

    As in a run, a minibatch has `batch_size` samples or a `budget` of size: see `data.compose`.

    Args:
        plan: The plan.
        profile: Costs of the layers.
        cluster: The devices and links.
        sample_sizes: Size of each sample, in the profile's `size_unit`.
        batch_size: Samples per minibatch.
        budget: Size per minibatch, instead of a number of samples.
        orders: Names of the orders.
        seed: Random seed of the orders.

    Returns:
        A forecast for each order: time of the epoch, time lost to sizes, and lower bound, in seconds.

    Raises:
        InputError: As in `data.compose` and `simulate`.

    Example:
        >>> from sparsepipe.planning.orders import simulate_orders
        >>> samples = [500.0, 1500.0] * 16
        >>> each = simulate_orders(plan, profile, cluster, samples, batch_size=2, orders=["shuffle", "snake"])
        >>> [forecast.order for forecast in each]
        ['shuffle', 'snake']

    See also:
        guides/scenes_of_varying_size, `lower_bound`
    """
    found, waiting = [], waiting_pipeline(plan)
    for order in orders:
        dealt = compose(
            sample_sizes,
            batch_size=batch_size,
            budget=budget,
            order=order,
            seed=seed,
            stages=1 if waiting is None else lambda totals: stage_costs(waiting, profile, cluster, totals)[0].T,
            step=synchronous_step(plan),
        )
        sizes = [float(sum(sample_sizes[sample] for sample in samples)) for samples in dealt]
        found.append(order_forecast(order, plan, profile, cluster, sizes))
    return found


def order_forecast(order: str, plan: Plan, profile: Profile, cluster: Cluster, sizes: Sequence[float]) -> OrderForecast:
    """Simulate minibatches of `sizes` as they come, and summarise them under the name of their order."""
    mean = [float(np.mean(sizes))] * len(sizes)
    return OrderForecast(
        order,
        len(sizes),
        simulate(plan, profile, cluster, sizes).makespan,
        simulate(plan, profile.averaged(sizes), cluster, mean).makespan,
        lower_bound(plan, profile, cluster, sizes),
        distance_from_random(sizes),
    )


def distance_from_random(sizes: Sequence[float]) -> float:
    """Return how much nearer in size neighbours are than any two minibatches: 0 in random order, 1 fully sorted.

    1 - (mean difference of rank between neighbours) / (mean difference of rank between any two). Below 0: neighbours
    differ more than by chance. 0 if all sizes are equal.

    >>> distance_from_random([3, 1, 2, 4]) < distance_from_random([1, 2, 3, 4])
    True
    """
    values, which, counts = np.unique(np.asarray(sizes, dtype=float), return_inverse=True, return_counts=True)
    if len(values) < 2:
        return 0.0
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[which]  # equal sizes share one
    ordered, count = np.sort(ranks), len(ranks)
    pairs = float((ordered * (2 * np.arange(count) - count + 1)).sum()) / (count * (count - 1) / 2)
    return 1 - float(np.abs(np.diff(ranks)).mean()) / pairs


def synchronous_step(plan: Plan) -> int:
    """Return how many minibatches end together: those of a step of all pipelines, 1 if no stage waits for others."""
    first = plan.pipelines[0]
    alone = first.stages[0].round if len(first.stages) == 1 else 1
    return len(plan.pipelines) * (plan.num_microbatches if first.flushes else alone)


def waiting_pipeline(plan: Plan) -> Plan | None:
    """Return the pipeline of most stages, if its stages wait for each other where neighbours differ in size; else None.

    A single stage has no other, and a pipeline that is empty after each minibatch has no neighbours.
    """
    deepest = max(plan.pipelines, key=lambda pipeline: len(pipeline.stages))
    is_empty_between = deepest.flushes and deepest.num_microbatches == 1
    return None if is_empty_between or len(deepest.stages) == 1 else deepest


def lognormal_sizes(cv: float, count: int, *, mean: float = 1.0, seed: int = 0) -> list[float]:
    """Draw sizes of samples of a lognormal distribution whose standard deviation is `cv` times its `mean`."""
    variance = np.log1p(number(cv, "cv") ** 2)
    drawn = np.random.default_rng((seed, 57)).lognormal(-variance / 2, variance**0.5, count)
    return list((mean * drawn).tolist())


def sizes_of_profile(profile: Profile, count: int, *, seed: int = 0) -> list[float]:
    """Draw sizes of samples from the histogram that a profile keeps of its data's. Raises InputError without one."""
    spread = profile.origin.get("sample_sizes")
    if not spread:
        raise InputError(
            "simulation.sizes_unknown",
            "the profile does not contain the variation of sample sizes; give {data} or {sample_sizes} (such as "
            "lognormal:cv=0.5), or profile the model again",
            setting=dict.fromkeys(("data", "sample_sizes")),
        )
    random = np.random.default_rng((seed, 57))
    edges = np.geomspace(spread["least"], max(spread["most"], spread["least"]), len(spread["histogram"]) + 1)
    counts = np.array(spread["histogram"], dtype=float)
    bins = random.choice(len(counts), size=count, p=counts / counts.sum())
    return list((edges[bins] * (edges[bins + 1] / edges[bins]) ** random.random(count)).tolist())
