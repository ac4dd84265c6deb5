"""What is learned under each rule from the same samples, until it is flat, and how soon."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sparsepipe as sp
from sparsepipe.errors import InputError
from sparsepipe.launching import Job
from sparsepipe.networks import network
from sparsepipe.records import RunRecord
from sparsepipe.values.plan import Plan, Stage
from sparsepipe.values.replication import Arithmetic, Rule, parse_rule

from ..document import say
from ..rounds import load
from ..scratch import scratch
from .pace import seconds_of

MODEL, BATCH, RATE = "minkvgg11bn-narrow", 32, 0.02
REFERENCE, CONSTANT = "all-reduce", "constant"
PATIENCE, FLAT = 4, 0.01  # flat: so many epochs together are no better by more than this share of the samples
SETTINGS: dict[str, Any] = {"batch_size": BATCH, "engine": "native", "threads": 1}


@dataclass(frozen=True)
class Setting:
    """What is trained."""

    data: str
    pipelines: int
    epochs: int  # at most
    seeds: int
    voxel_size: float = 0.1
    num_points: int = 1024  # of a cloud
    rate: float = RATE  # of the reference
    schedule: str = CONSTANT  # of the rate: one that decays to 0 has all of `epochs`

    @property
    def settings(self) -> dict[str, Any]:
        """What all runs have in common."""
        return {**SETTINGS, "voxel_size": self.voxel_size, "num_points": self.num_points}


def measure(setting: Setting, rules: list[str], stragglers: list[str]) -> list[dict[str, Any]]:
    """Return a row for each rule, straggler and seed. All train for as many epochs as the reference is not flat yet, or
    for all of them where the rate decays over them."""
    layers = tuple(row.id for row in network(MODEL, num_classes=1).rows)  # the same for any number
    plan = Plan((Stage(layers, (0,)),))
    rows: list[dict[str, Any]] = []
    with scratch("bench-replication") as folder:
        constant = setting.schedule == CONSTANT
        epochs = _epochs_until_flat(folder / "reference", setting, plan) if constant else setting.epochs
        for spec in stragglers:
            for rule in rules:
                for seed in range(setting.seeds):
                    place, before = folder / f"run{len(rows)}", load()
                    with _started(place, setting, plan, rule, spec, seed=seed, epochs=epochs) as job:
                        job.wait()
                    facts = {"rule": rule, "straggler": spec or "nobody is slow", "seed": seed}
                    facts |= {"learning_rate": rate_of(parse_rule(rule), setting.pipelines, setting.rate)}
                    rows.append({**facts, **_outcome(job.record), "load": round(before, 2)})
                    say(" ".join(f"{key}={value}" for key, value in rows[-1].items() if key != "reached"))
    return _with_targets(rows)


def rate_of(rule: Rule, num_pipelines: int, rate: float = RATE) -> float:
    """Return the learning rate at which a sample moves the mean of all pipelines' weights as far as under all-reduce,
    where it is `rate`.

    There one step is of the mean gradient of P minibatches. Averages of weights leave the mean over all pipelines where
    it is, so that one step of each moves it as far: by the same rate, the batch is of P minibatches as well. A server
    that adds a share of each change moves by share × P times as much, and an outer step in the long run by
    outer rate / (1 - outer momentum) times: their effective batch is so much smaller, and their rate with it (linearly,
    as Goyal et al., "Accurate, Large Minibatch SGD", 2017, scale rates by batches).
    """
    if rule.arithmetic is Arithmetic.SERVER:
        return rate / ((rule.scale or 1 / num_pipelines) * num_pipelines)
    if rule.arithmetic is Arithmetic.OUTER_STEP:
        return rate * (1 - rule.momentum) / rule.outer_rate
    return rate


def is_flat(accuracies: Sequence[float]) -> bool:
    """Whether the latest epochs reached no more than those before."""
    before, latest = accuracies[:-PATIENCE], accuracies[-PATIENCE:]
    return bool(before) and max(latest) <= max(before) + FLAT


def _epochs_until_flat(place: Path, setting: Setting, plan: Plan) -> int:
    """Return how many epochs the reference trains until it is flat; the most where it never is."""
    accuracies: list[float] = []
    with _started(place, setting, plan, REFERENCE, "", seed=0, epochs=setting.epochs) as job:

        def look(row: dict[str, Any]) -> None:
            if row["event"] == "epoch" and row.get("validation") and not is_flat(accuracies):
                accuracies.append(row["validation"]["accuracy"])
                if is_flat(accuracies):
                    with suppress(InputError):  # it is about to finish
                        job.stop()

        job.wait(on_row=look)
    found = len(accuracies) if is_flat(accuracies) else setting.epochs
    say(f"{REFERENCE} is {'flat' if is_flat(accuracies) else 'not flat'} after {found} epochs: {accuracies}")
    return found


def _started(place: Path, setting: Setting, plan: Plan, rule: str, stragglers: str, *, seed: int, epochs: int) -> Job:
    rate = rate_of(parse_rule(rule), setting.pipelines, setting.rate)
    config = sp.RunConfig(
        MODEL,
        setting.data,
        **setting.settings,
        epochs=epochs,
        learning_rate=rate,
        learning_rate_schedule=setting.schedule,
        seed=seed,
    )
    several = sp.Plan.alike(plan, setting.pipelines, parse_rule(rule), samples=BATCH)
    return sp.launch(several, config, run_dir=place, stragglers=stragglers or None)


def _outcome(record: RunRecord) -> dict[str, Any]:
    (summary,) = record.metrics("summary")
    told = [row for row in record.metrics("epoch") if row.get("validation")]
    seconds = seconds_of(record)
    first = max(row["seconds"] for row in record.metrics("step")) - seconds
    last = summary["validation"]["accuracy"]
    reached = [[row["seconds"] - first, row["validation"]["accuracy"]] for row in told]
    flat = is_flat([accuracy for _, accuracy in reached])
    return {"accuracy": last, "flat": flat, "seconds": seconds, "epochs": len(reached), "reached": reached}


def _with_targets(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add when each run first reached the least of the reference's final accuracies; None: it never did."""
    target = min((row["accuracy"] for row in rows if row["rule"] == REFERENCE), default=None)
    for row in rows:
        seconds = [after for after, accuracy in row["reached"] if target is not None and accuracy >= target]
        row |= {"target": target, "seconds_to_target": min(seconds, default=None)}
    return rows


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each rule and straggler: the median, and the least and the most over the seeds."""
    head = f"{'rate':>9s}{'accuracy':>26s}{'flat':>6s}{'seconds':>12s}{'seconds to target':>20s}"
    yield f"{'straggler':24s}{'rule':20s}{head}"
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["straggler"], row["rule"]), []).append(row)
    for (spec, rule), own in groups.items():
        values = sorted(row["accuracy"] for row in own)
        accuracy = f"{statistics.median(values):.3f} [{values[0]:.3f}, {values[-1]:.3f}]"
        flat = f"{sum(row['flat'] for row in own)}/{len(own)}"
        seconds = statistics.median(row["seconds"] for row in own)
        times = [row["seconds_to_target"] for row in own if row["seconds_to_target"] is not None]
        first = f"{statistics.median(times):.1f}" if times else "not reached"
        told = f"{own[0]['learning_rate']:9.4f}{accuracy:>26s}{flat:>6s}{seconds:12.1f}{first:>14s}"
        yield f"{spec:24s}{rule:20s}{told} {len(times)}/{len(own)}"
