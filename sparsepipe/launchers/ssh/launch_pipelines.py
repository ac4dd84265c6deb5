"""Launch several pipelines on the hosts of a cluster: one supervisor here, under it the parent of all of them."""

import shutil
from typing import Unpack

from ...cluster_probes.check import unlike_networks
from ...errors import InputError
from ...host.python_path import check_current_folder, python_command, python_environment
from ...io.files import write_atomic
from ...pipelines import Pipelines
from ...runtime import RunConfig
from ..base import Asked
from ..followed_job import FollowedJob
from ..local.started import followed, supervised
from ..prepare_pipelines import prepare_pipelines
from .certificate import check_openssl
from .placement import HOSTS, hosted_pipelines


def launch_pipelines(
    plan: Pipelines, config: RunConfig, *, detach: bool = False, **asked: Unpack[Asked]
) -> FollowedJob:
    """Start the workers of all pipelines, each rank at its place among the devices, and their coordinator.

    The coordinator is on the host of the first pipeline's rank 0. A pipeline that loses a host does not stop the
    others, whatever `on_lost_host` says: where restarts are left it waits for its host, and joins them again; else the
    run goes on without it, and says so. Where the coordinator's host is lost and restarts are left, all go on from the
    last checkpoint, with a coordinator on another host; with on_lost_host "wait" once that one is back.
    """
    cluster = asked.get("cluster")
    assert cluster is not None, "looked at before"
    nodes = {hosted.node.name: hosted.node for own in hosted_pipelines(plan, cluster) for hosted in own.hosts}
    if wrong := unlike_networks(list(nodes.values())):
        raise InputError(wrong[0])
    check_current_folder()
    record, locks = prepare_pipelines(plan, config, elsewhere=True, **asked)
    write_atomic(record.folder / HOSTS, cluster.to_toml(), private=True)  # variables of hosts may be secrets
    resume = asked.get("resume", False)
    options = ["--run-dir", str(record.folder), *(["--resume"] if resume else [])]
    command = python_command("sparsepipe.launchers.ssh.pipelines", *options)
    begin = supervised(record, locks, command, python_environment(), detach=detach)
    return followed(record, locks, begin, resume=resume, detach=detach)


def check_tools(config: RunConfig) -> None:
    """Raise InputError where a program is missing here that jobs on hosts need."""
    if shutil.which("ssh") is None:
        raise InputError("launcher ssh needs the program ssh, which is not on PATH; install OpenSSH's client")
    if config.encrypt:
        check_openssl()
