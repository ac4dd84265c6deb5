"""Launch several pipelines on this machine: one supervisor, under it the process that starts all others."""

from typing import Unpack

from ...host.openmp import check_threads
from ...host.python_path import check_current_folder, python_command
from ...pipelines import Pipelines
from ...runtime import RunConfig
from ..base import Asked
from ..followed_job import FollowedJob
from ..prepare_pipelines import prepare_pipelines
from ..supervisor import ROOM
from .started import check_workers, environment_of, followed, supervised


def launch_pipelines(
    plan: Pipelines,
    config: RunConfig,
    *,
    detach: bool = False,
    **asked: Unpack[Asked],
) -> FollowedJob:
    """Start the workers of all pipelines and their coordinator on this machine, over the loopback interface alone."""
    check_threads(config.threads)
    check_workers(len(plan.ranks))
    check_current_folder()
    record, locks = prepare_pipelines(plan, config, **asked)
    resume = asked.get("resume", False)
    options = ["--run-dir", str(record.folder), *(["--resume"] if resume else [])]
    command = [*python_command("sparsepipe.launchers.local.pipelines", *options), ROOM]
    begin = supervised(record, locks, command, environment_of(config, len(plan.ranks)), detach=detach)
    return followed(record, locks, begin, resume=resume, detach=detach)
