"""Which layers of a stage to recompute for a minibatch of some size: segments between tensors that are kept.

A recomputed segment [first, end) of a stage's layers keeps the tensors that it reads. Its forward runs again when the
backward reaches it; kernel maps stay, so that they are not searched again.

    layers      0    1    2    3    4    5    6          segments ((2, 5),)
    kept        x    x    in             x    x          in: what layer 2 reads, if layer 1 does not keep it anyway
    backward                    run 2 3 4, then back through them, as far as memory goes as without a limit
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .costs import LayerTable
from .plan_parts import Stage

Array = NDArray[np.float64]
Segments = tuple[tuple[int, int], ...]  # [first, end) of a stage's layers, in order

_CELLS = 256  # of the budget, by which kept bytes are counted
_MOST_ENDS = 128  # places at which a segment may begin or end; of longer stages every second, third, …
_SAME = 0.99  # of a tensor's bytes, from which on a layer that keeps as many keeps this tensor
_TRIES = 12  # to meet a budget that skip connections exceed


class Held(NamedTuple):
    """Bytes of one minibatch in a stage, what the stage receives left out."""

    kept: float  # from its forward to its backward
    peak: float  # at most while it is at work, with the gradients of the weights


@dataclass(frozen=True, eq=False)
class StageMemory:
    """Bytes and seconds of each layer of a stage for one minibatch, [n] each, in the order in which they run.

    `LayerTable.stage_bytes` says what the bytes are and when they are there; without segments both agree.
    """

    saved: Array  # kept for the backward, without kernel maps and received tensors
    maps: Array  # kernel maps that are made for this layer in this stage
    forward_temporary: Array
    backward_temporary: Array
    left: Array  # made in the backward, and there until its end
    weights: Array
    outputs: Array
    seconds: Array  # of the forward
    inputs: tuple[tuple[int, ...], ...]  # of each layer, the layers of the stage that it reads
    saved_inputs: Array  # of `saved`, outputs of other layers of the stage
    sent: NDArray[np.bool_]  # whether another stage reads the output
    repeatable: NDArray[np.bool_]  # whether the layer may be recomputed

    @classmethod
    def of(
        cls,
        table: LayerTable,
        layers: Sequence[int],
        device_types: Sequence[str],
        *,
        column: int = 0,
        unrepeatable: Collection[int] = (),
    ) -> "StageMemory":
        """Take the costs of a stage's `layers` for the size in one `column` of a table.

        `device_types`: of the ranks that choose together; of their seconds the longest count, as of bytes the most.
        `unrepeatable`: layers that always keep what they need.
        """
        rows, place = list(layers), {k: p for p, k in enumerate(layers)}
        maps = table.kernel_map_bytes[rows, column].copy()
        there = set(rows)
        for p, k in enumerate(rows):
            maker = table.map_maker[k]
            if maker != -1 and maker not in there:  # an earlier stage has made it, and this one makes it again
                there.add(maker)
                maps[p] += table.kernel_map_bytes[maker, column]
        inputs = tuple(tuple(place[i] for i in table.graph.inputs[k] if i in place) for k in rows)
        kept = table.saved_bytes[rows, column] - table.kernel_map_bytes[rows, column]
        saved_inputs = table.saved_input_bytes[rows, column].copy()
        for p, k in enumerate(rows):
            if table.graph.inputs[k] and not inputs[p]:  # it counts as received
                kept[p] -= saved_inputs[p]
                saved_inputs[p] = 0.0
        if not table.tells_temporaries:
            kept = kept + table.held.coordinates[rows, column]
        return cls(
            kept,
            maps,
            table.forward_temporary_bytes[rows, column],
            table.backward_temporary_bytes[rows, column],
            table.backward_left_bytes[rows, column],
            table.parameter_bytes[rows],
            table.held.outputs[rows, column],
            np.maximum.reduce([table.forward[name][rows, column] for name in device_types]),
            inputs,
            saved_inputs,
            np.array([any(reader not in place for reader in table.graph.consumers[k]) for k in rows], dtype=bool),
            np.array([k not in unrepeatable for k in rows], dtype=bool),
        )

    def __len__(self) -> int:
        return len(self.saved)

    def held(self, segments: Segments = (), *, moved: bool = False) -> Held:
        """Return the bytes of a minibatch of which these segments are recomputed.

        `moved`: what it keeps moves to the host until the backward, but for kernel maps and layers that cannot be
        recomputed: their tensors may be unknown. A segment at work has its own tensors, and those of the one before it,
        which leave in the forward and return in the backward.
        """
        pieces = self._pieces(segments)
        recomputed = np.zeros(len(self), dtype=bool)
        for first, end in segments:
            recomputed[first:end] = True
        kept, peak = 0.0, float(self.weights.sum())
        staying = before = 0.0  # if the others move: bytes kept on the device, and of the segment before
        known: set[int] = set()  # outputs that are held although their keeper is recomputed
        for first, end in pieces:
            again = bool(recomputed[first])
            for value in sorted(self._read(first, end) - known):
                keeper = self._keepers[value]
                needed = again or keeper not in (-1, first)
                if needed and (keeper == -1 or recomputed[keeper] or keeper >= end):
                    known.add(value)
                    kept += float(self.outputs[value])
            if not again:
                kept += float(self.saved[first])
            skips = [
                self.outputs[q] * (self._last_use[q] > np.arange(first, end))
                for q in range(first)
                if moved or (recomputed[self._keepers[q]] and self._keepers[q] != -1 and q not in known)
            ]
            waiting = np.sum(skips, axis=0) if skips else np.zeros(end - first)
            there = kept
            if moved:
                mine = float(self.outputs[sorted(self._read(first, end))].sum() if again else self.saved[first])
                there, before = staying + before + mine, mine
                if not again and not self.repeatable[first]:
                    staying += mine
            if again:
                peak = max(peak, float(there + self._work[first, end - 1]))
                peak = max(peak, float((there + waiting + self._first_forward[first, first:end]).max()))
            else:
                peak = max(peak, float(there + waiting[0] + self._one_work[first]))
        total = (staying if moved else kept) + float(self.maps.sum())
        return Held(total, max(peak, total))

    def moved_bytes(self, segments: Segments) -> float:
        """Return the bytes that move to the host until the backward."""
        return self.held(segments).kept - self.held(segments, moved=True).kept

    @cached_property
    def whole(self) -> Held:
        """The bytes that are held if nothing is recomputed."""
        return self.held()

    @cached_property
    def most(self) -> Held:
        """The most bytes of the choices of few bytes, or if nothing is recomputed: a larger budget changes nothing."""
        return Held(self.whole.kept, max(held.peak for _, held in self._lean))

    def leanest(self, waiting: int = 0, *, moved: bool = False) -> tuple[Segments, Held]:
        """Return the segments of the least bytes, and these, for a minibatch at work while so many others wait.

        `moved`: see `held`.
        """
        choices = self._lean_moved if moved else self._lean
        return min(choices, key=lambda choice: choice[1].peak + waiting * choice[1].kept)

    @cached_property
    def _lean_moved(self) -> list[tuple[Segments, Held]]:
        """The choices of few bytes if what is kept moves to the host."""
        return [(segments, self.held(segments, moved=True)) for segments in dict(self._lean)]

    @cached_property
    def _lean(self) -> list[tuple[Segments, Held]]:
        """Choices of few bytes: of the least peak, and the one that keeps least."""
        ends = [0, *(np.flatnonzero(np.diff(self.repeatable)) + 1).tolist(), len(self)]
        runs = tuple((a, b) for a, b in pairwise(ends) if a < b and self.repeatable[a])
        choices = [((), self.whole), (runs, self.held(runs))]
        low, high = 0.0, self.whole.peak
        for _ in range(10):
            middle = (low + high) / 2
            found = self._cheapest(np.inf, middle)
            if found is None:
                low = middle
                continue
            choices.append((found, self.held(found)))
            high = min(middle, *(held.peak for _, held in choices))
        return choices

    def cheapest(self, *, kept_bytes: float, peak_bytes: float) -> Segments | None:
        """Return the segments that take the fewest seconds to recompute within a budget; None if none are.

        Args:
            kept_bytes: Most bytes from the forward to the backward.
            peak_bytes: Most bytes at work.
        """
        if self.whole.kept <= kept_bytes and self.whole.peak <= peak_bytes:
            return ()
        kept, peak = kept_bytes, peak_bytes
        for _ in range(_TRIES):
            found = self._cheapest(kept, peak)
            if found is None:
                break
            held = self.held(found)
            beyond_kept, beyond_peak = held.kept - kept_bytes, held.peak - peak_bytes
            if beyond_kept <= 0 and beyond_peak <= 0:
                return found
            # What skip connections hold depends on layers far apart: count on less, and search again.
            kept -= max(beyond_kept, 0.0)
            peak -= max(beyond_peak, 0.0)
        fitting = [own for own, held in self._lean if held.kept <= kept_bytes and held.peak <= peak_bytes]
        return min(fitting, key=self.recomputed_seconds, default=None)

    def cheapest_moved(self, *, kept_bytes: float, peak_bytes: float, bytes_per_second: float) -> Segments | None:
        """Return the segments of the fewest seconds within a budget if what is kept moves to the host.

        Of the choices of few bytes. Seconds are of recomputation, and of moving there and back at a rate.
        """
        fitting = [choice for choice, held in self._lean_moved if held.kept <= kept_bytes and held.peak <= peak_bytes]

        def seconds(segments: Segments) -> float:
            return self.recomputed_seconds(segments) + 2 * self.moved_bytes(segments) / bytes_per_second

        return min(fitting, key=seconds, default=None)

    def recomputed_seconds(self, segments: Segments) -> float:
        """Return the seconds of the forwards that run again."""
        return float(sum(self.seconds[first:end].sum() for first, end in segments))

    def _pieces(self, segments: Segments) -> list[tuple[int, int]]:
        """Return the segments, and each other layer by itself, in order."""
        inside = {p for first, end in segments for p in range(first, end)}
        return sorted([*segments, *((p, p + 1) for p in range(len(self)) if p not in inside)])

    def _read(self, first: int, end: int) -> set[int]:
        """Return the layers before `first` whose outputs some of the layers up to `end` read."""
        return {value for p in range(first, end) for value in self.inputs[p] if value < first}

    @cached_property
    def _keepers(self) -> tuple[int, ...]:
        """For each layer, the one that its output counts for if it is kept: itself, or its first reader that keeps
        it; -1: nobody keeps it.
        """
        readers: list[list[int]] = [[] for _ in range(len(self))]
        for p, values in enumerate(self.inputs):
            for value in values:
                readers[value].append(p)
        keepers = []
        for p in range(len(self)):
            most = _SAME * self.outputs[p]
            if self.saved[p] - self.saved_inputs[p] >= most > 0:
                keepers.append(p)
            else:
                keepers.append(next((r for r in readers[p] if self.saved_inputs[r] >= most > 0), -1))
        return tuple(keepers)

    @cached_property
    def _last_use(self) -> Array:
        """For each layer, the last one that reads its output; behind the stage if that is sent."""
        last = np.arange(len(self), dtype=float)
        for p, values in enumerate(self.inputs):
            for value in values:
                last[value] = max(last[value], p)
        return np.where(self.sent, float(len(self)), last)

    @cached_property
    def _later(self) -> Array:
        """[n + 1]: gradients of weights from a layer on, what later ones left, and gradients that were received."""
        gradients = np.append(np.cumsum(self.weights[::-1])[::-1], 0.0)
        left = np.append(np.cumsum(self.left[::-1])[::-1], 0.0)
        returned = np.append(np.cumsum((self.sent * self.outputs)[::-1])[::-1], 0.0)
        later: Array = gradients + left + returned
        return later

    @cached_property
    def _back(self) -> Array:
        """[n]: all that is there in a layer's backward beyond what is kept."""
        later = self._later[1:] + self.weights
        back: Array = self.maps.sum() + self.backward_temporary + later
        return back

    @cached_property
    def _one_work(self) -> Array:
        """[n]: at most at work in a layer that is not recomputed, beyond what is kept."""
        work: Array = np.maximum(np.cumsum(self.maps) + self.forward_temporary, self._back)
        return work

    @cached_property
    def _segment_saved(self) -> Array:
        """[first, p]: what the layers of a segment keep up to layer p, once they run again."""
        total = np.append(0.0, np.cumsum(self.saved))
        saved: Array = np.triu(total[None, 1:] - total[:-1, None])
        return saved

    @cached_property
    def _first_forward(self) -> Array:
        """[first, p]: at work in a segment's first forward in layer p, beyond what is kept before it."""
        n = len(self)
        layers = np.arange(n)
        lives = (layers[:, None] <= layers) & (self._last_use[:, None] > layers)
        alive = np.cumsum((self.outputs[:, None] * lives)[::-1], axis=0)[::-1]
        forward: Array = np.cumsum(self.maps) + self.forward_temporary + np.minimum(alive, self._segment_saved)
        return np.triu(forward)

    @cached_property
    def _work(self) -> Array:
        """[first, p]: at most at work in a segment from `first` up to p, beyond what is kept before it."""
        n = len(self)
        saved, layers = self._segment_saved, np.arange(n)
        again = np.maximum.accumulate(np.triu(saved + self.forward_temporary), axis=1)
        crosses = self._last_use[:, None] > layers  # [value, p]: a gradient of it is there when the segment runs again
        inside = (layers[:, None] <= layers) & crosses
        gradients = np.cumsum((self.outputs[:, None] * inside)[::-1], axis=0)[::-1]
        again = again + self.maps.sum() + self._later[1:] + gradients
        back = np.maximum.accumulate(np.triu(saved + self._back), axis=1)
        forward = np.maximum.accumulate(self._first_forward, axis=1)
        return np.triu(np.maximum(np.maximum(again, back), forward))

    def _cheapest(self, kept_bytes: float, peak_bytes: float) -> Segments | None:
        """Solve the knapsack by dynamic programming, in cells of bytes: of a chain of layers exactly.

        A state is how many layers are decided, whether the last of them is recomputed, and the cells kept so far; its
        value is the least seconds. What a layer far back may keep counts as kept.
        """
        n, maps, cell = len(self), float(self.maps.sum()), peak_bytes / _CELLS
        if cell <= 0 or kept_bytes < maps:
            return None
        width = _CELLS + 1
        last = _CELLS if kept_bytes - maps >= peak_bytes else int((kept_bytes - maps) // cell)
        best = np.full((n + 1, 2, width), np.inf)
        origin = np.zeros((n + 1, 2, width), dtype=np.int64)  # (begin, again, cells before) as one number
        best[0, 0, 0] = 0.0
        cells = np.arange(width)
        for p in range(n):
            for before in (0, 1):
                here = best[p, before]
                if not np.isfinite(here).any():
                    continue
                steps = self._steps[p]
                taken = np.rint(steps.more[before] / cell)
                most = np.minimum(np.floor((peak_bytes - steps.work) / cell + 1e-9), _CELLS)
                (some,) = np.nonzero(most >= taken)
                target = cells + taken[some, None].astype(int)
                place, before_cells = np.nonzero(target <= most[some, None])
                end, after = steps.ends[some][place], steps.again[some][place]
                to = end, after, target[place, before_cells]
                found = here[before_cells] + steps.seconds[some][place]
                better = found < best[to]
                to = end[better], after[better], to[2][better]
                best[to] = found[better]
                origin[to] = (p * 2 + before) * width + before_cells[better]
        reached = best[n, :, : last + 1]
        if not np.isfinite(reached).any():
            return None
        state, left = divmod(int(np.argmin(reached)), last + 1)
        segments: list[tuple[int, int]] = []
        layer = n
        while layer:
            code, cells_left = divmod(int(origin[layer, state, left]), width)
            begin, before = divmod(code, 2)
            if state:
                segments.append((begin, layer))
            layer, state, left = begin, before, cells_left
        return tuple(reversed(segments))

    @cached_property
    def _steps(self) -> tuple["_Steps", ...]:
        """Return what may come after the layers before each one: it alone is kept, or a segment begins with it."""
        n, steps = len(self), []
        places = list(range(1, n))
        if n > _MOST_ENDS:  # behind a layer whose output nobody keeps, a segment most often ends one layer too early
            places = [p for p in places if self._keepers[p - 1] != -1]
        ends = {0, *places[:: max(1, -(-len(places) // _MOST_ENDS))], n}
        for p in range(n):
            alone = sum(self.outputs[v] for v in self.inputs[p] if v == p - 1 and self._keepers[v] == v)
            rows = [(p + 1, 0, self.saved[p], self.saved[p] + alone, self._one_work[p], 0.0)]
            read: set[int] = set()
            seconds = held = held_after = 0.0  # by the segment, if the layer before it is kept, or recomputed
            for end in range(p + 1, n + 1):
                if p not in ends or not self.repeatable[end - 1]:
                    break
                seconds += float(self.seconds[end - 1])
                for value in self.inputs[end - 1]:
                    if value < p and value not in read:
                        read.add(value)
                        keeper = self._keepers[value]
                        held += float(self.outputs[value]) * (not 0 <= keeper < p)
                        held_after += float(self.outputs[value]) * (not 0 <= keeper < p - 1)
                if end in ends:
                    rows.append((end, 1, held, held_after, self._work[p, end - 1], seconds))
            columns = np.array(rows).T
            steps.append(_Steps(columns[0].astype(int), columns[1].astype(int), columns[2:4], *columns[4:]))
        return tuple(steps)


def stage_bytes(table: LayerTable, stage: Stage, *, column: int | slice = 1) -> tuple[Array, Array]:
    """Return the bytes of one minibatch in a stage with its plan's recomputed segments: (kept, at most at work).

    For each of the sizes of minibatches in `column`, as `LayerTable.stage_bytes` counts them.
    """
    rows = [table.graph.index[id] for id in stage.layers]
    if not stage.segments:
        kept, working, _ = table.stage_bytes(rows, column=column)
        return kept, working
    rows.sort()
    segments = stage.segment_places([table.graph.layers[k].id for k in rows])
    columns = np.atleast_1d(np.arange(len(table.sizes))[column]).tolist()
    held = [StageMemory.of(table, rows, list(table.forward)[:1], column=k).held(segments) for k in columns]
    return np.array([each.kept for each in held]), np.array([each.peak for each in held])


@dataclass(frozen=True, eq=False)
class _Steps:
    """Ways to decide layers from one on, [k] each."""

    ends: NDArray[np.int64]  # up to which layer
    again: NDArray[np.int64]  # 1: it is a segment that is recomputed
    more: Array  # [2, k]: bytes kept, if the layer before is kept, or recomputed
    work: Array  # bytes at work, beyond what is kept
    seconds: Array  # recomputed
