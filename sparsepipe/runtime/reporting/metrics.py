"""A run's steady pace, how busy each stage was, and the document that `sparsepipe train --json` prints."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ...records.record_files import CLOCK, read_fields
from ...util.io.files import open_regular, write_json
from ...values.plan import Plan
from ...values.schedule import warmup
from ...values.trace import SPAN_KINDS, WORK, Trace

MEMORY = ("peak_bytes", "held_bytes")  # of a stage's fullest rank: at any moment, and between its actions


def steady_window(times: Sequence[float], plan: Plan) -> tuple[int, int] | None:
    """Return the minibatches (first, last) between whose ends the pipeline of one epoch was full.

    `times[m]` is when minibatch m was done in the last stage. Asynchronous schedules: from the first minibatch after
    the warm-up, by whole rounds of all stages, to the last or almost: what replicas work on together ends together, and
    part of a round would count samples without their time. Schedules that flush: whole steps, from the end of the first
    to that of the last whole one, the pipeline's filling and draining included. None if the epoch is too short.
    """
    if plan.flushes:
        steps = len(times) // plan.num_microbatches
        first, last = plan.num_microbatches - 1, steps * plan.num_microbatches - 1
    else:
        depth = max(warmup(plan, 0, rank) for rank in plan.stages[0].ranks)
        rounds = [stage.round for stage in plan.stages]
        first, period = depth + max(rounds), math.lcm(*rounds)
        last = first + (len(times) - 1 - first) // period * period
    return (first, last) if first < last else None


def pace(times: Sequence[float], samples: Sequence[float], window: tuple[int, int] | None, started: float) -> float:
    """Return samples per second in the window; over the whole epoch if there is none."""
    if window is None:
        return sum(samples) / max(max(times) - started, 1e-9)
    first, last = window
    return sum(samples[first + 1 : last + 1]) / max(times[last] - times[first], 1e-9)


def pace_of(trace: Trace, plan: Plan) -> float:
    """Return the minibatches per second of a trace of one epoch, simulated or not, while its pipeline is full."""
    last = len(plan.stages) - 1
    ends = {span.minibatch: span.end for span in trace.spans if (span.stage, span.kind) == (last, "backward")}
    times = [ends[m] for m in range(len(ends))]
    return pace(times, [1] * len(times), steady_window(times, plan), 0.0)


def busy_seconds(spans: Sequence[tuple[str, float, float]], start: float, end: float) -> dict[str, float]:
    """Return the seconds of each kind that fall between `start` and `end`."""
    seconds = dict.fromkeys(SPAN_KINDS, 0.0)
    for kind, begin, finish in spans:
        seconds[kind] += max(0.0, min(finish, end) - max(begin, start))
    return seconds


def stage_summaries(plan: Plan, seconds: Sequence[dict[str, float]], window_seconds: float) -> list[dict[str, Any]]:
    """Return `stage_summary` of every stage. Of ranks with several stages, only what none of them uses is bubble."""
    found = [stage_summary(k, stage.ranks, seconds[k], window_seconds) for k, stage in enumerate(plan.stages)]
    for stages in plan.positions:
        idle = 1 - sum(found[k]["busy_fraction"] for k in stages)
        for k in stages:
            found[k]["bubble_fraction"] = idle
    return found


def stage_summary(stage: int, ranks: Sequence[int], seconds: dict[str, float], window_seconds: float) -> dict[str, Any]:
    """Return shares of a stage's time, all its replicas together: computing, idle, and each kind of span."""
    whole = max(window_seconds * len(ranks), 1e-9)
    busy = sum(seconds[kind] for kind in WORK) / whole
    shares = {
        f"{kind}_fraction": seconds[kind] / whole for kind in SPAN_KINDS if kind not in ("evaluate", "checkpoint")
    }
    return {"stage": stage, "ranks": list(ranks), "busy_fraction": busy, "bubble_fraction": 1 - busy, **shares}


def median_summaries(epochs: Sequence[Sequence[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return, for each stage, the median over epochs of every share."""
    merged = []
    for of_stage in zip(*epochs, strict=True):
        shares = {key: median(entry[key] for entry in of_stage) for key in of_stage[0] if key.endswith("_fraction")}
        merged.append({"stage": of_stage[0]["stage"], "ranks": of_stage[0]["ranks"], **shares})
        for key in MEMORY:
            if found := [entry[key] for entry in of_stage if entry.get(key)]:
                merged[-1][key] = max(found)
    return merged


def with_memory(stages: Sequence[dict[str, Any]], plan: Plan) -> list[dict[str, Any]]:
    """Return the summaries with the memory that the planner expected of a rank of each stage, if it said so."""
    if plan.estimate is None:
        return list(stages)
    planned: dict[int, float] = {}
    for own in plan.positions:
        planned |= dict.fromkeys(own, sum(plan.estimate.stages[k].memory_bytes for k in own))
    return [entry | {"planned_bytes": planned[entry["stage"]]} for entry in stages]


_TAIL_BYTES = 2**16  # of a file that grows by rows: the latest are in it


def began(run_dir: Path) -> float:
    """Return the wall-clock second at which the run in `run_dir` began. One rank calls it, after `forget_rows`.

    A run that resumes keeps its beginning. If the machine's clock was set back meanwhile, so that new rows would be
    older than those there are, the beginning moves back as far: times continue after the last that was recorded.
    """
    path, now = run_dir / "logs" / "clock.json", time.time()
    if not path.exists():
        write_json(path, {"started": now}, make_folder=False)
    started = float(read_fields(path, CLOCK, what="run's clock")["started"])
    last = last_recorded(run_dir)
    if now - started < last:
        started = now - last
        write_json(path, {"started": started}, make_folder=False)
    return started


def last_recorded(run_dir: Path) -> float:
    """Return the latest time in a run's metrics and traces, in seconds since it began; 0 if there is none."""
    paths = [run_dir / "metrics.jsonl", *run_dir.glob("trace-rank*.jsonl")]
    return max((_last_time(path) for path in paths if path.is_file()), default=0.0)


def _last_time(path: Path) -> float:
    with open_regular(path) as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().splitlines()
    return max(map(_time, lines), default=0.0)


def _time(line: bytes) -> float:
    try:
        row = json.loads(line)
        return float(row.get("end", row.get("seconds", 0.0)))
    except (ValueError, TypeError, AttributeError):  # cut at its beginning, or damaged: others tell the time
        return 0.0
