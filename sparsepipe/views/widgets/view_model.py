"""The view model of the partition explorer: all that is drawn of a plan, as JSON-ready values."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...planning import Problem, estimate
from ...planning.estimate import port_seconds
from ...util.io.quantities import SIZE
from ...util.text.numbers import Certainty, alike, counted, duration, gap_text, number_of, rate_text, scaled_bytes
from ...values.cluster import Cluster
from ...values.plan import Plan, PositionEstimate
from ...values.plan_parts import Estimate
from ...values.trace import SPAN_KINDS, Trace
from ..colors import STAGE_COLORS, edge_of, mixed
from ..plots.theme import GREY, LIGHT_GREY
from ..plots.timeline import window

_AROUND = 8  # times the length in sight that a measured timeline goes on before and after it
_PERIODS = 8  # of a steady state that are in sight: minibatches, about
_STEADY = 0.1  # of a simulated timeline: a shorter steady state is not shown by itself
CLOSE = 1e-9  # relative: periods that differ by less are the same
COLORS = [[mixed(color, 0.45), color, mixed(color, -0.35)] for color in STAGE_COLORS]  # forward, backward, update
_EDGES = {color: edge_of(color) for color in [*sum(COLORS, []), LIGHT_GREY, GREY]}  # by which it is seen on any page
PALETTE = {"stages": COLORS, "wait": LIGHT_GREY, "other": GREY, "edges": _EDGES, "kinds": list(SPAN_KINDS)}


def transfers(plan: Plan, problem: Problem) -> list[float]:
    """Seconds a minibatch that each position transfers, on the busier of its sides: before its stages or after them."""
    ports = port_seconds(plan, problem)
    return [max(sum(ports[k] for k in own), sum(ports[k + 1] for k in own)) for own in plan.positions]


def scene(
    plan: Plan, problem: Problem, trace: Trace, *, bound: float | None, batch_size: int | None, before: Plan | None
) -> dict[str, Any]:
    """All that changes with a plan. `bound`: no plan has a smaller period. `before`: a plan to compare with."""
    return {
        "tiles": tiles(plan, problem.cluster, bound=bound, batch_size=batch_size),
        "why": why(plan, problem),
        "notes": list(plan.warnings),
        "try": suggested(plan, problem),
        "layers": layers(plan, problem),
        "chips": chips([plan], problem.cluster),
        "names": {device.rank: device.type.name for device in problem.cluster.devices},
        "devices": len(problem.cluster.devices),
        "sized": any(problem.profile.typical_sizes),
        "stages": with_words(stages(plan, problem)),
        "period": _period(plan),
        "bound": bound,
        "before": None if before is None else _before(before, plan, problem),
        "sight": steady_part(plan, trace),
        **timeline(trace),
    }


def moved_scene(plan: Plan, problem: Problem, *, batch_size: int | None, whole: bool) -> dict[str, object]:
    """Return the parts of a scene that the page shows of a move before the kernel does: numbers and times.

    `whole`: the stages may hold other layers than those of the scene, and come with theirs.
    """
    rows = with_words(stages(plan, problem))
    return {
        "tiles": [tile[:2] for tile in tiles(plan, problem.cluster, bound=None, batch_size=batch_size)],
        "stages": rows if whole else [{**row, "parts": [part[4:] for part in row["parts"]]} for row in rows],
    }


def layers(plan: Plan, problem: Problem) -> list[tuple[str, float, int]]:
    """[layer, seconds on the device that holds it, stage]; on the slowest one where a stage has several types."""
    devices, graph = problem.cluster.devices, problem.graph
    place = {id: k for k, stage in enumerate(plan.stages) for id in stage.layers}
    types = [{devices[rank].type.name for rank in stage.ranks} for stage in plan.stages]
    seconds = [np.max([problem.table.seconds[name][:, 0] for name in sorted(names)], axis=0) for names in types]
    ids = [graph.layers[k].id for k in problem.layers]
    return [(id, float(seconds[place[id]][k]), place[id]) for id, k in zip(ids, problem.layers, strict=True)]


def chips(plans: Sequence[Plan], cluster: Cluster) -> dict[str, dict[str, list[list[int]]]]:
    """The stages of each device by host and device type, in the order of ranks."""
    held: dict[int, list[int]] = {}
    for plan in plans:
        for k, stage in enumerate(plan.stages):
            for rank in stage.ranks:
                held.setdefault(rank, []).append(k)
    stages: dict[str, dict[str, list[list[int]]]] = {}
    for device in cluster.devices:
        of_host = stages.setdefault(device.node.name, {})
        of_host.setdefault(device.type.name, []).append(held.get(device.rank, []))
    return stages


def tiles(plan: Plan, cluster: Cluster, *, bound: float | None, batch_size: int | None) -> list[list[str]]:
    """[what, value, explanation] of each number that a plan promises."""
    expected = plan.estimate
    assert expected is not None
    period = expected.period_seconds
    certainty = expected.certainty or Certainty()
    spread = f" ± {duration(certainty.share * period)}" if certainty.share else ""
    what = f"steady state, default cost model{'; ±: about one standard deviation' if spread else ''}"
    found = [["time per minibatch", duration(period) + spread, what]]
    speed = rate_text(batch_size / period) if batch_size else rate_text(1 / period, "minibatches")
    what = number_of(batch_size, "sample") + " per minibatch" if batch_size else "the profile has no batch size"
    found.insert(0, ["throughput", speed, what])
    for name, seconds, what in (
        ("over data parallelism", expected.data_parallel_seconds, "all layers on every device, equal shares"),
        ("over one device", expected.single_device_seconds, "all layers on the fastest device type"),
    ):
        if seconds:
            found.append([name, f"{seconds / period:.2f} ×", f"{what}: {duration(seconds)} per minibatch"])
    if bound is not None:
        gap, low = gap_tiles(plan, bound)
        found.insert(3, gap)
        found.append(low)
    elif plan.stages_per_rank > 1:
        told = "bounds hold for plans with one stage per device; interleaved stages can be faster"
        found.append(["lower bound", "unknown", told])
    found.insert(4, measured_range(plan))
    return [*found, fullest_device([plan], cluster)]


def gap_tiles(plan: Plan, bound: float, *, searching: bool = False) -> tuple[list[str], list[str]]:
    """The tiles of the optimality gap and of the lower bound. `searching`: whether the bound is not the last one."""
    period, expected = _period(plan), plan.estimate
    extrapolated = expected is not None and expected.certainty is not None and expected.certainty.extrapolated
    what = "provable for this profile: no plan of one pipeline on these devices is faster"
    if extrapolated:
        what += "; times beyond the measured sizes are extrapolated, and the bound is one of these"
    gap = gap_text((period - bound) / period)
    proven = "extrapolated" if extrapolated else "proven" if gap == "0%" else ""
    words = [gap, proven, "searching" if searching else ""]
    return ["optimality gap", ", ".join(filter(None, words)), f"0%: {what}"], ["lower bound", duration(bound), what]


def measured_range(plan: Plan) -> list[str]:
    """The tile that says whether the plan's times were measured."""
    if plan.extrapolation:
        what = "outside the measured sizes, times are extrapolated proportionally: the plan is optimal for these"
        return ["extrapolated", plan.extrapolation.removeprefix("extrapolated "), what]
    return ["measured range", "✓ inside", "the minibatch is within the measured sizes"]


