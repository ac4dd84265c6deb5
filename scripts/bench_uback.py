"""Compare a U-Net in a V with its best contiguous stages, on two processes: predicted, simulated and measured.

    python scripts/bench_uback.py --model minkunet14a-narrow --model minkunet34c-narrow

Both processes profile at once first, so that costs are those of busy cores. Then each plan trains the same minibatches
in turn, several times. The period is the median over runs of the mean time of a minibatch, without the first and the
last quarter. Bytes are those that both processes send for a minibatch, forwards and backwards.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import sparsepipe as sp  # noqa: E402
from sparsepipe.planning.forecast import steady_rate  # noqa: E402

STRAIGHT, BENT = "contiguous", "V"
_PLANS = {STRAIGHT: {"planner": "model-parallel"}, BENT: {"planner": "optimal", "schedule": "1f1b-v"}}


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


def trained(plan: sp.Plan, model: str, folder: Path, options: argparse.Namespace) -> tuple[float, float, list[float]]:
    """(seconds of a minibatch, bytes sent for one, voxels of each) of a run on two processes."""
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
    seconds = 1 / steady_rate(record.trace(), plan, options.minibatches)
    return seconds, sent / options.minibatches, [float(row["voxels"]) for row in steps]


def compared(model: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure both plans of a network in turn."""
    profile, cluster, plans = prepared(model, options)
    measured: dict[str, list[tuple[float, float, list[float]]]] = {name: [] for name in plans}
    for repeat in range(options.repeats):
        for name, plan in plans.items():
            measured[name].append(trained(plan, model, folder / f"{name}-{repeat}", options))
    rows = {}
    for name, plan in plans.items():
        assert plan.estimate is not None
        sizes = measured[name][0][2]
        simulated = 1 / steady_rate(sp.simulate(plan, profile, cluster, sizes), plan, len(sizes))
        seconds = statistics.median(each for each, _, _ in measured[name])
        rows[name] = {
            "stages": [[stage.ranks[0], len(stage.layers)] for stage in plan.stages],
            "gap": plan.estimate.gap,
            "estimated_seconds": plan.estimate.period_seconds,
            "simulated_seconds": simulated,
            "measured_seconds": seconds,
            "measured_over_simulated": seconds / simulated,
            "estimated_bytes": sum(stage.sent_bytes for stage in plan.estimate.stages),
            "measured_bytes": statistics.median(sent for _, sent, _ in measured[name]),
        }
    gain = rows[STRAIGHT]["measured_seconds"] / rows[BENT]["measured_seconds"]
    return rows | {"gain": gain, "expected_gain": rows[STRAIGHT]["simulated_seconds"] / rows[BENT]["simulated_seconds"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", help="default: minkunet14a-narrow and minkunet34c-narrow")
    parser.add_argument("--data", type=Path, help="default: shapes that are made")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--voxel-size", type=float, default=0.03)
    parser.add_argument("--num-points", type=int, default=4096)
    parser.add_argument("--minibatches", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bandwidth", type=float, default=2e9, help="bytes per second between the processes")
    parser.add_argument("--latency", type=float, default=2e-4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.data is None:
            options.data = sp.data.make_shapes(folder / "shapes", num_train=40, num_test=2)
        for model in options.model or ["minkunet14a-narrow", "minkunet34c-narrow"]:
            (folder / model).mkdir()
            load = os.getloadavg()[0]
            print(json.dumps({"model": model, "load": load} | compared(model, folder / model, options), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
