"""A lower bound of every plan's period on many unlike devices and nodes, by prices of the devices.

A period is too short where at some prices even the cheapest stages cost more than all devices do (priced_stages.py).
"""

import time

from .joined_nodes import JoinedNodes
from .priced_stages import PricedStages

TOLERANCE = 0.001
SECONDS = 5.0  # of the processor, after which the bound that is proven by then counts


def lagrangian_bound(joined: JoinedNodes, *, low: float, high: float, seconds: float = SECONDS) -> float:
    """Return a bound of the period of all plans: at least `low`, which is one, at most `high`."""
    until = time.process_time() + seconds
    while high - low > TOLERANCE * high and time.process_time() < until:
        period = (low + high) / 2
        *_, dearest = PricedStages(joined, period).ever_dearer()
        if dearest.too_dear:
            low = period
        else:
            high = period
    return low
