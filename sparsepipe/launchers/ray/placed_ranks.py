"""The ranks of a plan on nodes of Ray: a placement group for them, and agents where it put them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import cloudpickle
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from ...cluster import Node
from ...errors import InputError
from ..ssh.connection import AGENT, AgentProcess
from ..ssh.placement import HostedRanks
from . import agent_actor
from .actor_process import ActorProcess
from .bundles import bundle, hosts_of

_TO_PLACE = 60.0  # seconds for other jobs of Ray to make room
_TO_ANSWER = 20.0  # for a worker of Ray to start on a busy node


@dataclass
class PlacedRanks:
    """A way to the hosts of ranks that have their bundles (`Reach` of ssh/connection.py)."""

    reserved: "Reserved"
    gpus: bool
    folder: str | None  # the agents' current one; None: their nodes'
    _processes: dict[str, ActorProcess] = field(default_factory=dict)

    def begin(self, node: Node) -> AgentProcess:
        """Start an agent in the bundle of the host's first rank."""
        (hosted,) = (hosted for hosted in self.reserved.hosts if hosted.node == node)
        kept = {"PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
        if self.gpus:  # in the order of the host's ranks, each of which takes that of its place
            kept["CUDA_VISIBLE_DEVICES"] = ",".join(self._gpu_of(rank) for rank in hosted.ranks)
        made = ray.remote(num_cpus=1, max_restarts=0, concurrency_groups=agent_actor.GROUPS)(agent_actor.AgentActor)
        actor = made.options(scheduling_strategy=self._in(hosted.ranks[0])).remote(list(AGENT), kept, self.folder)
        self._processes[node.name] = ActorProcess(actor)
        return self._processes[node.name]

    def failure(self, node: Node, code: int, said: str) -> str | None:
        lost = self._processes[node.name].lost
        return f"Ray lost its actor there ({lost[:300]}); `ray list actors` has more" if lost else None

    def _gpu_of(self, rank: int) -> str:
        """The GPU that Ray has reserved for a rank, as CUDA_VISIBLE_DEVICES has it."""
        ask = ray.remote(num_cpus=0, num_gpus=1, max_retries=0)(agent_actor.own_gpu)
        return str(ray.get(ask.options(scheduling_strategy=self._in(rank)).remote()))

    def _in(self, rank: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(self.reserved.group, placement_group_bundle_index=rank)


@dataclass(frozen=True)
class Reserved:
    """A bundle for each rank, on nodes that have these ids, and their hosts, that of rank 0 first."""

    group: PlacementGroup
    nodes: tuple[str, ...]
    hosts: tuple[HostedRanks, ...]

    def free(self) -> None:
        remove_placement_group(self.group)

    def ids(self, hosted: HostedRanks) -> set[str]:
        """The ids of the nodes of a host."""
        return {self.nodes[rank] for rank in hosted.ranks}


def reserved(wanted: Sequence[dict[str, str]], *, gpus: bool, seconds: float = _TO_PLACE) -> Reserved:
    """Reserve a bundle for each rank, on a node with the labels that are wanted, until it is freed. Ray is connected.

    Raises InputError where other jobs make no room for them within so many seconds.
    """
    cloudpickle.register_pickle_by_value(agent_actor)
    group = placement_group(
        [bundle(gpus=gpus)] * len(wanted),
        strategy="PACK",  # boundaries within a host are cheap
        bundle_label_selector=list(wanted),
    )
    try:
        if not group.wait(seconds):
            raise InputError(
                f"Ray had no room for {len(wanted)} ranks within {seconds:.0f} s: other jobs have it (`ray status`); "
                "wait for them, or plan for fewer ranks"
            )
        placed = placement_group_table(group)["bundles_to_node_id"]
        nodes = tuple(placed[rank] for rank in range(len(wanted)))
        return Reserved(group, nodes, hosts_of(nodes, all_nodes()))
    except BaseException:
        remove_placement_group(group)
        raise


def all_nodes() -> list[dict[str, Any]]:
    """Return what Ray knows of its nodes, of those that have ended too."""
    found: list[dict[str, Any]] = ray.nodes()
    return found


def answers(id: str) -> bool:
    """Whether the node with this id does a task: Ray takes half a minute or more to know that one is gone."""
    asking = ray.remote(num_cpus=0, max_retries=0)(agent_actor.answer)
    asked = asking.options(scheduling_strategy=NodeAffinitySchedulingStrategy(id, soft=False)).remote()
    try:
        ray.get(asked, timeout=_TO_ANSWER)
    except ray.exceptions.RayError:  # of which GetTimeoutError is one
        ray.cancel(asked, force=True)
        return False
    return True
