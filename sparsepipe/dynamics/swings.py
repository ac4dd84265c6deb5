"""Swings: by how much a rank's pace goes up and down by itself, over seconds and not only from minibatch to minibatch.

A machine's clock, its caches and its other processes make a rank faster and slower for a while, and then it is again as
it was. The noise from one minibatch to the next (change_point.py) tells nothing of that: the median of a hundred
minibatches may have an error of 1% by it, and the next hundred a median 20% off. So medians of blocks of minibatches
are put beside one another. The median of their differences is moved little by a few that are large: an intruder that
comes and goes is no swing.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from statistics import median

_BLOCK = 10  # minibatches: some tenths of a second
_KNOWN = 5  # differences, before they tell anything
_AT_FIRST = 0.1  # of a ratio, until then
_NEWEST = 40  # differences that are remembered
_GAUSSIAN = 1 / (0.6745 * math.sqrt(2))  # standard deviation over the median of differences


@dataclass
class Swings:
    """Takes a series' log ratios one after the other; `size` is the standard deviation of medians of ten of them."""

    _block: list[float] = field(default_factory=list)
    _before: float | None = None  # the median of the block before
    _differences: deque[float] = field(default_factory=lambda: deque(maxlen=_NEWEST))

    def add(self, value: float) -> None:
        self._block.append(value)
        if len(self._block) < _BLOCK:
            return
        now = median(self._block)
        if self._before is not None:
            self._differences.append(abs(now - self._before))
        self._block, self._before = [], now

    def restart(self) -> None:
        """Another quantity is measured from now on: no block has some of both, and no difference is between both."""
        self._block, self._before = [], None

    @property
    def size(self) -> float:
        if len(self._differences) < _KNOWN:
            return _AT_FIRST
        return _GAUSSIAN * median(self._differences)
