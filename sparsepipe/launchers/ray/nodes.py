"""Where the ranks of a run are on nodes of Ray, and where they go when nodes are lost."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...cluster import Cluster
from ...errors import InputError
from ...plan import Plan
from ..ssh.placement import HostedRanks
from ..ssh.restarting import Taken
from .bundles import check_room, labels, pinned
from .device_types import devices_of
from .placed_ranks import PlacedRanks, Reserved, all_nodes, answers, reserved

if TYPE_CHECKING:  # it brings planners, for which no launch waits
    from ...planners.hosts_left import Continuation


class NodesOfRay:
    """Nodes of the Ray that is connected: a place, as a run that starts again has one (ssh/restarting.py)."""

    def __init__(
        self, types: Sequence[str | None], *, planned_for: Cluster | None, gpus: bool, folder: str | None
    ) -> None:
        """`types`: of each rank's device, None for any node. `planned_for`: what is known of such devices.

        `folder`: the current one of agents; None: their nodes'.
        """
        self._types, self._gpus, self._folder = tuple(types), gpus, folder
        self._known = planned_for or Cluster.uniform(len(types))
        self._wanted = labels(types)
        self._gone: set[str] = set()  # ids of nodes that were lost and are not waited for
        self._now: Reserved | None = None
        self._last: Reserved | None = None

    @contextmanager
    def taken(self, plan: Plan) -> Iterator[Taken]:
        if self._now is None:
            check_room(self._types, all_nodes(), gpus=self._gpus, without=self._gone)
            self._now = reserved(self._wanted, gpus=self._gpus)
        now = self._now
        try:
            for hosted in now.hosts:
                print(f"ranks {', '.join(map(str, hosted.ranks))}: {hosted.named}", file=sys.stderr, flush=True)
            bundles = {hosted.node.name: hosted.ranks for hosted in now.hosts}
            yield Taken(now.hosts, PlacedRanks(now.group, bundles, self._gpus, self._folder))
        finally:
            now.free()
            self._last, self._now = now, None

    def without(self, plan: Plan, lost: Sequence[HostedRanks], *, profile: Path) -> "Continuation":
        """See `Place`: the same plan where other nodes have room for it, else one for the nodes that are left of it."""
        self._gone |= self._ids(lost)
        wanted = labels(self._types, without=self._gone)
        try:
            check_room(self._types, all_nodes(), gpus=self._gpus, without=self._gone)
            self._now = reserved(wanted, gpus=self._gpus)
        except InputError:
            return self._on_those_left(plan, lost, profile)
        from ...planners.hosts_left import Continuation

        self._wanted = wanted
        cluster = Cluster(tuple(hosted.node for hosted in self._now.hosts))
        return Continuation(plan, cluster, "the same plan on other devices")

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        """See `Place`: once there is room for all ranks on nodes that answer, whether they are those or others."""
        nodes = all_nodes()
        alive = {node["NodeID"] for node in nodes if node["Alive"]}
        if not all(answers(id) for id in self._ids(lost) & alive):
            return None
        try:
            check_room(self._types, nodes, gpus=self._gpus, without=self._gone)
        except InputError:
            return None
        return "there is room for all ranks again"

    def _ids(self, lost: Sequence[HostedRanks]) -> set[str]:
        assert self._last is not None, "what was lost was taken"
        return set().union(*(self._last.ids(hosted) for hosted in lost))

    def _on_those_left(self, plan: Plan, lost: Sequence[HostedRanks], profile: Path) -> "Continuation":
        """Plan for the hosts that ranks were on and that are left, each rank where it is planned to be."""
        from ...planners.hosts_left import plan_for_devices_left

        assert self._last is not None, "what was lost was taken"
        last = self._last
        hosts = [hosted for hosted in last.hosts if hosted not in lost]
        if not hosts:
            raise InputError("hosts.none_left", "no node is left that ranks were on, and others have no room for them")
        devices = devices_of(self._types, self._known)
        kept = [rank for hosted in hosts for rank in hosted.ranks]
        nodes = (
            replace(
                hosted.node,
                device_types=tuple(devices[rank] for rank in hosted.ranks),
                link=self._known.nodes[0].link,
            )
            for hosted in hosts
        )
        left = replace(self._known, nodes=tuple(nodes))
        types = [device.name for device in devices]
        going = plan_for_devices_left(plan, left, kept, types=types, profile=profile)
        kept = kept[: 1 + max(going.plan.ranks)]
        self._types = tuple(self._types[rank] for rank in kept)
        self._wanted = pinned([last.nodes[rank] for rank in kept])
        return going
