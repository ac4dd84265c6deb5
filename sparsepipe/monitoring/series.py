"""One rank's or one link's times over those expected, minibatch by minibatch, and what its change-point test found.

Swings: by how much a rank's pace goes up and down by itself, over seconds and not only from minibatch to minibatch.

A machine's clock, its caches and its other processes make a rank faster and slower for a while, and then it is again as
it was. The noise from one minibatch to the next (change_point.py) does not show that: the median of a hundred
minibatches may have an error of 1% by it, and the next hundred a median 20% off. So medians of blocks of minibatches
are compared with one another. The median of their differences is moved little by a few that are large: an intruder that
comes and goes is no swing.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from .alarms import Alarm, Standing
from .change_point import SETTLED, Change, ChangePoint
from .factors import LEAST, MOST, Pair

_BLOCK = 10  # minibatches: some tenths of a second
_KNOWN = 5  # differences, before they tell anything
_AT_FIRST = 0.1  # of a ratio, until then
_NEWEST_DIFFERENCES = 40  # differences that are remembered
_GAUSSIAN = 1 / (0.6745 * math.sqrt(2))  # standard deviation over the median of differences


@dataclass
class Swings:
    """Takes a series' log ratios one after the other; `size` is the standard deviation of medians of ten of them."""

    _block: list[float] = field(default_factory=list)
    _before: float | None = None  # the median of the block before
    _differences: deque[float] = field(default_factory=lambda: deque(maxlen=_NEWEST_DIFFERENCES))

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


_NEWEST = 20  # values that say whether a slow beginning is over
_OF_MEDIAN = math.sqrt(math.pi / 2)  # its standard error over a mean's
_ALIKE = math.log(1.15)  # levels closer to each other than that: what was slow is back
_REMEMBERED = 1024  # values that are kept, with their minibatches


@dataclass
class Series:
    """The times of one rank or of one link over those expected: `rank` or `link` says whose.

    Usual is what its profile says, what it took before it ever changed, what it took when it was quickest, and all
    between: a profile is off by other shares for other layers, and what ranks of a job slow one another by is no other
    process's doing. Of a slow beginning no more is usual than what remains of it.
    """

    rank: int | None = None
    link: Pair | None = None
    changed: bool = False  # whether it is not as usual, by its last alarm
    since: int | None = None  # the minibatch at which its last lasting change began
    _test: ChangePoint = field(default_factory=ChangePoint)
    _swings: Swings = field(default_factory=Swings)
    _usual: float | None = None  # its level before it ever changed
    _least: float = 0.0  # the logs of what is usual beside its profile
    _most: float = 0.0
    _newest: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    _began: int = 0  # values before the last change

    @classmethod
    def of_link(cls, pair: Pair) -> "Series":
        """Return the series of a link, whose first times count: links do not warm up."""
        return cls(link=pair, _test=ChangePoint(to_pass_over=0))

    def add(
        self,
        minibatch: int,
        measured: float,
        expected: float,
        *,
        unnoticed: float,
        seconds: float,
        uncertainty: float = 0.0,
    ) -> Alarm | None:
        """Compare a minibatch's seconds with those expected; `seconds` is when it was. Returns the alarm it raises.

        `unnoticed` seconds more hold no one up: they are added to both, so that a ratio of what is short says little.
        `uncertainty` is the share by which the expected time may be off: a ratio counts by what is beyond that.
        """
        tested = (measured + unnoticed) / (expected + unnoticed)
        self._newest.append((minibatch, measured / expected if expected > 0 else tested))
        apart = math.log(tested) - self._test.level
        value = self._test.level + math.copysign(max(0.0, abs(apart) - uncertainty), apart)
        self._swings.add(value)
        change = self._test.add(value)
        return None if change is None else self._alarm(change, minibatch, seconds)

    def is_faster(self, at_most: float, expected: float) -> bool:
        """Return whether a time that may be shorter still shows that what became slow is no longer as slow as that."""
        slow = self.changed and self._test.level > (self._usual or 0.0)
        return slow and math.log(at_most / expected) < self._test.level - _ALIKE

    def learn_anew(self) -> None:
        """Learn the usual level again, as the rank has other layers from now on."""
        self._test.restart()
        self._swings.restart()

    @property
    def factor(self) -> float:
        """How many times as long as expected it takes: the median since its last change; 1 before anything is known."""
        return 1.0 if self._test.learning and self.since is None else self._median(self._began, self._test.count)

    @property
    def lasting(self) -> float:
        """How many times as long as usual it takes by its last alarm; 1 if that says that it is as usual."""
        level = math.log(self.factor)
        return math.exp(level - self._usual_of(level)) if self.changed else 1.0

    @property
    def from_start(self) -> float:
        """How many times as long as its profile says, 1 or more, is usual for it, by its newest values, as a slow
        beginning passes.
        """
        if not self.changed:
            return 1.0
        return max(1.0, math.exp(self._usual_of(math.log(min(self.newest, self.factor)))))

    @property
    def newest(self) -> float:
        """How many times as long as expected its newest minibatches took, since its last change."""
        if self._test.learning and self.since is None:
            return 1.0
        return self._median(max(self._began, self._test.count - _NEWEST), self._test.count)

    @property
    def error(self) -> float:
        """The standard error of the logs of `factor` and `lasting`: of a median of noisy times, and of what swings."""
        known = min(max(self._test.count - self._began, 1), SETTLED)
        return math.hypot(_OF_MEDIAN * self._test.noise / math.sqrt(known), self._swings.size)

    @property
    def count(self) -> int:
        """Its minibatches that were measured."""
        return self._test.count

    def _usual_of(self, level: float) -> float:
        """What of a level is usual."""
        return min(max(level, self._least), self._most)

    def standing(self) -> Standing:
        test = self._test
        return Standing(
            self.rank, self.link, self.factor, test.count, self.since, test.spikes, test.noise, self.changed
        )

    def _alarm(self, change: Change, minibatch: int, seconds: float) -> Alarm:
        usual = change.before if self._usual is None else self._usual
        self._take_usual(change)
        self._usual = usual
        self.changed = abs(change.after - usual) > _ALIKE
        before = self._median(self._began, change.began) if change.began > self._began else 1.0
        self._began = change.began
        self.since = self._newest[self._place(change.began)][0]
        since, back, always = self.since, not self.changed, change.began == 0
        return Alarm(
            minibatch, since, self.factor, before, self.rank, self.link, recovered=back, seconds=seconds, always=always
        )

    def _take_usual(self, change: Change) -> None:
        """Widen what is usual by what was never as quick, or narrow it by what remains of a slow beginning."""
        if self._usual is None:
            first = change.before if change.began else change.after
            self._least, self._most = min(first, 0.0), max(first, 0.0)
        self._least = min(self._least, change.after)
        if self._test.count < SETTLED:
            self._most = max(min(self._most, change.after), 0.0)

    def _median(self, first: int, past: int) -> float:
        """The median ratio of the newest SETTLED of some values, by their numbers, of those that are remembered."""
        low, high = self._place(max(first, past - SETTLED)), self._place(past)
        found = sorted(ratio for _, ratio in islice(self._newest, low, max(high, low + 1)))
        return min(max(found[len(found) // 2], LEAST), MOST)

    def _place(self, number: int) -> int:
        return max(0, number - (self._test.count - len(self._newest)))
