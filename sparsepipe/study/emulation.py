"""Emulate plans: real processes that sleep for the profiled times; finished emulations are reused."""

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
    """Return whether a finished emulation exists; a damaged one is reported and ignored."""
    try:
        return (folder / "status.json").exists() and RunRecord(folder).status["state"] == "finished"
    except DamagedRecord as error:
        print(f"passed over: {error}", flush=True)
        return False


def emulated(
    runs: Path,
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    minibatches: int,
    *,
    stragglers: str = "",
    seed: int = 0,
) -> RunRecord:
    """Run a plan by real processes that sleep for the profiled times instead of computing.

    Messages, averages and waits are real, and many devices fit on few cores. A finished emulation of the same plan,
    costs, cluster, stragglers and seed is reused.

    Args:
        runs: folder of the run directories, such as `Workplace.runs`.
        plan: a plan of one pipeline or of pipeline replicas.
        profile: seconds and bytes of each layer, for the device types of `cluster`.
        cluster: the devices and links that are emulated.
        minibatches: how many go through the pipeline.
        stragglers: injected slowdowns, as `sparsepipe train --inject` takes them; "": none.
        seed: of random choices of the synchronization scheme and of the stragglers.

    Returns:
        The record of the finished run.

    Raises:
        InputError: a plan that does not fit profile and cluster.
        RunFailed: a process that ended with an error.

    Example:
        `emulated(place.runs, plan, profile, cluster, 40).metrics("summary")[-1]`
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
        print(f"emulation of {said} on {number_of(len(plan.ranks), 'device')}: from runs/{folder.name}")
        return RunRecord.load(folder)
    number = 0
    while folder.exists():  # one that did not finish stays as it is
        number += 1
        folder = folder.with_name(f"{folder.name.split('+')[0]}+{number}")
    sleep = "sleeps" if len(plan.ranks) == 1 else "sleep"
    print(
        f"emulation of {said}: {number_of(len(plan.ranks), 'process')} {sleep} through "
        f"{number_of(minibatches, 'minibatch')}"
    )
    config = RunConfig("replay", "replay", engine="replay", batch_size=samples, minibatches=minibatches, seed=seed)
    config = config.replace(stragglers=stragglers or None)
    job = launch(plan, config, run_dir=folder, profile=profile, cluster=cluster)
    job.wait()
    return job.record
