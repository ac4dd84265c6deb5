"""Runs of every variant beside an intruder that comes and goes, in turn, and an oracle's."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.document import say
from scripts.bench.replan.cut_in_two import cut_in_two
from scripts.bench.rounds import quartiles, ratios
from sparsepipe import Cluster, Plan, Profile
from sparsepipe.errors import InputError
from sparsepipe.launching import Job
from sparsepipe.monitoring.factors import Factors
from sparsepipe.monitoring.interference import KINDS, Predictor, learn
from sparsepipe.monitoring.interference.measuring import measure
from sparsepipe.monitoring.interference.victims import Victim
from sparsepipe.monitoring.launching import launch
from sparsepipe.monitoring.variants import VARIANTS
from sparsepipe.records import RunRecord
from sparsepipe.runtime import RunConfig
from sparsepipe.study.contention import Contention
from sparsepipe.study.foresight import ORACLE, Foresight, foreseen, slowed_by
from sparsepipe.study.moving import changes, moments, whole_run_seconds

_WARM = 20  # first minibatches, in which kernels and caches warm up
NAMES = (*VARIANTS, ORACLE)  # never is the first: what the intruder costs is known from it
ALWAYS = ("never", "live")  # without which nothing can be told


@dataclass
class Variants:
    """What runs of each variant gave, round by round."""

    samples_per_second: dict[str, list[float]]
    runs: dict[str, list[dict[str, Any]]]  # what happened in each, and what was decided
    undisturbed: list[float] = field(default_factory=list)  # samples a second of each run before the intruder came
    slowed: list[tuple[float, ...]] = field(default_factory=list)  # ranks beside the intruder, each round's
    faults: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        live = self.samples_per_second["live"]
        rows = {
            name: {
                "samples_per_second": values,
                "quartiles": quartiles(values),
                "live_over": quartiles(ratios(live, values)),
                "changes": [run["changes"] for run in self.runs[name]],
                "runs": self.runs[name],
            }
            for name, values in self.samples_per_second.items()
        }
        told = {"slowed_by": self.slowed, "faults": self.faults, "undisturbed": self.undisturbed}
        return {"rounds": len(live), **told, "variants": rows}


def variants_of(
    config: RunConfig, intrusion: Contention, folder: Path, *, names: Sequence[str], rounds: int, deadline: float
) -> Variants:
    """Profile, plan and learn a predictor, then train under each variant in turn, with another seed each round.

    Of NAMES those are trained that are among `names`, or ALWAYS.

    No round begins, but the first, that would end after `deadline` (of `time.monotonic`) if it were as long as the
    longest before. Raises InputError for what cannot run.
    """
    say("profile, link and plan")
    profile, cluster, plan = cut_in_two(config)
    names = [name for name in NAMES if name in {*names, *ALWAYS}]
    needed = any(VARIANTS[name].needs_predictor for name in names if name != ORACLE)
    predictor = predictor_of(config, folder) if needed else None
    found, longest = Variants({name: [] for name in names}, {name: [] for name in names}), 0.0
    for turn in range(rounds):
        began = time.monotonic()
        if turn and began + longest > deadline:
            say(f"{turn} rounds, for another would take too long")
            break
        seeded, slowed = config.replace(seed=config.seed + turn), None
        for name in names:
            say(f"round {turn + 1} of {rounds}: {name}")
            run_dir = folder / f"{name}-{turn}"
            record, fault = _run(name, plan, seeded, intrusion, run_dir, (profile, cluster), predictor, slowed)
            slowed = cost_of_intruder(record) if name == "never" else slowed
            speed, run = config.batch_size / whole_run_seconds(record), told(name, record)
            say(f"  {speed:.1f} samples/s, {run['changes']} changes")
            found.samples_per_second[name].append(speed)
            found.undisturbed.append(config.batch_size / _seconds_undisturbed(record, intrusion))
            found.runs[name].append(run)
            found.faults += [f"{name}: {fault}"] if fault else []
        assert slowed is not None, "never is the first of each round"
        found.slowed.append(slowed.ranks)
        longest = max(longest, time.monotonic() - began)
    return found


def told(name: str, record: RunRecord) -> dict[str, Any]:
    """What a run says of itself: its changes, when the intruder came and went, and each decision."""
    return {
        "changes": len(record.plans) - 1,
        "moments": [list(moment) for moment in moments(record)],
        "decisions": [asdict(change) for change in changes(name, record)],
    }


def cost_of_intruder(never: RunRecord) -> Factors:
    """What the intruder costs each rank, which the oracle knows. Raises InputError where the run does not tell it."""
    try:
        return slowed_by(never)
    except InputError:
        raise InputError(
            "run.no_intruder",
            f"of the {len(never.metrics('step'))} minibatches of never none were beside the intruder, or all; give "
            "more --minibatches",
        ) from None


def predictor_of(config: RunConfig, folder: Path) -> Predictor:
    """Learn from the same network beside each kind of intruder."""
    victim = Victim(config.model, config.data, config.batch_size, config.voxel_size, config.num_points, config.engine)
    asked = {"kinds": tuple(KINDS), "together": 1, "seconds": 1.0, "device": "cpu"}
    measured = measure([victim], folder / "interference.jsonl", **asked, say=say)
    predictor, _ = learn(measured)
    return predictor


def _run(
    name: str,
    plan: Plan,
    config: RunConfig,
    intrusion: Contention,
    run_dir: Path,
    devices: tuple[Profile, Cluster],
    predictor: Predictor | None,
    slowed: Factors | None,
) -> tuple[RunRecord, str]:
    """Train once; return the record, and why an oracle's plan was not followed, if one was not."""
    profile, cluster = devices
    given: dict[str, Any] = {"run_dir": run_dir, "profile": profile, "cluster": cluster}
    count = config.minibatches
    if name == ORACLE:
        assert slowed is not None, "told by a run of never"
        plans = foreseen(intrusion, plan, profile, cluster, slowed, minibatches=count)
        with launch(plan, config, **given) as job, Foresight(job, plans) as foresight:
            _disturbed(job, intrusion, count)
        return job.record, foresight.fault
    asked = {"predictor": predictor} if VARIANTS[name].needs_predictor else {}
    with launch(plan, config, replan=name, **given, **asked) as job:
        _disturbed(job, intrusion, count)
    return job.record, ""


