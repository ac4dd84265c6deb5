"""Plans under uncertain costs: how far a plan may be from the best, what to measure again, and robust plans.

In each draw of the costs (cost_draws.py) the regret of a plan is its period over the least period of any plan, less 1.
If the plans of a problem are few enough, the least period of each draw is exact (exact/drawn_search.py). Otherwise it
is the lower bound that the planner's quick search proves for the draw, and the regret is an upper bound.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from ..util.derived import remembered
from ..util.text.numbers import Printed, at_most, duration, duration_or_none, gap_text, number_of
from ..values.cluster import Cluster
from ..values.costs import Array
from ..values.plan import Plan
from ..values.profile import Profile
from . import PlanSettings, partition
from .base import Problem
from .cost_draws import CostDraws, DrawSettings
from .estimate import estimate
from .exact.drawn_search import DrawnSearch, best_plans_in_parts
from .exact.search_space import unlimited

HIGH = 0.95  # quantile that regrets and robust plans are judged by
_LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)  # whose best plans are candidates
_PLANS = 16  # candidates that what a measurement is worth is judged by
_MEASURED = 24  # layers that may be measured again, those whose seconds are least certain
_NAMED = 3  # of these, as many are named
_RESAMPLED = 200  # times the draws, to compare candidates
_TIE = 0.02  # of these: in as many a candidate must be as good as the best, to be one
_SAME = 1e-12  # relative difference of periods that are sums of the same numbers in another order
_NEAR = 1.1  # times the best: candidates beyond are no ties
_FEWEST = 20  # draws of which the 95th percentile is not the largest
_KIND = "best of draws"  # of what a profile's `kept` remembers
Progress = Callable[[str], object]  # gets a line


@dataclass(frozen=True)
class RepeatedMeasurement:
    """A measurement that would reduce the regret of a plan.

    Attributes:
        layer: Id of the layer.
        device_type: Device type to profile the layer on.
        uncertainty: Relative standard deviation of the layer's forward and backward seconds in the profile.
        reduction: Share of the mean regret that vanishes if the layer's time is known.
    """

    layer: str
    device_type: str
    uncertainty: float
    reduction: float


@dataclass(frozen=True)
class Regret(Printed):
    """Regret of a plan over draws of its costs: period over the least period of any plan in the draw, less 1.

    Attributes:
        draws: Number of draws that were made.
        draw_seed: Random seed of the draws.
        uncertainty: Relative standard deviation of a layer's time, weighted by seconds.
        median: Median of the regret.
        high: 95th percentile of the regret.
        best_share: Share of the draws in which no plan is faster than this one by more than 0.1 %.
        exact: Whether the least period of each draw is exact. If not, it is a lower bound, and all regrets are upper
            bounds.
        measurements: Measurements that reduce the mean regret most, the best first.
        requested_draws: Number of draws that were requested: more than `draws` if a limit or the user ended them.

    Example:
        >>> from sparsepipe.planning.regret import regret
        >>> found = regret(sp.partition(profile, cluster), profile, cluster, draws=20, least_uncertainty=0.05)
        >>> 0 <= found.median <= found.high
        True

    See also:
        background/planner_and_proof, `regret`
    """

    draws: int
    draw_seed: int
    uncertainty: float
    median: float
    high: float
    best_share: float
    exact: bool
    measurements: tuple[RepeatedMeasurement, ...] = ()
    requested_draws: int = 0

    def summary(self) -> str:
        """Say in one line how far the plan is from the best plan of each draw."""
        if not self.high and not self.uncertainty:
            return "regret not known: the profile has no spread of its times; assume some with --least-uncertainty"
        limit = "" if self.exact else "at most "
        return (
            f"regret under uncertain costs (layers ± {self.uncertainty:.1%}, "
            f"{_draws_text(self.draws, self.requested_draws)}): {limit}"
            f"{at_most(self.median, places=3):.1%} in the median, {limit}{at_most(self.high, places=3):.1%} in 95% of "
            f"draws; the best plan in {self.best_share:.0%} of draws"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return columns and rows of what to measure again."""
        rows = [
            (
                f"profile {measurement.layer} on {measurement.device_type} again",
                f"± {measurement.uncertainty:.1%}",
                f"-{measurement.reduction:.0%}",
            )
            for measurement in self.measurements
        ]
        return ("measurement", "uncertainty", "mean regret"), rows

    def to_json(self) -> dict[str, object]:
        """Return one object, with a list of the measurements."""
        return asdict(self)


