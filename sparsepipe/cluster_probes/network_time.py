"""What of a processor's time a byte takes that goes to or comes from another host.

Each host sends to the next one, and receives from the one before, at the rate of the link. Counted are the seconds of a
processor that the sending and receiving program takes, and what interrupts take, in which the kernel cuts, checks and
acknowledges packets and which no program is charged with: by how much a calibrated loop is slower in the time that it
runs, beside the transfer and without it in turn. What else computes on a host makes loops wait, which is not counted.
Both directions go on at once, as activations and gradients do, so a byte is one of either.

What leaves a processor through a socket is coded first (runtime/transport/compression.py), and restored where it comes:
that takes more than to send it. It is timed on a tensor after a ReLU, where sparsepipe is on the host, for a byte as
sent: as many are coded as restored, since a stage that sends activations receives their gradients.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from ..cluster import DeviceType, Node
from .hosts import TORCH_SECONDS, Probe, for_each

_TURNS = 5
_SECONDS = 0.3  # of each transfer, and of each loop without one


def measure_network_time(
    begun: Sequence[Probe], ports: Sequence[int], secret: str, *, seconds: float = _SECONDS
) -> dict[str, float]:
    """Return the seconds of a device's own time for each byte, by host; none where there is one host alone.

    A device is its share of its machine's processors, those of all hosts that run on it: where a machine has more
    processors than devices, the others take a part of the sending; each device codes by itself. `ports`: where each
    probe listens. Raises InputError.
    """
    if len(begun) < 2:
        return {}
    loops = [{"devices": len(probe.node.device_types), "seconds": seconds} for probe in begun]
    next_ones = [*begun[1:], begun[0]], [*ports[1:], ports[0]]
    sending = [
        {**own, "address": peer.node.address, "port": port, "secret": secret}
        for own, peer, port in zip(loops, *next_ones, strict=True)
    ]

    def ask(probe: Probe, facts: dict[str, Any]) -> dict[str, Any]:
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
