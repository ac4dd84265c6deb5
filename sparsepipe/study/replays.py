"""Replays of plans: real processes that sleep as long as the profile says; finished ones are read from their record."""

from pathlib import Path

from ..errors import DamagedRecord
from ..launching import launch
from ..records import RunRecord
from ..records.provenance import plan_digest
from ..runtime.config import RunConfig
from ..util.text.counting import number_of
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from .workplace import digest


def _finished(folder: Path) -> bool:
    """Return whether a replay stands there that can be read; a damaged one is passed over, which is said."""
    try:
        return (folder / "status.json").exists() and RunRecord(folder).status["state"] == "finished"
    except DamagedRecord as error:
        print(f"passed over: {error}", flush=True)
        return False


def replay(
    runs: Path,
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    minibatches: int,
    *,
    stragglers: str = "",
    seed: int = 0,
) -> RunRecord:
    """Sleep through `plan` in a folder of `runs` that the plan, the costs and the cluster name.

    So do what delays ranks and the seed, of one pipeline or of several.
    """
    facts = [plan_digest(plan), profile.digest, cluster.digest, minibatches]
    called, samples = plan.planner, profile.batch_size or 1
    said = called if len(plan.stages) == 1 else f"{called} ({plan.schedule})"
    if plan.replication is not None:
        called = said = plan.replication.name
        samples = max(1, int(plan.samples or 1))
    facts += [samples, stragglers, seed]
    folder = runs / f"replay-{called}-{len(plan.ranks)}-{digest(facts)}"
    if _finished(folder):
        print(f"replay of {said} on {number_of(len(plan.ranks), 'device')}: from runs/{folder.name}")
        return RunRecord.load(folder)
    number = 0
    while folder.exists():  # one that did not finish stays as it is
        number += 1
        folder = folder.with_name(f"{folder.name.split('+')[0]}+{number}")
    sleep = "sleeps" if len(plan.ranks) == 1 else "sleep"
    print(
        f"replay of {said}: {number_of(len(plan.ranks), 'process')} {sleep} through "
        f"{number_of(minibatches, 'minibatch')}"
    )
    config = RunConfig("replay", "replay", engine="replay", batch_size=samples, minibatches=minibatches, seed=seed)
    config = config.replace(stragglers=stragglers or None)
    job = launch(plan, config, run_dir=folder, profile=profile, cluster=cluster)
    job.wait()
    return job.record
