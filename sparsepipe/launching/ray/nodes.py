"""Where the ranks of a run are on nodes of Ray, and where they go when nodes are lost.

Several pipelines have one placement group with a bundle for each rank of all:

    parent ─────── reserves the group, has the coordinator alongside the bundles
    controllers ── are drivers too: each has agents in the bundles of its pipeline's ranks

If a node is lost, Ray itself looks for another that has room for its bundles.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError
from ...util.text.numbers import number_of
from ...values.cluster import Cluster, Node
from ...values.plan import Plan
from ..ssh.controller import OneOfSeveral, TakenHosts
from ..ssh.launch_ssh import HostedPipeline, HostedRanks, pipelines_on
from .launch_ray import check_room, devices_of, hosts_of, labels, pinned
from .placed_ranks import Group, PlacedRanks, Reserved, all_nodes, answers, nodes_of, reserved

if TYPE_CHECKING:  # it brings planners, for which no launch waits
    from ...planning.hardware_changes import Continuation

_LOOK_SECONDS = 0.5


class NodesOfRay:
    """Nodes of the Ray that is connected: a place, as a run that starts again has one (ssh/controller.py)."""

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
    def taken(self, plan: Plan) -> Iterator[TakenHosts]:
        if self._now is None:
            check_room(self._types, all_nodes(), gpus=self._gpus, without=self._gone)
            self._now = reserved(self._wanted, gpus=self._gpus)
        now = self._now
        try:
            for hosted in now.hosts:
                print(f"ranks {', '.join(map(str, hosted.ranks))}: {hosted.named}", file=sys.stderr, flush=True)
            bundles = {hosted.node.name: hosted.ranks for hosted in now.hosts}
            yield TakenHosts(now.hosts, PlacedRanks(now.group, bundles, self._gpus, self._folder))
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
        from ...planning.hardware_changes import Continuation

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
        return "resources for all ranks are free again"

    def _ids(self, lost: Sequence[HostedRanks]) -> set[str]:
        assert self._last is not None, "what was lost was taken"
        return set().union(*(self._last.ids(hosted) for hosted in lost))

    def _on_those_left(self, plan: Plan, lost: Sequence[HostedRanks], profile: Path) -> "Continuation":
        """Plan for the hosts that ranks were on and that are left, each rank where it is planned to be."""
        from ...planning.hardware_changes import plan_for_devices_left

        assert self._last is not None, "what was lost was taken"
        last = self._last
        hosts = [hosted for hosted in last.hosts if hosted not in lost]
        if not hosts:
            raise InputError(
                "hosts.none_left",
                "all hosts of the job failed, and no other host has free devices; resume the run later",
            )
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


class BundlesOfAll:
    """The bundles of all ranks: a place of all pipelines (ssh/hosted_parent.py)."""

    def __init__(self, group: Group, *, address: str, folder: str | None) -> None:
        """`address`: of the Ray that controllers connect to. `folder`: the current one of agents."""
        self._group, self._folder = group, folder
        self.controller: Sequence[str] = (
            *("sparsepipe.launching.ray", "--address", address, "--group", group.id.hex()),
            *(("--folder", folder) if folder else ()),
        )

    @property
    def reach(self) -> PlacedRanks:
        bundles = {hosted.node.name: hosted.ranks for hosted in self.hosts()}
        return PlacedRanks(self._group, bundles, gpus=False, folder=self._folder, cpus=0)

    def hosts(self) -> tuple[HostedRanks, ...]:
        return _hosts(self._group)

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        return _back(self._group, {bundle for hosted in lost for bundle in hosted.ranks})


class NodesOfPipeline(OneOfSeveral):
    """The nodes of one of several pipelines, in a group that their parent has reserved."""

    def __init__(
        self, plan: Plan, pipeline: int, group: Group, *, gpus: bool, folder: str | None, to_place: float
    ) -> None:
        """`to_place`: seconds that bundles of a lost node are waited for, where its pipeline is to begin again."""
        self._plan, self._pipeline, self._group, self._to_place = plan, pipeline, group, to_place
        self._gpus, self._folder = gpus, folder
        of_all = {rank: bundle for bundle, rank in enumerate(sorted(plan.ranks))}
        self._bundles = tuple(of_all[rank] for rank in plan.ranks_of(pipeline))  # of its own ranks

    @contextmanager
    def taken(self, plan: Plan) -> Iterator[TakenHosts]:
        """See `Place`. Raises InputError if bundles of a lost node find no other."""
        own = self._placed()
        for hosted in own.hosts:
            ranks = ", ".join(str(own.ranks[rank]) for rank in hosted.ranks)
            print(f"ranks {ranks}: {hosted.named}", file=sys.stderr, flush=True)
        bundles = {hosted.node.name: [self._bundles[rank] for rank in hosted.ranks] for hosted in own.hosts}
        reach = PlacedRanks(self._group, bundles, self._gpus, self._folder)
        try:
            yield TakenHosts(own.hosts, reach, own)
        finally:
            reach.end()

    def back(self, lost: Sequence[HostedRanks]) -> str | None:
        """See `Place`: once all bundles are on nodes that answer, whether they are those or others."""
        return _back(self._group, self._bundles)

    def _placed(self) -> HostedPipeline:
        deadline = time.monotonic() + self._to_place
        while len(found := _node_of_bundles(self._group)) < len(self._plan.ranks):
            if time.monotonic() > deadline:
                raise InputError(
                    "ray.no_room",
                    "Ray lost a node and had no free resources for "
                    f"{number_of(len(self._plan.ranks) - len(found), 'rank')} within {self._to_place:g} s (see `ray "
                    f"status`); add a node, or raise {{timeout_seconds}}",
                    setting="timeout_seconds",
                )
            time.sleep(_LOOK_SECONDS)
        node_of = {rank: found[bundle] for bundle, rank in enumerate(sorted(self._plan.ranks))}
        own = pipelines_on(self._plan, node_of)[self._pipeline]
        # Each agent sees the GPUs of its own ranks alone: those of the pipelines before are not counted.
        return HostedPipeline(own.number, own.ranks, own.hosts, {}, own.of_all)


def _hosts(group: Group) -> tuple[HostedRanks, ...]:
    """Return the hosts of the bundles that are placed, each with its bundles."""
    found: dict[str, tuple[Node, list[int]]] = {}
    for bundle, node in sorted(_node_of_bundles(group).items()):
        found.setdefault(node.name, (node, []))[1].append(bundle)
    return tuple(HostedRanks(node, tuple(bundles)) for node, bundles in found.values())


def _node_of_bundles(group: Group) -> dict[int, Node]:
    """Return the host of each bundle that Ray has a node for."""
    nodes = all_nodes()
    known = {node["NodeID"] for node in nodes if node["Alive"]}
    placed = [(bundle, id) for bundle, id in enumerate(nodes_of(group)) if id in known]
    hosts = hosts_of([id for _, id in placed], nodes)
    return {placed[k][0]: hosted.node for hosted in hosts for k in hosted.ranks}


def _back(group: Group, bundles: Sequence[int] | set[int]) -> str | None:
    ids, alive = nodes_of(group), {node["NodeID"] for node in all_nodes() if node["Alive"]}
    own = {ids[bundle] for bundle in bundles}
    return "resources for all its ranks are free again" if own <= alive and all(map(answers, own)) else None
