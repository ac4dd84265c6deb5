"""Bytes that each layer takes for a while, beyond what layers keep for the backward: measured in one training step."""

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch

from ..models.running import layer_by_layer
from .layer_timer import ends, send_back
from .live_bytes import Mark, live_bytes
from .saved_bytes import Kept


class Temporary(NamedTuple):
    """What one layer takes beyond what it keeps from its forward to its backward."""

    left_bytes: int  # made in its backward, and there until the whole backward is done
    forward_bytes: int  # most alive at once in its forward
    backward_bytes: int


def temporary_bytes(
    subnetwork: Any, batch: Any, kept: Mapping[str, Kept], outputs: Mapping[str, int], *, device: torch.device
) -> dict[str, Temporary]:
    """Train on one minibatch; return what is alive while each layer works, beyond what is known.

    What is known: the bytes `kept` by layers up to this one, of which kernel maps stay until the whole backward is done
    and all else is let go layer by layer; and in its backward the gradients of the weights from this one on. The rest
    is workspace, gradients of features, and features that only a layer to come needs. `outputs`: bytes of each value.
    """
    _step(subnetwork, batch, lambda name: None, device=device)  # makes what is made once
    parts = live_bytes(partial(_step, subnetwork, batch, device=device), device=device)
    most, last = dict[str, int](), dict[str, int]()
    for part in parts:
        most[part.name] = max(most.get(part.name, 0), part.most)
        last[part.name] = part.last
    network, table = subnetwork.network, subnetwork.table
    weights = {layer.id: round(layer.parameter_bytes) for layer in network.graph().layers}
    maps, saved = sum(own.map_bytes for own in kept.values()), sum(own.saved_bytes for own in kept.values())
    saved, all_maps, gradients, left, found = saved - maps, maps, 0, 0, dict[str, Temporary]()
    before = {row.id for row in table}
    for row in reversed(table):
        own, backward = kept[row.id], f"backward {row.id}"
        forward_bytes, backward_bytes, more = max(most[f"forward {row.id}"] - saved - maps, 0), 0, 0
        gradients += weights[row.id]
        before.discard(row.id)
        maps -= own.map_bytes
        known = all_maps + gradients + left
        if backward in most:  # else no gradient reaches it
            backward_bytes = max(most[backward] - saved - known, 0)
            alive = sum(outputs.get(name, 0) for name in network.alive(before))
            more = max(last[backward] - (saved - own.saved_bytes + own.map_bytes) - known - alive, 0)
        saved -= own.saved_bytes - own.map_bytes
        found[row.id] = Temporary(more, forward_bytes, backward_bytes)
        left += more
    return found


def _step(subnetwork: Any, batch: Any, mark: Mark, *, device: torch.device) -> None:
    """Run forward and backward as `time_layers` does; the input counts, too."""
    engine = subnetwork.engine
    subnetwork.zero_grad(set_to_none=True)
    mark("input")
    tensors = subnetwork.enter(engine.tensor(copy.deepcopy(batch), device))
    names = [f"forward {id}" for id in subnetwork.layer_ids]
    mark(names[0])
    for following, row in zip(
        [*names[1:], "output"],
        layer_by_layer(subnetwork, tensors, minibatch=0, keep=subnetwork.network.outputs),
        strict=True,
    ):
        for value in row.outputs:
            if value in tensors and engine.features(tensors[value]).requires_grad:
                engine.features(tensors[value]).register_hook(lambda _, id=row.id: mark(f"backward {id}"))
        mark(following)
    send_back(ends(subnetwork, tensors), device)
    subnetwork.zero_grad(set_to_none=True)
