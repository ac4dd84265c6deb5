"""Two plans side by side: which layers and devices moved, and what each stage costs under either."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, Protocol

from .numbers import duration_or_none, gap_text, scaled_bytes
from .plan_shape import StageCosts, StageShape


class _StageEstimate(StageCosts, Protocol):
    @property
    def sent_bytes(self) -> float: ...


class _Estimate(Protocol):
    @property
    def period_seconds(self) -> float: ...
    @property
    def gap(self) -> float | None: ...
    @property
    def stages(self) -> Sequence[_StageEstimate]: ...


class Comparable(Protocol):
    """What of a plan is compared; `plan.Plan` has it all."""

    @property
    def planner(self) -> str: ...
    @property
    def stages(self) -> Sequence[StageShape]: ...
    @property
    def estimate(self) -> _Estimate | None: ...


Place = int | tuple[int, ...] | None  # a stage; several for a rank of interleaved stages; none


@dataclass(frozen=True, slots=True)
class Move:
    """Consecutive layers, or ranks, that are in stage `before` of one plan and in stage `after` of the other."""

    items: tuple[str, ...]
    before: Place
    after: Place

    def __str__(self) -> str:
        names = self.items[0] if len(self.items) == 1 else f"{self.items[0]} … {self.items[-1]} ({len(self.items)})"
        return f"{names}: {_place(self.before)} → {_place(self.after)}"


@dataclass(frozen=True, slots=True)
class PlanDiff:
    """How one plan differs from another.

    A stage's numbers: (compute, transfer, averaging seconds a minibatch, memory bytes, bytes sent a minibatch).
    """

    planners: tuple[str, str]
    periods: tuple[float | None, float | None]  # seconds per minibatch
    gaps: tuple[float | None, float | None]
    layers: tuple[Move, ...]
    ranks: tuple[Move, ...]
    stages: tuple[tuple[tuple[float, ...] | None, tuple[float, ...] | None], ...]  # of either plan, by stage number

    @property
    def same(self) -> bool:
        """Whether both plans place the same layers on the same ranks."""
        return not self.layers and not self.ranks

    @property
    def speedup(self) -> float | None:
        """How many times as fast the second plan is, by the planners' own expectations."""
        before, after = self.periods
        return before / after if before is not None and after else None

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"same": self.same, "speedup": self.speedup}

    def __str__(self) -> str:
        rows: list[tuple[str, ...]] = [("stage", "compute", "transfer", "averaging", "memory", "sent")]
        for k, sides in enumerate(self.stages):
            values = [side or (None,) * 5 for side in sides]
            in_bytes = (False, False, False, True, True)
            cells = [f"{_number(a, m)} → {_number(b, m)}" for a, b, m in zip(*values, in_bytes, strict=True)]
            rows.append((str(k), *cells))
        widths = [max(len(row[column]) for row in rows) for column in range(6)]
        table = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([self._headline(), *table, *(self.moves() or ["the same layers on the same ranks"])])

    def moves(self) -> list[str]:
        """Which layers and ranks are in another stage, a line for each row of them: "layer l2: stage 1 → stage 0"."""
        named = [("layer", move) for move in self.layers] + [("rank", move) for move in self.ranks]
        return [f"{what}{'s' if len(move.items) > 1 else ''} {move}" for what, move in named]

    def _headline(self) -> str:
        text = f"{self.planners[0]} → {self.planners[1]}: "
        text += f"{_number(self.periods[0], False)} → {_number(self.periods[1], False)} per minibatch"
        if self.speedup is not None:
            text += f" ({self.speedup:.2f} × as fast)"
        if any(gap is not None for gap in self.gaps):
            text += ", gap " + " → ".join("unknown" if gap is None else gap_text(gap) for gap in self.gaps)
        return text


def diff(before: Comparable, after: Comparable) -> PlanDiff:
    """Compare two plans of the same network, stage by stage."""
    ids = list(dict.fromkeys(id for plan in (before, after) for stage in plan.stages for id in stage.layers))
    ranks = sorted({rank for plan in (before, after) for stage in plan.stages for rank in stage.ranks})
    layer_places: list[dict[str, Place]] = [
        {id: k for k, stage in enumerate(plan.stages) for id in stage.layers} for plan in (before, after)
    ]
    rank_places = [{str(rank): _place_of_rank(plan, rank) for rank in ranks} for plan in (before, after)]
    count = max(len(before.stages), len(after.stages))
    return PlanDiff(
        (before.planner, after.planner),
        tuple(plan.estimate.period_seconds if plan.estimate else None for plan in (before, after)),  # type: ignore[arg-type]
        tuple(plan.estimate.gap if plan.estimate else None for plan in (before, after)),  # type: ignore[arg-type]
        _moves(ids, *layer_places),
        _moves([str(rank) for rank in ranks], *rank_places),
        tuple((_costs(before, k), _costs(after, k)) for k in range(count)),
    )


def _place_of_rank(plan: Comparable, rank: int) -> Place:
    own = tuple(k for k, stage in enumerate(plan.stages) if rank in stage.ranks)
    return own if len(own) > 1 else next(iter(own), None)


def _moves(items: Sequence[str], before: dict[str, Place], after: dict[str, Place]) -> tuple[Move, ...]:
    runs = groupby(items, key=lambda item: (before.get(item), after.get(item)))
    return tuple(Move(tuple(run), *places) for places, run in runs if places[0] != places[1])


def _costs(plan: Comparable, k: int) -> tuple[float, ...] | None:
    if plan.estimate is None or k >= len(plan.estimate.stages):
        return None
    e = plan.estimate.stages[k]
    return e.compute_seconds, e.transfer_seconds, e.averaging_seconds, e.memory_bytes, e.sent_bytes


def _place(stage: Place) -> str:
    if isinstance(stage, tuple):
        return f"stages {listed(stage)}"
    return "no stage" if stage is None else f"stage {stage}"


def _number(value: float | None, in_bytes: bool) -> str:
    if in_bytes:
        return "–" if value is None else scaled_bytes(value)
    return duration_or_none(value)


def listed(numbers: Iterable[int]) -> str:
    """ "0, 2 and 4"."""
    *most, last = map(str, numbers)
    return f"{', '.join(most)} and {last}" if most else last
