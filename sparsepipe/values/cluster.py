"""Clusters: nodes with their devices, device types, and the links inside and between nodes."""

import json
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..util.derived import digest
from ..util.host.ssh import is_loopback
from ..util.io.fields import MOST_DEVICES, given_integer, integer, shown, text
from ..util.io.files import read_text
from ..util.io.quantities import knows_its_keywords, meant
from ..util.text.numbers import Printed, number_of
from .cluster_parts import Device, DeviceType, Link, Node

__all__ = ["Cluster", "Device", "DeviceType", "Link", "Node", "check_addresses"]

_INSTANT = Link()


@dataclass(frozen=True)
class Cluster(Printed):
    """Describe the devices to train on, by node. The rank of a device is its position among all devices.

    Attributes:
        nodes: Machines, in the order of their ranks.
        network: Link between two nodes.

    Raises:
        InputError: No node, too many devices, or two nodes with the same name or address (except loopback).

    Example:
        >>> fast, slow = sp.DeviceType("fast", 24e9), sp.DeviceType("slow", 8e9)
        >>> cluster = sp.Cluster((sp.Node("a", (fast, fast)), sp.Node("b", (slow,))), network=sp.Link(1.25e9, 50e-6))
        >>> [device.type.name for device in cluster.devices]
        ['fast', 'fast', 'slow']
        >>> cluster.link(0, 2).bandwidth
        1250000000.0

    See also:
        guides/describe_a_cluster, `partition`
    """

    nodes: tuple[Node, ...]
    network: Link = Link()

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        if (count := sum(len(node.device_types) for node in self.nodes)) > MOST_DEVICES:
            raise InputError(
                "cluster.too_many_devices",
                f"the cluster has {number_of(count, 'device')}: expected at most {MOST_DEVICES}",
            )
        if not names:
            raise InputError("cluster.no_nodes", "the cluster has no nodes: expected at least one device")
        if len(set(names)) < len(names):
            raise InputError(
                "cluster.node_twice",
                f"node name {max(names, key=names.count)!r} is used twice; give each node a different name",
            )
        check_addresses([node for node in self.nodes if not is_loopback(node.address)])

    @classmethod
    @knows_its_keywords
    def uniform(
        cls, num_devices: int, *, device_type: str = "device", memory_bytes: float = float("inf"), link: Link = _INSTANT
    ) -> "Cluster":
        """Build a cluster of one node with identical devices.

        Args:
            num_devices: Number of devices, 1 or more.
            device_type: Name of the device type, as in profiles.
            memory_bytes: Memory of each device in bytes. Default: no limit.
            link: Link between any two devices.

        Returns:
            The cluster.

        Raises:
            InputError: The count is below 1, or `link` is not a `Link`.

        Example:
            >>> len(sp.Cluster.uniform(4, device_type="cpu", link=sp.Link(4e9)).devices)
            4
        """
        given_integer(num_devices, "a device count of")
        if not isinstance(link, Link):
            raise InputError(
                "link.not_a_link",
                f"link {shown(link)} given, expected a Link, such as Link(bandwidth=1.25e9, latency=50e-6)",
            )
        if num_devices < 1:
            raise InputError(
                "cluster.device_count_zero",
                f"device count {num_devices}: expected at least 1",
                num_devices=num_devices,
            )
        return cls((Node("local", (DeviceType(device_type, memory_bytes),) * num_devices, link),), link)

    @cached_property
    def devices(self) -> tuple[Device, ...]:
        pairs = [(node, kind) for node in self.nodes for kind in node.device_types]
        return tuple(Device(rank, node, kind) for rank, (node, kind) in enumerate(pairs))

    @cached_property
    def digest(self) -> str:
        """Return a short hash of the devices, their nodes and all links. Host addresses do not affect it."""
        nodes = [{key: asdict(node)[key] for key in ("name", "device_types", "link", "address")} for node in self.nodes]
        for kind in (kind for node in nodes for kind in node["device_types"]):
            for key, unknown in (("reference_seconds", None), ("network_seconds_per_byte", 0.0)):
                if kind[key] == unknown:
                    del kind[key]  # digests of before have none
        return digest({"nodes": nodes, "network": self.network})

    def part(self, ranks: Collection[int]) -> "Cluster":
        """Return the cluster of these ranks' devices. Their ranks become 0, 1, …, in the same order.

        Nodes without any of these devices are omitted. Raises InputError for a rank that has no device.
        """
        if beyond := [rank for rank in ranks if rank >= len(self.devices)]:
            raise InputError(
                "plan.rank_not_in_cluster",
                f"the plan uses rank {max(beyond)}, but the cluster has {number_of(len(self.devices), 'device')}; "
                "plan for this cluster, or add hosts to its file",
            )
        types_by_node: dict[str, list[DeviceType]] = {}
        for rank in sorted(ranks):
            types_by_node.setdefault(self.devices[rank].node.name, []).append(self.devices[rank].type)
        nodes = (
            replace(node, device_types=tuple(types_by_node[node.name]))
            for node in self.nodes
            if node.name in types_by_node
        )
        return replace(self, nodes=tuple(nodes))

    @property
    def device_types(self) -> tuple[DeviceType, ...]:
        """Device types, in order of first appearance."""
        return tuple(dict.fromkeys(device.type for device in self.devices))

    @cached_property
    def sending_costs(self) -> bool:
        """Return whether sending between hosts costs any device processor time (`network_seconds_per_byte`)."""
        return len(self.nodes) > 1 and any(kind.network_seconds_per_byte for kind in self.device_types)

    def link(self, a: int, b: int) -> Link:
        """The link between ranks `a` and `b`."""
        node_a, node_b = self.devices[a].node, self.devices[b].node
        return node_a.link if node_a.name == node_b.name else self.network

    def to_toml(self) -> str:
        """Return the cluster as TOML, which `load` reads."""
        lines = ["[network]", *_link_lines(self.network)]
        for kind in self.device_types:
            lines += ["", "[[device_type]]", f"name = {_quoted(kind.name)}"]
            if kind.memory_bytes < float("inf"):
                lines.append(f"memory_bytes = {kind.memory_bytes:.0f}")
            if kind.reference_seconds is not None:
                lines.append(f"reference_seconds = {kind.reference_seconds!r}")
            if kind.network_seconds_per_byte:
                lines.append(f"network_seconds_per_byte = {kind.network_seconds_per_byte!r}")
        for node in self.nodes:
            entries = ", ".join(
                f"{{ type = {_quoted(name)}, count = {count} }}" for name, count in _runs(node.device_types)
            )
            lines += ["", "[[node]]", f"name = {_quoted(node.name)}", f"address = {_quoted(node.address)}"]
            lines += [f"{key} = {_quoted(given)}" for key in ("ssh", "interpreter") if (given := getattr(node, key))]
            if node.environment:
                pairs = ", ".join(f"{key} = {_quoted(value)}" for key, value in node.environment)
                lines.append(f"environment = {{ {pairs} }}")
            lines += [*_link_lines(node.link), f"devices = [{entries}]"]
        return "\n".join(lines) + "\n"

    @classmethod
    def load(cls, path: Path | str) -> "Cluster":
        """Read cluster TOML: `[network]`, `[[device_type]]`, `[[node]]`.

        Raises InputError that names the file and the fault.
        """
        content = read_text(path, what="cluster file")
        try:
            return _parse(tomllib.loads(content))
        except InputError as error:
            raise error.within(f"{path}: ") from None
        except (ValueError, RecursionError) as error:
            raise InputError("cluster.not_toml", f"{path}: not TOML: {error}") from None


