"""Orders in real processes: two stages train on clouds of lognormal size, as long as the simulator says or longer."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import sparsepipe as sp
from scripts.bench.document import say
from scripts.bench.order.distributions import lognormal
from scripts.bench.rounds import load
from scripts.bench.scratch import scratch
from scripts.bench.sleeping import DEVICE, sleeping_profile
from sparsepipe.data import compose
from sparsepipe.monitoring.factors import Factors
from sparsepipe.records import RunRecord
from sparsepipe.study import cached_runs
from sparsepipe.values.trace import WORK

MODEL, VOXEL_SIZE, CV = "minkvgg11bn-narrow", 0.002, 0.75
CLOUDS, MEAN_POINTS, LEAST_POINTS = 128, 16_000, 1600
EPOCHS = 3  # the first warms up
CALIBRATIONS = 2  # runs on equal clouds by which stages are cut anew, until they compute about as long
EMULATED, EMULATED_STAGES, STAGE_SECONDS = 160, (2, 4), 0.04  # minibatches; seconds of a mean one in a stage
BALANCED, SHUFFLED = "balanced", "shuffle"
ORDERS = (SHUFFLED, "snake", "planned")


def measure(*, rounds: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return a row for each order and round: seconds of an epoch, measured and simulated."""
    rows = []
    with scratch("bench-order") as folder:
        varied = np.maximum(LEAST_POINTS, MEAN_POINTS * np.array(lognormal(CV, CLOUDS, seed))).astype(int)
        data = {SHUFFLED: _clouds(folder / "varied", varied.tolist(), seed)}
        data[BALANCED] = _clouds(folder / "equal", [int(varied.mean())] * CLOUDS, seed)
        profile = sp.profile_model(
            MODEL,
            str(data[SHUFFLED]),
            voxel_size=VOXEL_SIZE,
            num_points=10**6,
            batch_size=1,
            engine="native",
            beside=1,  # the other stage's process: both share the memory's bandwidth
        )
        cluster = sp.Cluster.uniform(2, device_type=profile.device_types[0])

        def trained(order: str, number: int, name: str, machine: tuple[sp.Profile, sp.Cluster]) -> RunRecord:
            config = sp.RunConfig(
                MODEL,
                str(data.get(order, data[SHUFFLED])),
                voxel_size=VOXEL_SIZE,
                num_points=10**6,
                batch_size=1,
                epochs=EPOCHS,
                learning_rate=1e-4,
                order=SHUFFLED if order == BALANCED else order,
                seed=seed + number,
                engine="native",
                threads=1,
                validate=False,
            )
            plan = sp.partition(*machine, planner="model-parallel")
            with sp.launch(plan, config, run_dir=folder / name, profile=machine[0], cluster=machine[1]) as job:
                job.wait()
            return job.record

        machine = profile, cluster
        for trial in range(CALIBRATIONS):
            record = trained(BALANCED, 0, f"calibration{trial}", machine)
            factors = Factors(_factors(record, profile, cluster))
            machine = factors.scaled(profile, cluster)
            ranks = [round(factor, 2) for factor in factors.ranks]
            say(f"stages {[len(stage.layers) for stage in record.plan.stages]} take {ranks} × their profile")
        for number in range(rounds):
            for order in (BALANCED, *ORDERS):
                before = load()
                record = trained(order, number, f"{order}{number}", machine)
                rows.append({"order": order, "round": number, **_seconds(record, record.plan, *machine)})
                rows[-1]["load"] = round(before, 2)
                say(" ".join(f"{key}={value}" for key, value in rows[-1].items()))
    return rows


def _factors(record: RunRecord, profile: sp.Profile, cluster: sp.Cluster) -> tuple[float, ...]:
    """Return how many times as long as by the profile each stage computes, after the first epoch."""
    sizes = [size for epoch in range(EPOCHS) for size in record.sizes_of_epoch(epoch)]
    first = len(sizes) // EPOCHS
    measured, simulated = (
        [
            sum(
                span.seconds
                for span in trace.spans
                if span.rank == rank and span.kind in WORK and span.minibatch >= first
            )
            for rank in range(len(cluster.devices))
        ]
        for trace in (record.trace(), sp.simulate(record.plan, profile, cluster, sizes))
    )
    return tuple(each / expected for each, expected in zip(measured, simulated, strict=True))


