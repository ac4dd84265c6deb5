"""What `simulate --order` and `plan --order` do: an epoch of minibatches of several sizes, compared in a table."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .. import data
from ..data.order import ORDERS, SHUFFLE
from ..errors import InputError
from ..planning.orders import (
    OrderForecast,
    PlanWithSizes,
    lognormal_sizes,
    partition_with_sizes,
    plan_budget,
    simulate_orders,
    sizes_of_profile,
)
from ..runtime.config import BUDGETS
from ..util.io.fields import number
from ..util.io.options import split_options, typed
from ..util.text.numbers import duration, duration_or_none, number_of
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.replication import parse_rule
from ..views.tables import Table, table_text
from .options import Parser, flags, given, of_run, setting_options, whole
from .output import Answer

EPOCH = 256  # minibatches that are drawn where nobody says how many
_MOST_SAMPLES = 4_000_000  # that are drawn
_MOST_VARIATION = 10  # beyond it, the mean of drawn sizes is far below the distribution's, as few are huge
_EPOCH_HEAD = ("over balanced", "lost to sizes", "any order at least", "distance from random")
_HEAD = ("order", "minibatches", "time", *_EPOCH_HEAD)
_PLANS_HEAD = ("stages", "time per minibatch", "epoch", *_EPOCH_HEAD)
_OF_SAMPLES = ("data", "sample_sizes", "batch_size", *BUDGETS)


def order_options(verb: Parser, *, plans: bool = False) -> None:
    """Add the options of `simulate --order`; `plans`: of `plan --order`."""
    if plans:
        counted = (
            f"minibatch order whose time lost to sizes is counted (default: {SHUFFLE}, with --data or --sample-sizes)"
        )
        verb.add_argument("--order", choices=ORDERS, help=counted)
    else:
        compared = "minibatch order whose epoch is simulated and compared in one table; repeatable"
        verb.add_argument("--order", action="append", choices=ORDERS, help=compared)
    goes_with = "" if plans else ", for --order"
    verb.add_argument(
        *flags("--data"), metavar="DIR|NAME", help=f"data set whose training samples are counted{goes_with}"
    )
    verb.add_argument(
        *(("--sample-sizes",) if plans else ("--sizes", "--sample-sizes")),  # `plan --sizes` is DynPipe's
        dest="sample_sizes",
        metavar="lognormal:cv=C",
        help=f"distribution of sample sizes by coefficient of variation{goes_with} (default: the profile's data)",
    )
    verb.add_argument(
        *flags("--batch-size"),
        type=whole(1),
        metavar="N",
        help="samples per minibatch, for --order (default: the profile's)",
    )
    setting_options(verb, (replace(row, help=f"{row.help}, for --order") for row in of_run(*BUDGETS)))


def orders_asked(options: argparse.Namespace) -> bool:
    """Return whether orders are compared. Raises InputError for options that exclude each other."""
    if options.order and (options.replan or options.straggler or options.trace):
        raise InputError(
            "option.of_one_order", "--order simulates undisturbed epochs; omit --replan, --inject and --trace"
        )
    if not options.order and given(options, _OF_SAMPLES):
        raise InputError(
            "option.of_orders",
            "--data, --sizes, --batch-size and budgets require --order; add it, or omit them",
        )
    return bool(options.order)


def sizes_asked(options: argparse.Namespace) -> bool:
    """Return whether a plan counts the time lost to sizes. Raises InputError if sample sizes are unknown."""
    if options.order or options.data or options.sample_sizes:
        return True
    if given(options, _OF_SAMPLES):
        raise InputError(
            "option.of_orders",
            "--batch-size and budgets require --order, --data or --sample-sizes; add one of these, or omit them",
        )
    return False


def compare_orders(options: argparse.Namespace, plan: Plan, profile: Profile, cluster: Cluster) -> Answer:
    """Simulate an epoch in each order that is asked for; all samples of --data, else drawn ones."""
    if options.replication:
        plan = replace(plan, replication=parse_rule(options.replication))
    batch = _batch(options)
    budget = plan_budget(plan, profile, cluster, **{key: batch[key] for key in batch.keys() - {"batch_size"}})
    sizes = _sample_sizes(options, profile, budget)
    batch_size = None if budget else _batch_size(options, profile)
    seed = options.seed or 0
    orders = list(dict.fromkeys(options.order))
    forecasts = simulate_orders(
        plan, profile, cluster, sizes, batch_size=batch_size, budget=budget, orders=orders, seed=seed
    )
    document = {
        **_facts(sizes),
        "batch_size": batch_size,
        **({"budget": budget} if budget else {}),
        "orders": [forecast.to_json() for forecast in forecasts],
        "warnings": list(profile.warnings),
    }
    unit = profile.size_unit
    composed = f"by a budget of {budget:,.0f} {unit}" if budget else f"of {batch_size}"
    head = f"{_text(sizes, unit)}; minibatches {composed}; simulated"
    return Answer(document, f"{head}\n{table_text(Table(_HEAD, list(map(_row, forecasts))))}")


def plans_with_sizes(
    options: argparse.Namespace, profile: Profile, cluster: Cluster, **settings: Any
) -> tuple[Plan, dict[str, Any], str]:
    """Return the plan of the shortest epoch, with the plans that it was compared with: as a document, and as text."""
    batch = _batch(options)
    if not any(key in batch for key in ("seconds", "kept_bytes")):
        sizes = _sample_sizes(options, profile, batch.get("voxels"))
    else:  # of about as many samples as are profiled together: each plan has another budget
        sizes = _sample_sizes(options, profile, profile.size())
    if not batch:
        batch["batch_size"] = _batch_size(options, profile)
    order = options.order or SHUFFLE
    pairs = partition_with_sizes(profile, cluster, sizes, **batch, order=order, **settings)
    document = {
        **_facts(sizes),
        **batch,
        "order": order,
        "plans": [{"plan": pair.plan.to_json(), **pair.forecast.to_json()} for pair in pairs],
    }
    head = f"counted: {_text(sizes, profile.size_unit)}; order {order}; simulated, the shortest epoch first"
    return pairs[0].plan, document, f"{head}\n{table_text(Table(_PLANS_HEAD, list(map(_plan_row, pairs))))}"


def _plan_row(pair: PlanWithSizes) -> Sequence[str]:
    stages = "-".join(str(len(stage.ranks)) for stage in pair.plan.stages)
    period = duration_or_none(pair.plan.estimate.period_seconds if pair.plan.estimate else None)
    return (f"{len(pair.plan.stages)}: {stages}", period, duration(pair.forecast.seconds), *_epoch(pair.forecast))


def _row(found: OrderForecast) -> Sequence[str]:
    return (found.order, str(found.minibatches), duration(found.seconds), *_epoch(found))


def _epoch(found: OrderForecast) -> Sequence[str]:
    return (
        f"{found.seconds / found.balanced_seconds:.2f} ×" if found.balanced_seconds else "–",
        f"{found.lost_seconds / found.seconds:z.1%}" if found.seconds else "–",
        duration(found.lower_bound_seconds),
        f"{found.distance:z.2f}",
    )


def _facts(sizes: Sequence[float]) -> dict[str, object]:
    return {"samples": len(sizes), "coefficient_of_variation": float(np.std(sizes) / np.mean(sizes))}


def _text(sizes: Sequence[float], unit: str) -> str:
    variation = _facts(sizes)["coefficient_of_variation"]
    count = number_of(len(sizes), "sample", ",")
    return f"{count} of {np.mean(sizes):,.0f} {unit} on average, coefficient of variation {variation:.2f}"


def _batch(options: argparse.Namespace) -> dict[str, Any]:
    """Return what minibatches are composed by, as `partition_with_sizes` takes it; empty where nobody says."""
    names = {"batch_size": "batch_size", **dict(zip(BUDGETS, ("voxels", "seconds", "kept_bytes"), strict=True))}
    chosen = given(options, names)
    if len(chosen) > 1:
        first, second = list(chosen)[:2]
        text = f"{{{first}}} and {{{second}}} both limit a minibatch: give only one of them"
        raise InputError("setting.two_budgets", text, setting=dict.fromkeys((first, second)))
    return {names[name]: value for name, value in chosen.items()}


def _batch_size(options: argparse.Namespace, profile: Profile) -> int:
    return int(options.batch_size or profile.batch_size or 1)


def _sample_sizes(options: argparse.Namespace, profile: Profile, budget: float | None) -> list[float]:
    """Return the size of each sample of an epoch. `budget`: of a minibatch, where it has no number of samples."""
    batch_size, seed = _batch_size(options, profile), getattr(options, "seed", None) or 0
    mean = profile.size() / (profile.batch_size or (1 if budget else batch_size))
    together = max(1, round(budget / mean)) if budget else batch_size
    count = (getattr(options, "minibatches", None) or EPOCH) * together
    if options.data and options.sample_sizes:
        raise InputError(
            "option.two_sources",
            f"--data and {options.sample_sizes} both define sample sizes: omit one of them",
        )
    if not options.data and count > _MOST_SAMPLES:
        raise InputError(
            "simulation.too_many_samples",
            f"{count:,} samples requested, expected at most {_MOST_SAMPLES:,}; give a smaller batch size or budget, "
            "or fewer minibatches",
        )
    if options.sample_sizes:
        return lognormal_sizes(_lognormal(options.sample_sizes), count, mean=mean, seed=seed)
    if not options.data:
        return sizes_of_profile(profile, count, seed=seed)
    told = profile.origin.get("data")
    facts = told if isinstance(told, dict) else {}
    if not facts.get("voxel_size"):
        raise InputError(
            "simulation.no_voxel_size",
            f"--data {options.data}: the profile has no voxel size, so voxels per sample are unknown; give sizes "
            "instead, such as lognormal:cv=0.5",
        )
    samples = data.load(options.data, split="train", voxel_size=facts["voxel_size"], num_points=facts.get("num_points"))
    return list(map(float, samples.sample_sizes()))


def _lognormal(given: str) -> float:
    """Return the coefficient of variation that "lognormal:cv=0.5" names."""
    name, settings = split_options(given, "sizes", first={"lognormal": "cv"})
    if name != "lognormal" or set(settings) != {"cv"}:
        raise InputError(
            "simulation.distribution_unknown", f"sizes {given} given, expected lognormal:cv=C, such as lognormal:cv=0.5"
        )
    variation = number(typed(settings["cv"]), "sizes lognormal:cv")
    if variation > _MOST_VARIATION:
        raise InputError(
            "simulation.distribution_unknown",
            f"sizes {given} given, expected a coefficient of variation cv of 0 to {_MOST_VARIATION}, such as 0.5",
        )
    return variation
