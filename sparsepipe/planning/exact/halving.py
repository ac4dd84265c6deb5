"""The largest limit that is refused: what bounds of a period are halved towards."""

import time
from collections.abc import Callable
from math import inf


def largest_refused(
    refused: Callable[[float], bool], low: float, high: float, *, tolerance: float, until: float = inf
) -> float:
    """Return the largest limit from `low`, which is refused, to `high` that is known to be refused.

    First asked is whether `high` is the least that is not, to a `tolerance` as its share; `until` says when of
    `time.process_time()` what is known by then counts.
    """
    tried = high * (1 - tolerance)
    while high - low > tolerance * high and time.process_time() < until:
        if refused(tried):
            low = tried
        else:
            high = tried
        tried = (low + high) / 2
    return low