def fullest_device(plans: Iterable[Plan], cluster: Cluster) -> list[str]:
    """The tile of the device whose memory is fullest."""
    every = [pair for plan in plans for pair in _memory(plan, cluster)]
    position, limit = max(every, key=lambda pair: (pair[0].memory_bytes / pair[1], pair[0].memory_bytes))
    of = f" of {SIZE.shown(limit)}" if limit < float("inf") else ""
    return [
        "peak memory (worst device)",
        scaled_bytes(position.memory_bytes) + of,
        "weights, optimizer state, activations",
    ]


def why(plan: Plan, problem: Problem) -> str:
    """Sentences on the slowest stage or link, the reason, and the effect of moving one layer."""
    assert plan.estimate is not None
    if len(plan.stages) == 1:
        return (
            f"One stage holds the whole network: {_spent(plan.position_estimates[0])}. Nothing waits for another stage."
        )
    kind, k, seconds = bottleneck(plan, problem)
    own, period = plan.position_estimates[k], plan.estimate.period_seconds
    where = f"{own.name} ({devices(plan, k)})"
    several = len(own.stages) > 1
    if kind == "transfer":
        are = "links of {} are the slowest: their" if several else "link of {} is the slowest: its"
        whose = "stages'" if several else "stage's"
        text = f"The {are.format(where)} transfers take {duration(seconds)} per minibatch, "
        text += f"the {whose} computation takes {duration(own.busy_seconds)}."
    else:
        are = "are the slowest stages" if several else "is the slowest stage"
        text = f"{where[0].upper()}{where[1:]} {are}: {_spent(own)}."
    waiting = max(0.0, 1 - seconds / period)
    if plan.flushes:
        text += (
            f" Filling and draining take {waiting:.0%} of a step of {number_of(plan.num_microbatches, 'microbatch')}."
        )
    elif several and f"{waiting:.0%}" != "0%":
        text += f" Waiting for other stages takes {waiting:.0%} of the time."
    return text if several else " ".join([text, *_moves(plan, problem, k)])


