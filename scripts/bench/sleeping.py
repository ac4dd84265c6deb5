"""A network whose layers sleep: what replays of benchmarks go by."""

from sparsepipe.values.graph import Layer, LayerGraph
from sparsepipe.values.profile import CostSample, LayerCost, Profile

DEVICE = "device"  # the only type


def sleeping_profile(layers: int, seconds: float, *, parameter_bytes: float, output_bytes: float) -> Profile:
    """Return the profile of a chain of layers alike, which take `seconds` together for a minibatch of size 1.

    A third of that is forward, the rest backward. Bytes are each layer's. A minibatch of another size takes longer in
    proportion: two samples lie on a line through 0.
    """
    graph = LayerGraph.chain([Layer(f"l{k}", "", parameter_bytes) for k in range(layers)])
    each = seconds / layers
    cost = LayerCost(tuple(CostSample(s, s * each / 3, s * 2 * each / 3, output_bytes) for s in (1.0, 2.0)))
    return Profile(graph, {DEVICE: (cost,) * layers}, (1.0,))
