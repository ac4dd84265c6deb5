"""What is asked of Ray for the ranks of a plan, whether its nodes have that, and which ranks share a host.

A rank is a bundle of a placement group: a CPU and perhaps a GPU of one node, with a label where types differ. What is
here are values alone; Ray is asked in `placed_ranks.py`.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ...errors import InputError
from ...values.cluster import DeviceType, Node
from ..ssh.placement import HostedRanks

LABEL = "device"
_NODE = "ray.io/node-id"  # Ray's own label


def bundle(*, gpus: bool) -> dict[str, float]:
    """Return the resources of one rank."""
    return {"CPU": 1, **({"GPU": 1} if gpus else {})}


def labels(types: Sequence[str | None], *, without: Collection[str] = ()) -> list[dict[str, str]]:
    """Return which labels the node of each rank is to have: that of its type, and an id that is none of `without`."""
    elsewhere = {_NODE: f"!in({','.join(sorted(without))})"} if without else {}
    return [({} if kind is None else {LABEL: kind}) | elsewhere for kind in types]


def pinned(ids: Sequence[str]) -> list[dict[str, str]]:
    """Return labels that put each rank on the node whose id stands at the rank's place in the list."""
    return [{_NODE: id} for id in ids]


def check_room(
    types: Sequence[str | None], nodes: Sequence[Mapping[str, Any]], *, gpus: bool, without: Collection[str] = ()
) -> None:
    """Raise InputError if Ray's nodes never have room for the ranks, whatever else they are at.

    `types`: of each rank's device, None for any; `nodes` are as `ray.nodes()` has them, those of `without` left out.
    """
    alive = [node for node in nodes if node["Alive"] and node["NodeID"] not in without]
    for kind, needed in Counter(types).items():
        rooms = [_room(node, gpus=gpus) for node in alive if kind is None or node.get("Labels", {}).get(LABEL) == kind]
        if sum(rooms) < needed:
            of_kind = "" if kind is None else f" of type {kind!r} (label {LABEL}={kind})"
            what, remedy = ("GPUs", "--num-gpus") if gpus else ("CPUs", "--num-cpus")
            more = remedy if kind is None else f"--labels {LABEL}={kind}"
            raise InputError(
                "ray.too_few_devices",
                f"the plan needs {needed} {what}{of_kind}, but Ray's nodes have {sum(rooms)}; plan for fewer ranks, "
                f"or add nodes (ray start --address … {more})",
                needed=needed,
            )


def _room(node: Mapping[str, Any], *, gpus: bool) -> int:
    """Return the number of ranks that fit on a node."""
    return int(min(node["Resources"].get(name, 0.0) / amount for name, amount in bundle(gpus=gpus).items()))


def hosts_of(node_of_rank: Sequence[str], nodes: Sequence[Mapping[str, Any]]) -> tuple[HostedRanks, ...]:
    """Return the hosts with their ranks, that of rank 0 first, given the id of each rank's node.

    Nodes of one address are one host: their ranks share its memory.
    """
    known = {node["NodeID"]: node for node in nodes}
    own: dict[str, list[int]] = {}
    for rank, id in enumerate(node_of_rank):
        own.setdefault(known[id]["NodeManagerAddress"], []).append(rank)
    called = {node["NodeManagerAddress"]: node["NodeManagerHostname"] for node in nodes}
    names = [called[address] for address in own]
    return tuple(
        HostedRanks(
            Node(
                called[address] if names.count(called[address]) == 1 else address,
                (DeviceType("device"),) * len(ranks),
                address=address,
                ssh=called[address],
            ),
            tuple(ranks),
        )
        for address, ranks in own.items()
    )