@dataclass(frozen=True)
class RobustPlan(Printed):
    """A plan with a low 95th percentile of the period over draws of the costs, compared with the nominal plan.

    Attributes:
        plan: The robust plan. It is the nominal plan if no other candidate is better beyond sampling noise.
        nominal: The plan that is best by the profile's costs.
        high_seconds: 95th percentile of the robust plan's period in seconds per minibatch.
        nominal_high_seconds: The same of the nominal plan.
        lower_bound_seconds: No plan has a smaller 95th percentile over these draws.
        candidates: Number of candidate plans that were compared.
        ties: Number of candidates within sampling noise of the best, the robust plan among them.
        draws: Number of draws that were made.
        draw_seed: Random seed of the draws.
        requested_draws: Number of draws that were requested: more than `draws` if a limit or the user ended them.

    Example:
        >>> from sparsepipe.planning.regret import partition_robust
        >>> found = partition_robust(profile, cluster, draws=20, least_uncertainty=0.05)
        >>> found.high_seconds <= found.nominal_high_seconds
        True

    See also:
        background/planner_and_proof, `partition_robust`
    """

    plan: Plan
    nominal: Plan
    high_seconds: float
    nominal_high_seconds: float
    lower_bound_seconds: float
    candidates: int
    ties: int
    draws: int
    draw_seed: int
    requested_draws: int = 0

    @property
    def gap(self) -> float:
        """Return the optimality gap of the 95th percentile."""
        return 1 - self.lower_bound_seconds / self.high_seconds if self.high_seconds else 0.0

    @property
    def price(self) -> float:
        """Return how much longer the robust plan takes by the profile's costs, as a share of the nominal period."""
        robust, nominal = (plan.estimate.period_seconds if plan.estimate else 0.0 for plan in (self.plan, self.nominal))
        return robust / nominal - 1 if nominal else 0.0

    def summary(self) -> str:
        """Say in one line what the robust plan gains, and what it costs by the profile."""
        same = self.plan.stages == self.nominal.stages
        others = f"{self.ties} of {number_of(self.candidates, 'candidate')} within sampling noise of the best"
        drawn = _draws_text(self.draws, self.requested_draws)
        text = f"robust plan, 95th percentile of {drawn}: {duration(self.high_seconds)} per minibatch"
        if same:
            text += ", that of the nominal plan"
            text += ", which is also robust" if self.draws >= _FEWEST else ""
        else:
            text += f" instead of {duration(self.nominal_high_seconds)}, for {at_most(self.price, places=3):.1%} more "
            text += "by the profile's costs"
        return f"{text}; gap {gap_text(self.gap)}; {others}"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return columns and rows that compare the robust with the nominal plan."""
        rows = []
        for name, plan, high in (
            ("robust", self.plan, self.high_seconds),
            ("nominal", self.nominal, self.nominal_high_seconds),
        ):
            stages = "-".join(str(len(stage.ranks)) for stage in plan.stages)
            period = duration_or_none(plan.estimate.period_seconds if plan.estimate else None)
            rows.append((name, f"{len(plan.stages)}: {stages}", period, duration(high)))
        return ("plan", "stages", "by the profile", "95th percentile"), rows

    def to_json(self) -> dict[str, object]:
        """Return one object, without the plans."""
        names = ("high_seconds", "nominal_high_seconds", "lower_bound_seconds", "gap", "price", "candidates", "ties")
        return {
            **{name: getattr(self, name) for name in (*names, "draws", "draw_seed", "requested_draws")},
            "same_plan": self.plan.stages == self.nominal.stages,
        }


def regret(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    draws: int = DrawSettings.draws,
    draw_seed: int = DrawSettings.draw_seed,
    least_uncertainty: float = DrawSettings.least_uncertainty,
    draw_seconds: float = DrawSettings.draw_seconds,
    progress: Progress | None = None,
) -> Regret:
    """Report how far a plan may be from the best plan, given the uncertainty of the profile.

    Times of layers and the mean size of minibatches are drawn within the profile's uncertainty. In each draw, the
    period of the plan is compared with the least period of any plan. An interruption (Ctrl-C) ends the draws early.

    Args:
        plan: Plan of one pipeline, with one stage per device.
        profile: Costs of the layers, with their spread.
        cluster: Devices and links.
        draws: Number of draws.
        draw_seed: Random seed of the draws.
        least_uncertainty: Least relative standard deviation of a layer's time, for profiles without spread.
        draw_seconds: Time limit of the draws in seconds, 60 by default. The report then uses the draws made so far.
        progress: Function that gets a line such as "40 of 200 draws" after each part of the draws.

    Returns:
        The regret: median, 95th percentile, and the measurements that reduce it most. A plan that recomputes only some
        layers is compared with plans that recompute nothing, without a memory limit.

    Raises:
        InputError: The plan does not fit the profile's network or the cluster, has several pipelines, or a schedule
            whose period has no closed form; or a setting is out of range.

    Example:
        >>> plan = sp.partition(profile, cluster)
        >>> sp.regret(plan, profile, cluster, draws=20).high  # this profile has no spread
        0.0

    See also:
        background/planner_and_proof, `partition_robust`, `compare_hardware`
    """
    settings = DrawSettings(draws, draw_seed, least_uncertainty, draw_seconds)
    plan.one("the regret is that of one pipeline: give one of its `pipelines`").check(profile.graph, cluster)
    recompute = any(stage.recompute for stage in plan.stages)
    if recompute != all(stage.recompute for stage in plan.stages) or any(stage.segments for stage in plan.stages):
        cluster, recompute = unlimited(cluster), False  # plans that recompute nothing, without a limit, are no slower
    sample = CostDraws.of(Problem(profile, cluster, plan.schedule, plan.num_microbatches, recompute), settings)
    sample.periods(plan)  # which refuses what has no closed form, before the draws take their time
    sample, best, exact, candidates = _best_of_draws(sample, settings, progress)
    ratios = _over(sample.periods(plan), best)
    weights = np.stack([sample.problem.alone(name) for name in sample.types])[:, None]
    return Regret(
        sample.count,
        draw_seed,
        float((sample.shares * weights).sum() / max(2 * weights.sum(), 1e-300)),
        float(_quantile(ratios, 0.5)),
        float(_quantile(ratios, HIGH)),
        float((ratios <= 1e-3).mean()),
        exact,
        _measurements(plan, sample, candidates),
        draws,
    )


def partition_robust(
    profile: Profile,
    cluster: Cluster,
    *,
    schedule: str = PlanSettings.schedule,
    num_microbatches: int | None = None,
    recompute: bool = False,
    draws: int = DrawSettings.draws,
    draw_seed: int = DrawSettings.draw_seed,
    least_uncertainty: float = DrawSettings.least_uncertainty,
    draw_seconds: float = DrawSettings.draw_seconds,
    progress: Progress | None = None,
) -> RobustPlan:
    """Partition a network for the least 95th percentile of the period over draws of the profile's costs.

    Candidates are the plan that is best by the profile, the best plans of single draws, and those of quantiles of the
    costs. Among candidates within sampling noise of the best, the one that is best by the profile is chosen. With fewer
    than 20 draws, as after a time limit, the plan that is best by the profile is kept.

    Args:
        profile: Costs of the layers, with their spread.
        cluster: Devices and links.
        schedule, num_microbatches, recompute: Settings of `partition`; the planner is "optimal".
        draws, draw_seed, least_uncertainty, draw_seconds, progress: As in `regret`; `progress` also gets lines on the
            search of the plan by the profile, which KeyboardInterrupt ends.

    Returns:
        The robust plan, its price by the profile's costs, and a bound that no plan of these draws beats.

    Raises:
        InputError: As in `partition` and `regret`.

    Example:
        >>> robust = sp.partition_robust(profile, cluster, draws=20, least_uncertainty=0.1)
        >>> robust.lower_bound_seconds <= robust.high_seconds <= robust.nominal_high_seconds
        True

    See also:
        background/planner_and_proof, `regret`, `partition`
    """
    settings = DrawSettings(draws, draw_seed, least_uncertainty, draw_seconds)
    nominal = partition(
        profile,
        cluster,
        schedule=schedule,
        num_microbatches=num_microbatches,
        recompute=recompute,
        segments=False,
        progress=(lambda state: progress(f"plan by the profile, {state}")) if progress else None,
    )
    assert nominal.estimate is not None
    problem = Problem(profile, cluster, nominal.schedule, nominal.num_microbatches, recompute)
    sample = CostDraws.of(problem, settings)
    sample.periods(nominal)  # which refuses what has no closed form, before the draws take their time
    sample, best, _, plans = _best_of_draws(sample, settings, progress)
    of_nominal = sample.periods(nominal)
    low = float(_quantile(best, HIGH))
    if search := DrawnSearch.of(sample):
        bounds, paths = search.least_quantiles(_quantiles, _quantiles(of_nominal))
        low = max(low, float(bounds[_LEVELS.index(HIGH)]))
        plans = [*plans, *map(search.plan, paths)]  # what is remembered stays
    candidates = [nominal, *_distinct(plan for plan in plans if plan.stages != nominal.stages)]
    periods = np.stack([sample.periods(plan) for plan in candidates])
    high = _quantile(periods, HIGH)
    expected = [nominal.estimate, *(estimate(plan, problem) for plan in candidates[1:])]
    ties = _ties(periods, high, draw_seed)
    # Of so few draws, the least would be the best by chance.
    chosen = 0 if sample.count < _FEWEST else min(ties, key=lambda k: (expected[k].period_seconds, float(high[k])))
    proven = replace(
        expected[chosen],
        lower_bound_seconds=nominal.estimate.lower_bound_seconds,
        plan_seconds=nominal.estimate.plan_seconds,
    )
    return RobustPlan(
        replace(nominal, stages=candidates[chosen].stages, estimate=proven) if chosen else nominal,
        nominal,
        float(high[chosen]),
        float(high[0]),
        min(low, float(high.min())),
        len(candidates),
        len(ties),
        sample.count,
        draw_seed,
        draws,
    )


def _draws_text(made: int, requested: int) -> str:
    """Return the number of draws in words: "200 draws", "40 of 200 draws, ended early"."""
    if made >= requested:
        return number_of(made, "draw")
    few = ", too few for a 95th percentile" if made < _FEWEST else ""
    return f"{made} of {number_of(requested, 'draw')}, ended early{few}"


def _best_of_draws(
    draws: CostDraws, settings: DrawSettings, progress: Progress | None
) -> tuple[CostDraws, Array, bool, list[Plan]]:
    """(the draws that were made, least period of any plan in each, whether all are exact, plans by frequency)."""
    problem = draws.problem
    drawn = settings.draws, settings.draw_seed, settings.least_uncertainty
    key = problem.cluster, problem.schedule, problem.num_microbatches, problem.recompute, drawn
    least, exact, plans = remembered(
        problem.profile.kept, _KIND, key, lambda: _searched(draws, settings.draw_seconds, progress)
    )
    made = np.flatnonzero(~np.isnan(least))
    if len(made) < draws.count:
        problem.profile.kept[_KIND].pop(key, None)  # another call makes them all
    return draws.take(made), least[made], exact, plans


def _searched(draws: CostDraws, seconds: float, progress: Progress | None) -> tuple[Array, bool, list[Plan]]:
    """(least period in each draw, NaN for draws that were not made, whether these are exact, plans by frequency)."""
    least, exact, plans = np.full(draws.count, np.nan), True, list[Plan]()
    until = time.monotonic() + seconds
    try:
        for some, periods, part_is_exact, more in best_plans_in_parts(draws):
            exact, plans = exact and part_is_exact, plans + more
            least[some] = periods
            if progress:
                progress(f"{np.count_nonzero(~np.isnan(least))} of {number_of(draws.count, 'draw')}")
            if time.monotonic() >= until:
                break
    except KeyboardInterrupt:
        if np.isnan(least).all():
            raise
    return least, exact, _distinct(plans)


def _measurements(plan: Plan, draws: CostDraws, plans: Sequence[Plan]) -> tuple[RepeatedMeasurement, ...]:
    """The layers and device types whose times, if they were known, would reduce the mean regret most.

    The best of each draw is taken among the plan and the most frequent best plans of single draws.
    """
    candidates = [plan, *plans[:_PLANS]]

    def mean(known: CostDraws) -> float:
        periods = np.stack([known.periods(candidate) for candidate in candidates])
        return float(_over(periods[0], periods.min(axis=0)).mean())

    before, problem = mean(draws), draws.problem
    if not before or draws.count < _FEWEST:
        return ()
    seconds = np.stack([problem.table.seconds[name][:, 0] for name in draws.types])
    shares = np.sqrt((draws.shares**2).mean(axis=1))  # of forward and backward
    unsure = shares * seconds
    order = np.argsort(-unsure.ravel(), kind="stable")[:_MEASURED]
    measurements = []
    for kind, layer in zip(*np.unravel_index(order, unsure.shape), strict=True):
        name, share = draws.types[int(kind)], float(shares[kind, layer])
        if share:
            reduction = 1 - mean(draws.without(name, int(layer))) / before
            measurements.append(RepeatedMeasurement(problem.graph.layers[layer].id, name, share, reduction))
    measurements.sort(key=lambda measurement: -measurement.reduction)
    return tuple(measurement for measurement in measurements[:_NAMED] if measurement.reduction > 0)


def _ties(periods: Array, high: Array, seed: int) -> list[int]:
    """Return the candidates within sampling noise of the least 95th percentile, by resampled draws."""
    best = int(high.argmin())
    near = np.flatnonzero(high <= _NEAR * high[best])
    random = np.random.default_rng((seed, 63))
    chosen = random.integers(periods.shape[1], size=(_RESAMPLED, periods.shape[1]))
    least = _quantile(periods[best][chosen], HIGH)
    return [int(k) for k in near if (_quantile(periods[k][chosen], HIGH) <= least).mean() >= _TIE]


def _distinct(plans: Iterable[Plan]) -> list[Plan]:
    """Plans of different stages, the most frequent first."""
    by_stages = dict[object, Plan]()
    counts = Counter[object]()
    for plan in plans:
        key = tuple((stage.layers, stage.ranks, stage.shares) for stage in plan.stages)
        by_stages.setdefault(key, plan)
        counts[key] += 1
    return [by_stages[key] for key, _ in counts.most_common()]


def _over(periods: Array, best: Array) -> Array:
    """Return how much longer periods are than the best, as a share of it; 0 where nothing takes any time."""
    ratios = np.divide(periods, best, out=np.ones_like(periods), where=best > 0)
    regrets: Array = np.where(ratios > 1 + _SAME, ratios - 1, 0.0)
    return regrets


def _quantile(values: Array, level: float) -> Array:
    """The quantile over the last axis which a further value is below with this probability, whatever they are of."""
    quantile: Array = np.quantile(values, level, axis=-1, method="weibull")
    return quantile


def _quantiles(values: Array) -> Array:
    """Quantiles over the last axis, at the levels whose best plans are candidates: [..., levels]."""
    return np.moveaxis(np.quantile(values, _LEVELS, axis=-1, method="weibull"), 0, -1)