def bottleneck(plan: Plan, problem: Problem) -> tuple[str, int, float]:
    """("compute" | "averaging" | "transfer", place in the pipeline, seconds a minibatch) of what takes longest."""
    causes = []
    for k, (position, transfer) in enumerate(zip(plan.position_estimates, transfers(plan, problem), strict=True)):
        own = "averaging" if position.averaging_seconds > position.compute_seconds else "compute"
        causes += [(position.busy_seconds, k, own), (transfer, k, "transfer")]
    seconds, place, cause = max(causes)
    return cause, place, seconds


def devices(plan: Plan, k: int) -> str:
    """The devices of a stage: "2 × RTX + tv"."""
    stage = plan.stages[k]
    return counted(stage.device_types or tuple(f"rank {rank}" for rank in stage.ranks))


def stages(plan: Plan, problem: Problem) -> list[dict[str, Any]]:
    """One entry for each position: its stages, what they take together, whether it is the slowest.

    A part is [stage, first layer, last layer, number of layers, seconds computing, bytes, recomputed layers].
    """
    assert plan.estimate is not None
    slowest, moved = bottleneck(plan, problem)[1], transfers(plan, problem)
    rows = []
    for k, (position, limit) in enumerate(_memory(plan, problem.cluster)):
        parts = []
        for s in position.stages:
            stage, part = plan.stages[s], plan.estimate.stages[s]
            layers, again = stage.layers, stage.recomputed_text
            parts.append([s, layers[0], layers[-1], len(layers), part.compute_seconds, part.memory_bytes, again])
        rows.append(
            {
                "devices": devices(plan, k),
                "parts": parts,
                "compute": position.compute_seconds,
                "averaging": position.averaging_seconds,
                "transfer": moved[k],
                "memory": position.memory_bytes,
                "limit": limit if limit < float("inf") else None,
                "slowest": k == slowest,
            }
        )
    return rows


