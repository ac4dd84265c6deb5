"""Launch on the hosts of a cluster: a supervisor here, under it the controller, which reaches the hosts by `ssh`."""

import shutil
from pathlib import Path
from typing import Unpack

from ...errors import InputError
from ...records.record_files import HOSTS
from ...runtime import RunConfig
from ...runtime.wire.encryption import check_openssl
from ...runtime.workloads.resolved import ResolvedRun
from ...util.host.imports import check_current_folder, python_command, python_environment
from ...util.io.files import write_atomic
from ...values.plan import Plan
from ..base import Asked
from ..followed_job import FollowedJob
from ..local.launch_local import attach
from ..local.started import followed, supervised
from ..prepare import for_hosts, prepare
from ..probes.check import unlike_networks
from .placement import hosted_ranks, hosts_of_all

__all__ = ["attach", "launch"]


def launch(
    plan: Plan,
    run: ResolvedRun,
    *,
    port: int | None = None,
    detach: bool = False,
    forward_only: Path | str | None = None,
    **asked: Unpack[Asked],
) -> FollowedJob:
    """Start the workers of `plan` on the hosts of `cluster`, each at its place among the devices there.

    Hosts are reached by the system's `ssh`, with the keys and aliases of the user's ssh_config, and nothing is typed.
    The record is on this machine. Data are read on each host, by the path or the manifest's name that the settings
    have: the same on all of them. A host that has none gets those of this machine, for the time of the run, and
    files of the user's own code. `detach`: the job outlives this process; `attach` finds it again. `forward_only`: as
    on one machine; the weights are brought to the hosts.

    The coordinator of several pipelines is on the host of the first one's rank 0. A pipeline that loses a host does not
    stop the others, whatever `on_lost_host` says: where restarts are left it waits for its host, and joins them again;
    else the run continues without it, and says so. If the coordinator's host is lost and restarts are left, all
    continue from the last checkpoint, with a coordinator on another host; with on_lost_host "wait" once that one is
    back. Raises InputError for a plan or settings that cannot run there, before anything is started.
    """
    cluster = asked.get("cluster")
    if cluster is None:
        raise InputError(
            "launcher.no_cluster", "launcher 'ssh' needs a list of hosts; give {cluster}", setting={"cluster": ...}
        )
    check_tools(run.config)
    resume = asked.get("resume", False)
    count = for_hosts(plan, port=port, run_dir=asked["run_dir"], resume=resume)
    hosts = hosts_of_all(plan, cluster) if plan.members else hosted_ranks(count, cluster)
    if wrong := unlike_networks([hosted.node for hosted in hosts]):
        raise InputError("hosts.unlike_networks", wrong[0])
    check_current_folder()
    record, locks = prepare(plan, run, forward_only=forward_only, elsewhere=True, **asked)
    write_atomic(record.folder / HOSTS, cluster.to_toml(), private=True)  # variables of hosts may be secrets
    options = ["--run-dir", str(record.folder), *(["--resume"] if resume else [])]
    command = python_command("sparsepipe.launching.ssh", *options)
    begin = supervised(record, locks, command, python_environment(), detach=detach)
    return followed(record, locks, begin, resume=resume, detach=detach)


def check_tools(config: RunConfig) -> None:
    """Raise InputError if a program is missing here that jobs on hosts need."""
    if shutil.which("ssh") is None:
        raise InputError(
            "launcher.no_ssh",
            "launcher ssh needs the program ssh, which was not found on PATH; install the OpenSSH client",
        )
    if config.encrypt:
        check_openssl()
