"""Plans and bounds on identical devices: the fewest devices with which stages and boundaries stay below a limit.

On one node a boundary takes the time of what crosses it, divided among the devices of the smaller of its stages. So the
stage between two cuts needs some number of devices, whatever the other stages have, and a shortest path over cuts

    fewest[b] = min over the cuts a within b of fewest[a] + needed(a, b)

says whether there are enough devices for a limit. How many there are does not matter to the time that this takes.

If cuts are too many to compare each with each, those with about the same sums are taken together (`CutRanges`). The
smaller of their sums counts where a stage ends, the larger where it begins. That allows more, so it proves a bound. It
also says how many devices are needed before and behind each cut, at least: near the best period few cuts remain, and a
path between those is exact again.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
from numpy.typing import NDArray

from ...values.costs import Array
from ..base import Problem
from ..cuts import Cuts, Index
from .chain_search import Moves, Path
from .frontier_cuts import ListedCuts
from .halving import largest_refused
from .search_space import Rules, Space, with_cuts
from .stage_cost_tables import StageModel

SECONDS = 8.0  # of the processor, after which what is known by then counts
_ASKED_SECONDS = 4.0  # the same, of one limit
_MOST_CUTS = 20_000  # more take longer
_TOLERANCE = 5e-4
_AT_ONCE = 1_000_000  # pairs of cuts
_WORK_BINS, _WEIGHT_BINS = 1000, 5  # amounts of all work and weights of cuts that are taken together
_LESS = 1 - 1e-12  # of a number of devices that is rounded up: what rounding may have added


@dataclass(frozen=True, eq=False)
class StageNeeds:
    """The time of a stage on each number of devices; the first row is of one device."""

    rates: Array  # [M]: of the seconds of its work
    weight_rates: Array  # [M]: seconds of a byte of weights
    fixed: Array  # [M]: seconds
    port: Array  # [M]: the share of what crosses a boundary that its busiest device carries, falling

    @classmethod
    def of(cls, model: StageModel, moves: Moves) -> "StageNeeds | None":
        """None if groups are not all numbers of identical devices of one node, or a path may not have every group."""
        groups, count = model.groups, int(moves.used[-1])
        if len(groups.classes) > 1 or moves.swaps or moves.counts_stages or model.begins or groups.ends is not None:
            return None
        every = np.array_equal(groups.sizes, np.arange(1, count + 1))
        if model.rates.shape[1] > 1 or not every or (np.diff(model.device_port) > 0).any():
            return None
        return cls(model.rates[:, 0], model.weight_rates, model.fixed, model.device_port)

    @property
    def most(self) -> int:
        """Number of devices."""
        return len(self.rates)

    @cached_property
    def _together(self) -> Array:
        """Device-seconds per second of work, per byte, and fixed: of so many devices and one more, or more, [3, M]."""
        count = np.arange(1, self.most + 1)
        each = np.stack([self.rates, self.weight_rates, self.fixed]) * count
        return np.minimum.accumulate(each[:, ::-1], axis=1)[:, ::-1]

    def for_boundary(self, seconds: Array, limit: float) -> Index:
        """Return the fewest devices whose ports carry in time what takes one port these seconds; M + 1 if none."""
        with np.errstate(divide="ignore"):
            fewest = np.searchsorted(-self.port, -limit / seconds, side="right")
        late = seconds * self.port[np.minimum(fewest, self.most - 1)] >= limit  # by rounding
        early = seconds * self.port[np.maximum(fewest - 1, 0)] < limit
        return np.where((fewest > 0) & early, fewest, np.where(late, fewest + 2, fewest + 1)).clip(1, self.most + 1)

    def about(self, work: Array, limit: float) -> NDArray[np.int32]:
        """Return how many devices a stage of so much work needs at least, whatever its weights."""
        needed = work * (float(self._together[0, 0]) / limit * _LESS)
        return needed.astype(np.int32) + 1

    def for_stage(self, work: Array, weights: Array, least: Index, limit: float) -> Index:
        """Return the fewest devices, at `least` so many, that compute and average in time, [N]; M + 1 if none."""
        fewest = np.minimum(least, self.most + 1)
        todo = np.flatnonzero(fewest <= self.most)
        while len(todo):
            row = fewest[todo] - 1
            seconds = self.rates[row] * work[todo] + self.weight_rates[row] * weights[todo] + self.fixed[row]
            todo = todo[seconds >= limit]
            row = np.minimum(fewest[todo], self.most - 1)  # of one more, and those after it
            together = self._together[:, row]
            needed = (together[0] * work[todo] + together[1] * weights[todo] + together[2]) / limit * _LESS
            fewest[todo] = np.maximum(fewest[todo] + 1, np.minimum(needed, self.most).astype(np.intp) + 1)
            todo = todo[fewest[todo] <= self.most]
        return fewest


@dataclass(frozen=True, eq=False)
class CutRanges:
    """The layers before cuts taken together, and the bytes that cross them; the first and last are the ends."""

    low: Array  # [K, 2]: seconds of work and bytes of weights, at least
    high: Array  # at most
    port: Array  # [K]: seconds of one port, at least
    rank: Index  # [K], growing: no cut holds one of a larger rank

    def reversed(self) -> "CutRanges":
        """From the end of the network to its start."""
        whole, rank = self.high[-1], self.rank[-1] - self.rank[::-1]
        return CutRanges(whole - self.high[::-1], whole - self.low[::-1], self.port[::-1], rank)

    def fewest(self, needs: StageNeeds, limit: float) -> Index:
        """Return how many devices the stages before each need at least; M + 1 if there are too few."""
        most = needs.most
        fewest = np.full(len(self.rank), most + 1)
        fewest[0] = 0
        boundary = needs.for_boundary(self.port, limit)
        behind = np.maximum(needs.about(self.low[-1, 0] - self.high[:, 0], limit), boundary)
        behind[-1] = 0
        able = boundary + behind <= most
        able[0] = True  # nothing is before it
        starts = np.flatnonzero(np.diff(self.rank, prepend=self.rank[0] - 1))
        alive = np.zeros(0, dtype=np.intp)
        for first, last in zip(starts, [*starts[1:], len(self.rank)], strict=True):
            ends = first + np.flatnonzero(able[first:last])
            for sources in np.array_split(alive, len(alive) * len(ends) // _AT_ONCE + 1):
                self._reach(needs, limit, fewest, boundary, behind, sources, ends)
            before = None
            while len(ends) > 1 and (before is None or (before > fewest[ends]).any()):
                before = fewest[ends].copy()  # of a rank one cut may hold another as well
                self._reach(needs, limit, fewest, boundary, behind, ends, ends)
            alive = np.concatenate([alive, ends[fewest[ends] + behind[ends] <= most]])
        return fewest

    def _reach(
        self,
        needs: StageNeeds,
        limit: float,
        fewest: Index,
        boundary: Index,
        behind: Index,
        sources: Index,
        ends: Index,
    ) -> None:
        """Lower `fewest` of `ends` by one more stage from each of `sources`."""
        work = self.low[ends, 0] - self.high[sources, 0][:, None]
        least = np.maximum(needs.about(np.maximum(work, 0.0), limit), boundary[ends])
        np.maximum(least, boundary[sources][:, None], out=least)
        room = np.minimum(needs.most - behind[ends], fewest[ends] - 1)
        row, column = np.nonzero(least + fewest[sources][:, None] <= room)
        weights = np.maximum(self.low[ends[column], 1] - self.high[sources[row], 1], 0.0)
        stage = needs.for_stage(np.maximum(work[row, column], 0.0), weights, least[row, column], limit)
        np.minimum.at(fewest, ends[column], fewest[sources[row]] + stage)


@dataclass(frozen=True, eq=False)
class CutPaths:
    """Paths over cuts, with what is before each and what crosses it."""

    masks: Sequence[int]
    work: Array  # [S]: seconds
    weights: Array  # [S]: bytes
    port: Array  # [S]: seconds of one port
    words: NDArray[np.uint64]  # [S, W]: the masks

    @classmethod
    def of_model(cls, model: StageModel) -> "CutPaths":
        """The cuts of a model."""
        port = model.ports[0].copy()
        port[[0, -1]] = 0.0
        return cls(model.cuts.masks, model.times[0], model.weights, port, _words(model.cuts))

    @cached_property
    def _levels(self) -> Index:
        """Return the first cut of each number of layers, and the number of cuts: of a level none holds another."""
        sizes = np.array([mask.bit_count() for mask in self.masks])
        return np.append(np.flatnonzero(np.diff(sizes, prepend=-1)), len(sizes))

    def path(self, needs: StageNeeds, limit: float, behind: Index | None = None, *, until: float = inf) -> Path | None:
        """Return a path of the fewest devices; None as proof that there are too few.

        A stage on m devices has the group m − 1. `behind`: devices that the stages behind each cut need at least.
        Raises TimeoutError if neither is known at `until` of `time.process_time()`.
        """
        most, count = needs.most, len(self.work)
        if limit <= 0:
            return None  # every stage takes less
        boundary = needs.for_boundary(self.port, limit)
        rest = np.maximum(needs.about(self.work[-1] - self.work, limit), boundary)
        rest = rest if behind is None else np.maximum(rest, behind)
        rest[-1] = 0
        able = rest + np.maximum(needs.about(self.work, limit), boundary) <= most
        none = (most + 1) * count
        best = np.full(count, none, dtype=np.int64)  # the fewest devices × cuts + where the last stage begins
        best[0], alive = 0, np.zeros(1, dtype=np.intp)
        for first, last in zip(self._levels[1:-1], self._levels[2:], strict=True):
            ends = first + np.flatnonzero(able[first:last])
            if not len(ends):
                continue
            for sources in np.array_split(alive, len(alive) * len(ends) // _AT_ONCE + 1):
                if time.process_time() > until:
                    raise TimeoutError
                before = best[sources] // count
                least = np.maximum(needs.about(self.work[ends] - self.work[sources][:, None], limit), boundary[ends])
                np.maximum(least, boundary[sources][:, None], out=least)
                row, column = np.nonzero(least + before[:, None] <= most - rest[ends])
                start, end = sources[row], ends[column]
                within = ((self.words[start] & ~self.words[end]) == 0).all(axis=1)
                row, start, end, least = row[within], start[within], end[within], least[row, column][within]
                work, weights = self.work[end] - self.work[start], self.weights[end] - self.weights[start]
                stage = needs.for_stage(work, weights, least.astype(np.intp), limit)
                np.minimum.at(best, end, np.where(stage <= most, (before[row] + stage) * count + start, none))
            alive = np.concatenate([alive, ends[best[ends] // count + rest[ends] <= most]])
        return self._walk(best) if best[-1] // count <= most else None

    def _walk(self, best: Index) -> Path:
        count, last, stages = len(best), len(best) - 1, Path()
        while last:
            devices, first = divmod(int(best[last]), count)
            stages.append((devices - int(best[first]) // count - 1, first, last))
            last = first
        return stages[::-1]

    def only(self, chosen: Index) -> "CutPaths":
        """Some of the cuts."""
        masks = [self.masks[cut] for cut in chosen.tolist()]
        return CutPaths(masks, self.work[chosen], self.weights[chosen], self.port[chosen], self.words[chosen])


def _words(cuts: Cuts) -> NDArray[np.uint64]:
    """The masks of cuts as words, [S, W]."""
    width = (len(cuts.layers) + 63) // 64 * 8
    raw = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in cuts.masks), dtype=np.uint64)
    return raw.reshape(len(cuts), width // 8)


def paths_over_listed(
    problem: Problem, rules: Rules, space: Space, listed: ListedCuts, *, low: float, high: float
) -> tuple[list[tuple[Space, Path]], float]:
    """Return (paths below `high`, a bound of the period of all plans: `low`, which is one, or more).

    Devices are identical and on one node; `space` has every number of them as a group.
    """
    needs, found = StageNeeds.of(space.model, space.moves), list[tuple[Space, Path]]()
    if needs is None:
        return found, low
    link, until = problem.cluster.nodes[0].link, time.process_time() + SECONDS
    port = link.latency + listed.crossing / link.bandwidth
    port[[0, -1]] = 0.0
    every = CutPaths(listed.cuts.masks, listed.work, listed.weights, port, _words(listed.cuts))

    def refused(limit: float) -> bool:
        sums, which = _bins(every, needs, limit)
        before = sums.fewest(needs, limit)
        if before[-1] > needs.most:
            return True
        behind = sums.reversed().fewest(needs, limit)[::-1]
        chosen = np.flatnonzero((before + behind)[which] <= needs.most)
        if len(chosen) > _MOST_CUTS:
            return False
        some = every.only(chosen)
        try:
            path = some.path(needs, limit, behind[which[chosen]], until=time.process_time() + _ASKED_SECONDS)
        except TimeoutError:
            return False
        if path is not None:
            masks = [0, *(some.masks[last] for _, _, last in path)]
            cuts = Cuts.chosen(listed.cuts.layers, listed.cuts.inputs, masks)
            own = [(group, k, k + 1) for k, (group, _, _) in enumerate(path)]
            found.append((with_cuts(problem, rules, space, cuts), own))
        return path is None

    return found, largest_refused(refused, low, high, tolerance=_TOLERANCE, until=until)


def _bins(cuts: CutPaths, needs: StageNeeds, limit: float) -> tuple[CutRanges, Index]:
    """(cuts with about the same work and weights, and the same devices at their boundary, which of them each is)."""
    boundary = needs.for_boundary(cuts.port, limit)
    sums = np.stack([cuts.work, cuts.weights], axis=1)
    share = sums / np.maximum(sums[-1], 1e-300)
    work, weights = (np.floor(share[:, k] * bins).astype(np.int64) for k, bins in ((0, _WORK_BINS), (1, _WEIGHT_BINS)))
    work[0], work[-1] = -1, _WORK_BINS + 1
    keys = (work * (_WEIGHT_BINS + 1) + weights) * (needs.most + 2) + boundary
    distinct, which = np.unique(keys, return_inverse=True)
    low, high = np.full((len(distinct), 2), inf), np.zeros((len(distinct), 2))
    np.minimum.at(low, which, sums)
    np.maximum.at(high, which, sums)
    port, rank = np.full(len(distinct), inf), np.zeros(len(distinct), dtype=np.intp)
    np.minimum.at(port, which, cuts.port)
    rank[which] = work + 1
    return CutRanges(low, high, port, rank), which
