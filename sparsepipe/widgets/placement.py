"""Place the devices that the sliders ask for on nodes: those of the given cluster, or one node for each type."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby

from ..cluster import Cluster, DeviceType, Link, Node
from ..display.html import counted
from ..errors import InputError
from .settings import BY_TYPE, Settings, links_told

Devices = list[list[DeviceType]]  # of each node


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
        kept = _on_given(given, wanted)
        pairs = zip(given.nodes, kept, strict=True)
        nodes = [replace(node, device_types=tuple(devices)) for node, devices in pairs if devices]
    if not nodes:
        raise InputError("explorer.no_device", "no device chosen: move a device slider up")
    network = Link(settings.network_bandwidth, settings.network_latency)
    return Cluster(tuple(_as_set(node, settings) for node in nodes), network)


def placement_told(given: Cluster, settings: Settings) -> str:
    """Return a sentence on the nodes that the devices are on, with the rule where these are not the given nodes."""
    try:
        cluster = placed(given, settings)
    except InputError:
        return ""
    where = f"{nodes_told(cluster)}; {links_told(cluster)}"
    names = [[[kind.name for kind in node.device_types] for node in one.nodes] for one in (cluster, given)]
    if names[0] == names[1] and settings.placement != BY_TYPE:
        links = [[one.network, *(node.link for node in one.nodes)] for one in (cluster, given)]
        what = "Devices and links as given" if links[0] == links[1] else "Devices as given, links changed"
        return f"{what}: {where}."
    if settings.placement == BY_TYPE:
        return f"Placed anew, one node per device type: {where} (given: {nodes_told(given)})."
    rule = "Fewer are taken from the last nodes first, more are put on the last node that has the type"
    return f"Placed on the nodes given: {where} (given: {nodes_told(given)}). {rule}."


def nodes_told(cluster: Cluster) -> str:
    """ "a: 2 × fast + slow; b: tv"; like nodes in a row are told together."""
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
