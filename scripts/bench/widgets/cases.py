"""The explorer that is measured: a notebook's cell, for so many layers and devices."""

CELLS = """
from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile
from sparsepipe.widgets import PartitionExplorer
layers = tuple(Layer(f"conv{{k}}", "", 2e6 + 1e5 * k) for k in range({layers}))
def costs(speed):
    few = [CostSample(1000, (.004 + .001 * (k % 5)) * speed, (.009 + .002 * (k % 3)) * speed, 4e6 / (1 + k), 1e5, 4e6)
           for k in range({layers})]
    more = [CostSample(8000, 8 * s.forward, 8 * s.backward, 8 * s.output_bytes, 8e5, 3e7) for s in few]
    return tuple(LayerCost(pair) for pair in zip(few, more))
origin = {{"batch_size": 16, "voxel_size": 0.03}}
graph = LayerGraph.chain(layers, skips=[(k, k + 3) for k in range(0, {layers} - 4, 4)])
profile = Profile(graph, {{"fast": costs(1), "slow": costs(1.6)}}, (3000.0, 4000.0), origin)
half, memory = {devices} // 2, 2e10 * max(1, {layers} // 60) ** 2  # of more layers, which hold more weights each
nodes = (Node("a", (DeviceType("fast", memory),) * half, Link(1e10, 1e-5)),
         Node("b", (DeviceType("slow", memory),) * ({devices} - half), Link(1e10, 1e-5)))
explorer = PartitionExplorer(profile, Cluster(nodes, Link(1e9, 5e-5)))
explorer.widget
"""
