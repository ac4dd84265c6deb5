"""The ways of `--replan` where nothing but the plan and a slow device counts: processes sleep in place of computing."""

from pathlib import Path
from typing import Any

from scripts.bench.document import say
from scripts.bench.rounds import load, quartiles, ratios
from scripts.bench.sleeping import DEVICE, sleeping_profile
from sparsepipe import Cluster, Plan, Profile, partition
from sparsepipe.monitoring.factors import Factors
from sparsepipe.monitoring.launching import launch
from sparsepipe.monitoring.simulated import Stretch, best_plans
from sparsepipe.records import RunRecord
from sparsepipe.runtime import RunConfig
from sparsepipe.study.foresight import ORACLE, Foresight, Wanted
from sparsepipe.study.moving import whole_run_seconds
from sparsepipe.values.cluster import Link

NAMES = ("never", "measured", "live", ORACLE)
_LAYERS, _PARAMETER_BYTES, _OUTPUT_BYTES = 24, 4e5, 1e5  # of the network whose layers sleep
_SECONDS = 0.04  # of a minibatch, on one device
_SLOW_FROM, _SLOW_TO, _FACTOR = 0.25, 0.75, 2.0  # of the run; the second device takes so many times as long


def ways_replayed(folder: Path, *, minibatches: int, rounds: int) -> dict[str, Any]:
    """Return samples a second of each way, round by round, and live's over each other's in the same round."""
    profile = sleeping_profile(_LAYERS, _SECONDS, parameter_bytes=_PARAMETER_BYTES, output_bytes=_OUTPUT_BYTES)
    cluster = Cluster.uniform(2, device_type=DEVICE, link=Link(1e9, 1e-4))
    plan = partition(profile, cluster, planner="model-parallel")
    found: dict[str, list[float]] = {name: [] for name in NAMES}
    changes: dict[str, list[int]] = {name: [] for name in NAMES}
    loads = []
    for turn in range(rounds):
        for name in NAMES:
            say(f"replays, round {turn + 1} of {rounds}: {name}")
            loads.append(load())
            record = _run(name, plan, profile, cluster, folder / f"replayed-{name}-{turn}", minibatches)
            found[name].append(1 / whole_run_seconds(record))
            changes[name].append(len(record.plans) - 1)
            say(f"  {found[name][-1]:.1f} minibatches/s, {changes[name][-1]} changes")
    return {
        name: {
            "minibatches_per_second": values,
            "quartiles": quartiles(values),
            "live_over": quartiles(ratios(found["live"], values)),
            "changes": changes[name],
        }
        for name, values in found.items()
    } | {"loads": loads}


def _run(name: str, plan: Plan, profile: Profile, cluster: Cluster, run_dir: Path, minibatches: int) -> RunRecord:
    first, last = round(_SLOW_FROM * minibatches), round(_SLOW_TO * minibatches)
    config = RunConfig("replay", "replay", engine="replay", batch_size=1, minibatches=minibatches)
    config = config.replace(stragglers=f"slow:rank=1,factor={_FACTOR:g},from={first},to={last}")
    given: dict[str, Any] = {"run_dir": run_dir, "profile": profile, "cluster": cluster}
    if name != ORACLE:
        with launch(plan, config, replan=name, **given) as job:
            job.wait()
        return job.record
    usual, slow = Factors.none(2), Factors((1.0, _FACTOR))
    parts = [Stretch(0, first, usual), Stretch(first, last, slow), Stretch(last, minibatches, usual)]
    wanted = [Wanted(at, new) for at, new in best_plans(plan, profile, cluster, parts) if (at, new) != (0, plan)]
    with launch(plan, config, **given) as job, Foresight(job, wanted, tell=say):
        job.wait()
    return job.record


def table(document: dict[str, Any]) -> str:
    """A line for each way; quartiles as low, median and high."""
    heads = ("replayed", "minibatches/s", "", "", "live over it", "", "", "changes")
    lines = [f"{heads[0]:10}" + "".join(f"{head:>14}" for head in heads[1:])]
    for name in NAMES:
        row = document[name]
        speeds = "".join(f"{value:14.2f}" for value in row["quartiles"])
        over = "".join(f"{value:14.3f}" for value in row["live_over"])
        lines.append(f"{name:10}{speeds}{over}{'/'.join(map(str, row['changes'])):>14}")
    lines.append(f"the second device takes {_FACTOR:g} times as long for half of the run; nobody computes")
    return "\n".join(lines)
