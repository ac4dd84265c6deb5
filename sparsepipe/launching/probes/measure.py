"""Bandwidth and latency of each link of a cluster, and how fast each device computes a reference layer.

What of a processor's time a byte takes that goes to or comes from another host.

Each host sends to the next one, and receives from the one before, at the rate of the link. Counted are the seconds of a
processor that the sending and receiving program takes, and what interrupts take, in which the kernel cuts, checks and
acknowledges packets and which no program is charged with: by how much a calibrated loop is slower in the time that it
runs, during the transfer and without it in turn. What else computes on a host makes loops wait, which is not
counted. Both directions continue at once, as activations and gradients do, so a byte is one of either.

What leaves a processor through a socket is coded first (runtime/transport/compression.py), and restored where it comes:
that takes more than to send it. It is timed on a tensor after a ReLU, where sparsepipe is on the host, for a byte as
sent: as many are coded as restored, since a stage that sends activations receives their gradients.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import median
from typing import Any

from ...errors import InputError
from ...runtime.wire.handshake import new_secret
from ...values.cluster import Cluster, DeviceType, Link, Node
from .check import unlike_networks
from .hosts import TORCH_SECONDS, HostProbe, for_each, probes

_TURNS = 5
_TRANSFER_SECONDS = 0.3  # of each transfer, and of each loop without one


def measure_network_time(
    begun: Sequence[HostProbe], ports: Sequence[int], secret: str, *, seconds: float = _TRANSFER_SECONDS
) -> dict[str, float]:
    """Return the seconds of a device's own time for each byte, by host; none if there is one host alone.

    A device is its share of its machine's processors, those of all hosts that run on it: where a machine has more
    processors than devices, the others take a part of the sending; each device codes by itself. `ports`: where each
    probe listens. Raises InputError.
    """
    if len(begun) < 2:
        return {}
    loops = [{"devices": len(probe.node.device_types), "seconds": seconds} for probe in begun]
    sending = [
        {**own, "address": peer.node.address, "port": port, "secret": secret}
        for own, peer, port in zip(loops, [*begun[1:], begun[0]], [*ports[1:], ports[0]], strict=True)
    ]

    def ask(probe: HostProbe, facts: dict[str, Any]) -> dict[str, Any]:
        return probe.ask("busy", **facts)

    turns = [(for_each(ask, begun, loops), for_each(ask, begun, sending)) for _ in range(_TURNS)]
    coding = for_each(lambda probe: probe.ask("coding", timeout=TORCH_SECONDS)["seconds"] or 0.0, begun)
    devices = Counter[str]()
    for probe, told in zip(begun, turns[0][0], strict=True):
        devices[told["machine"]] += len(probe.node.device_types)
    found = {}
    for k, probe in enumerate(begun):
        first = turns[0][0][k]
        share = min(1.0, devices[first["machine"]] / first["processors"])
        pace = median(alone[k]["pace"] for alone, _ in turns)
        sent = median(of_a_byte(beside[k], pace, share) for _, beside in turns)
        found[probe.node.name] = float(coding[k]) + max(0.0, sent)
    return found


def of_a_byte(beside: dict[str, Any], pace: float, share: float) -> float:
    """Seconds for a byte: of the program, of which a `share` is the device's, and what loops of a `pace` lost."""
    lost = beside["loop_seconds"] * (1 - beside["pace"] / pace)
    return float((beside["own_seconds"] * share + lost) / max(beside["bytes"], 1))


def with_network_time(nodes: Sequence[Node], seconds: dict[str, float]) -> list[Node]:
    """The nodes with the median over hosts that were measured for each type; other types as they were."""
    of_type: dict[str, list[float]] = {}
    for node in nodes:
        for kind in dict.fromkeys(node.device_types) if node.name in seconds else ():
            of_type.setdefault(kind.name, []).append(seconds[node.name])

    def told(kind: DeviceType) -> DeviceType:
        return replace(kind, network_seconds_per_byte=median(of_type[kind.name])) if kind.name in of_type else kind

    return [replace(node, device_types=tuple(map(told, node.device_types))) for node in nodes]


