"""Published profiles on like devices and mixes, on one node and several, whose gaps are told a row each."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sparsepipe import Cluster, CostSample, DeviceType, Layer, LayerCost, LayerGraph, Link, Node, Profile

WITHIN, BETWEEN = Link(12e9), Link(1e9)
TEN_GIGABIT = Link(1.25e9)
_MINKOWSKI = {"a": "RTX", "b": "tv", "c": "txp"}
_TWO_NODES = ("aabc", "aabc"), ("aaaa", "bbcc")
_FOUR_NODES = {"4 × 4, like": [("aaaa",) * 4], "4 × 4, mixes": [("aabc",) * 4, ("aaaa", "aaaa", "bbbb", "cccc")]}
_LARGER = 3.8  # nasnetalarge's last channels over nasnetamobile's: 4032 / 1056


@dataclass(frozen=True)
class Case:
    """A network on a cluster; `profile` reads it anew, so that nothing is known of it when it is planned."""

    group: str
    network: str
    devices: str
    profile: Callable[[], Profile]
    cluster: Cluster

    @property
    def name(self) -> str:
        return f"{self.group}: {self.network} on {self.devices}"


def cases(folder: Path) -> Iterator[Case]:
    """Yield the cases, of a folder as `reference` names it."""
    paths = {path.parent.name: path for path in sorted((folder / "profiles").rglob("graph.txt"))}
    images = {name: path for name, path in paths.items() if "minkvgg" not in name}
    minkvgg = partial(_joined, _of_minkvgg(paths))
    for count, node in ((2, "aabc"), (4, "aabc"), (16, "aabc"), (16, "aaaabbcc")):
        yield Case("MinkVGG16", "minkvgg b64", f"{count} × {node}", minkvgg, nodes([node] * count, TEN_GIGABIT))
    for group, every in _FOUR_NODES.items():
        for name, path in images.items():
            for kinds in every:
                yield Case(group, name, " | ".join(kinds), partial(unlike, path), nodes(kinds, BETWEEN))
    for bandwidth in (1e9, 1e10):
        for kinds in _TWO_NODES:
            cluster, told = nodes(kinds, Link(bandwidth)), f"{' | '.join(kinds)}, {bandwidth:.0e} B/s"
            for name, path in images.items():
                yield Case("mixes on 2 nodes", name, told, partial(unlike, path), cluster)
            yield Case("mixes on 2 nodes", "minkvgg b64", told, minkvgg, cluster)
    for count in (16, 64, 256, 1024):
        large = partial(nasnet_large, paths["nasnetamobile"])
        yield Case("nasnetalarge", "nasnetalarge's layers", f"{count}, 1e+09 B/s", large, _like(count, 1e9))
        for name, path in images.items() if count > 16 else ():
            load = partial(Profile.load, path, device_type="a")
            yield Case("many like devices", name, f"{count}, 1e+09 B/s", load, _like(count, 1e9))
    for count in (16, 8, 4, 2):
        for bandwidth in (1e9, 1e10):
            for name, path in paths.items():
                load = partial(Profile.load, path, device_type="a")
                yield Case("like devices", name, f"{count}, {bandwidth:.0e} B/s", load, _like(count, bandwidth))


def nodes(kinds: Sequence[str], network: Link) -> Cluster:
    """A node for each entry, with a device for each of its letters."""
    devices = [tuple(DeviceType(kind) for kind in own) for own in kinds]
    return Cluster(tuple(Node(f"node{k}", own, WITHIN) for k, own in enumerate(devices)), network)


def _like(count: int, bandwidth: float) -> Cluster:
    return Cluster.uniform(count, device_type="a", link=Link(bandwidth))


def _of_minkvgg(paths: Mapping[str, Path]) -> dict[str, Path]:
    return {kind: paths[f"minkvgg_v0.02_b64_{card}"] for kind, card in _MINKOWSKI.items()}


def _joined(paths: Mapping[str, Path]) -> Profile:
    """One profile of files, each of a type of device."""
    first, *others = (Profile.load(path, device_type=kind) for kind, path in paths.items())
    for other in others:
        first = first | other
    return first


def unlike(path: Path) -> Profile:
    """A published profile on three types: as it is (a), each layer 1.2 to 2 times slower (b), all 2.3 times (c)."""
    profile, rng = Profile.load(path, device_type="a"), random.Random(0)
    own = profile.costs["a"]
    slower = {"b": [rng.uniform(1.2, 2.0) for _ in own], "c": [2.3 for _ in own]}
    costs = {kind: tuple(map(_slower, own, factors)) for kind, factors in slower.items()}
    return replace(profile, costs={"a": own, **costs})


def _slower(cost: LayerCost, factor: float) -> LayerCost:
    samples = [replace(one, forward=one.forward * factor, backward=one.backward * factor) for one in cost.samples]
    return LayerCost(tuple(samples))


def nasnet_large(mobile: Path) -> Profile:
    """The layers of nasnetalarge with made-up costs: what nasnetamobile's of a kind take on average, and more.

    3.8 times the seconds and bytes, which goes with the channels, and its square of the weights.
    """
    import torch
    from torch import fx

    from sparsepipe.networks.images.nasnet import nasnet

    with torch.device("meta"):  # the graph alone, without memory
        traced = fx.symbolic_trace(nasnet(cells=6))
    own = [node for node in traced.graph.nodes if node.op != "output"]
    modules, place = dict(traced.named_modules()), {node: k for k, node in enumerate(own)}
    kinds = [
        type(modules[n.target]).__name__ if n.op == "call_module" else getattr(n.target, "__name__", "") for n in own
    ]
    means = _means(Profile.load(mobile, device_type="a"))
    costs, layers = [], []
    for node, kind in zip(own, kinds, strict=True):
        weights, sample = means.get(
            {"add": "Add", "cat": "Concat"}.get(kind, kind), (0.0, CostSample(1, 0.0, 0.0, 0.0))
        )
        layers.append(Layer(node.name, kind, weights * _LARGER**2))
        costs.append(LayerCost((sample,)))
    edges = {(place[one], k) for k, node in enumerate(own) for one in node.all_input_nodes}
    return Profile(LayerGraph(tuple(layers), tuple(sorted(edges))), {"a": tuple(costs)})


def _means(profile: Profile) -> dict[str, tuple[float, CostSample]]:
    """Of each kind of layer: (bytes of weights, costs), times as much as the channels are more."""
    kinds: dict[str, list[int]] = {}
    for k, layer in enumerate(profile.graph.layers):
        kinds.setdefault(layer.description.partition("(")[0], []).append(k)
    found = {}
    for kind, own in kinds.items():
        samples = [profile.costs["a"][k].samples[0] for k in own]

        def mean(values: Sequence[float]) -> float:
            return _LARGER * sum(values) / len(values)

        sample = CostSample(
            samples[0].size,
            mean([one.forward for one in samples]),
            mean([one.backward for one in samples]),
            mean([one.output_bytes for one in samples]),
        )
        found[kind] = (sum(profile.graph.layers[k].parameter_bytes for k in own) / len(own), sample)
    return found
