"""The command: a row for each level of noise."""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scripts.bench import regret as about
from scripts.bench.document import add_json, keep, say, tell
from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile
from sparsepipe.planning import Problem, estimate, partition
from sparsepipe.planning.cost_draws import CostDraws, DrawSettings
from sparsepipe.planning.regret import HIGH, partition_robust, regret

_TYPES = {"fast": 1.0, "slow": 1.7}  # times as long
_SPREAD = 0.6  # of the layers' times: standard deviation of the logarithm
_BETWEEN_TYPES = 0.2  # the same of the ratio between two types
_FURTHER = 4000  # draws that robust plans are compared on
_OTHER_DRAWS = 10**6  # added to the seed of a report's draws
_SAME = 1e-9  # relative difference of periods that are the same


@dataclass(frozen=True)
class Row:
    """What the cases with one level of noise came to."""

    noise: float
    cases: int  # whose regret is not 0 by other draws
    covered: float  # share of these whose true regret is at most the reported one
    of_zero: int  # further cases: in 95 % of the draws or more, no plan is better
    zero_covered: float  # share of these
    true_median: float
    true_high: float
    reported_high: float  # mean
    exact: float  # share of the cases
    seconds: float  # median, of one report with 200 draws
    robust_cases: int
    robust_differs: int
    robust_worse: int  # than the plan of the profile, on further draws
    robust_gain: float  # mean, of those that differ

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def case(random: np.random.Generator, noise: float, *, layers: int = 24) -> tuple[Profile, Profile, Cluster]:
    """Return (true profile, measured profile, cluster) of one case."""
    graph = LayerGraph.chain([Layer(f"conv{k}", "", 1e5) for k in range(layers)])
    base = np.exp(_SPREAD * random.standard_normal(layers)) * 5e-3
    sent = np.exp(_SPREAD * random.standard_normal(layers)) * 1e6
    truth, measured = {}, {}
    for name, slower in _TYPES.items():
        forward = base * slower * np.exp(_BETWEEN_TYPES * random.standard_normal(layers))
        times = np.stack([forward, 2 * forward * np.exp(_BETWEEN_TYPES * random.standard_normal(layers))])
        deviation = np.sqrt(np.log1p(noise**2))
        noisy = times * np.exp(deviation * random.standard_normal(times.shape))
        truth[name], measured[name] = (
            tuple(
                LayerCost((CostSample(0, a, b, size, forward_spread=2 * share * a, backward_spread=2 * share * b),))
                for a, b, size in zip(*own, sent, strict=True)
            )
            for own, share in ((times, 0.0), (noisy, noise))
        )
    fast, slow = map(DeviceType, _TYPES)
    cluster = Cluster((Node("host", (fast, fast, slow, slow), Link(4e9, 1e-5)),))
    return Profile(graph, truth), Profile(graph, measured), cluster


def row(noise: float, cases: int, *, robust_cases: int, seed: int, draws: int) -> Row:
    """Compare reported with true regret in so many cases whose regret is not 0 by other draws."""
    true, reported, exact, seconds = list[float](), list[float](), 0, list[float]()
    gains, worse, of_zero, k = list[float](), 0, list[bool](), -1
    while len(true) < cases:
        k += 1
        truth, measured, cluster = case(np.random.default_rng((seed, k)), noise)
        plan = partition(measured, cluster)
        start = time.perf_counter()
        told = regret(plan, measured, cluster, draws=draws, draw_seed=k)
        seconds.append(time.perf_counter() - start)
        best = partition(truth, cluster).estimate
        assert best is not None and best.lower_bound_seconds is not None
        own = estimate(plan, Problem(truth, cluster)).period_seconds / best.lower_bound_seconds - 1
        exact += told.exact
        if k < robust_cases:
            robust = partition_robust(measured, cluster, draws=draws, draw_seed=k)
            if robust.plan.stages != robust.nominal.stages:
                further = CostDraws.of(Problem(measured, cluster), DrawSettings(_FURTHER, seed + 10**6 + k))
                ours, nominal = (
                    float(np.quantile(further.periods(each), HIGH)) for each in (robust.plan, robust.nominal)
                )
                gains.append(1 - ours / nominal)
                worse += ours > nominal * (1 + _SAME)
        # A choice by the reported number itself would keep those that chance made too large.
        if not regret(plan, measured, cluster, draws=draws, draw_seed=k + _OTHER_DRAWS).high:
            of_zero.append(own <= _SAME)
            continue
        true.append(own)
        reported.append(told.high)
    covered = sum(own <= high + _SAME for own, high in zip(true, reported, strict=True))
    return Row(
        noise,
        cases,
        covered / cases,
        len(of_zero),
        statistics.mean(of_zero) if of_zero else 1.0,
        statistics.median(true),
        float(np.quantile(true, HIGH)),
        statistics.mean(reported),
        exact / (k + 1),
        statistics.median(seconds),
        min(k + 1, robust_cases),
        len(gains),
        worse,
        statistics.mean(gains) if gains else 0.0,
    )


def table(rows: Sequence[Row]) -> str:
    """Write a line for each level of noise."""
    head = f"{'noise':>6s} {'cases':>6s} {'covered':>8s} {'of 0':>5s} {'covered':>8s} {'true median':>12s} "
    head += f"{'true 95 %':>10s} {'reported':>9s} {'seconds':>8s} {'robust: cases':>14s} {'differ':>7s} {'worse':>6s} "
    head += f"{'gain':>7s}"
    lines = [
        f"{one.noise:6.0%} {one.cases:6d} {one.covered:8.1%} {one.of_zero:5d} {one.zero_covered:8.1%} "
        f"{one.true_median:12.2%} {one.true_high:10.2%} {one.reported_high:9.2%} {one.seconds:8.3f} "
        f"{one.robust_cases:14d} {one.robust_differs:7d} {one.robust_worse:6d} {one.robust_gain:7.2%}"
        for one in rows
    ]
    return "\n".join([head, *lines, "held to: covered 93 to 97 % (of 0: 95 % or more), no robust plan worse"])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=about.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--noise", type=float, nargs="+", default=[0.1, 0.05, 0.02], help="(default: 0.1 0.05 0.02)")
    parser.add_argument("--cases", type=int, default=1000, help="with a regret, at each level of noise (default: 1000)")
    parser.add_argument("--robust-cases", type=int, default=200, help="of these, with robust plans (default: 200)")
    parser.add_argument("--draws", type=int, default=DrawSettings.draws, help="of each report (default: 200)")
    parser.add_argument("--seed", type=int, default=0)
    add_json(parser)
    options = parser.parse_args(argv)
    rows: list[Row] = []

    def document() -> dict[str, Any]:
        return {"rows": [one.to_json() for one in rows], "seed": options.seed, "draws": options.draws}

    for noise in options.noise:
        settings = {"robust_cases": options.robust_cases, "seed": options.seed, "draws": options.draws}
        rows.append(row(noise, options.cases, **settings))
        say(table(rows[-1:]))
        keep(document(), options.json)
    tell(document(), options.json, table(rows))
    return 0
