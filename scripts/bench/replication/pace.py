"""Replays beside simulations: what each rule makes of a slow pipeline."""

import random
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sparsepipe as sp
from sparsepipe.planning.simulator import PipelinesForecast
from sparsepipe.records import RunRecord
from sparsepipe.study.cached_runs import emulated
from sparsepipe.util.io.files import read_rows
from sparsepipe.values.cluster import Cluster, Link
from sparsepipe.values.profile import Profile
from sparsepipe.values.replication import parse_rule
from sparsepipe.values.stragglers import Stragglers
from sparsepipe.values.trace import WORK, Trace

from ..document import say
from ..rounds import load
from ..scratch import scratch
from ..sleeping import DEVICE, sleeping_profile

SLOW = "slow:rank=0,factor=4"  # pipeline 0: its only rank
_LAYERS, _PARAMETER_BYTES, _OUTPUT_BYTES = 4, 1e5, 1e3  # of the network whose layers sleep; bytes a layer
_SIMULATIONS = 11  # of each replay, whose minibatches differ by chance as much as the replayed ones did


@dataclass(frozen=True)
class Setting:
    """What is replayed."""

    pipelines: int
    seconds: float  # that a pipeline takes for a minibatch
    each: int  # minibatches a pipeline on average
    seeds: int


def measure(setting: Setting, rules: list[str], stragglers: list[str]) -> list[dict[str, Any]]:
    """Return a row for each rule, straggler and seed."""
    rows = []
    with scratch("bench-replication") as folder:
        for spec in stragglers:
            for rule in rules:
                for seed in range(setting.seeds):
                    rows.append(_one(folder, setting, rule, spec, seed))
                    say(" ".join(f"{key}={_short(value)}" for key, value in rows[-1].items()))
    return rows


def _one(folder: Path, setting: Setting, rule: str, spec: str, seed: int) -> dict[str, Any]:
    profile = sleeping_profile(_LAYERS, setting.seconds, parameter_bytes=_PARAMETER_BYTES, output_bytes=_OUTPUT_BYTES)
    cluster = Cluster.uniform(setting.pipelines, device_type=DEVICE, link=Link(1e9, 1e-4))
    alone = sp.partition(profile, Cluster.uniform(1, device_type=DEVICE, link=Link(1e9, 1e-4)))
    plan = sp.Plan.alike(alone, setting.pipelines, parse_rule(rule), samples=1)
    minibatches = setting.each * setting.pipelines
    held_up = Stragglers.parse(f"{spec};seed={seed}")
    expected = sp.simulate_pipelines(plan, profile, cluster, [1.0] * minibatches, stragglers=held_up, seed=seed)
    before = load()
    record = emulated(folder, plan, profile, cluster, minibatches, stragglers=f"{spec};seed={seed}", seed=seed)
    found = record.metrics("summary")[-1]["replication"]
    pace = sum(one["samples_per_second"] for one in found["pipelines"])  # minibatches are of one sample
    slow = {0} if spec else set()
    healthy = [one for k, one in enumerate(found["pipelines"]) if k not in slow]
    own = sum(one["own_pace"] for one in found["pipelines"])
    likely = [_mean(one.group_sizes) for one in _as_uneven(record, plan, profile, cluster, minibatches, held_up, seed)]
    size = _mean(found["group_sizes"])
    return {
        "rule": rule,
        "straggler": spec or "nobody is slow",
        "seed": seed,
        "minibatches_per_second": pace,
        "measured/simulated": pace / expected.sum_of_paces,
        "groups": size / statistics.fmean(likely),
        "groups/even": size / _mean(expected.group_sizes),
        "group_size": size,
        "group_size_simulated": [min(likely), statistics.fmean(likely), max(likely)],
        "healthy/own": statistics.fmean(one["samples_per_second"] / one["own_pace"] for one in healthy),
        "all/own": sum(one["samples_per_second"] for one in found["pipelines"]) / own,
        "load": round(before, 2),
    }


def _as_uneven(
    record: RunRecord,
    plan: sp.Plan,
    profile: Profile,
    cluster: Cluster,
    minibatches: int,
    stragglers: Stragglers,
    seed: int,
) -> Iterator[PipelinesForecast]:
    """Yield simulations whose pipelines begin when the replayed ones began, and whose minibatches are as uneven.

    Equal pipelines of equal minibatches arrive at the same moment, or never: who is together would hang on what the
    last digit says. Real ones differ by a share of each minibatch, whose spread is the replay's own.
    """
    trace = record.trace()
    ranks = map(plan.ranks_of, range(len(plan.pipelines)))
    begun = [min(span.start for span in trace.spans if span.rank in own) for own in ranks]
    starts = [start - min(begun) for start in begun]
    spread = _spread(trace)
    for number in range(_SIMULATIONS):
        draw = random.Random(f"{seed} {number}")
        sizes = [max(0.5, draw.gauss(1.0, spread)) for _ in range(minibatches)]
        yield sp.simulate_pipelines(
            plan, profile, cluster, sizes, stragglers=stragglers, seed=seed + number, starts=starts
        )


def _spread(trace: Trace) -> float:
    """Standard deviation of a minibatch's seconds of work over its rank's median: half of what the middle 68% span."""
    works: dict[int, dict[int, float]] = {}
    for span in trace.spans:
        if span.kind in WORK:
            own = works.setdefault(span.rank, {})
            own[span.minibatch] = own.get(span.minibatch, 0.0) + span.seconds
    shares = [seconds / statistics.median(own.values()) for own in works.values() for seconds in own.values()]
    cuts = statistics.quantiles(shares, n=100)
    return (cuts[83] - cuts[15]) / 2


def seconds_of(record: RunRecord) -> float:
    """Seconds from the first minibatch that was handed out to the last that was done."""
    begin = min(row["seconds"] for row in read_rows(record.folder / "minibatches.jsonl") if row["event"] == "taken")
    return max(row["seconds"] for row in record.metrics("step")) - begin


def _mean(counts: Mapping[Any, int]) -> float:
    total = sum(counts.values())
    return sum(float(size) * count for size, count in counts.items()) / total if total else 1.0


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


COLUMNS = ("minibatches_per_second", "measured/simulated", "groups", "groups/even", "healthy/own", "all/own")


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each rule and straggler: medians, and the least and most where there are several seeds."""
    yield f"{'straggler':24s}{'rule':20s}" + "".join(f"{name:>26s}" for name in COLUMNS)
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["straggler"], row["rule"]), []).append(row)
    for (spec, rule), own in groups.items():
        cells = []
        for name in COLUMNS:
            values = sorted(row[name] for row in own)
            spread = f" [{values[0]:.3f}, {values[-1]:.3f}]" if len(values) > 1 else ""
            cells.append(f"{statistics.median(values):.3f}{spread}")
        yield f"{spec:24s}{rule:20s}" + "".join(f"{cell:>26s}" for cell in cells)
