"""Bytes at each cut of a sparse network: packets, plain and packed, beside SparsePipe's protocol of six messages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from sparsepipe.engines import Subnetwork
from sparsepipe.runtime.transport.compression import Compressor, values_at
from sparsepipe.runtime.transport.packet import BACKWARD, FORWARD, Packet, Slot, encode

from .cases import CASES


@dataclass(frozen=True)
class Crossing:
    """What crosses one cut for one minibatch, and how many bytes that is in the six-message protocol."""

    packet: Packet
    gradient: Tensor  # [N, C]
    six_messages: int
    six_messages_backward: int


def six_messages(name: str, folder: Path) -> list[dict[str, Any]]:
    """Bytes of one minibatch at each pool of a sparse network and at the ReLU before: packets and theirs.

    SparsePipe sends coordinates (int32), features and tensor stride, and before each of them its shape (int64). Of its
    backward it is assumed that only the gradient and its shape travel.
    """
    case = CASES[name]
    chosen = case.chosen_engine()
    net = case.network()
    module = Subnetwork(net, chosen)
    cuts = [cut for row in net.rows if row.id.startswith("pool") for cut in (*row.inputs, row.id)]
    found: dict[str, list[Crossing]] = {cut: [] for cut in cuts}
    for batch in case.minibatches(folder):
        tensors = module({"input": chosen.tensor(batch)}, minibatch=0)
        parts = {cut: chosen.split({cut: tensors[cut]}) for cut in cuts}
        features = [parts[cut].features[cut].rows for cut in cuts]
        loss = functional.cross_entropy(chosen.rows(tensors[net.rows[-1].id]), batch.labels)
        for cut, rows, gradient in zip(cuts, features, torch.autograd.grad(loss, features), strict=True):
            ((stride, coordinates, _),) = parts[cut].coordinate_sets
            theirs = rows.nbytes + coordinates.numel() * 4 + len(stride) * 4 + 8 * (2 + 2 + 1)
            packet = Packet(FORWARD, 0, 0, (Slot(rows.detach(), 0, True),), parts[cut].coordinate_sets)
            found[cut].append(Crossing(packet, gradient, theirs, gradient.nbytes + 8 * 2))
    return [_beside_six_messages(cut, crossings) for cut, crossings in found.items()]


def _beside_six_messages(cut: str, crossings: Sequence[Crossing]) -> dict[str, Any]:
    entry: dict[str, Any] = {"cut": cut}
    theirs = sum(crossing.six_messages for crossing in crossings)
    theirs_backward = sum(crossing.six_messages_backward for crossing in crossings)
    for how in ("none", "bfloat16", "int8", "zeros", "lossless"):  # through sockets lossless, unless told otherwise
        forward, backward = Compressor(how), Compressor(how)
        small = [replace(c.packet, slots=forward.shrink(c.packet.slots)) for c in crossings]
        back = []
        for crossing, packet in zip(crossings, small, strict=True):
            present = packet.slots[0].present  # behind ReLUs and their pools: gradients come back for these alone
            gradient = crossing.gradient if present is None else values_at(present, crossing.gradient)
            back.append(Packet(BACKWARD, 0, 0, backward.shrink((Slot(gradient),))))
        key = f"of_six_messages_{how}"
        ours, ours_backward = _num_bytes(small), _num_bytes(back)
        entry[key] = ours / theirs
        entry[f"{key}_backward"] = ours_backward / theirs_backward
        entry[f"{key}_both_ways"] = (ours + ours_backward) / (theirs + theirs_backward)
        if how == "none":
            entry["bytes"] = ours / len(small)
    return entry


def _num_bytes(packets: Sequence[Packet]) -> int:
    return sum(part.nbytes for packet in packets for part in encode(packet))
