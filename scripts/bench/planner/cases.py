"""Chains of layers, mixes of devices, and published profiles."""

import os
import random
from pathlib import Path

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile

from ..document import REPOSITORY

LINK = Link(1e9, 10e-6)
BETWEEN = Link(1.25e8, 100e-6)  # Ethernet of 1 Gbit/s


def reference() -> Path | None:
    """The folder of published profiles, if it is there."""
    folder = Path(os.environ.get("SPARSEPIPE_REFERENCE") or REPOSITORY.parent / "shared" / "reference")
    return folder if (folder / "profiles").is_dir() else None


def chain(num_layers: int, types: str, *, seed: int = 0) -> Profile:
    """A random chain on device types of different speeds, each layer a little better or worse on each."""
    rng = random.Random(seed)
    layers = [Layer(f"l{k}", "", rng.choice([0, 1e4, 1e6, 4e6])) for k in range(num_layers)]
    base = [(rng.uniform(1, 10) * 1e-3, rng.uniform(1, 10) * 1e5) for _ in layers]
    costs = {}
    for place, kind in enumerate(types):
        times = [seconds * (1 + place / 2) * rng.uniform(0.8, 1.2) for seconds, _ in base]
        samples = [CostSample(0, t, 2 * t, size) for t, (_, size) in zip(times, base, strict=True)]
        costs[kind] = tuple(LayerCost((sample,)) for sample in samples)
    return Profile(LayerGraph.chain(layers), costs)


def cells(count: int, *, branches: int = 5, deep: int = 4, seed: int = 0) -> Profile:
    """A random network of cells, each a few branches of layers that are added up: many cuts, 625 and more a cell."""
    rng = random.Random(seed)
    layers, edges, last = [Layer("start")], [], 0
    for _ in range(count):
        ends = []
        for _ in range(branches):
            end = last
            for _ in range(deep):
                edges.append((end, len(layers)))
                end = len(layers)
                layers.append(Layer(f"l{end}", "", rng.choice([0, 1e4, 1e5])))
            ends.append(end)
        last = len(layers)
        edges += [(end, last) for end in ends]
        layers.append(Layer(f"l{last}"))
    costs = []
    for _ in layers:
        forward = rng.uniform(1, 10) * 1e-3
        costs.append(LayerCost((CostSample(0, forward, 2 * forward, rng.uniform(1, 10) * 1e5),)))
    return Profile(LayerGraph(tuple(layers), tuple(edges)), {"a": tuple(costs)})


def devices(types: str, count: int) -> Cluster:
    """One node with `count` devices, spread over `types`."""
    kinds = tuple(DeviceType(types[k * len(types) // count]) for k in range(count))
    return Cluster((Node("node", kinds, LINK),), LINK)


def hosts(types: str, count: int, each: int) -> Cluster:
    """`count` hosts of `each` like devices, the hosts spread over `types`."""
    kinds = [DeviceType(types[k * len(types) // count]) for k in range(count)]
    return Cluster(tuple(Node(f"host{k}", (kind,) * each, LINK) for k, kind in enumerate(kinds)), BETWEEN)


def mixed_hosts(types: str, count: int) -> Cluster:
    """`count` hosts, each of these devices."""
    kinds = tuple(DeviceType(kind) for kind in types)
    return Cluster(tuple(Node(f"host{k}", kinds, LINK) for k in range(count)), BETWEEN)


def minkvgg16(folder: Path) -> tuple[Profile, Cluster]:
    """MinkVGG16 as published, on 3 RTX, 3 TITAN V and 2 TITAN Xp."""
    kinds = ("RTX", "tv", "txp")
    paths = [folder / f"profiles/minkvgg/minkvgg_v0.02_b64_{kind}/graph.txt" for kind in kinds]
    first, *others = (Profile.load(path, device_type=kind) for path, kind in zip(paths, kinds, strict=True))
    for other in others:
        first = first | other
    listed = tuple(DeviceType(kind) for kind in ("RTX",) * 3 + ("tv",) * 3 + ("txp",) * 2)
    return first, Cluster((Node("node", listed, LINK),), LINK)
