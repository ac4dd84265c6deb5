"""Orders simulated: what each takes over balanced minibatches, on real sizes and on drawn ones."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.document import say
from scripts.bench.order.baselines import length_grouped, load_balanced
from scripts.bench.order.distributions import CVS, lognormal, real
from scripts.bench.scratch import scratch
from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Plan, Profile, Stage
from sparsepipe.data import ORDERS, compose
from sparsepipe.planning.orders import OrderForecast, order_forecast

Minibatches = Sequence[Sequence[int]]
PIPELINES, REPLICAS, KIND = (2, 4, 8), 8, "device"
SORTED, LENGTH_GROUPED, LOAD_BALANCED = "sorted", "transformers", "TRELLIS.2"
SNAKE = "snake"
WINDOWS = (16, 24, 32, 40, 48, 56, 64, 80, 96, 128)  # of snake, among which the fastest near another's time is found
# (coefficient of variation, stages): the most over balanced of planned orders; 0 stages: data parallelism by budget
HELD_TO = {(0.5, 2): 1.03, (0.5, 4): 1.06, (0.5, 8): 1.12, (0.8, 2): 1.04, (0.8, 4): 1.1, (0.8, 8): 1.2, (0.5, 0): 1.08}


@dataclass(frozen=True)
class Machine:
    """A plan on identical devices, costs in proportion to size, a backward as long as two forwards."""

    name: str
    stages: int
    plan: Plan
    profile: Profile
    cluster: Cluster

    @classmethod
    def of(cls, stages: int, replicas: int = 1) -> "Machine":
        graph = LayerGraph.chain(Layer(f"layer{k}", "", 0.0) for k in range(stages))
        costs = tuple(LayerCost((CostSample(1, 1.0, 2.0, 0.0),)) for _ in range(stages))
        parts = tuple(Stage((f"layer{k}",), tuple(range(k * replicas, (k + 1) * replicas))) for k in range(stages))
        name = f"{stages} stages" if replicas == 1 else f"{replicas} replicas"
        cluster = Cluster.uniform(stages * replicas, device_type=KIND)
        return cls(name, stages, Plan(parts), Profile(graph, {KIND: costs}), cluster)


def measure(*, seeds: int, samples: int) -> list[dict[str, Any]]:
    """Return a row for each distribution, machine, way of composing, order and seed."""
    rows: list[dict[str, Any]] = []
    with scratch("bench-order") as folder:
        for seed in range(seeds):
            for name, sizes in _distributions(folder / str(seed), samples, seed):
                for machine in (*map(Machine.of, PIPELINES), Machine.of(1, REPLICAS)):
                    rows += _rows(name, sizes, machine, seed)
                say(f"{name}, seed {seed}: {len(rows)} rows")
    return rows


def _distributions(folder: Path, samples: int, seed: int) -> Iterator[tuple[str, list[float]]]:
    for cv in CVS:
        yield f"lognormal {cv}", lognormal(cv, samples, seed)
    for name, sizes in real(folder, seed):
        epochs = -(-samples // len(sizes))  # small data sets are seen several times in a row
        yield name, sizes * epochs


def _rows(name: str, sizes: list[float], machine: Machine, seed: int) -> Iterator[dict[str, Any]]:
    for batch, orders in _composed(sizes, machine, seed):
        for order, dealt in orders.items():
            totals = [float(sum(sizes[sample] for sample in samples)) for samples in dealt]
            found = order_forecast(order, machine.plan, machine.profile, machine.cluster, totals)
            # Under a budget there are other numbers of minibatches: all are compared with the same work, dealt evenly.
            per_device = 3 * sum(sizes) * machine.stages / len(machine.plan.ranks)
            even = per_device if batch == "budget" else found.balanced_seconds
            yield {
                "sizes": name,
                "cv": float(np.std(sizes) / np.mean(sizes)),
                "machine": machine.name,
                "batch": batch,
                "order": order,
                "seed": seed,
                "minibatches": found.minibatches,
                "over_balanced": found.seconds / even,
                "lower_bound": found.lower_bound_seconds / even,
                "distance": found.distance,
            }


def _composed(sizes: list[float], machine: Machine, seed: int) -> Iterator[tuple[str, dict[str, Minibatches]]]:
    """Yield ways of composing, each with its orders: samples of a minibatch, or a budget."""
    replicas = len(machine.plan.ranks) // machine.stages
    step = replicas if machine.stages == 1 else 1
    with_random = np.random.default_rng

    def ours(**batch: Any) -> dict[str, Minibatches]:
        return {
            order: compose(sizes, order=order, seed=seed, stages=machine.stages, step=step, **batch) for order in ORDERS
        }

    for batch_size in (1, 4):
        orders = ours(batch_size=batch_size)
        ascending = sorted(orders["shuffle"], key=lambda samples: sum(sizes[k] for k in samples))
        orders[SORTED] = ascending
        orders[LENGTH_GROUPED] = length_grouped(sizes, batch_size, with_random(seed))
        orders[LOAD_BALANCED] = load_balanced(sizes, batch_size, replicas, with_random(seed))
        yield str(batch_size), orders
    yield "budget", ours(budget=max(4 * float(np.mean(sizes)), *sizes))


def nearness(*, seeds: int, samples: int) -> list[dict[str, Any]]:
    """Compare how random planned orders are with windows up and down that are as fast: the first of `WINDOWS`."""
    rows = []
    for cv, machine, seed in product(CVS, map(Machine.of, PIPELINES), range(seeds)):
        sizes = lognormal(cv, samples, seed)
        planned = _alone(sizes, machine, "planned", seed=seed)
        windows = ((window, _alone(sizes, machine, SNAKE, seed=seed, window=window)) for window in WINDOWS)
        window, snake = next((pair for pair in windows if pair[1].seconds <= planned.seconds), (None, None))
        rows.append(
            {
                "cv": cv,
                "machine": machine.name,
                "seed": seed,
                "window": window,
                "planned": planned.distance,
                "snake": snake and snake.distance,
            }
        )
    return rows


def _alone(sizes: list[float], machine: Machine, order: str, *, seed: int, window: int | None = None) -> OrderForecast:
    """Simulate minibatches of one sample each."""
    dealt = compose(sizes, batch_size=1, order=order, seed=seed, stages=machine.stages, window=window)
    totals = [sizes[samples[0]] for samples in dealt]
    return order_forecast(order, machine.plan, machine.profile, machine.cluster, totals)


def medians(rows: list[dict[str, Any]], key: Callable[[dict[str, Any]], Any], field: str) -> dict[Any, float]:
    """Return the median of a field over the seeds, by what `key` makes of a row."""
    groups: dict[Any, list[float]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row[field])
    return {name: float(np.median(values)) for name, values in groups.items()}


def held(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare planned orders with what the issue asks for."""
    found = medians(
        [row for row in rows if row["order"] == "planned"],
        lambda row: (row["sizes"], row["machine"], row["batch"]),
        "over_balanced",
    )
    facts = []
    for (cv, stages), most in HELD_TO.items():
        machine, batch = (f"{stages} stages", "1") if stages else (f"{REPLICAS} replicas", "budget")
        over = found[f"lognormal {cv}", machine, batch]
        facts.append({"cv": cv, "machine": machine, "batch": batch, "over_balanced": over, "at_most": most})
    return facts


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each distribution, machine and way of composing: medians over seeds of time over balanced."""
    key = lambda row: (row["sizes"], row["machine"], row["batch"], row["order"])  # noqa: E731
    over, bound = medians(rows, key, "over_balanced"), medians(rows, key, "lower_bound")
    distance = medians(rows, key, "distance")
    orders = list(dict.fromkeys(row["order"] for row in rows))
    yield "time over balanced (medians); the bound is of planned minibatches; distance from random of snake and planned"
    yield f"{'sizes':20s}{'machine':12s}{'batch':8s}" + "".join(
        f"{order:>14s}" for order in (*orders, "bound", "distance")
    )
    for name, machine, batch in dict.fromkeys((n, m, b) for n, m, b, _ in over):
        cells = [f"{over[k]:.3f}" if (k := (name, machine, batch, order)) in over else "–" for order in orders]
        planned, snake = ((name, machine, batch, order) for order in ("planned", SNAKE))
        cells += [f"{bound[planned]:.3f}", f"{distance[snake]:.2f} {distance[planned]:.2f}"]
        yield f"{name:20s}{machine:12s}{batch:8s}" + "".join(f"{cell:>14s}" for cell in cells)
    for one in held(rows):
        answer = "held" if one["over_balanced"] <= one["at_most"] else "MISSED"
        yield f"cv {one['cv']}, {one['machine']}: {one['over_balanced']:.3f}, at most {one['at_most']}: {answer}"


def nearness_table(near: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each distribution and machine: medians over seeds."""
    yield "as fast as planned: window of snake, and distances from random of snake and planned"
    for cv, machine in dict.fromkeys((row["cv"], row["machine"]) for row in near):
        own = [row for row in near if (row["cv"], row["machine"]) == (cv, machine) and row["window"]]
        if own:
            window, snake, planned = (
                float(np.median([row[name] for row in own])) for name in ("window", SNAKE, "planned")
            )
            yield f"lognormal {cv:<10}{machine:12s}{window:.0f}: {snake:.3f} {planned:.3f} ({len(own)} seeds)"
        else:
            yield f"lognormal {cv:<10}{machine:12s}no window up to {WINDOWS[-1]} is as fast"
