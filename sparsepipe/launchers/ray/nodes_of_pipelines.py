"""Where several pipelines are on nodes of Ray: one placement group with a bundle for each rank of all.

    parent ─────── reserves the group, has the coordinator beside the bundles
    controllers ── are drivers too: each has agents in the bundles of its pipeline's ranks

Where a node is lost, Ray itself looks for another that has room for its bundles.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ...cluster import Node
from ...display.counting import number_of
from ...errors import InputError
from ...pipelines import Pipelines
from ...plan import Plan
from ..ssh.placement import HostedPipeline, HostedRanks, pipelines_on
from ..ssh.restarting import OneOfSeveral, Taken
from .bundles import hosts_of
from .placed_ranks import Group, PlacedRanks, all_nodes, answers, nodes_of

_LOOK_SECONDS = 0.5


class BundlesOfAll:
    """The bundles of all ranks: a place of all pipelines (ssh/hosted_parent.py)."""

    def __init__(self, group: Group, *, address: str, folder: str | None) -> None:
        """`address`: of the Ray that controllers connect to. `folder`: the current one of agents."""
        self._group, self._folder = group, folder
        self.controller: Sequence[str] = (
            *("sparsepipe.launchers.ray", "--address", address, "--group", group.id.hex()),
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
        self, plan: Pipelines, pipeline: int, group: Group, *, gpus: bool, folder: str | None, to_place: float
    ) -> None:
        """`to_place`: seconds that bundles of a lost node are waited for, where its pipeline is to begin again."""
        self._plan, self._pipeline, self._group, self._to_place = plan, pipeline, group, to_place
        self._gpus, self._folder = gpus, folder
        of_all = {rank: bundle for bundle, rank in enumerate(sorted(plan.ranks))}
        self._bundles = tuple(of_all[rank] for rank in plan.ranks_of(pipeline))  # of its own ranks

    @contextmanager
    def taken(self, plan: Plan) -> Iterator[Taken]:
        """See `Place`. Raises InputError where bundles of a lost node find no other."""
        own = self._placed()
        for hosted in own.hosts:
            ranks = ", ".join(str(own.ranks[rank]) for rank in hosted.ranks)
            print(f"ranks {ranks}: {hosted.named}", file=sys.stderr, flush=True)
        bundles = {hosted.node.name: [self._bundles[rank] for rank in hosted.ranks] for hosted in own.hosts}
        reach = PlacedRanks(self._group, bundles, self._gpus, self._folder)
        try:
            yield Taken(own.hosts, reach, own)
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
                    f"Ray has no node for {number_of(len(self._plan.ranks) - len(found), 'rank')} any more, and made "
                    f"no room within {self._to_place:g} s (`ray status`); add a node, or give it longer: "
                    "timeout_seconds",
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
    return "there is room for all its ranks again" if own <= alive and all(map(answers, own)) else None
