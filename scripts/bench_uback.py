"""Compare a U-Net in a V with its best contiguous stages, on two processes: predicted, simulated and measured.

    python scripts/bench_uback.py --model minkunet14a-narrow --model minkunet34c-narrow

Both processes profile at once first, so that costs are those of busy cores. Then both plans train the same minibatches
in turn, several times, in alternating order. The period is the mean time of a minibatch, without the first and the last
quarter. "V_over_contiguous" is the ratio of the periods of neighbouring runs. Quartiles are those over the repeats.
"milliseconds_by_rank" says where a difference comes from: [measured, simulated] of a minibatch, by what a rank does.
Bytes are those that both processes send for a minibatch, forwards and backwards. Takes 3 to 4 minutes on two idle
cores; the load at the start of each repeat is printed.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sparsepipe as sp  # noqa: E402
from sparsepipe.planning.forecast import steady_rate  # noqa: E402

STRAIGHT, BENT = "contiguous", "V"
_PLANS = {STRAIGHT: {"planner": "model-parallel"}, BENT: {"planner": "optimal", "schedule": "1f1b-v", "quick": True}}
_KINDS = ("forward", "backward", "update", "load", "send")  # of spans; the rest of a rank's time is idle


class Run(NamedTuple):
    """What one run came to."""

    seconds: float  # of a minibatch
    sent_bytes: float  # for one
    sizes: list[float]  # of each minibatch, in voxels
    by_rank: dict[int, dict[str, float]]  # seconds of a minibatch, by what the rank does


def prepared(model: str, options: argparse.Namespace) -> tuple[sp.Profile, sp.Cluster, dict[str, sp.Plan]]:
    """Profile a network and plan it both ways for two processes of this machine."""
    profile = sp.profile_model(
        model,
        options.data,
        batch_size=options.batch_size,
        voxel_size=options.voxel_size,
        num_points=options.num_points,
        device_type="cpu",
        beside=1,
    )
    cluster = sp.Cluster.uniform(2, device_type="cpu", link=sp.Link(options.bandwidth, options.latency))
    return profile, cluster, {name: sp.partition(profile, cluster, **asked) for name, asked in _PLANS.items()}


def trained(plan: sp.Plan, model: str, folder: Path, options: argparse.Namespace) -> Run:
    """Train a plan on two processes."""
    config = sp.RunConfig(
        model=model,
        data=str(options.data),
        batch_size=options.batch_size,
        voxel_size=options.voxel_size,
        num_points=options.num_points,
        minibatches=options.minibatches,
        threads=1,
        validate=False,
    )
    job = sp.launch(plan, config, run_dir=folder)
    job.wait()
    record = job.record
    steps = sorted(record.metrics("step"), key=lambda row: row["minibatch"])
    sent = sum(row["sent_bytes"] for row in record.metrics("epoch"))
    trace, count = record.trace(), options.minibatches
    seconds = 1 / steady_rate(trace, plan, count)
    return Run(seconds, sent / count, [float(row["voxels"]) for row in steps], by_rank(trace, count, seconds))


def by_rank(trace: sp.Trace, count: int, seconds: float) -> dict[int, dict[str, float]]:
    """Return the seconds of a minibatch that each rank spends on each kind of work, over the middle half."""
    middle, rows = range(count // 4, 3 * count // 4), {}
    for rank in trace.ranks:
        spans = [span for span in trace.spans if span.rank == rank and span.minibatch in middle]
        row = {kind: sum(span.seconds for span in spans if span.kind == kind) / len(middle) for kind in _KINDS}
        if trace.source == "simulated":
            row["send"] = 0.0  # alongside the work
        rows[rank] = row | {"idle": seconds - sum(row.values())}
    return rows


def quartiles(values: list[float]) -> list[float]:
    """Return [lower quartile, median, upper quartile]."""
    return statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else 3 * values


def in_words(values: list[float]) -> str:
    low, median, high = values
    return f"{median:.3f} ({low:.3f} to {high:.3f})"


def compared(model: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure both plans of a network in turn."""
    profile, cluster, plans = prepared(model, options)
    measured: dict[str, list[Run]] = {name: [] for name in plans}
    loads = []
    for repeat in range(options.repeats):
        loads.append(os.getloadavg()[0])
        for name in [*plans][:: -1 if repeat % 2 else 1]:
            measured[name].append(trained(plans[name], model, folder / f"{name}-{repeat}", options))
    rows: dict[str, Any] = {"loads": loads}
    simulated = {}
    for name, plan in plans.items():
        assert plan.estimate is not None
        runs = measured[name]
        trace = sp.simulate(plan, profile, cluster, runs[0].sizes)
        simulated[name] = 1 / steady_rate(trace, plan, len(runs[0].sizes))
        expected = by_rank(trace, options.minibatches, simulated[name])
        rows[name] = {
            "stages": [[stage.ranks[0], len(stage.layers)] for stage in plan.stages],
            "gap": plan.estimate.gap,
            "estimated_seconds": plan.estimate.period_seconds,
            "simulated_seconds": simulated[name],
            "measured_seconds": quartiles([run.seconds for run in runs]),
            "measured_over_simulated": quartiles([run.seconds / simulated[name] for run in runs]),
            "estimated_bytes": sum(stage.sent_bytes for stage in plan.estimate.stages),
            "measured_bytes": statistics.median(run.sent_bytes for run in runs),
            "milliseconds_by_rank": {
                rank: {
                    kind: [
                        round(1e3 * statistics.median(run.by_rank[rank][kind] for run in runs), 2),
                        round(1e3 * value, 2),
                    ]
                    for kind, value in row.items()
                }
                for rank, row in expected.items()
            },
        }
    ratios = [
        bent.seconds / straight.seconds for bent, straight in zip(measured[BENT], measured[STRAIGHT], strict=True)
    ]
    rows["V_over_contiguous"] = {"measured": quartiles(ratios), "simulated": simulated[BENT] / simulated[STRAIGHT]}
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="default: minkunet14a-narrow and minkunet34c-narrow")
    parser.add_argument("--data", type=Path, help="default: shapes that are made")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--voxel-size", type=float, default=0.03)
    parser.add_argument("--num-points", type=int, default=4096)
    parser.add_argument("--minibatches", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--bandwidth", type=float, default=2e9, help="bytes per second between the processes")
    parser.add_argument("--latency", type=float, default=2e-4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.data is None:
            options.data = sp.data.make_shapes(folder / "shapes", num_train=40, num_test=2)
        for model in options.model or ["minkunet14a-narrow", "minkunet34c-narrow"]:
            (folder / model).mkdir()
            began = time.monotonic()
            rows = compared(model, folder / model, options)
            print(json.dumps({"model": model} | rows | {"seconds": time.monotonic() - began}, indent=1))
            for plan in (STRAIGHT, BENT):
                print(f"{model}, {plan}: measured over simulated {in_words(rows[plan]['measured_over_simulated'])}")
            gain = rows["V_over_contiguous"]
            print(
                f"{model}: V over contiguous {in_words(gain['measured'])}, simulated {gain['simulated']:.3f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
