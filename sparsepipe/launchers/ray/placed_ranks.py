"""The ranks of a plan on nodes of Ray: a placement group for them, and agents where it put them."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import cloudpickle
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from ...cluster import Node
from ...errors import InputError
from ..ssh.connection import AGENT, AgentProcess
from ..ssh.placement import HostedRanks
from . import agent_actor
from .actor_process import ActorProcess
from .bundles import LABEL, bundle, check_room, hosts_of

_TO_PLACE = 60.0  # seconds for other jobs of Ray to make room


@dataclass
class PlacedRanks:
    """Where ranks are. A way to their hosts, as the controller takes one (ssh/connection.py)."""

    hosts: tuple[HostedRanks, ...]
    group: PlacementGroup
    gpus: bool
    folder: str | None  # the agents' current one; None: their nodes'
    _processes: dict[str, ActorProcess] = field(default_factory=dict)

    def begin(self, node: Node) -> AgentProcess:
        """Start an agent in the bundle of the host's first rank."""
        (hosted,) = (hosted for hosted in self.hosts if hosted.node == node)
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
        return PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=rank)


@contextmanager
def placed_ranks(types: Sequence[str | None], *, gpus: bool, folder: str | None) -> Iterator[PlacedRanks]:
    """Reserve a bundle for each rank to the end of the block. Ray is connected.

    `types`: of each rank's device, None for any. Raises InputError where Ray has no room for them.
    """
    cloudpickle.register_pickle_by_value(agent_actor)
    nodes: list[dict[str, Any]] = ray.nodes()
    check_room(types, nodes, gpus=gpus)
    group = placement_group(
        [bundle(gpus=gpus)] * len(types),
        strategy="PACK",  # boundaries within a host are cheap
        bundle_label_selector=[{} if kind is None else {LABEL: kind} for kind in types],
    )
    try:
        if not group.wait(_TO_PLACE):
            raise InputError(
                f"Ray had no room for {len(types)} ranks within {_TO_PLACE:.0f} s: other jobs have it (`ray status`); "
                "wait for them, or plan for fewer ranks"
            )
        placed = placement_group_table(group)["bundles_to_node_id"]
        hosts = hosts_of([placed[rank] for rank in range(len(types))], nodes)
        for hosted in hosts:
            print(f"ranks {', '.join(map(str, hosted.ranks))}: {hosted.named}", file=sys.stderr, flush=True)
        yield PlacedRanks(hosts, group, gpus, folder)
    finally:
        remove_placement_group(group)
