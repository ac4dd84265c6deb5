"""A rank's memory under a limit: before a minibatch enters a stage, the cheapest layers to recompute for its size.

If none do on a GPU, what the minibatch keeps moves to the host's memory until its backward (kept_tensors.py). What a
minibatch holds is what the run's profile tells for its size (values/recomputation.py). Weights and losses have the
same bits as without a limit: random layers draw by minibatch, and running statistics count the first forward alone.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import InputError
from ...networks.base import LayerRow
from ...util.io.options import tell
from ...values.cluster import Cluster
from ...values.costs import OPTIMIZER_SLOTS, LayerTable
from ...values.plan import Plan
from ...values.profile import Profile
from ...values.recomputation import Held, Segments, StageMemory
from ...values.schedule import compile_until_steady, round_length
from ..config import FittingSizes, RunConfig, check_limit_unit, limit_without_profile
from .kept_tensors import HostMemory

_MARGIN = 1.08  # the peak of a minibatch may be so many times its estimate
_BEYOND = 0.1  # more of it for a minibatch of twice the largest size that was measured
_SIZES = 1.04  # minibatches up to so many times as large share their choice
_SIZES_AT_ONCE = 32  # that costs are evaluated for
_STEPS = 128  # of the limit, to which budgets are rounded down: so that choices recur


class _LimitedStage(NamedTuple):
    """A stage of a rank, as the choice of its segments sees it."""

    layers: tuple[int, ...]  # of the graph, in its order
    device_types: tuple[str, ...]  # whose costs count; of ranks that share scenes all, as they choose together
    depth: int  # most minibatches in flight
    measured: float  # the largest size that was measured
    planned: Segments  # which the plan recomputes of every minibatch that fits with them


class _Remedies(NamedTuple):
    """Remedies for minibatches that no recomputation fits."""

    part: float | None  # the largest size that passes whole; larger ones pass in parts of it
    host_rate: float | None  # bytes a second to the host and back; None: nothing moves there


class SegmentChoice(NamedTuple):
    """Recomputed segments with which a minibatch fits on a stage."""

    segments: Segments = ()  # that are recomputed
    moves: bool = False  # whether what it keeps moves to the host until its backward


class RankMemory:
    """The memory of a rank's stages under a plan: what minibatches in flight hold, and what the next one may.

    A minibatch gets what is left after the others in flight, less what those to come need at least. Ranks that share
    scenes exchange halos in a segment that runs again, so all of them choose the same ones: by the largest part of a
    scene, and the slowest device.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        profile: Profile,
        *,
        limit_bytes: float,
        copies: int = 0,
        largest: float | None = None,
        part: float | None = None,
        host_rate: float | None = None,
    ) -> None:
        """`limit_bytes`: of weights, optimizer state and minibatches. `copies`: of the weights, besides their versions.

        `largest`: size of the largest minibatch of the run, if it is known. Else the profile's largest typical one
        counts, until a larger one enters. `part`: the size in whose parts larger ones pass; None: all pass whole.
        `host_rate`: bytes a second to the host's memory and back; None: nothing moves there.
        Raises InputError for a limit that the weights alone exceed.
        """
        self.limit_bytes = limit_bytes
        self._plan, self._profile = plan, profile
        self._largest = max(profile.typical_sizes) if largest is None else largest
        self._remedies = _Remedies(part, host_rate)
        program = compile_until_steady(plan)
        self._stages: dict[int, _LimitedStage] = {}
        self._unrepeatable: dict[int, frozenset[int]] = {}
        self._memories: dict[tuple[int, int], tuple[StageMemory, float]] = {}
        self._choices: dict[tuple[int, int, int, int, bool], tuple[SegmentChoice, Held] | None] = {}
        self._flights: dict[tuple[int, int], Held] = {}
        self.minibatches_beyond = 0  # that the limit does not hold, even with the most recomputed
        self.weight_bytes = 0.0
        for k in plan.stages_of(rank):
            layers = tuple(sorted(profile.graph.index[layer] for layer in plan.stages[k].layers))
            kinds = self._device_types(k, rank)
            measured = min(profile.range_of_laws(kind)[1] for kind in kinds)
            planned = plan.stages[k].segment_places([profile.graph.layers[layer].id for layer in layers])
            self._stages[k] = _LimitedStage(layers, kinds, program.in_flight(k, rank), measured, planned)
            num_bytes = sum(profile.graph.layers[layer].parameter_bytes for layer in layers)
            gathered = round_length(plan, k) > 1  # while gradients of a minibatch come, those before are there
            self.weight_bytes += num_bytes * (program.num_versions(k, rank) + OPTIMIZER_SLOTS + gathered + copies)
        if self.weight_bytes >= limit_bytes:
            raise InputError(
                "memory.limit_below_weights",
                f"{{memory_limit}} is {limit_bytes / 1e6:,.1f} MB, but the weights of stage {min(self._stages)} with "
                f"the optimizer's state take {self.weight_bytes / 1e6:,.1f} MB; raise it, or plan more stages",
                setting="memory_limit",
            )

    @classmethod
    def of_settings(
        cls,
        plan: Plan,
        rank: int,
        profile: Profile,
        config: RunConfig,
        *,
        limit: float,
        host_rate: float | None = math.inf,
    ) -> "RankMemory":
        """Return the memory of a rank of a run with these settings, moving averages of the weights included.

        `host_rate`: as for the class, of a run on GPUs.
        """
        fitting, copies = FittingSizes.of(config), int(config.ema is not None)
        return cls(
            plan,
            rank,
            profile,
            limit_bytes=limit,
            copies=copies,
            largest=fitting.largest,
            part=fitting.part,
            host_rate=None if config.device == "cpu" else host_rate,
        )

    @classmethod
    def of_run(
        cls, plan: Plan, rank: int, config: RunConfig, run_dir: Path | None, *, size_unit: str, host: HostMemory | None
    ) -> "RankMemory | None":
        """Return the memory of a rank of a run whose minibatches have sizes in a unit; None if nothing limits it.

        `host`: where what minibatches keep may move.

        The limit is that of the settings, else that of the device in the cluster which the run was launched with.
        Raises InputError for a limit without a profile, and with one of another unit.
        """
        folder = run_dir or Path()
        paths = folder / "profile.json", folder / "cluster.toml"
        there = run_dir is not None and all(path.exists() for path in paths)
        if not there:
            if config.memory_limit is not None:
                raise limit_without_profile()
            return None
        profile, limit = Profile.load(paths[0]), config.memory_limit
        if limit is None:
            types = {kind.name: kind.memory_bytes for kind in Cluster.load(paths[1]).device_types}
            kinds = (plan.stages[k].device_types for k in plan.stages_of(rank))
            limit = min((types.get(kind, math.inf) for names in kinds for kind in names), default=math.inf)
            if limit == math.inf or profile.size_unit != size_unit:
                return None
        check_limit_unit(profile.size_unit, size_unit)
        if not set(plan.layers) <= profile.graph.index.keys():
            return None
        host_rate = None if host is None else host.bytes_per_second
        return cls.of_settings(plan, rank, profile, config, limit=limit, host_rate=host_rate)

    def open(self, stage: int, unrepeatable: Collection[str] = ()) -> None:
        """Name the layers of a stage that cannot run again."""
        self._unrepeatable[stage] = frozenset(self._profile.graph.index[id] for id in unrepeatable)

    def begin(self) -> None:
        """Begin with an empty pipeline."""
        self._flights.clear()

    def enter(self, stage: int, minibatch: int, size: float, part: float | None = None) -> SegmentChoice:
        """Return what is recomputed or moved of a minibatch that enters a stage, and count what it holds.

        `part`: size of its largest part, if it is split: the choice is the same for each part.
        """
        self._flights.pop((stage, minibatch), None)
        self._largest = max(self._largest, size)
        memory, received = self._memory(stage, size)
        others = sum(held.kept for held in self._flights.values())
        chosen: tuple[SegmentChoice, Held] | None = None
        for moves in self._moves:
            to_come = self._to_come(stage, moves)
            most, whole = self._largest if to_come else size, part or self._remedies.part
            room = (self.limit_bytes - self.weight_bytes) / self._margin(stage, min(most, whole or most))
            left = room - others - sum(held.kept for held in to_come) - received
            works = max((held.peak - held.kept for held in (*self._flights.values(), *to_come)), default=0.0)
            if part is None:
                chosen = self._chosen(stage, memory, left - works, left, moves)
            if chosen is not None:
                break
        if chosen is None:
            chosen = self._least(stage, size, part)
            beyond = max(chosen[1].kept - (left - works), chosen[1].peak - left)
            if beyond > 1e-9 * self.limit_bytes:  # else budgets were rounded down below it
                self._tell_beyond(stage, size, chosen[1].peak + received, part)
        choice, held = chosen
        self._flights[stage, minibatch] = Held(held.kept + received, held.peak + received)
        return choice

    def wait(self, stage: int, minibatch: int, size: float, part: float | None = None) -> None:
        """Count a minibatch of a stage that recomputes all layers, and until then keeps what it received alone."""
        received, held = self._memory(stage, size)[1], self._least(stage, size, part, waiting=0)[1]
        self._flights[stage, minibatch] = Held(received, received + held.peak)

    def leave(self, stage: int, minibatch: int) -> None:
        """Count a minibatch no more: its backward is done."""
        self._flights.pop((stage, minibatch), None)

    def least_bytes(self, stage: int, size: float, part: float | None = None) -> float:
        """Return the least limit under which a stage trains on minibatches of a size, if `part` in parts of that."""
        received, waiting = self._memory(stage, size)[1], self._stages[stage].depth - 1
        _, held = self._least(stage, size, part)
        margin = self._margin(stage, size if part is None else min(size, part))
        return self.weight_bytes + margin * (held.peak + received + waiting * (held.kept + received))

    @property
    def _moves(self) -> tuple[bool, ...]:
        """Return whether tensors stay on the device or move to the host, in the order in which choices are tried."""
        return (False,) if self._remedies.host_rate is None else (False, True)

    def _least(
        self, stage: int, size: float, part: float | None = None, *, waiting: int | None = None
    ) -> tuple[SegmentChoice, Held]:
        """Return the choice of the least bytes for a minibatch, and these, while so many others wait: all, if None."""
        waiting = self._stages[stage].depth - 1 if waiting is None else waiting
        choices = [self._least_of(stage, size, part, waiting, moves) for moves in self._moves]
        return min(choices, key=lambda choice: choice[1].peak + waiting * choice[1].kept)

    def _least_of(
        self, stage: int, size: float, part: float | None, waiting: int, moves: bool
    ) -> tuple[SegmentChoice, Held]:
        """Return the segments of the least bytes for a minibatch that `moves` what it keeps, or does not.

        In parts it keeps what each of them keeps, and one part at a time works: the last first. Once that is done, the
        gradients of the weights are there, and for each part that is done its kernel maps and the gradients of what it
        received. The gradients that came for all parts stay until the first part is done.
        """
        if part is None or part >= size:
            segments, held = self._memory(stage, size)[0].leanest(waiting, moved=moves)
            return SegmentChoice(segments, moves), held
        (memory, received), count = self._memory(stage, part), size / part
        others, apart = count - 1, _apart_from_weights(memory)
        segments, held = apart.leanest(math.ceil((1 + waiting) * count) - 1, moved=moves)
        gradients = float(memory.weights.sum() + memory.weights.max(initial=0.0))
        done = float(memory.maps.sum()) + received
        peak = max(
            memory.held(segments, moved=moves).peak + others * held.kept,
            held.peak + gradients + max(others - 1, 0.0) * held.kept + min(others, 1.0) * done,
            held.peak + gradients + others * done,
        )
        returned = others * float((memory.sent * memory.outputs).sum())
        return SegmentChoice(segments, moves), Held(count * held.kept, peak + returned)

    def _to_come(self, stage: int, moves: bool) -> list[Held]:
        """Return what minibatches that may follow while this one is in flight hold at least."""
        to_come: list[Held] = []
        for k, limited in self._stages.items():
            depth = limited.depth
            missing = depth - sum(other == k for other, _ in self._flights) - (k == stage)
            if missing > 0:
                received = self._memory(k, self._largest)[1]
                _, held = self._least_of(k, self._largest, self._remedies.part, depth - 1, moves)
                to_come += [Held(held.kept + received, held.peak + received)] * missing
        return to_come

    def _memory(self, stage: int, size: float) -> tuple[StageMemory, float]:
        """Return a stage's layers at the size of a minibatch, rounded up, and the bytes that the stage receives."""
        number = math.ceil(math.log(max(self._part(stage, size), 1.0), _SIZES) - 1e-9)
        key = stage, number
        if key not in self._memories:
            layers, kinds, *_ = self._stages[stage]
            first = number - number % _SIZES_AT_ONCE
            sizes = [_SIZES**k for k in range(first, first + _SIZES_AT_ONCE)]
            table, column = LayerTable.of(self._profile, sizes, kinds), number - first
            received = float(table.payloads(self._plan, held=True)[stage][0][column]) if stage else 0.0
            unrepeatable = self._unrepeatable.get(stage, frozenset())
            memory = StageMemory.of(table, layers, kinds, column=column, unrepeatable=unrepeatable)
            self._memories[key] = memory, received
        return self._memories[key]

    def _margin(self, stage: int, size: float) -> float:
        """Return how many times its estimate a minibatch may take: beyond the sizes that were measured, more."""
        beyond = self._part(stage, size) / self._stages[stage].measured
        return _MARGIN + _BEYOND * math.log2(beyond) if beyond > 1 else _MARGIN

    def _part(self, stage: int, size: float) -> float:
        """Return how much of a minibatch the rank with most of it has at once: all, or its part and the halo of that.

        A scan is a surface, of which a plane meets about √n of n voxels; a part between two others has two borders.
        """
        ranks, parts = self._plan.stages[stage].ranks, self._plan.stages[stage].parts_of_work()
        if not self._plan.stages[stage].shares_scenes or len(ranks) == 1:
            return size
        return min(size, max(parts) * size + min(2, len(ranks) - 1) * math.sqrt(size))

    def _chosen(
        self, stage: int, memory: StageMemory, kept_bytes: float, peak_bytes: float, moves: bool
    ) -> tuple[SegmentChoice, Held] | None:
        """Return the segments of the plan if they are within a budget, else the cheapest that are, and what is held
        with them; None if none are. `moves`: what the minibatch keeps moves to the host.
        """
        planned, held = self._planned(stage, memory)
        if not moves and held.kept <= kept_bytes and held.peak <= peak_bytes:
            return planned, held
        step, most = self.limit_bytes / _STEPS, memory.most
        enough = math.ceil(most.kept / step), math.ceil(most.peak / step)
        budgets = min(int(kept_bytes // step), enough[0]), min(int(peak_bytes // step), enough[1])
        if min(budgets) < 0:
            return None
        key = (stage, id(memory), *budgets, moves)
        if key not in self._choices:
            kept_bytes, peak_bytes = budgets[0] * step, budgets[1] * step
            rate = self._remedies.host_rate if moves else None
            if rate is None:
                segments = memory.cheapest(kept_bytes=kept_bytes, peak_bytes=peak_bytes)
            else:
                segments = memory.cheapest_moved(kept_bytes=kept_bytes, peak_bytes=peak_bytes, bytes_per_second=rate)
            choice = SegmentChoice(segments or (), moves)
            self._choices[key] = None if segments is None else (choice, memory.held(segments, moved=moves))
        return self._choices[key]

    def _planned(self, stage: int, memory: StageMemory) -> tuple[SegmentChoice, Held]:
        """Return the segments that the plan recomputes in a stage, and what is held with them."""
        planned = self._stages[stage].planned
        if not planned:
            return SegmentChoice(), memory.whole
        key = (stage, id(memory), -1, -1, False)  # no budget is below 0
        choice = self._choices.get(key) or (SegmentChoice(planned), memory.held(planned))
        self._choices[key] = choice
        return choice

    def _tell_beyond(self, stage: int, size: float, peak_bytes: float, part: float | None) -> None:
        self.minibatches_beyond += 1
        if self.minibatches_beyond == 1:
            need = self.weight_bytes + self._margin(stage, part or size) * peak_bytes
            tell(
                f"stage {stage}: a minibatch of {size:,.0f} {self._profile.size_unit} needs {need / 1e6:,.0f} MB with "
                f"all that can be recomputed, the limit is {self.limit_bytes / 1e6:,.0f} MB"
            )

    def _device_types(self, stage: int, rank: int) -> tuple[str, ...]:
        """Return the types whose costs count for a rank in a stage, of those in the profile."""
        limited, known = self._plan.stages[stage], self._profile.device_types
        kinds = limited.device_types or known[:1]
        if limited.device_types and not limited.shares_scenes:
            kinds = (limited.device_types[limited.ranks.index(rank)],)
        return tuple(dict.fromkeys(kind if kind in known else known[0] for kind in kinds))


@lru_cache(maxsize=64)
def _apart_from_weights(memory: StageMemory) -> StageMemory:
    """Return a stage's layers without the gradients of their weights, which other parts of a minibatch have left."""
    return replace(memory, weights=np.zeros_like(memory.weights))


def unrepeatable_layers(rows: Sequence[LayerRow], engine: Any, *, synchronised: bool) -> list[str]:
    """Return the layers that are never recomputed by segments.

    Those whose library keeps tensors by itself, so that nothing is saved, and batch norms that exchange statistics
    with other replicas, which may recompute other layers.
    """
    return [row.id for row in rows if engine.keeps_unseen(row) or (synchronised and "norm" in row.kind.lower())]
