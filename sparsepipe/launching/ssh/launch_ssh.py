"""Launch on the hosts of a cluster: a supervisor here, under it the controller, which reaches the hosts by `ssh`."""

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from ...errors import InputError
from ...records.record_files import HOSTS
from ...runtime import RunConfig
from ...runtime.wire.encryption import check_openssl
from ...runtime.workloads.resolved import ResolvedRun
from ...util.host.imports import check_current_folder, python_command, python_environment
from ...util.io.files import write_atomic
from ...util.text.numbers import number_of
from ...values.cluster import Cluster, Node, check_addresses
from ...values.plan import Plan
from ..base import Asked
from ..followed_job import FollowedJob
from ..local.launch_local import attach, followed, supervised
from ..prepare import for_hosts, prepare
from ..probes.check import unlike_networks


# Which ranks of a plan run on which host: a device's place among all devices of the cluster is its rank
def own_prefix(pipeline: int | None) -> str:
    """Return the prefix of a pipeline's file names in the folder of the whole run; empty if it is the whole run."""
    return "" if pipeline is None else f"pipelines/{pipeline}/"


@dataclass(frozen=True)
class HostedRanks:
    """A host and the ranks of a job that run there."""

    node: Node
    ranks: tuple[int, ...]

    @property
    def named(self) -> str:
        """Its name in messages, and what it is reached by."""
        there = self.node.ssh_destination
        return self.node.name if there == self.node.name else f"{self.node.name} ({there})"


def hosted_ranks(count: int, cluster: Cluster) -> tuple[HostedRanks, ...]:
    """Return the hosts that a job of `count` ranks needs with their ranks, that of rank 0 first; hosts without a rank
    are left out.

    Raises InputError if the cluster has fewer devices than that, and for hosts of one address.
    """
    if count > len(cluster.devices):
        raise InputError(
            "plan.ranks_not_in_cluster",
            f"the plan has {number_of(count, 'rank')}, but the cluster has "
            f"{number_of(len(cluster.devices), 'device')}; plan for this cluster, or add hosts to its file",
        )
    return _on_hosts(range(count), {rank: cluster.devices[rank].node for rank in range(count)})


@dataclass(frozen=True)
class HostedPipeline:
    """One of several pipelines: the hosts of its ranks, and the other pipelines."""

    number: int
    ranks: tuple[int, ...]  # what its own ranks, from 0, are called among those of all
    hosts: tuple[HostedRanks, ...]  # with its own ranks, that of rank 0 first
    before: Mapping[str, int]  # by host: ranks of the pipelines before it there
    of_all: Mapping[str, int]  # by host: ranks of all pipelines there


def hosted_pipelines(plan: Plan, cluster: Cluster) -> tuple[HostedPipeline, ...]:
    """Return where the ranks of each pipeline run, of which several may share a host.

    Raises InputError for ranks that the cluster has no device for, or that two pipelines have, and for hosts of one
    address.
    """
    check_ranks(all_ranks(plan), len(cluster.devices))
    node_of = {rank: cluster.devices[rank].node for rank in plan.ranks}
    _on_hosts(sorted(plan.ranks), node_of)  # all addresses
    return pipelines_on(plan, node_of)


def hosts_of_all(plan: Plan, cluster: Cluster) -> tuple[HostedRanks, ...]:
    """Return the hosts of all ranks, that of the first pipeline's rank 0 first. Raises as `hosted_pipelines`."""
    check_ranks(all_ranks(plan), len(cluster.devices))
    ordered = [rank for k in range(len(plan.pipelines)) for rank in plan.ranks_of(k)]
    return _on_hosts(ordered, {rank: cluster.devices[rank].node for rank in ordered})


def check_ranks(ranks: Sequence[int], num_devices: int) -> None:
    """Raise InputError for `ranks`, in order, that there is no device for, or that two pipelines have."""
    if ranks[-1] >= num_devices:
        raise InputError(
            "plan.rank_not_in_cluster",
            f"the plan uses rank {ranks[-1]}, but the cluster has {number_of(num_devices, 'device')}; plan for this "
            "cluster, or add hosts to its file",
        )
    if twice := [rank for rank, count in Counter(ranks).items() if count > 1]:
        raise InputError(
            "plan.rank_in_two_pipelines",
            f"rank {twice[0]} is in several pipelines; give each pipeline separate devices",
        )


def all_ranks(plan: Plan) -> list[int]:
    """The ranks of all pipelines in order, each as often as a pipeline has it."""
    return sorted(rank for own in plan.pipelines for rank in own.ranks)


def pipelines_on(plan: Plan, node_of: Mapping[int, Node]) -> tuple[HostedPipeline, ...]:
    """Return where the ranks of each pipeline run, given the node of each rank of all."""
    of_all = Counter(node_of[rank].name for rank in plan.ranks)
    found, before = list[HostedPipeline](), Counter[str]()
    for k in range(len(plan.pipelines)):
        own = plan.ranks_of(k)
        hosts = _on_hosts(own, node_of)
        found.append(HostedPipeline(k, own, hosts, dict(before), of_all))
        before.update({hosted.node.name: len(hosted.ranks) for hosted in hosts})
    return tuple(found)


def _on_hosts(ranks: Iterable[int], node_of: Mapping[int, Node]) -> tuple[HostedRanks, ...]:
    """Return the hosts of ranks, each of which is called by its place among them."""
    own: dict[str, list[int]] = {}
    nodes: dict[str, Node] = {}
    for place, rank in enumerate(ranks):
        node = node_of[rank]
        nodes[node.name] = node
        own.setdefault(node.name, []).append(place)
    check_addresses([nodes[name] for name in own])
    return tuple(HostedRanks(nodes[name], tuple(places)) for name, places in own.items())


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
