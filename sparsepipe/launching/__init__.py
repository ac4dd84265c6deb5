"""Launchers start a plan as worker processes, on this machine or on a cluster.

A new launcher is a folder or file here with `launch` and `attach` (see `Launcher` in base.py), and a row in LAUNCHERS.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..runtime import RunConfig
from ..runtime.plan_fit import accumulating
from ..runtime.workloads.resolved import ResolvedRun, resolve
from ..util.host.ssh import is_here
from ..util.io.quantities import check_keywords, keywords_of, knows_its_keywords
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.replication import Rule, parse_rule
from ..values.stragglers import Stragglers
from .base import Job, Launcher
from .resuming import first_pipeline


def _local() -> Launcher:
    from . import local

    return local  # type: ignore[return-value]  # a module, which names its own options


def _ssh() -> Launcher:
    from .ssh import launch_ssh

    return launch_ssh  # type: ignore[return-value]


def _ray() -> Launcher:
    from .ray import launch_ray

    return launch_ray  # type: ignore[return-value]


LOCAL, SSH, RAY = "local", "ssh", "ray"
SLURM = "slurm"  # no launcher of jobs: a script is written, which launches within one of Slurm (slurm.py)
LAUNCHERS: Mapping[str, Callable[[], Launcher]] = {  # brought in when asked for
    LOCAL: _local,
    SSH: _ssh,
    RAY: _ray,
}


def default_launcher(cluster: Cluster | None) -> str:
    """Return the launcher for a cluster: "local" where all of its hosts are this one, else "ssh"."""
    return SSH if cluster and not all(is_here(node.address) for node in cluster.nodes) else LOCAL


def launch(
    plan: Plan,
    config: RunConfig | ResolvedRun,
    *,
    run_dir: Path | str,
    replication: Rule | str | None = None,
    stragglers: Stragglers | str | None = None,
    launcher: str = "local",
    resume: bool = False,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    campaign: str | None = None,
    **options: Any,
) -> Job:
    """Start `plan` as worker processes and return at once.

    With engine "replay" the workers compute nothing: they sleep as long as `profile` says that their stages take on
    the devices of `cluster` (runtime/workloads/replay.py).
    Several pipelines train copies of one network by the rule `replication`, that of the plan unless given, such as
    "partial-reduce:wait=0.1". `stragglers` makes ranks slow, or kills them, such as "slow:rank=1,factor=4".
    `campaign` names the runs that this one is compared with (records/campaigns.py); it is kept in the record.
    `forward_only=CHECKPOINT`, or the folder of a run: nothing is trained; the validation split goes through the stages
    forwards alone, and the network's outputs are written to predictions.npz there: `outputs` [rows, …], one row per
    sample, or per voxel if voxels have classes, in the data's order. `predictions` [rows]: the most probable class.
    `outputs_NAME` [rows, …]: each further output of the network, named by its key in a dict or its index in a tuple.
    `sample` [rows], an index into `name` [samples]. Rows of voxels have `coordinates` [rows, 3] too, and `point_row`
    [points] has the row of each point of each file, −1 for one that was not used, sample after sample as
    `point_offsets` [samples + 1] says; see `data.to_points`. The middle of a voxel is at `origin` [samples, 3] +
    (`coordinates` + 0.5) * `edge` [samples], in the file's own units. The summary has samples/s, and minibatches'
    latencies (mean, median, p95). Of several pipelines the first computes them, on its own devices.
    `resume` continues from the newest checkpoint in `run_dir`, under the same plan or another. `options` are the
    launcher's own. Raises InputError for a plan, a folder or an option that cannot be used, before anything is started.
    """
    run = resolve(config)
    if stragglers is not None:
        run = replace(run, config=run.config.replace(stragglers=str(stragglers)))
    check_options(launcher, options)
    chosen = accumulating(_with_rule(plan, replication), run.config.accumulation)
    if options.get("forward_only") is not None and chosen.members:
        chosen, cluster = first_pipeline(chosen, cluster)
    return _launcher(launcher).launch(
        chosen,
        run,
        run_dir=run_dir,
        resume=resume,
        profile=profile,
        cluster=cluster,
        campaign=campaign,
        **options,
    )


def check_options(launcher: str, options: Iterable[str], *, beside: Iterable[str] = ()) -> None:
    """Raise InputError for the first name among `options` of a launch that neither `launch` nor the launcher knows.

    `beside`: names that whoever calls `launch` takes, too.
    """
    known = [*beside, *keywords_of(launch), *keywords_of(_launcher(launcher).launch)]
    check_keywords(f"launch with launcher {launcher!r}", options, known)


def _with_rule(plan: Plan, given: Rule | str | None) -> Plan:
    """Return the plan with another replication rule. Raises InputError for one that is none, or of one pipeline."""
    if given is None:
        return plan
    chosen = parse_rule(given) if isinstance(given, str) else given
    if plan.replication is None:
        raise InputError(
            "replication.one_pipeline",
            f"replication {chosen.name} averages pipeline replicas, but this plan has only one pipeline; plan "
            "several (`sparsepipe plan --pipelines P`, in Python partition_pipelines), or omit replication",
        )
    return replace(plan, replication=chosen)


@knows_its_keywords
def attach(run_dir: Path | str, *, launcher: str = "local") -> Job:
    """Attach to a running job that was launched with `detach=True`, or by another process.

    Args:
        run_dir: The run directory.
        launcher: "local" (this machine), "ssh" or "ray".

    Returns:
        The job, with `state`, `wait`, `stop` and `record`.

    Raises:
        InputError: The folder is not a run directory, or the launcher is unknown.

    Example:
        >>> sp.attach(run_dir).state
        'finished'

    See also:
        guides/resume_and_recover, `launch`
    """
    return _launcher(launcher).attach(run_dir)


def _launcher(name: str) -> Launcher:
    if name not in LAUNCHERS:
        raise InputError(
            "launcher.unknown", f"unknown launcher {name!r}, expected one of {', '.join(LAUNCHERS)}", name=name
        )
    return LAUNCHERS[name]()


__all__ = [
    "LAUNCHERS",
    "LOCAL",
    "RAY",
    "SLURM",
    "SSH",
    "Job",
    "Launcher",
    "attach",
    "check_options",
    "default_launcher",
    "launch",
]
