"""The stages of a plan as a table of text: a line each, with their layers, devices and what is expected of them."""

from collections.abc import Sequence
from typing import Protocol

from .markup import one_line
from .numbers import duration_or_none, scaled_bytes
from .plan_shape import StageCosts, StageShape

_SHARES = "devices (shares of minibatches)"  # the head of devices where a stage's replicas take unlike numbers
_HEAD = ("stage", "layers", "devices", "compute", "transfer", "averaging", "memory")


class _Stage(StageShape, Protocol):
    @property
    def device_types(self) -> tuple[str, ...]: ...
    @property
    def warmup(self) -> int | None: ...


def warmups_told(stages: Sequence[_Stage]) -> list[str]:
    """Say how many forwards stages begin with where the plan says so and not the schedule alone: a line, or none."""
    told = [f"{stage.warmup} of stage {k}" for k, stage in enumerate(stages) if stage.warmup is not None]
    if not told:
        return []
    return [f"forwards before the first backward, as planned: {', '.join(told)}; memory counts what they keep"]


def stage_table(stages: Sequence[_Stage], estimates: Sequence[StageCosts] | None) -> list[str]:
    """Return the lines of the table, its head first; without `estimates` times and memory stay empty."""
    shares = any(len(set(stage.shares)) > 1 for stage in stages)
    rows: list[tuple[str, ...]] = [(*_HEAD[:2], _SHARES if shares else _HEAD[2], *_HEAD[3:])]
    for k, stage in enumerate(stages):
        row = (str(k), _span(stage.layers), _devices(stage), "", "", "", "")
        rows.append(row if estimates is None else (*row[:3], *_expected(estimates[k])))
    return aligned(rows)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, in aligned columns; names out of files stay in their line."""
    rows = [tuple(map(one_line, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _expected(e: StageCosts) -> tuple[str, ...]:
    seconds = (e.compute_seconds, e.transfer_seconds, e.averaging_seconds)
    return (*map(duration_or_none, seconds), scaled_bytes(e.memory_bytes))


def _span(layers: Sequence[str]) -> str:
    return f"{layers[0]} … {layers[-1]} ({len(layers)})" if len(layers) > 1 else "".join(layers)


def _devices(stage: _Stage) -> str:
    """The replicas by type and rank, neighbouring ranks of a type with the same share as one.

    Where shares differ, each is told as so many of as many minibatches as the stage takes in turn: "RTX 0–3 (1/6 each),
    tv 5 (2/6)".
    """
    kinds = stage.device_types or ("rank",) * len(stage.ranks)
    runs: list[tuple[str, int, int, int]] = []  # type, first rank, last rank, share
    for kind, rank, share in zip(kinds, stage.ranks, stage.shares, strict=True):
        if runs and runs[-1] == (kind, runs[-1][1], rank - 1, share):
            runs[-1] = (kind, runs[-1][1], rank, share)
        else:
            runs.append((kind, rank, rank, share))
    uneven, whole = len(set(stage.shares)) > 1, sum(stage.shares)
    told = []
    for kind, first, last, share in runs:
        part = f" ({share}/{whole}{' each' if last > first else ''})" if uneven else ""
        told.append(f"{kind} {first}" + (f"–{last}" if last > first else "") + part)
    return ", ".join(told)
