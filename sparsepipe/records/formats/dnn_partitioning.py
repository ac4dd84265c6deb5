"""Graphs of msr-fiddle/dnn-partitioning: nodes with their time on an accelerator and on a CPU, and the machine.

    {"maxFPGAs": 6, "maxCPUs": 1, "maxSizePerFPGA": 1.7e10,
     "nodes": [{"id": 1, "fpgaLatency": 0.7, "cpuLatency": 7.0, "size": 1e8, "colorClass": 1, …}, …],
     "edges": [{"sourceId": 1, "destId": 2, "cost": 0.1}, …]}

Source: "Efficient Algorithms for Device Placement of DNN Graph Operators" (NeurIPS 2020). A file is read as a Profile
of the device types `accelerator` and `cpu`, whose seconds are the file's own unit of time, and as a Cluster on one node
whose link carries one "byte" in such a unit: a layer's `output_bytes` are what its transfer costs. Nodes of one
`colorClass` must be together; `origin["colocated"]` lists them. Graphs of inference are read, not those of training.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.fields import integer, number, shown
from ...util.io.files import expanded, read_json
from ...values.cluster import Cluster, DeviceType, Link, Node
from ...values.graph import Layer, LayerGraph
from ...values.profile import CostSample, LayerCost, Profile

ACCELERATOR, CPU = "accelerator", "cpu"
_KEYS = ("maxFPGAs", "maxCPUs", "maxSizePerFPGA", "nodes", "edges")
_MOST_NODES = 5000
_MOST_DEVICES = 64
_NEVER = 1e15  # time of a node on an accelerator that does not support it


@dataclass(frozen=True)
class PartitioningFile:
    """One such file: its graph with the costs, and its devices."""

    profile: Profile
    cluster: Cluster

    @classmethod
    def load(cls, path: Path | str) -> "PartitioningFile":
        """Read a file. Raises InputError with the node or edge that does not follow the format."""
        content = read_json(path, what="graph of dnn-partitioning")
        try:
            return cls.of(content, name=expanded(path).stem)
        except InputError as error:
            raise error.within(f"{path}: ") from None

    @classmethod
    def of(cls, content: Any, *, name: str) -> "PartitioningFile":
        """Read the content of a file."""
        if not is_partitioning_file(content):
            raise InputError("dnn_graph.malformed", f"not a graph of dnn-partitioning: expected {', '.join(_KEYS)}")
        nodes = _nodes(content["nodes"])
        sent = _edges(content["edges"], nodes)
        names = _names(nodes)
        layers = [Layer(names[id], "", node["size"]) for id, node in nodes.items()]
        graph = LayerGraph.from_ids(layers, ((names[a], names[b]) for (a, b) in sent))
        output = {source: cost for (source, _), cost in sent.items()}
        of = {names[id]: id for id in nodes}
        order = [of[layer.id] for layer in graph.layers]
        classes: dict[int, list[str]] = {}
        for id in order:
            if (color := nodes[id]["color"]) is not None:
                classes.setdefault(color, []).append(names[id])
        origin = {
            "source": "dnn-partitioning",
            "name": name,
            "colocated": [class_costs for class_costs in classes.values() if len(class_costs) > 1],
        }
        costs = {
            kind: tuple(LayerCost((CostSample(1, nodes[id][kind], 0.0, output.get(id, 0.0)),)) for id in order)
            for kind in (ACCELERATOR, CPU)
        }
        memory = number(content["maxSizePerFPGA"], "maxSizePerFPGA")
        counts = [integer(content[key], key, most=_MOST_DEVICES) for key in ("maxFPGAs", "maxCPUs")]
        kinds = (DeviceType(ACCELERATOR, memory or float("inf")),) * counts[0] + (DeviceType(CPU),) * counts[1]
        if not kinds:
            raise InputError("dnn_graph.no_devices", "maxFPGAs and maxCPUs are both 0, expected at least one device")
        used = {kind.name for kind in kinds}
        profile = Profile(
            graph,
            {kind: class_costs for kind, class_costs in costs.items() if kind in used},
            (1.0,),
            origin,
            size_unit="samples",
        )
        return cls(profile, Cluster((Node("machine", kinds, Link(1.0)),), Link(1.0)))


def is_partitioning_file(content: object) -> bool:
    """Return whether the content of a JSON file is a graph of dnn-partitioning."""
    return isinstance(content, Mapping) and all(key in content for key in _KEYS)


def _nodes(found: object) -> dict[int, dict[str, Any]]:
    if not isinstance(found, list) or not 0 < len(found) <= _MOST_NODES:
        raise InputError("dnn_graph.nodes_malformed", f"nodes: expected a list of 1 to {_MOST_NODES}")
    nodes: dict[int, dict[str, Any]] = {}
    for node_index, node in enumerate(found):
        what = f"nodes[{node_index}]"
        if not isinstance(node, dict) or not {"id", "fpgaLatency", "cpuLatency"} <= node.keys():
            raise InputError(
                "dnn_graph.node_malformed", f"{what} is {shown(node)}, expected id, fpgaLatency and cpuLatency"
            )
        if node.get("isBackwardNode"):
            raise InputError(
                "dnn_graph.of_training",
                f"{what}: the graph contains backward nodes; use an inference graph",
            )
        id = integer(node["id"], f"{what}: id", most=2**53)
        if id in nodes:
            raise InputError("dnn_graph.id_twice", f"{what}: id {id} occurs twice")
        color = node.get("colorClass")
        nodes[id] = {
            "name": node.get("name", ""),
            "size": number(node.get("size", 0), f"{what}: size"),
            "color": None if color is None else integer(color, f"{what}: colorClass", most=2**53),
            ACCELERATOR: number(node["fpgaLatency"], f"{what}: fpgaLatency")
            if node.get("supportedOnFpga", True)
            else _NEVER,
            CPU: number(node["cpuLatency"], f"{what}: cpuLatency"),
        }
    return nodes


def _edges(found: object, nodes: Mapping[int, Any]) -> dict[tuple[int, int], float]:
    """(source, target) → what it costs to send the source's output, the same for all of its targets."""
    if not isinstance(found, list):
        raise InputError("dnn_graph.edges_malformed", "edges: expected a list")
    costs: dict[int, float] = {}
    sent: dict[tuple[int, int], float] = {}
    for edge_index, edge in enumerate(found):
        what = f"edges[{edge_index}]"
        if not isinstance(edge, dict) or not {"sourceId", "destId", "cost"} <= edge.keys():
            raise InputError("dnn_graph.edge_malformed", f"{what} is {shown(edge)}, expected sourceId, destId and cost")
        ends = [integer(edge[key], f"{what}: {key}", most=2**53) for key in ("sourceId", "destId")]
        if missing := [end for end in ends if end not in nodes]:
            raise InputError("dnn_graph.node_unknown", f"{what}: unknown node {missing[0]}")
        cost = number(edge["cost"], f"{what}: cost")
        if abs(costs.setdefault(ends[0], cost) - cost) > 1e-6:
            raise InputError(
                "dnn_graph.costs_differ",
                f"{what}: node {ends[0]} has sending cost {cost:g} here, but {costs[ends[0]]:g} on another edge",
            )
        sent[ends[0], ends[1]] = costs[ends[0]]
    return sent


def _names(nodes: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """A layer's id for each node: its name where that is one, and no other node has it."""
    counts = Counter(node["name"] for node in nodes.values() if isinstance(node["name"], str))
    return {
        id: node["name"] if isinstance(node["name"], str) and node["name"] and counts[node["name"]] == 1 else f"#{id}"
        for id, node in nodes.items()
    }