def emulated(*, rounds: int, seed: int = 0) -> list[dict[str, Any]]:
    """Return a row for each number of stages, order and round: processes that sleep as long as stages would compute.

    They send each other real messages and need no cores of their own.
    """
    rows: list[dict[str, Any]] = []
    with scratch("bench-order") as folder:
        for stages, number in product(EMULATED_STAGES, range(rounds)):
            profile = sleeping_profile(stages, stages * STAGE_SECONDS, parameter_bytes=1e5, output_bytes=1e3)
            cluster = sp.Cluster.uniform(stages, device_type=DEVICE, link=sp.Link(1e9, 1e-4))
            plan = sp.partition(profile, cluster, planner="model-parallel")
            drawn = lognormal(CV, EMULATED, seed + number)
            for order in (BALANCED, *ORDERS):
                sizes = [sum(drawn) / len(drawn)] * len(drawn)
                if order != BALANCED:
                    dealt = compose(drawn, batch_size=1, order=order, seed=seed + number, stages=stages)
                    sizes = [drawn[samples[0]] for samples in dealt]
                sized, before = replace(profile, sizes=tuple(sizes)), load()
                record = cached_runs.emulated(folder, plan, sized, cluster, len(sizes), seed=seed + number)
                ends = [row["seconds"] for row in record.metrics("step")]
                trace = sp.simulate(plan, sized, cluster, sizes)
                last = [span.end for span in trace.spans if span.stage == stages - 1 and span.kind == "backward"]
                rows.append(
                    {
                        "order": f"{order}, {stages} stages",
                        "round": number,
                        "seconds": max(ends) - min(ends),
                        "simulated_seconds": max(last) - min(last),
                        "voxels": sum(sizes),
                        "cv": float(np.std(sizes) / np.mean(sizes)),
                        "load": round(before, 2),
                    }
                )
                say(" ".join(f"{key}={value}" for key, value in rows[-1].items()))
    return rows


def _clouds(folder: Path, points: Sequence[int], seed: int) -> Path:
    """Write clouds of points on bent surfaces, in two classes, whose area grows with the number of points."""
    random = np.random.default_rng(seed)
    for k, count in enumerate(points):
        kind = ("waves", "bowls")[k % 2]
        (folder / kind / "train").mkdir(parents=True, exist_ok=True)
        x, y = random.random((2, count))
        z = 0.5 + 0.3 * np.sin((4.0 if k % 2 else 1.5) * x + k) * np.cos(4.0 * y)
        np.save(folder / kind / "train" / f"{k:03d}.npy", np.stack([x, y, z], axis=1).astype(np.float32))
    return folder


def _seconds(record: RunRecord, plan: sp.Plan, profile: sp.Profile, cluster: sp.Cluster) -> dict[str, float]:
    """Seconds of an epoch after the first: from the end of the one before to its own, at the last stage."""
    steps = record.metrics("step")
    ends = [max(row["seconds"] for row in steps if row["epoch"] == epoch) for epoch in range(EPOCHS)]
    sizes = [record.sizes_of_epoch(epoch) for epoch in range(EPOCHS)]
    trace = sp.simulate(plan, profile, cluster, [size for own in sizes for size in own])
    last, expected = len(plan.stages) - 1, [0.0] * EPOCHS
    for span in trace.spans:
        if span.stage == last and span.kind == "backward":
            epoch = span.minibatch // len(sizes[0])
            expected[epoch] = max(expected[epoch], span.end)
    each = [after - before for before, after in zip(ends, ends[1:], strict=False)]
    simulated = [after - before for before, after in zip(expected, expected[1:], strict=False)]
    return {
        "seconds": statistics.fmean(each),
        "simulated_seconds": statistics.fmean(simulated),
        "voxels": float(sum(sizes[-1])),
        "cv": float(np.std(sizes[-1]) / np.mean(sizes[-1])),
    }


def ratios(rows: list[dict[str, Any]]) -> list[dict[str, float | str]]:
    """Return medians over the rounds for each order: seconds of as many voxels over balanced and over shuffled."""
    found: list[dict[str, float | str]] = []
    of = {(row["order"], row["round"]): row for row in rows}
    for order in dict.fromkeys(row["order"] for row in rows):
        own = [row for row in rows if row["order"] == order]

        def over(other: str, field: str, own: list[dict[str, Any]] = own, order: str = order) -> float:
            name = ", ".join([other, *order.split(", ")[1:]])  # of as many stages
            pairs = [(row, of[name, row["round"]]) for row in own if (name, row["round"]) in of]
            return statistics.median(
                (row[field] / row["voxels"]) / (base[field] / base["voxels"]) for row, base in pairs
            )

        found.append(
            {
                "order": order,
                "cv": own[0]["cv"],
                "seconds": statistics.median(row["seconds"] for row in own),
                "over_balanced": over(BALANCED, "seconds"),
                "over_balanced_simulated": over(BALANCED, "simulated_seconds"),
                "shuffled_over": 1 / over(SHUFFLED, "seconds"),
                "measured_over_simulated": statistics.median(row["seconds"] / row["simulated_seconds"] for row in own),
            }
        )
    return found


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each order: medians over the rounds."""
    head = ("cv", "seconds", "over balanced", "simulated", "shuffled over it", "measured/simulated")
    yield f"{'order':20s}" + "".join(f"{name:>20s}" for name in head)
    for one in ratios(rows):
        name, *values = one.values()
        yield f"{name:20s}" + "".join(f"{value:>20.3f}" for value in values)