SIZES = tuple(1 << power for power in (10, 14, 18, 22, 24))  # bytes of the messages
_LOOPBACK_SIZES = (64, 4 * 2**20)
_SECONDS = 0.2  # of messages of one size, or three of them
_MOST_SECONDS = 600.0  # for the messages of one link
ALIKE = 1.15  # devices of one type take at most so many times as long as the fastest of them
CPU = "cpu"
_TYPICAL_BYTES = 1e6  # of the message by which links are compared


@dataclass(frozen=True)
class MeasuredLink:
    """Median seconds of a message by its bytes, from one host to another until it is acknowledged.

    A message takes latency + bytes / bandwidth, and its acknowledgement the latency again.
    """

    between: tuple[str, str]
    seconds: Mapping[int, float]

    @property
    def link(self) -> Link:
        small, large = min(self.seconds), max(self.seconds)
        latency = self.seconds[small] / 2
        return Link((large - small) / max(1e-9, self.seconds[large] - self.seconds[small]), latency)


@dataclass(frozen=True)
class MeasuredCluster:
    """A cluster as it was measured, with every pair of hosts and every device."""

    cluster: Cluster
    links: tuple[MeasuredLink, ...]
    reference_seconds: Mapping[str, tuple[float, ...]]  # host → each of its devices
    network_seconds: Mapping[str, float]  # host → of its processors, for a byte from or to another one


def measure_cluster(
    cluster: Cluster, *, device: str | None = None, sizes: Sequence[int] = SIZES, seconds: float = _SECONDS
) -> MeasuredCluster:
    """Measure the links between all hosts, those inside of them, and a reference layer on their devices.

    Of hosts whose processors compute also what sending and receiving takes of their time.

    Pairs of hosts that share none are measured at a time, one message at a time each. The network of the cluster that
    is returned is the slowest pair, for planners know one network; devices of one type that compute unlike are of
    several: "cpu", "cpu-2". `device`: "cpu" or "cuda"; None: GPUs where torch sees any.
    Raises InputError in one line that names the host.
    """
    if told := unlike_networks(cluster.nodes):
        raise InputError("probe.hosts_unlike", told[0])
    secret = new_secret().hex()
    with probes(cluster.nodes) as begun:
        ports = for_each(lambda probe: probe.ask("listen", address=probe.node.address, secret=secret)["port"], begun)
        where = {probe.node.name: (probe, port) for probe, port in zip(begun, ports, strict=True)}

        def link(a: str, b: str) -> MeasuredLink:
            other, port = where[b]
            return measure_link(where[a][0], other, port, secret, sizes=sizes, seconds=seconds)

        links = [one for pairs in rounds(list(where)) for one in for_each(link, *zip(*pairs, strict=True))]
        inside = {probe.node.name: _inside(probe, link(probe.node.name, probe.node.name)) for probe in begun}
        computed = _computed(begun, device)
        computing = [probe for probe in begun if device == CPU or not probe.ask("facts")["gpus"]]
        network_seconds = measure_network_time(computing, [where[one.node.name][1] for one in computing], secret)
    slowest = max(
        (one.link for one in links), key=lambda one: one.transfer_time(_TYPICAL_BYTES), default=cluster.network
    )
    nodes = [replace(node, link=inside[node.name]) for node in cluster.nodes]
    nodes = with_network_time(unlike_devices(nodes, computed), network_seconds)
    return MeasuredCluster(Cluster(tuple(nodes), slowest), tuple(links), computed, network_seconds)


def measure_link(
    probe: HostProbe,
    peer: HostProbe,
    port: int,
    secret: str,
    *,
    sizes: Sequence[int] = SIZES,
    seconds: float = _SECONDS,
) -> MeasuredLink:
    """Measure the link from one host to another, if that one's probe listens. Raises InputError."""
    said = probe.ask(
        "link",
        address=peer.node.address,
        port=port,
        secret=secret,
        sizes=list(sizes),
        seconds=seconds,
        timeout=_MOST_SECONDS,
    )
    times = {int(size): float(took) for size, took in said["times"].items()}
    return MeasuredLink((probe.node.name, peer.node.name), times)