def with_words(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of one picture with their numbers as text, the times with as many decimals each."""
    rows = list(rows)
    busy = [1e3 * (row["compute"] + row["averaging"]) for row in rows]
    form = alike(busy, 3)
    return [
        {**row, "words": [f"{form(own)} ms", scaled_bytes(row["memory"])]} for row, own in zip(rows, busy, strict=True)
    ]


def timeline(trace: Trace, lanes: Sequence[int | str] = ()) -> dict[str, Any]:
    """Ranks and spans [row, start, end, kind, stage, minibatch]; seconds rounded to what a screen can show.

    `lanes`: the ranks in the order of their rows, if that is another, with a row for each heading between them; a
    wait then ends with the rank that is waited for, if it is for one.
    """
    rows = {rank: k for k, rank in enumerate(lanes or trace.ranks)}
    digits = 9
    spans = [
        [
            *(rows[s.rank], round(s.start, digits), round(s.end, digits), SPAN_KINDS.index(s.kind)),
            *(s.stage, s.minibatch, *([s.peer] if lanes and s.kind == "wait" and s.peer >= 0 else [])),
        ]
        for s in trace.spans
        if s.end > s.start
    ]
    return {"ranks": list(rows), "spans": spans, "end": trace.makespan}


def steady_part(plan: Plan, trace: Trace) -> list[float]:
    """Return the begin and end of the steady state as shares of a simulated timeline; the whole of it if it has none.

    A synchronous schedule repeats its step: its last whole one. Other pipelines are full from when every rank has begun
    its first backward until one has done its last forward.
    """
    begun, done = dict[int, float](), dict[int, float]()
    for span in trace.spans:
        if span.kind == "backward":
            begun[span.rank] = min(span.start, begun.get(span.rank, span.start))
        elif span.kind == "forward":
            done[span.rank] = max(span.end, done.get(span.rank, span.end))
    if plan.flushes:
        step = plan.num_microbatches
        first = step * ((1 + max((span.minibatch for span in trace.spans), default=0)) // step - 1)
        spans = [span for span in trace.spans if first <= span.minibatch < first + step]
        begin, end = min((s.start for s in spans), default=0.0), max((s.end for s in spans), default=0.0)
    else:
        begin, end = max(begun.values(), default=0.0), min(done.values(), default=0.0)
        begin = max(begin, end - _PERIODS * _period(plan))  # the last of it
    if end - begin <= _STEADY * trace.makespan:
        return [0.0, 1.0]
    return [round(begin / trace.makespan, 4), round(end / trace.makespan, 4)]


def timelines(traces: Iterable[Trace], minibatches: tuple[int, int]) -> dict[str, Any]:
    """Rows of each rank, one for each trace by its source, with the work on some minibatches in sight, and its sides.

    All begin together: with the first forward of these minibatches. Raises InputError for a trace without work on them.
    """
    named = {trace.source: trace for trace in traces}
    windows = {name: window(trace, minibatches) for name, trace in named.items()}
    around = _AROUND * max(end - begin for begin, end in windows.values())
    lead = min(around, max(begin - min(s.start for s in named[name].spans) for name, (begin, _) in windows.items()))
    ranks = sorted({rank for trace in named.values() for rank in trace.ranks})
    rows = {row: k for k, row in enumerate(itertools.product(ranks, named))}
    spans = [
        [rows[s.rank, name], *(round(at - begin + lead, 9) for at in (s.start, s.end)), SPAN_KINDS.index(s.kind)]
        + [s.stage, s.minibatch]
        for name, (begin, end) in windows.items()
        for s in named[name].spans
        if s.end > s.start and s.start >= begin - lead and s.end <= end + around and s.kind != "wait"
    ]
    last = max(span[2] for span in spans)
    shown = max(end - begin for begin, end in windows.values())
    return {
        "ranks": [rank for rank, _ in rows],
        "labels": [f"rank {rank} · {name}" for rank, name in rows],
        "groups": [k % len(named) for k in range(len(rows))],
        "traces": list(named),
        "spans": spans,
        "end": last,
        "sight": [lead / last, min(1.0, (lead + shown) / last)],
        "palette": PALETTE,
    }


def changes(before: Plan, after: Plan) -> list[str]:
    """Differences of `after` from `before`, one line each."""
    found = before.diff(after)
    lines = []
    if found.speedup is not None:
        faster = found.speedup
        lines.append(f"B is {faster:.2f} × as fast as A" if abs(faster - 1) > CLOSE else "B is as fast as A")
    if len(before.stages) != len(after.stages):
        lines.append(f"stages: {len(before.stages)} → {len(after.stages)}")
    if before.stages_per_rank != after.stages_per_rank:
        lines.append(f"stages per device: {before.stages_per_rank} → {after.stages_per_rank}")
    lines += [*found.moves(), *found.changed_settings()]
    return lines if not found.same else [*lines, "the same layers on the same devices"]


def _before(before: Plan, after: Plan, problem: Problem) -> dict[str, Any]:
    place = {id: k for k, stage in enumerate(before.stages) for id in stage.layers}
    return {
        "name": before.summary(),
        "places": [place[problem.graph.layers[k].id] for k in problem.layers],
        "stages": [[position.busy_seconds, position.memory_bytes] for position in before.position_estimates],
        "period": _period(before),
        "changes": changes(before, after),
    }


def suggested(plan: Plan, problem: Problem) -> dict[str, int] | None:
    """The cut whose move by one layer makes the plan faster, and the layers before it then; None if none does."""
    if len(plan.stages) == 1 or plan.stages_per_rank > 1:
        return None
    kind, k, _ = bottleneck(plan, problem)
    if kind == "transfer":
        return None
    best = min(_moved(plan, problem, k), key=lambda move: move[2].period_seconds, default=None)
    if best is None or best[2].period_seconds - _period(plan) >= -CLOSE * _period(plan):
        return None
    step = best[0]
    cut = k - 1 if step < 0 else k
    return {"cut": cut, "at": sum(len(stage.layers) for stage in plan.stages[: cut + 1]) - step}


def _moved(plan: Plan, problem: Problem, k: int) -> Iterator[tuple[int, str, Estimate]]:
    """(step, layer, estimate) of giving stage k's first layer to the stage before it, or its last to the next."""
    for step in (-1, 1):
        to, own = k + step, plan.stages[k].layers
        if not 0 <= to < len(plan.stages) or len(own) < 2:
            continue
        given, kept = (own[0], own[1:]) if step < 0 else (own[-1], own[:-1])
        changed = list(plan.stages)
        other = changed[to].layers
        changed[k] = replace(changed[k], layers=kept, segments=())
        changed[to] = replace(changed[to], layers=(*other, given) if step < 0 else (given, *other))
        yield step, given, estimate(replace(plan, stages=tuple(changed)), problem)


def _moves(plan: Plan, problem: Problem, k: int) -> list[str]:
    """Effect of moving the first layer of stage k to the stage before, or its last one to the next."""
    told = []
    for step, given, after in _moved(plan, problem, k):
        to, verb = k + step, "first" if step < 0 else "last"
        slower = after.period_seconds - _period(plan)
        if slower < -CLOSE * _period(plan):
            told.append(f"Giving its {verb} layer {given} to stage {to} would save {duration(-slower)}.")
        else:
            part = after.stages[to]
            now = max(part.compute_seconds + part.averaging_seconds, part.transfer_seconds)
            told.append(f"With its {verb} layer {given}, stage {to} would take {duration(now)}.")
    return told


def _spent(position: PositionEstimate) -> str:
    its = "their" if len(position.stages) > 1 else "its"
    text = f"{its} layers take {duration(position.compute_seconds)} per minibatch"
    if position.averaging_seconds:
        share = position.averaging_seconds / max(position.busy_seconds, 1e-300)
        text += f", averaging {its} gradients {duration(position.averaging_seconds)} ({share:.0%})"
    return text


def _memory(plan: Plan, cluster: Cluster) -> list[tuple[PositionEstimate, float]]:
    """(its estimate, memory of its smallest device) of each position."""
    found = plan.position_estimates
    limits = [min(cluster.devices[rank].type.memory_bytes for rank in plan.stages[k].ranks) for k in range(len(found))]
    return list(zip(found, limits, strict=True))


def _period(plan: Plan) -> float:
    assert plan.estimate is not None
    return plan.estimate.period_seconds
