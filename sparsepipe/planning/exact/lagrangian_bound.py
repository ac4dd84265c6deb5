"""A lower bound of every plan's period on many unlike devices and nodes, by prices of the devices.

A period is too short where at some prices even the cheapest stages cost more than all devices do: told by the types of
devices alone (priced_stages.py), or by the nodes they are on as well (placed_stages.py).
"""

import time

from ...values.costs import Array
from .halving import largest_refused
from .joined_nodes import JoinedNodes
from .placed_stages import Placements
from .priced_stages import PricedStages, ever_dearer, too_dear

TOLERANCE = 0.001
SECONDS = 5.0  # of the processor, after which the bound that is proven by then counts
PLACED_SECONDS = 2.0  # the same, by the nodes


def lagrangian_bound(joined: JoinedNodes, *, low: float, high: float, seconds: float = SECONDS) -> float:
    """Return a bound of the period of all plans: at least `low`, which is one, at most `high`."""
    until = time.process_time() + seconds
    while high - low > TOLERANCE * high and time.process_time() < until:
        period = (low + high) / 2
        *_, dearest = PricedStages(joined, period).ever_dearer()
        if too_dear(dearest):
            low = period
        else:
            high = period
    return low


def placed_bound(placed: Placements, *, low: float, high: float, seconds: float = PLACED_SECONDS) -> float:
    """Return a bound of the period of all plans on several nodes: at least `low`, which is one, at most `high`."""
    until, prices = time.process_time() + seconds, list[Array]()

    def refused(period: float) -> bool:
        cheapest = placed.stages(period).cheapest
        *_, dearest = ever_dearer(cheapest, placed.available, prices[-1] if prices else None)
        prices.append(dearest.prices)  # of one period they are good ones of the next
        return too_dear(dearest)

    return largest_refused(refused, low, high, tolerance=TOLERANCE, until=until)
