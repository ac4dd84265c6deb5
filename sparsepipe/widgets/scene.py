"""A plan as the partition view draws it: numbers in words, stages, layers, what each rank does, what changed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..cluster import Cluster
from ..plan import Plan, StageEstimate
from ..planners import Problem, estimate
from ..plots.table import milliseconds, scaled_bytes
from ..plots.theme import GREY, LIGHT_GREY, STAGE_COLORS, mixed
from ..trace import KINDS, Trace

CLOSE = 1e-9  # relative: periods that differ by less are the same
COLORS = [[mixed(color, 0.45), color, mixed(color, -0.35)] for color in STAGE_COLORS]  # forward, backward, update
PALETTE = {"stages": COLORS, "wait": LIGHT_GREY, "other": GREY, "kinds": list(KINDS)}


def scene(
    plan: Plan, problem: Problem, trace: Trace, *, bound: float | None, batch_size: int | None, before: Plan | None
) -> dict[str, Any]:
    """All that changes with a plan. `bound`: no plan has a smaller period. `before`: a plan to compare with."""
    graph = problem.graph
    place = {id: k for k, stage in enumerate(plan.stages) for id in stage.layers}
    seconds = problem.table.seconds[problem.cluster.device_types[0].name][:, 0]
    return {
        "tiles": tiles(plan, problem.cluster, bound=bound, batch_size=batch_size),
        "why": why(plan, problem),
        "notes": list(plan.warnings),
        "layers": [[graph.layers[k].id, float(seconds[k]), place[graph.layers[k].id]] for k in problem.layers],
        "stages": stages(plan, problem.cluster),
        "period": _period(plan),
        "bound": bound,
        "before": None if before is None else _before(before, plan, problem),
        **timeline(trace),
    }


def tiles(plan: Plan, cluster: Cluster, *, bound: float | None, batch_size: int | None) -> list[list[str]]:
    """[what, value, explanation] of each number that a plan promises."""
    expected = plan.estimate
    assert expected is not None
    period = expected.period_seconds
    found = [["a minibatch every", milliseconds(period), "in steady state, by the default cost model"]]
    if batch_size:
        found.append(["throughput", f"{batch_size / period:,.0f} samples/s", f"{batch_size} samples a minibatch"])
    for name, seconds, what in (
        ("over one device", expected.single_device_seconds, "all layers on the fastest device type"),
        ("over data parallelism", expected.data_parallel_seconds, "all layers on every device, equal shares"),
    ):
        if seconds:
            found.append([name, f"{seconds / period:.2f} ×", f"{what}: {milliseconds(seconds)} a minibatch"])
    if bound is not None:
        gap = max(0.0, (period - bound) / period)
        found.append(["no plan is faster than", milliseconds(bound), "a proven lower bound for these devices"])
        found.append(["gap to that bound", "none" if gap < CLOSE else f"{gap:.1%}", "none: no plan is better"])
    part, limit = max(_memory(plan, cluster), key=lambda pair: (pair[0].memory_bytes / pair[1], pair[0].memory_bytes))
    of = f" of {scaled_bytes(limit)}" if limit < float("inf") else ""
    found.append(["fullest device", scaled_bytes(part.memory_bytes) + of, "weights, optimizer state, activations kept"])
    return found


def why(plan: Plan, problem: Problem) -> str:
    """Which stage or boundary sets the pace, what makes it slow, and what moving one of its layers would do."""
    assert plan.estimate is not None
    parts = plan.estimate.stages
    if len(plan.stages) == 1:
        own = parts[0]
        share = own.averaging_seconds / max(own.compute_seconds + own.averaging_seconds, 1e-300)
        return f"One stage holds the whole network: {_spent(own, share)}. Nothing waits for another stage."
    kind, k, seconds = bottleneck(plan)
    where = f"stage {k} ({devices(plan, k)})"
    if kind == "transfer":
        text = f"The boundary of {where} sets the pace: its transfers take {milliseconds(seconds)} a minibatch"
        text += f", the stage's own work {milliseconds(parts[k].compute_seconds + parts[k].averaging_seconds)}."
    else:
        own = parts[k]
        share = own.averaging_seconds / max(seconds, 1e-300)
        text = f"{where[0].upper()}{where[1:]} sets the pace: {_spent(own, share)}."
    if plan.weights == "flush":
        count, period = plan.num_microbatches, plan.estimate.period_seconds
        text += f" Filling and draining take {max(0.0, 1 - seconds / period):.0%} of a step of {count} microbatches."
    return " ".join([text, *_moves(plan, problem, k)])


def bottleneck(plan: Plan) -> tuple[str, int, float]:
    """("compute" | "averaging" | "transfer", stage, seconds a minibatch) of what takes longest."""
    assert plan.estimate is not None
    causes = []
    for k, part in enumerate(plan.estimate.stages):
        own = "averaging" if part.averaging_seconds > part.compute_seconds else "compute"
        causes += [(part.compute_seconds + part.averaging_seconds, k, own), (part.transfer_seconds, k, "transfer")]
    seconds, stage, cause = max(causes)
    return cause, stage, seconds


def devices(plan: Plan, k: int) -> str:
    """The devices of a stage: "2 RTX + tv"."""
    stage = plan.stages[k]
    kinds = stage.device_types or tuple(f"rank {rank}" for rank in stage.ranks)
    counted = ((kind, kinds.count(kind)) for kind in dict.fromkeys(kinds))
    return " + ".join(kind if count == 1 else f"{count} {kind}" for kind, count in counted)


def stages(plan: Plan, cluster: Cluster) -> list[dict[str, Any]]:
    """One entry for each stage: who runs it, what it takes, whether it is the slowest."""
    slowest = bottleneck(plan)[1]
    rows = []
    for k, (part, limit) in enumerate(_memory(plan, cluster)):
        rows.append(
            {
                "devices": devices(plan, k),
                "layers": [plan.stages[k].layers[0], plan.stages[k].layers[-1], len(plan.stages[k].layers)],
                "compute": part.compute_seconds,
                "averaging": part.averaging_seconds,
                "transfer": part.transfer_seconds,
                "memory": part.memory_bytes,
                "limit": limit if limit < float("inf") else None,
                "words": [milliseconds(part.compute_seconds + part.averaging_seconds), scaled_bytes(part.memory_bytes)],
                "slowest": k == slowest,
            }
        )
    return rows


def timeline(trace: Trace) -> dict[str, Any]:
    """Ranks and spans [row, start, end, kind, stage, minibatch]; seconds rounded to what a screen can show."""
    rows = {rank: k for k, rank in enumerate(trace.ranks)}
    digits = 9
    spans = [
        [rows[s.rank], round(s.start, digits), round(s.end, digits), KINDS.index(s.kind), s.stage, s.minibatch]
        for s in trace.spans
        if s.end > s.start
    ]
    return {"ranks": list(rows), "spans": spans, "end": trace.makespan}


def changes(before: Plan, after: Plan) -> list[str]:
    """How `after` differs from `before`, a line for each thing that a reader would ask for."""
    found = before.diff(after)
    lines = []
    if found.speedup is not None:
        faster = found.speedup
        lines.append(f"B is {faster:.2f} × as fast as A" if abs(faster - 1) > CLOSE else "B is as fast as A")
    if len(before.stages) != len(after.stages):
        lines.append(f"{len(before.stages)} stages became {len(after.stages)}")
    if before.schedule != after.schedule or before.weights != after.weights:
        lines.append(f"{before.schedule} ({before.weights}) became {after.schedule} ({after.weights})")
    lines += [f"layers {move}" for move in found.layers] + [f"rank {move}" for move in found.ranks]
    return lines if not found.same else [*lines, "the same layers on the same devices"]


def _before(before: Plan, after: Plan, problem: Problem) -> dict[str, Any]:
    place = {id: k for k, stage in enumerate(before.stages) for id in stage.layers}
    assert before.estimate is not None
    own = [[part.compute_seconds + part.averaging_seconds, part.memory_bytes] for part in before.estimate.stages]
    return {
        "name": before.summary(),
        "places": [place[problem.graph.layers[k].id] for k in problem.layers],
        "stages": own,
        "period": _period(before),
        "changes": changes(before, after),
    }


def _moves(plan: Plan, problem: Problem, k: int) -> list[str]:
    """What handing the first layer of stage k to the stage before, or its last one to the next, would do."""
    told = []
    for step, verb in ((-1, "first"), (1, "last")):
        to, own = k + step, plan.stages[k].layers
        if not 0 <= to < len(plan.stages) or len(own) < 2:
            continue
        given, kept = (own[0], own[1:]) if step < 0 else (own[-1], own[:-1])
        changed = list(plan.stages)
        other = changed[to].layers
        changed[k] = replace(changed[k], layers=kept)
        changed[to] = replace(changed[to], layers=(*other, given) if step < 0 else (given, *other))
        after = estimate(replace(plan, stages=tuple(changed)), problem)
        slower = after.period_seconds - _period(plan)
        if slower < -CLOSE * _period(plan):
            told.append(f"Giving its {verb} layer {given} to stage {to} would save {milliseconds(-slower)}.")
        else:
            part = after.stages[to]
            now = max(part.compute_seconds + part.averaging_seconds, part.transfer_seconds)
            told.append(f"With its {verb} layer {given}, stage {to} would take {milliseconds(now)}.")
    return told


def _spent(part: StageEstimate, averaging: float) -> str:
    text = f"its layers take {milliseconds(part.compute_seconds)} a minibatch"
    if part.averaging_seconds:
        text += f", averaging its gradients {milliseconds(part.averaging_seconds)} ({averaging:.0%})"
    return text


def _memory(plan: Plan, cluster: Cluster) -> Sequence[tuple[StageEstimate, float]]:
    """(what is expected of it, bytes of its smallest device) of each stage."""
    assert plan.estimate is not None
    limits = [min(cluster.devices[rank].type.memory_bytes for rank in stage.ranks) for stage in plan.stages]
    return list(zip(plan.estimate.stages, limits, strict=True))


def _period(plan: Plan) -> float:
    assert plan.estimate is not None
    return plan.estimate.period_seconds
