"""The explorers that are measured: a notebook's cell each, and which slider counts devices there."""

from dataclasses import dataclass

_LAYERS = """
from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile
from sparsepipe.views.widgets import PartitionExplorer
{graph}
names = range(len(graph.layers))
def costs(speed):
    few = [CostSample(1000, (.004 + .001 * (k % 5)) * speed, (.009 + .002 * (k % 3)) * speed, 4e6 / (1 + k), 1e5, 4e6)
           for k in names]
    more = [CostSample(8000, 8 * s.forward, 8 * s.backward, 8 * s.output_bytes, 8e5, 3e7) for s in few]
    return tuple(LayerCost(pair) for pair in zip(few, more))
origin = {{"batch_size": 16, "voxel_size": 0.03}}
profile = Profile(graph, {{"fast": costs(1), "slow": costs(1.6)}}, (3000.0, 4000.0), origin)
half, memory = {devices} // 2, 2e10 * max(1, len(names) // 60) ** 2  # of more layers, which hold more weights each
nodes = (Node("a", (DeviceType("fast", memory),) * half, Link(1e10, 1e-5)),
         Node("b", (DeviceType("slow", memory),) * ({devices} - half), Link(1e10, 1e-5)))
explorer = PartitionExplorer(profile, Cluster(nodes, Link(1e9, 5e-5)))
explorer.widget
"""
_CHAIN = """
layers = tuple(Layer(f"conv{{k}}", "", 2e6 + 1e5 * k) for k in range({layers}))
graph = LayerGraph.chain(layers, skips=[(k, k + 3) for k in range(0, {layers} - 4, 4)])
"""
_NASNET = """
import torch
from torch import fx
from sparsepipe.networks.images.nasnet import nasnet
with torch.device("meta"):  # the graph alone, without memory
    nodes = [node for node in fx.symbolic_trace(nasnet(cells=6)).graph.nodes if node.op != "output"]
place = {{node: k for k, node in enumerate(nodes)}}
layers = tuple(Layer(node.name, str(node.target), 1e5) for node in nodes)
edges = {{(place[one], k) for k, node in enumerate(nodes) for one in node.all_input_nodes}}
graph = LayerGraph(layers, tuple(sorted(edges)))
"""
_NOTEBOOK = """
from sparsepipe.study.unlike_devices import unlike_devices
from sparsepipe.views.widgets import PartitionExplorer
profile, cluster = unlike_devices("minkvgg11bn-narrow")
explorer = PartitionExplorer(profile, cluster)
explorer.widget
"""


@dataclass(frozen=True)
class Case:
    """What is measured: the cell that shows an explorer, and the label of its slider for a type of devices."""

    about: str
    cell: str
    devices_label: str


def chain(num_layers: int, num_devices: int) -> Case:
    """Return made-up layers in a chain with skip connections, over two nodes of unlike devices."""
    graph = _CHAIN.format(layers=num_layers)
    return Case(f"{num_layers} layers, {num_devices} devices", _LAYERS.format(graph=graph, devices=num_devices), "fast")


def nasnet(num_devices: int) -> Case:
    """Return the layer graph of NASNet-A with six normal cells a level, as nasnetalarge has, with made-up costs."""
    cell = _LAYERS.format(graph=_NASNET.format(), devices=num_devices)
    return Case(f"nasnetalarge's layers, {num_devices} devices", cell, "fast")


def notebook() -> Case:
    """Return what 05_partition opens on where 03_profile was not run."""
    return Case("05_partition's network and devices", _NOTEBOOK, "native-2t")
