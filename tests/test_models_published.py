"""PipeDream's published profiles of image networks: ours have the same layers, edges, activations and parameters.

What PipeDream wrote down otherwise, and is not held against ours:
- "Input" and "Size" nodes: the images, and a number that Python reads; neither is a layer here.
- Its global pools know their kernel (7 or 8), ours adapt to any image. In AlexNet, VGG16 and Inception v3's auxiliary
  classifier such a pool stands where PipeDream has none: at the size of the profile it changes nothing.
- NASNet's profile has an auxiliary classifier, and no dropout before the last layer; its last ReLU, the global pool and
  what flattens that have 0 bytes there. What shifts the input of a factorized reduction by a pixel is "__getitem__"
  there, a pad here.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module

import pytest
import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from sparsepipe.networks.images import IMAGE_NETWORKS
from sparsepipe.networks.traced import trace
from sparsepipe.values.graph_text import GraphText

OURS = {"vgg16": "vgg16-images"}  # their name -> ours, where the two differ
FLOAT_BYTES = 4
THEIR_WORDS = {"add": "Add", "cat": "Concat", "flatten": "View", "Flatten": "View", "pad": "__getitem__"}
AS_WRITTEN = ("Conv2d", "Linear", "MaxPool2d", "BatchNorm2d")  # what stands between their brackets is compared too


@dataclass(frozen=True)
class Node:
    label: str
    activation_bytes: float
    parameter_bytes: float
    inputs: tuple[str, ...]


Nodes = dict[str, Node]  # in topological order


def label(description: str) -> str:
    kind = description.partition("(")[0]
    if kind not in AS_WRITTEN:
        return THEIR_WORDS.get(kind, kind)
    return description.replace("affine=True, bias=True", "affine=True")


def without(nodes: Nodes, unwanted: set[str]) -> Nodes:
    """Take nodes out: what read them reads what they read."""
    kept: Nodes = {}
    reads: dict[str, tuple[str, ...]] = {}
    for id, node in nodes.items():
        inputs = tuple(dict.fromkeys(name for one in node.inputs for name in reads.get(one, (one,))))
        if id in unwanted:
            reads[id] = inputs
        else:
            kept[id] = replace(node, inputs=inputs)
    return kept


def theirs(path) -> tuple[Nodes, int]:
    """Return the layers of a published profile, and how many bytes its images have."""
    text = GraphText.load(path)
    node_of = {node.id: node for node in text.nodes}
    graph = text.graph
    nodes: Nodes = {}
    for layer, inputs in zip(graph.layers, graph.inputs, strict=True):
        node = node_of[layer.id]
        ids = tuple(graph.layers[k].id for k in inputs)
        nodes[layer.id] = Node(label(node.description), sum(node.activation_bytes), node.parameter_bytes, ids)
    (images,) = (id for id, node in nodes.items() if node.label == "Input")
    unlike = {images, *(id for id, node in nodes.items() if node.label == "Size")}
    kept = {id: node for id, node in nodes.items() if id not in unlike}
    for id, node in kept.items():
        kept[id] = replace(node, inputs=tuple(name for name in node.inputs if name not in unlike))
    return kept, int(nodes[images].activation_bytes)


class EveryModule(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, path: str) -> bool:
        return not list(module.children())


def built(name: str, **args: object) -> nn.Module:
    chosen = IMAGE_NETWORKS[name]
    return getattr(import_module(f"sparsepipe.networks.{chosen.home}"), chosen.function)(**{**chosen.args, **args})


def recorded(network: nn.Module, images: torch.Tensor) -> Nodes:
    """Return the layers of a network as torch.fx sees them, with the bytes that they give."""
    traced = fx.GraphModule(network, EveryModule().trace(network))
    ShapeProp(traced).propagate(images)
    nodes: Nodes = {}
    for node in traced.graph.nodes:
        if node.op in ("placeholder", "output") or isinstance(node.target, type):  # a type: Inception's named tuple
            continue
        given = FLOAT_BYTES * node.meta["tensor_meta"].shape.numel()
        inputs = tuple(one.name for one in node.all_input_nodes if one.op != "placeholder")
        if node.op == "call_module":
            module = traced.get_submodule(node.target)
            held = FLOAT_BYTES * sum(parameter.numel() for parameter in module.parameters())
            nodes[node.name] = Node(label(repr(module)), given, held, inputs)
        else:
            function = node.target if isinstance(node.target, str) else node.target.__name__
            nodes[node.name] = Node(THEIR_WORDS[function], given, 0, inputs)
    return nodes


def ours(name: str, batch_size: int) -> Nodes:
    """Return the layers of one of our networks, with the bytes that it gives for images of the size it is made for."""
    size = int(IMAGE_NETWORKS[name].takes.split()[-1])
    with torch.device("meta"):  # shapes without memory
        nodes = recorded(built(name), torch.empty(batch_size, 3, size, size))
    pools = {id: node for id, node in nodes.items() if node.label == "AdaptiveAvgPool2d"}
    idle = {id for id, pool in pools.items() if nodes[pool.inputs[0]].activation_bytes == pool.activation_bytes}
    nodes |= {id: replace(pool, label="AvgPool2d") for id, pool in pools.items()}
    return without(nodes, idle)


def ancestors(nodes: Nodes, last: str) -> set[str]:
    found, todo = set(), [last]
    while todo:
        if (id := todo.pop()) not in found:
            found.add(id)
            todo += nodes[id].inputs
    return found


def places(nodes: Mapping[str, Node]) -> Counter[tuple[int, int]]:
    """What stands where: each layer with all that leads to it and all that it leads to. Equal for equal graphs."""
    before: dict[str, int] = {}
    for id, node in nodes.items():
        own = (node.label, node.activation_bytes, node.parameter_bytes)
        before[id] = hash((own, tuple(sorted(before[name] for name in node.inputs))))
    readers: dict[str, list[int]] = {id: [] for id in nodes}
    found: Counter[tuple[int, int]] = Counter()
    for id, node in reversed(nodes.items()):
        after = hash((before[id], tuple(sorted(readers[id]))))
        found[before[id], after] += 1
        for name in node.inputs:
            readers[name].append(after)
    return found


def nasnet_without_auxiliary(published: Nodes, batch_size: int) -> Nodes:
    """Return what leads to the logits, its last three layers with the bytes that were not written."""
    (last,) = (id for id, node in published.items() if node.label.startswith("Linear(in_features=1056"))
    kept = ancestors(published, last)
    one_cell = batch_size * 1056 * FLOAT_BYTES
    unmeasured = {"ReLU": 7 * 7 * one_cell, "AvgPool2d": one_cell, "View": one_cell}
    return {
        id: node if node.activation_bytes else replace(node, activation_bytes=unmeasured[node.label])
        for id, node in published.items()
        if id in kept
    }


PROFILES = (
    *("alexnet", "vgg16", "resnet18", "resnet50", "resnet101", "resnext101"),
    *("densenet121", "inception_v3", "nasnetamobile"),
)


@pytest.mark.parametrize("name", PROFILES)
def test_layers_are_those_of_the_published_profile(name, shared_reference):
    published, image_bytes = theirs(shared_reference / f"profiles/image_classification/{name}/graph.txt")
    chosen = OURS.get(name, name)
    side = int(IMAGE_NETWORKS[chosen].takes.split()[-1])
    batch_size, rest = divmod(image_bytes, 3 * side * side * FLOAT_BYTES)
    assert rest == 0 and batch_size in (64, 128, 256)
    own = ours(chosen, batch_size)
    if name == "nasnetamobile":
        own = without(own, {id for id, node in own.items() if node.label == "Dropout"})
        published = nasnet_without_auxiliary(published, batch_size)
    assert Counter(node.label for node in own.values()) == Counter(node.label for node in published.values())
    assert len(own) == len(published)
    assert places(own) == places(published)


def test_another_edge_is_another_graph():
    """A shortcut that leads one block too far leaves kinds, counts and bytes as they are."""
    chain = {f"{k}": Node("ReLU", 8, 0, (f"{k - 1}",) if k else ()) for k in range(5)}
    chain["5"] = Node("Add", 8, 0, ("4", "1"))
    other = chain | {"5": replace(chain["5"], inputs=("4", "2"))}
    assert places(chain) == places(dict(chain)) != places(other)
    assert places(without(chain, {"2"})) == places(without(other, {"1"}))


@pytest.mark.parametrize("name", ["alexnet", "resnet18-32", "squeezenet1.1"])
def test_what_is_profiled_and_cut_are_these_layers(name):
    """The graph that is held against published profiles is that of `trace`, by another way of recording."""
    network = built(name, width=0.125, num_classes=3)
    images = torch.randn(2, 3, 64, 64)
    traced = trace(network, images)
    layer_of = {value: row.id for row in traced.rows for value in row.outputs}
    rows = {
        row.id: Node(
            THEIR_WORDS.get(row.kind, row.kind),
            0,
            FLOAT_BYTES * row.num_parameters,
            tuple(dict.fromkeys(layer_of[value] for value in row.inputs if value in layer_of)),
        )
        for row in traced.rows
    }
    expected = {
        id: replace(node, label=node.label.partition("(")[0], activation_bytes=0)
        for id, node in recorded(network, images).items()
    }
    assert places(rows) == places(expected)
