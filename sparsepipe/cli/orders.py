"""What `simulate --order` does: an epoch in each order of its minibatches, compared in one table."""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from .. import data
from ..data.order import ORDERS
from ..errors import InputError
from ..planning.orders import OrderForecast, lognormal_sizes, simulate_orders, sizes_of_profile
from ..util.io.fields import number
from ..util.io.options import split_options, typed
from ..util.text.counting import number_of
from ..util.text.numbers import duration
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.replication import parse_rule
from ..views.tables import Table, table_text
from .options import Parser, flags, whole
from .output import Answer

EPOCH = 256  # minibatches that are drawn where nobody says how many
_MOST_VARIATION = 10  # beyond it, the mean of drawn sizes is far below the distribution's, as few are huge
_HEAD = ("order", "minibatches", "time", "over balanced", "lost to sizes", "any order at least", "distance from random")


def order_options(verb: Parser) -> None:
    """Add the options of `simulate --order`."""
    verb.add_argument(
        "--order",
        action="append",
        choices=ORDERS,
        help="minibatch order whose epoch is simulated and compared in one table; repeatable",
    )
    verb.add_argument(
        *flags("--data"), metavar="DIR|NAME", help="data set whose training samples are counted, for --order"
    )
    verb.add_argument(
        "--sizes",
        metavar="lognormal:cv=C",
        help="distribution of sample sizes by coefficient of variation, for --order (default: the profile's data)",
    )
    verb.add_argument(
        *flags("--batch-size"),
        type=whole(1),
        metavar="N",
        help="samples per minibatch, for --order (default: the profile's)",
    )


def orders_asked(options: argparse.Namespace) -> bool:
    """Whether orders are compared. Raises InputError for options that do not go together."""
    if options.order and (options.replan or options.straggler or options.trace):
        raise InputError(
            "option.of_one_order", "--order compares epochs in calm: leave out --replan, --inject and --trace"
        )
    if not options.order and (options.data or options.sizes or options.batch_size):
        raise InputError(
            "option.of_orders", "--data, --sizes and --batch-size go with --order: give that, or leave them out"
        )
    return bool(options.order)


def compare_orders(options: argparse.Namespace, plan: Plan, profile: Profile, cluster: Cluster) -> Answer:
    """Simulate an epoch in each order that is asked for; all samples of --data, else drawn ones."""
    if options.replication:
        plan = replace(plan, replication=parse_rule(options.replication))
    batch_size = options.batch_size or profile.batch_size or 1
    sizes = _sample_sizes(options, profile, batch_size)
    seed = options.seed or 0
    orders = list(dict.fromkeys(options.order))
    found = simulate_orders(plan, profile, cluster, sizes, batch_size=batch_size, orders=orders, seed=seed)
    variation = float(np.std(sizes) / np.mean(sizes))
    document = {
        "samples": len(sizes),
        "batch_size": batch_size,
        "coefficient_of_variation": variation,
        "orders": [one.to_json() for one in found],
        "warnings": list(profile.warnings),
    }
    head = (
        f"{number_of(len(sizes), 'sample', ',')} of {np.mean(sizes):,.0f} {profile.size_unit} on average, coefficient "
        f"of variation {variation:.2f}; minibatches of {batch_size}; simulated"
    )
    return Answer(document, f"{head}\n{table_text(Table(_HEAD, list(map(_row, found))))}")


def _row(found: OrderForecast) -> Sequence[str]:
    return (
        found.order,
        str(found.minibatches),
        duration(found.seconds),
        f"{found.seconds / found.balanced_seconds:.2f} ×" if found.balanced_seconds else "–",
        f"{found.lost_seconds / found.seconds:z.1%}" if found.seconds else "–",
        duration(found.lower_bound_seconds),
        f"{found.distance:z.2f}",
    )


def _sample_sizes(options: argparse.Namespace, profile: Profile, batch_size: int) -> list[float]:
    count, seed = (options.minibatches or EPOCH) * batch_size, options.seed or 0
    if options.data and options.sizes:
        raise InputError(
            "option.two_sources", "--data and --sizes both say how large samples are: leave one of them out"
        )
    if options.sizes:
        cv = _lognormal(options.sizes)
        return lognormal_sizes(cv, count, mean=profile.size() / (profile.batch_size or batch_size), seed=seed)
    if not options.data:
        return sizes_of_profile(profile, count, seed=seed)
    told = profile.origin.get("data")
    facts = told if isinstance(told, dict) else {}
    if not facts.get("voxel_size"):
        raise InputError(
            "simulation.no_voxel_size",
            f"--data {options.data}: the profile names no voxel size, so samples cannot be counted; give --sizes, such "
            "as lognormal:cv=0.5",
        )
    samples = data.load(options.data, split="train", voxel_size=facts["voxel_size"], num_points=facts.get("num_points"))
    return list(map(float, samples.sample_sizes()))


def _lognormal(given: str) -> float:
    """Return the coefficient of variation that "lognormal:cv=0.5" names."""
    name, settings = split_options(given, "--sizes", first={"lognormal": "cv"})
    if name != "lognormal" or set(settings) != {"cv"}:
        raise InputError(
            "simulation.distribution_unknown", f"--sizes {given}: expected lognormal:cv=C, such as lognormal:cv=0.5"
        )
    variation = number(typed(settings["cv"]), "--sizes lognormal:cv")
    if variation > _MOST_VARIATION:
        raise InputError(
            "simulation.distribution_unknown", f"--sizes {given}: expected a cv of 0 to {_MOST_VARIATION}, such as 0.5"
        )
    return variation