def _seconds_undisturbed(record: RunRecord, intrusion: Contention) -> float:
    """Seconds of a minibatch after the first ones, before the intruder of a run comes."""
    ends = sorted((row["minibatch"], row["seconds"]) for row in record.metrics("step"))
    last = round(intrusion.visits[0][0] * len(ends))
    first = min(_WARM, last // 2)
    return float((ends[last][1] - ends[first][1]) / (last - first))


def _disturbed(job: Job, intrusion: Contention, count: int) -> None:
    intrusion.inject(job, minibatches=count)
    job.wait()


def table(document: dict[str, Any]) -> str:
    """A line for each variant; quartiles as low, median and high."""
    heads = ("replan", "samples/s", "", "", "live over it", "", "", "changes")
    lines = [f"{heads[0]:10}" + "".join(f"{head:>12}" for head in heads[1:])]
    for name, row in document["variants"].items():
        speeds = "".join(f"{value:12.1f}" for value in row["quartiles"])
        over = "".join(f"{value:12.3f}" for value in row["live_over"])
        lines.append(f"{name:10}{speeds}{over}{_shown(row['changes']):>12}")
    slowed = ", ".join(f"{max(ranks):.2f}" for ranks in document["slowed_by"])
    lines.append(
        f"{document['rounds']} rounds in turn; beside the intruder the second process is {slowed} times as slow"
    )
    low, middle, high = quartiles(document["undisturbed"])
    least, most = min(document["undisturbed"]), max(document["undisturbed"])
    lines.append(
        f"before the intruder came, the {len(document['undisturbed'])} runs made {low:.0f}, {middle:.0f}, {high:.0f} "
        f"samples/s ({least:.0f} to {most:.0f})"
    )
    return "\n".join([*lines, *document["faults"]])


def _shown(counts: Sequence[int]) -> str:
    return "/".join(map(str, counts))