def loopback_link() -> Link:
    """Measure TCP over loopback now: latency from small messages, bandwidth from 4 MiB ones.

    It is an upper bound for packets, and gloo's messages, that go through such sockets. Between processes that share
    memory the latency holds for a packet's header, and the bandwidth is a lower bound for its payload.
    Raises InputError.
    """
    here, secret = Node("this machine", (DeviceType(CPU),)), new_secret().hex()
    with probes([here]) as (probe,):
        port = probe.ask("listen", address=here.address, secret=secret)["port"]
        return measure_link(probe, probe, port, secret, sizes=_LOOPBACK_SIZES).link


def rounds(names: Sequence[str]) -> list[list[tuple[str, str]]]:
    """All pairs, in rounds in which each name is at most once, as tournaments are drawn (the circle method)."""
    if len(names) < 2:
        return []
    ring: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    found = []
    for _ in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = zip(ring[:half], reversed(ring[half:]), strict=True)
        found.append([(a, b) for a, b in pairs if a is not None and b is not None])
        ring = [ring[0], ring[-1], *ring[1:-1]]
    assert sum(map(len, found)) == len(list(combinations(names, 2)))
    return found


def unlike_devices(nodes: Sequence[Node], seconds: Mapping[str, Sequence[float]]) -> tuple[Node, ...]:
    """The nodes with types split where devices of one type are not identical: the fastest keep its name."""
    places = [(node.name, k, kind) for node in nodes for k, kind in enumerate(node.device_types)]
    taken = {kind.name for _, _, kind in places}
    chosen: dict[tuple[str, int], DeviceType] = {}
    for kind in dict.fromkeys(kind for _, _, kind in places):
        own = sorted((seconds[name][k], name, k) for name, k, other in places if other == kind)
        groups: list[list[tuple[float, str, int]]] = []
        for one in own:
            if groups and one[0] <= ALIKE * groups[-1][0][0]:
                groups[-1].append(one)
            else:
                groups.append([one])
        for number, group in enumerate(groups):
            name = kind.name if number == 0 else _free_name(kind.name, taken)
            made = replace(kind, name=name, reference_seconds=median(took for took, _, _ in group))
            chosen |= {(host, k): made for _, host, k in group}
    return tuple(
        replace(node, device_types=tuple(chosen[node.name, k] for k in range(len(node.device_types)))) for node in nodes
    )


def _free_name(name: str, taken: set[str]) -> str:
    number = 2
    while f"{name}-{number}" in taken:
        number += 1
    taken.add(f"{name}-{number}")
    return f"{name}-{number}"


def _inside(probe: HostProbe, loopback: MeasuredLink) -> Link:
    """Between the devices of a host: a copy in memory, begun as soon as a message. That of GPUs is left as it was."""
    if len(probe.node.device_types) < 2 or probe.ask("facts")["gpus"]:
        return probe.node.link
    return Link(probe.ask("memory")["bandwidth"], loopback.link.latency)


def _computed(begun: Sequence[HostProbe], device: str | None) -> dict[str, tuple[float, ...]]:
    """Seconds of each device by host; hosts that are one machine, reached in the same way, are measured once."""
    first: dict[Any, HostProbe] = {}
    for probe in begun:
        first.setdefault(_machine(probe.node), probe)

    def compute(probe: HostProbe) -> list[float]:
        count = max(len(one.node.device_types) for one in begun if _machine(one.node) == _machine(probe.node))
        return [
            float(took) for took in probe.ask("compute", device=device, devices=count, timeout=TORCH_SECONDS)["seconds"]
        ]

    found = dict(zip(first, for_each(compute, list(first.values())), strict=True))
    return {
        probe.node.name: tuple(
            found[_machine(probe.node)][min(k, len(found[_machine(probe.node)]) - 1)]
            for k in range(len(probe.node.device_types))
        )
        for probe in begun
    }


def _machine(node: Node) -> tuple[Any, ...]:
    return ("here" if node.is_local else node.ssh_destination, node.interpreter, node.environment)
