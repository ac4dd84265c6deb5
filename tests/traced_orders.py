"""The order of all that networks of the zoo consist of, as one process finds it: `python tests/traced_orders.py`."""

import json

import torch
import traced_zoo

from sparsepipe.networks.traced import TracedNetwork, trace
from sparsepipe.networks.traced.building import build_module

NAMES = ["resnet", "inception", "encoder decoder", "tied language model", "late masks", "buffers"]


def order(network: TracedNetwork, name: str) -> list:
    """Rows with what they read and hold, what crosses each cut in both modes, parameters and buffers: as JSON has them.

    `name`: of the network in the zoo, or "mnist-convnet".
    """
    stage = network.build(engine=traced_zoo.engine(name), seed=0)
    ids = [row.id for row in network.rows]
    crossing = [network.alive(ids[:cut], training=mode) for cut in range(len(ids)) for mode in (True, False)]
    rows = [[row.id, row.inputs, row.outputs, row.keys, row.modules] for row in network.rows]
    parameters, buffers = dict(stage.named_parameters()), dict(stage.named_buffers())
    return json.loads(json.dumps([rows, crossing, list(parameters), list(buffers)]))


def convnet() -> TracedNetwork:
    return trace(build_module("mnist-convnet", {}, {"num_classes": 10}, seed=0), torch.rand(2, 1, 28, 28))


if __name__ == "__main__":
    found = {"mnist-convnet": order(convnet(), "mnist-convnet")}
    for zoo_name in NAMES:
        module, inputs = traced_zoo.build(zoo_name)
        found[zoo_name] = order(trace(module, inputs, name=zoo_name), zoo_name)
    print(json.dumps(found))
