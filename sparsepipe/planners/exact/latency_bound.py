"""A lower bound of the latency of every plan at a pace, whatever its cuts: each layer's inputs spread over the types.

Let x[k, t] be the share of inputs for which layer k runs on type t. In one period the devices of a type do at most
count × period seconds of work, and the latency is at least the mean over inputs, Σ x[k, t] × seconds[t, k]. That is a
linear program. For any prices p ≥ 0 of a type's seconds

    Σ over layers of min over t of (1 + p[t]) × seconds[t, k]  −  period × Σ p[t] × count[t]

is at most its value, so the prices need not be exact: they are the program's own, and the sum here is the bound.
"""

from math import isinf

import numpy as np

from ...costs import Array
from ..base import Problem


def latency_bound(problem: Problem, pace: float) -> float:
    """Return a bound for plans of period `pace` at most; infinity for one that no plan can keep is not looked for."""
    kinds = tuple(dict.fromkeys(device.type.name for device in problem.cluster.devices))
    seconds = np.stack([problem.table.forward[kind][list(problem.layers), 0] for kind in kinds])
    counts = np.array([sum(device.type.name == kind for device in problem.cluster.devices) for kind in kinds])
    prices = np.zeros(len(kinds)) if isinf(pace) else _prices(seconds, counts, pace)
    bounds = [_value(seconds, counts, pace, p) for p in (np.zeros(len(kinds)), prices)]
    return max(bounds)


def _value(seconds: Array, counts: Array, pace: float, prices: Array) -> float:
    paid = float(pace * (prices @ counts)) if prices.any() else 0.0
    return float(((1 + prices)[:, None] * seconds).min(axis=0).sum()) - paid


def _prices(seconds: Array, counts: Array, pace: float) -> Array:
    """The prices of the linear program; none where it has no answer."""
    from scipy.optimize import linprog  # here, as few plans ask for it

    num_types, num_layers = seconds.shape
    work = np.zeros((num_types, num_types * num_layers))
    whole = np.zeros((num_layers, num_types * num_layers))
    for t in range(num_types):
        own = slice(t * num_layers, (t + 1) * num_layers)
        work[t, own] = seconds[t]
        whole[:, own] = np.eye(num_layers)
    answer = linprog(
        seconds.ravel(), A_ub=work, b_ub=pace * counts, A_eq=whole, b_eq=np.ones(num_layers), method="highs"
    )
    if answer.status != 0:
        return np.zeros(num_types)
    return np.maximum(-answer.ineqlin.marginals, 0.0)
