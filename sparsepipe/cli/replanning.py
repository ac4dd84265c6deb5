"""What `--replan` does: a simulation of every variant beside an oracle, and a job that is followed."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from ..monitoring.change_point import seconds_of
from ..monitoring.drift import Watch
from ..monitoring.simulated import ReplanForecast, check_replans, oracle_segments, simulate_replans
from ..monitoring.variants import VARIANTS, variant
from ..records.run_progress import MINIBATCHES, SAMPLES
from ..util.io.files import write_json
from ..util.text.numbers import as_measured, number_of
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.stragglers import Stragglers
from .launches import column_name
from .output import Answer, cell, table


def simulate_replanned(
    options: argparse.Namespace,
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    sizes: Sequence[float],
    stragglers: Stragglers,
) -> Answer:
    """Simulate the run under each variant; print the changes of the requested one, and write its trace."""
    check_replans(stragglers, len(cluster.devices), len(sizes))
    found = {
        name: simulate_replans(
            plan,
            profile,
            cluster,
            sizes,
            variant=variant(name),
            watcher=Watch(profile, cluster, plan, simulated=True),
            stragglers=stragglers,
            epoch_minibatches=options.epoch_minibatches,
        )
        for name in VARIANTS
    }
    oracle = seconds_of(oracle_segments(plan, profile, cluster, sizes, stragglers=stragglers))
    chosen = found[options.replan]
    if options.trace:
        write_json(options.trace, chosen.trace.to_chrome())
    pace, samples = (SAMPLES, float(profile.batch_size)) if profile.batch_size else (MINIBATCHES, 1.0)
    rows = {name: _row(one, oracle, pace, samples) for name, one in found.items()}
    notes = {name: text for name in rows if (text := without_predictor(name, "a simulation"))}
    for name, text in notes.items():
        rows[name]["note"] = text
    document = {
        "minibatches": len(sizes),
        **chosen.to_json(),
        "stragglers": str(stragglers),
        "variants": rows,
        "oracle": {"makespan_seconds": oracle, pace: samples * len(sizes) / oracle if oracle else None},
        "warnings": list(profile.warnings),
    }
    lines = [
        f"{number_of(len(sizes), 'minibatch')} in {chosen.seconds:.3f} s simulated, "
        f"{number_of(len(chosen.changes), 'change')} of the plan ({options.replan}); {oracle:.3f} s for who knew all "
        "that comes",
        *(
            f"from minibatch {one.first_minibatch}: {'-'.join(str(len(s.ranks)) for s in one.decision.plan.stages)} "
            f"replicas, {'-'.join(str(len(s.layers)) for s in one.decision.plan.stages)} layers; {one.decision.why}"
            for one in chosen.changes
        ),
        _table(rows, pace),
        *notes.values(),
    ]
    note = stragglers.note()
    return Answer(document, "\n".join([*lines, *([note] if note else [])]))


def without_predictor(name: str, what: str) -> str:
    """Return a warning for a variant if `what` has no predictor; empty if it needs none."""
    return (
        f"{name}: each layer as its rank was measured, {what} has no predictor"
        if VARIANTS[name].needs_predictor
        else ""
    )


def _row(one: ReplanForecast, oracle: float, pace: str, samples: float) -> dict[str, Any]:
    return {
        "makespan_seconds": one.seconds,
        pace: samples * one.minibatches_per_second,
        "of_oracle": oracle / one.seconds if one.seconds else 1.0,
        "changes": len(one.changes),
    }


def _table(rows: Mapping[str, Mapping[str, Any]], pace: str) -> str:
    lines = [
        (name, as_measured(row[pace]), f"{row['of_oracle']:.1%}", cell(row["changes"])) for name, row in rows.items()
    ]
    return table([("replan", column_name(pace), "of the oracle", "changes"), *lines])
