"""Networks made of any torch module: traced into layers that are profiled, planned for, cut and run like a table's.

network = trace(module, example)
stage = network.build(layer_ids, engine=engine, seed=0)
values = stage(stage.enter(inputs), minibatch=0, keep=network.outputs)
"""

from .rows import TracedRow
from .subnetwork import TracedNetwork, TracedSubnetwork
from .tracing import trace
from .verification import verify

__all__ = ["TracedNetwork", "TracedRow", "TracedSubnetwork", "trace", "verify"]
