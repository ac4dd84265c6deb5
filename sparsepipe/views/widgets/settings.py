"""The settings of the partition explorer's controls as one value, and the cluster that they make.

Of several pipelines: how many, the rule by which they average, and who is slow.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any

from ...errors import InputError
from ...util.io.quantities import BANDWIDTH, SIZE, TIME
from ...util.text.numbers import counted, voxel_size_text
from ...values.cluster import Cluster, DeviceType, Link, Node
from ...values.stragglers import Stragglers

MINIBATCHES = 24  # of each pipeline on average, to simulate

NOBODY, PIPELINE, SLOW = "none", "one slow pipeline", "one slow rank"
JITTER, STOP, TYPED = "ranks sleep at random", "one rank stops once", "as typed below"


@dataclass(frozen=True)
class HeldUp:
    """A straggler as picked in the widgets, before ranks are known. Its `kind` selects the fields that count.

    `pipeline`: by its number, all of whose ranks are slow. `text`: as the command line takes it.
    """

    kind: str = NOBODY
    pipeline: int = 0
    rank: int = 0
    factor: float = 1.0
    chance: float = 0.0
    seconds: float = 0.0
    text: str = ""

    def stragglers(self, pipelines: Sequence[Sequence[int]], *, minibatches: int) -> Stragglers:
        """Return it for pipelines of these ranks, each of which trains so many minibatches.

        Raises InputError for a text that cannot be read, and for a pipeline that does not exist.
        """
        rank, seconds = f"rank={self.rank}", f"seconds={self.seconds:g}"
        if self.kind == PIPELINE:
            ranks = self._pipeline(pipelines)
            return Stragglers.parse(";".join(f"slow:rank={one},factor={self.factor:g}" for one in ranks))
        given = {
            SLOW: f"slow:{rank},factor={self.factor:g}",
            JITTER: f"jitter:p={self.chance:g},{seconds}",
            STOP: f"stop:{rank},at={minibatches // 4},{seconds}",
            TYPED: self.text,
        }
        return Stragglers.parse(given.get(self.kind, ""))

    def _pipeline(self, pipelines: Sequence[Sequence[int]]) -> Sequence[int]:
        """The ranks of the slow pipeline."""
        if self.pipeline < len(pipelines):
            return pipelines[self.pipeline]
        raise InputError(
            "straggler.pipeline_unknown",
            f"straggler slow: pipeline {self.pipeline} does not exist, expected 0 to {len(pipelines) - 1}; lower it, "
            "or plan more pipelines",
        )


@dataclass(frozen=True)
class SeveralPipelines:
    """Number of pipelines, synchronization scheme as on the command line, and straggler."""

    count: int
    rule: str
    held_up: HeldUp = HeldUp()


Devices = list[list[DeviceType]]  # of each node


AS_GIVEN, BY_TYPE = "as given", "one node per device type"  # how devices are placed on nodes


@dataclass(frozen=True)
class Settings:
    """None stands for what was given: links that differ from node to node, limits that differ from type to type."""

    devices: tuple[tuple[str, int], ...]  # (type, how many)
    placement: str
    bandwidth: float | None  # bytes/s within a node
    latency: float | None  # seconds
    network_bandwidth: float
    network_latency: float
    memory_bytes: float | None  # of every device
    batch_size: int | None  # None: the profile does not say
    voxel_size: float | None
    compression: float
    planner: str
    schedule: str
    weights: str
    num_microbatches: int
    stages_per_device: int
    recompute: bool = False
    cuts: tuple[int, ...] | None = None  # pinned: layers before each cut
    stage_devices: tuple[tuple[tuple[str, int], ...], ...] | None = None  # pinned: the devices of each stage
    several: SeveralPipelines | None = None  # pipelines; None: one
    hosts: tuple[tuple[tuple[str, int], ...], ...] | None = None  # devices of each node given, as set on the map

    def to_json(self) -> dict[str, Any]:
        """Plain values; "as given" for what stayed as it was given."""
        found = asdict(self) | {"devices": dict(self.devices)}
        if self.stage_devices is not None:
            found["stage_devices"] = [dict(group) for group in self.stage_devices]
        if self.several is None:
            del found["several"]
        if self.hosts is None:
            del found["hosts"]
        else:
            found["hosts"] = [dict(host) for host in self.hosts]
        for name in ("bandwidth", "latency", "memory_bytes"):
            found[name] = "as given" if found[name] is None else _finite(found[name])
        return found | {"network_bandwidth": _finite(self.network_bandwidth)}

    def told(self, cluster: Cluster) -> str:
        """One line: devices, links, memory, workload, planner. `cluster`: what they make of the cluster given."""
        parts = [devices_told(cluster), links_told(cluster), f"memory {memory_told(cluster)}"]
        if self.batch_size is not None:
            parts.append(f"batch size {self.batch_size}")
        if self.voxel_size is not None:
            parts.append(f"voxel size {voxel_size_text(self.voxel_size)}")
        if self.compression != 1:
            parts.append(f"boundaries compressed {self.compression:g} ×")
        chosen = "by hand" if self.cuts is not None or self.stage_devices is not None else self.planner
        several = f", {self.stages_per_device} stages per device" if self.stages_per_device > 1 else ""
        steps = f", {self.num_microbatches} microbatches per step" if self.num_microbatches > 1 else ""
        again = ", recomputation" if self.recompute else ""
        parts.append(f"planner {chosen}{several}{again}, schedule {self.schedule} ({self.weights}{steps})")
        if self.several is not None:
            parts.append(f"{self.several.count} pipelines, {self.several.rule}")
        return " · ".join(parts)


def devices_told(cluster: Cluster) -> str:
    """The devices in words, such as 2 × fast + slow on 2 nodes."""
    names = counted(device.type.name for device in cluster.devices)
    return f"{names} on {len(cluster.nodes)} nodes" if len(cluster.nodes) > 1 else names


def links_told(cluster: Cluster) -> str:
    """Bandwidth and latency within nodes and between them, of the links that there are."""
    own = [node.link for node in cluster.nodes if len(node.device_types) > 1]
    parts = []
    if own:
        parts.append(f"links {_links(own)}" + (" within nodes" if len(cluster.nodes) > 1 else ""))
    if len(cluster.nodes) > 1:
        parts.append(f"{_links([cluster.network])} between nodes")
    return ", ".join(parts) or "no links"


def memory_told(cluster: Cluster) -> str:
    """The limit of all devices, or of each type if they differ."""
    limits = {device.type.name: device.type.memory_bytes for device in cluster.devices}
    if len(set(limits.values())) == 1:
        return SIZE.shown(next(iter(limits.values())))
    return ", ".join(f"{name} {SIZE.shown(limit)}" for name, limit in limits.items())


def _links(links: Sequence[Link]) -> str:
    bandwidths = sorted(link.bandwidth for link in links)
    latencies = sorted(link.latency for link in links)
    told = _range(bandwidths, BANDWIDTH)
    return f"{told}, {_range(latencies, TIME)}" if latencies[-1] else told


def _range(values: list[float], quantity: Any) -> str:
    return " to ".join(dict.fromkeys(quantity.shown(value) for value in (values[0], values[-1])))


def _finite(value: float) -> float | str:
    """JSON knows no infinity."""
    return value if value < float("inf") else "no limit"


def placed(given: Cluster, settings: Settings) -> Cluster:
    """The cluster given, with the devices, links and limits of `settings`. Raises InputError without any device.

    The devices keep their nodes. Fewer of a type are taken from the last nodes that have it, more are put on the last
    one; a node without devices is left out. With `BY_TYPE` each type has a node of its own, with the link of the first
    node that had it.
    """
    wanted = dict(settings.devices)
    if settings.placement == BY_TYPE:
        nodes = _by_type(given, wanted)
    else:
        kept = _on_given(given, wanted) if settings.hosts is None else _on_map(given, settings.hosts)
        pairs = zip(given.nodes, kept, strict=True)
        nodes = [replace(node, device_types=tuple(devices)) for node, devices in pairs if devices]
    if not nodes:
        raise InputError("explorer.no_device", "no device is selected; add a device with +")
    network = Link(settings.network_bandwidth, settings.network_latency)
    return Cluster(tuple(_as_set(node, settings) for node in nodes), network)


def placement_told(given: Cluster, settings: Settings) -> str:
    """Return a sentence on the nodes that the devices are on, with the rule if these are not the given nodes."""
    try:
        cluster = placed(given, settings)
    except InputError:
        return ""
    where = f"{nodes_told(cluster)}; {links_told(cluster)}"
    if settings.hosts is not None:
        return f"As set on the map: {where} (given: {nodes_told(given)})."
    names = [[[kind.name for kind in node.device_types] for node in one.nodes] for one in (cluster, given)]
    if names[0] == names[1] and settings.placement != BY_TYPE:
        links = [[one.network, *(node.link for node in one.nodes)] for one in (cluster, given)]
        what = "Devices and links as given" if links[0] == links[1] else "Devices as given, links changed"
        return f"{what}: {where}."
    if settings.placement == BY_TYPE:
        return f"Regrouped, one node per device type: {where} (given: {nodes_told(given)})."
    rule = "Removed devices come from the last nodes first; added devices go to the last node with that type"
    return f"Placed on the nodes given: {where} (given: {nodes_told(given)}). {rule}."


def nodes_told(cluster: Cluster) -> str:
    """ "a: 2 × fast + slow; b: tv"; identical nodes in a row are written together."""
    parts = []
    for devices, run in groupby(cluster.nodes, key=lambda node: counted(kind.name for kind in node.device_types)):
        names = [node.name for node in run]
        where = ", ".join(names) if len(names) < 4 else f"{names[0]} … {names[-1]} ({len(names)} nodes)"
        parts.append(f"{where}: {devices}" + (" each" if len(names) > 1 else ""))
    return "; ".join(parts)


def _on_given(given: Cluster, wanted: Mapping[str, int]) -> Devices:
    kept = [list(node.device_types) for node in given.nodes]
    for name, count in wanted.items():
        places = [(n, k) for n, own in enumerate(kept) for k, kind in enumerate(own) if kind.name == name]
        for n, k in reversed(places[count:]):
            del kept[n][k]
        last = given.nodes[places[-1][0]].device_types[places[-1][1]]
        kept[places[-1][0]] += [last] * (count - len(places))
    return kept


def _on_map(given: Cluster, hosts: tuple[tuple[tuple[str, int], ...], ...]) -> Devices:
    kinds = {device.type.name: device.type for device in reversed(given.devices)}
    return [[kinds[name] for name, count in host for _ in range(count)] for host in hosts]


_MOST_KINDS = 8  # rows of the map, up to which every host offers every device type


def hosts_of(given: Cluster, settings: Settings) -> list[tuple[Node, dict[str, int]]]:
    """The hosts of the map, also those without a device: (its node, devices by type, also types that it may get)."""
    wanted, names = dict(settings.devices), list(dict.fromkeys(device.type.name for device in given.devices))
    if settings.placement == BY_TYPE:
        return [(node, {node.device_types[0].name: len(node.device_types)}) for node in _by_type(given, wanted)]
    placed_devices = _on_given(given, wanted) if settings.hosts is None else _on_map(given, settings.hosts)
    every = names if len(names) * len(given.nodes) <= _MOST_KINDS else []
    hosts = []
    for node, devices in zip(given.nodes, placed_devices, strict=True):
        kinds = [*(kind.name for kind in (*node.device_types, *devices)), *every]
        held = [kind.name for kind in devices]
        hosts.append((node, {name: held.count(name) for name in dict.fromkeys(kinds)}))
    return hosts


def map_of(given: Cluster, settings: Settings) -> dict[str, object]:
    """The map of hosts, their devices and links, as JSON-ready values."""
    hosts = [
        {"name": node.name, "link": _links([_as_set(node, settings).link]), "counts": counts}
        for node, counts in hosts_of(given, settings)
    ]
    return {"hosts": hosts, "network": _links([Link(settings.network_bandwidth, settings.network_latency)])}


def drawn_map(cluster: Cluster, *, links: bool = True) -> dict[str, object]:
    """The map of a cluster as it is; without `links` if nobody knows them."""
    hosts = []
    for node in cluster.nodes:
        held = [kind.name for kind in node.device_types]
        counts = {name: held.count(name) for name in dict.fromkeys(held)}
        hosts.append({"name": node.name, "link": _links([node.link]) if links else "", "counts": counts})
    return {"hosts": hosts, "network": _links([cluster.network]) if links else ""}


def _by_type(given: Cluster, wanted: Mapping[str, int]) -> list[Node]:
    nodes = []
    for name, count in wanted.items():
        first = next(device for device in given.devices if device.type.name == name)
        kinds = [device.type for device in given.devices if device.type.name == name]
        own = tuple((kinds + [kinds[-1]] * count)[:count])
        if own:
            nodes.append(Node(f"node of {name}" if len(wanted) > 1 else "node", own, first.node.link))
    return nodes


def _as_set(node: Node, settings: Settings) -> Node:
    link, limit = node.link, settings.memory_bytes
    bandwidth = link.bandwidth if settings.bandwidth is None else settings.bandwidth
    latency = link.latency if settings.latency is None else settings.latency
    kinds = node.device_types if limit is None else tuple(replace(k, memory_bytes=limit) for k in node.device_types)
    return replace(node, device_types=kinds, link=Link(bandwidth, latency))
