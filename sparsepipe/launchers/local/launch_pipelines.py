"""Launch several pipelines on this machine: one supervisor, under it the process that starts all others."""

import subprocess
from pathlib import Path

from ...cluster import Cluster
from ...host.openmp import check_threads
from ...host.python_path import check_current_folder, python_command
from ...pipelines import Pipelines
from ...profile import Profile
from ...runtime import RunConfig
from .. import supervisor
from ..followed_job import FollowedJob
from ..prepare_pipelines import prepare_pipelines
from .started import check_workers, environment_of, followed


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

    def begin(lifeline: int) -> subprocess.Popen:
        with (record.folder / "logs" / "launcher.log").open("ab") as log:
            return subprocess.Popen(
                supervisor.command(lifeline, str(record.folder), command),
                pass_fds=[*locks, *([lifeline] if lifeline >= 0 else [])],
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log if detach else subprocess.PIPE,  # its last words, where the disk takes none
                stderr=log,
                env=environment_of(config, len(plan.ranks)),
            )

    return followed(record, locks, begin, resume=resume, detach=detach)
