"""Launch several pipelines on this machine: one supervisor, under it the process that starts all others."""

from pathlib import Path

from ...cluster import Cluster
from ...host.openmp import check_threads
from ...host.python_path import check_current_folder, python_command
from ...pipelines import Pipelines
from ...profile import Profile
from ...runtime import RunConfig
from ..followed_job import FollowedJob
from ..prepare_pipelines import prepare_pipelines
from .started import check_workers, environment_of, followed, supervised


def launch_pipelines(
    plan: Pipelines,
    config: RunConfig,
    *,
    run_dir: Path | str,
    resume: bool = False,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    campaign: str | None = None,
    detach: bool = False,
) -> FollowedJob:
    """Start the workers of all pipelines and their coordinator on this machine, over the loopback interface alone."""
    check_threads(config.threads)
    check_workers(len(plan.ranks))
    check_current_folder()
    record, locks = prepare_pipelines(
        plan, config, run_dir=run_dir, resume=resume, profile=profile, cluster=cluster, campaign=campaign
    )
    options = ["--run-dir", str(record.folder), *(["--resume"] if resume else [])]
    command = python_command("sparsepipe.launchers.local.pipelines", *options)
    begin = supervised(record, locks, command, environment_of(config, len(plan.ranks)), detach=detach)
    return followed(record, locks, begin, resume=resume, detach=detach)