def check_addresses(nodes: Sequence[Node]) -> None:
    """Raise InputError if two nodes have one address: neither can be reached apart from the other.

    Names of hosts are the same in capitals and small letters.
    """
    named: dict[str, list[str]] = {}
    for node in nodes:
        named.setdefault(node.address.lower(), []).append(node.name)
    for node in nodes:
        if len(names := named[node.address.lower()]) > 1:
            raise InputError(
                "cluster.address_twice",
                f"{node.address} is the address of several hosts ({' and '.join(names)}); give each host a different "
                "address",
                address=node.address,
            )


def _quoted(text: str) -> str:
    """The text as a basic string of TOML, which is JSON's but for the character DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _link_lines(link: Link) -> list[str]:
    finite = {key: value for key, value in asdict(link).items() if value not in (float("inf"), 0.0)}
    return [f"{key} = {value!r}" for key, value in finite.items()]


def _runs(kinds: Sequence[DeviceType]) -> list[tuple[str, int]]:
    runs: list[tuple[str, int]] = []
    for kind in kinds:
        if runs and runs[-1][0] == kind.name:
            runs[-1] = (kind.name, runs[-1][1] + 1)
        else:
            runs.append((kind.name, 1))
    return runs


def _parse(document: dict[str, Any]) -> Cluster:
    _only(document, {"network", "device_type", "node"}, "the file")
    types: dict[str, DeviceType] = {}
    for entry in _tables(document, "device_type"):
        known = {"name", "memory_bytes", "reference_seconds", "network_seconds_per_byte"}
        _only(entry, known, "[[device_type]]")
        seconds = _number(entry, "reference_seconds", 0.0) if "reference_seconds" in entry else None
        name = _string(entry, "name", "[[device_type]]")
        each = _number(entry, "network_seconds_per_byte", 0.0)
        kind = DeviceType(name, _number(entry, "memory_bytes", float("inf")), seconds, each)
        if kind.name in types:
            raise InputError("device_type.twice", f"device type {kind.name!r} occurs twice; merge the two entries")
        types[kind.name] = kind
    _check_count(document)
    nodes = tuple(_node(entry, types) for entry in _tables(document, "node"))
    if not nodes:
        raise InputError(
            "cluster.no_nodes", "no [[node]] section: expected at least one, with devices = [{ type = …, count = … }]"
        )
    network = document.get("network", {})
    if not isinstance(network, dict):
        raise InputError(
            "cluster.network_not_table", "'network' is not a table, expected [network] with bandwidth and latency"
        )
    _only(network, {"bandwidth", "latency"}, "[network]")
    return Cluster(nodes, _link(network))


def _check_count(document: dict[str, Any]) -> None:
    """Raise InputError for more devices than a cluster can have, before any is made."""
    items = [item for entry in _tables(document, "node") for item in _tables(entry, "devices")]
    counts = [item.get("count", 1) for item in items]
    if (count := sum(max(device_count, 0) for device_count in counts if isinstance(device_count, int))) > MOST_DEVICES:
        raise InputError(
            "cluster.too_many_devices", f"the cluster has {shown(count)} devices: expected at most {MOST_DEVICES}"
        )


def _node(entry: dict[str, Any], types: dict[str, DeviceType]) -> Node:
    known = {"name", "address", "ssh", "interpreter", "environment", "bandwidth", "latency", "devices"}
    _only(entry, known, "[[node]]")
    name = _string(entry, "name", "[[node]]")
    where = f"node {name!r}"
    devices: list[DeviceType] = []
    for item in _tables(entry, "devices"):
        _only(item, {"type", "count"}, f"devices of {where}")
        kind = _string(item, "type", where)
        count = integer(item.get("count", 1), f"{where}: device count of {kind!r}", least=1, most=MOST_DEVICES)
        devices += [types.get(kind, DeviceType(kind))] * count
    texts = {key: text(entry[key], f"{where}: {key}") for key in ("address", "ssh", "interpreter") if key in entry}
    variables = entry.get("environment", {})
    if not isinstance(variables, dict):
        raise InputError(
            "cluster.environment_not_table",
            f'{where} has environment {shown(variables)}, expected a table such as {{ NAME = "value" }}',
        )
    environment = tuple((key, text(value, f"{where}: environment {shown(key)}")) for key, value in variables.items())
    return Node(name, tuple(devices), _link(entry), environment=environment, **texts)


def _link(entry: dict[str, Any]) -> Link:
    return Link(_number(entry, "bandwidth", float("inf")), _number(entry, "latency", 0.0))


def _tables(entry: dict[str, Any], key: str) -> list[dict[str, Any]]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise InputError("cluster.not_tables", f"{key} is {shown(value)}: expected a list of tables")
    return value


def _string(entry: dict[str, Any], key: str, where: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value:
        raise InputError("cluster.not_a_name", f"{where} has {key} {shown(value)}, expected a name")
    return value


def _number(entry: dict[str, Any], key: str, default: float) -> float:
    value = entry.get(key, default)
    try:
        if not isinstance(value, bool) and isinstance(value, int | float):
            return float(value)
    except OverflowError:
        pass
    raise InputError("cluster.not_a_number", f"{key} is {shown(value)}, expected a number")


def _only(entry: dict[str, Any], known: set[str], where: str) -> None:
    for key in entry:
        if key not in known:
            near = f"; did you mean {suggestion!r}?" if (suggestion := meant(key, sorted(known))) else ""
            raise InputError(
                "cluster.key_unknown",
                f"{where} has the unknown key {shown(key)}, expected only {', '.join(sorted(known))}{near}",
            )
