"""Bytes of what each layer gives as sockets between hosts carry it where nothing else is asked for, on one minibatch.

Outputs and their gradients go without the zeros and with coded exponents; the gradient of a ReLU's output only where
that is not zero; coordinates as packed keys (runtime/transport/compression.py, packet.py). What a GPU sends is plain.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..runtime.transport.compression import Compressor
from ..runtime.transport.packet import FORWARD, Packet, Slot, encode
from ..runtime.transport.zero_elision import values_at
from .layer_timer import ends, send_back


class CodedBytes(NamedTuple):
    """Of one layer; 0: there is none, or it was not looked at."""

    outputs: int = 0
    gradients: int = 0
    coordinates: int = 0


def coded_bytes(
    subnetwork: Any, tensors: Mapping[str, Any], *, crossing: Collection[str], device: torch.device
) -> dict[str, CodedBytes]:
    """Send back what a loss would through `tensors`, a whole forward's values; return each layer's bytes by its id.

    `crossing`: the values that may cross a boundary. Their graph is spent. Nothing is said of a GPU's.
    """
    if device.type != "cpu":
        return {}
    network, engine = subnetwork.network, subnetwork.engine
    parts = engine.split({name: tensors[name] for name in tensors if name in crossing})
    known = {parts.features[name].coordinate_set for name in network.inputs if name in parts.features}
    slots = {name: _coded(Slot(feature.rows)) for name, feature in parts.features.items()}
    gradients = _gradient_bytes(subnetwork, tensors, slots)
    found = {}
    for row in subnetwork.table:
        names = [name for name in row.outputs if name in slots]
        coordinates = 0
        for name in names:
            coordinate_set = parts.features[name].coordinate_set
            if coordinate_set is not None and coordinate_set not in known:
                _, payload = encode(Packet(FORWARD, 0, 0, (), (parts.coordinate_sets[coordinate_set],)))
                coordinates += len(payload)
            known.add(coordinate_set)
        outputs = sum(_num_bytes(slots[name]) for name in names)
        found[row.id] = CodedBytes(outputs, sum(gradients.get(name, 0) for name in names), coordinates)
    return found


def _gradient_bytes(subnetwork: Any, tensors: Mapping[str, Any], slots: Mapping[str, Slot]) -> dict[str, int]:
    """Bytes of the gradient of each value, where one comes back for it."""
    found: dict[str, int] = {}

    def watch(name: str, rows: Tensor) -> None:
        present = slots[name].present if name in subnetwork.network.rectified else None

        def take(gradient: Tensor) -> None:
            found[name] = _num_bytes(_coded(Slot(gradient if present is None else values_at(present, gradient))))

        rows.register_hook(take)

    for name in slots:
        rows = subnetwork.engine.features(tensors[name])
        if rows.requires_grad:
            watch(name, rows)
    send_back(ends(subnetwork, tensors), torch.device("cpu"))
    return found


def _coded(slot: Slot) -> Slot:
    (small,) = Compressor("lossless").shrink((slot,))
    return small


def _num_bytes(slot: Slot) -> int:
    return sum(section.nbytes for section in slot.sections)
