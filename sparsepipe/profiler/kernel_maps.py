"""Kernel maps of a network's layers: how many pairs each has, and what it takes to make it."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from ..engines.native.coordinates import CoordinateManager, pack
from ..models.rows import Row, each_axis
from .layer_timer import moment, seconds_between

_REPEATS = 3  # of each layer that makes a kernel map, once the map is there


class KernelMap(NamedTuple):
    source: tuple[int, ...]  # tensor strides
    target: tuple[int, ...]
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    pairs: int


def kernel_maps(rows: Sequence[Row], parts: Any) -> dict[str, KernelMap]:
    """Name the kernel map of every layer that has one: a fact of the coordinates, so one count serves every engine.

    They are the layers with a kernel on voxels: convolutions, pools, and those that lead back up, whose map is that of
    the layer down.
    """
    managers: dict[int, CoordinateManager] = {}
    for stride, coordinates, family in parts.coordinate_sets:
        manager = managers.setdefault(family, CoordinateManager(coordinates.shape[1] - 1))
        manager.insert(stride, pack(coordinates).sort().values)
    maps = {}
    for row in rows:
        sides = [parts.features[name].coordinate_set for name in (row.inputs[0], row.id)]
        if "kernel_size" in row.args and None not in sides:
            source, target = sorted(
                parts.coordinate_sets[side].tensor_stride for side in sides
            )  # the kernel lies on target
            manager = managers[parts.coordinate_sets[sides[1]].family]
            given = (row.args["kernel_size"], row.args.get("dilation", 1))
            size, dilation = (each_axis(own, manager.dimension) for own in given)
            pairs = manager.kernel_map(source, target, kernel_size=size, dilation=dilation).num_pairs
            maps[row.id] = KernelMap(source, target, size, dilation, pairs)
    return maps


def kernel_map_seconds(
    subnetwork: Any,
    rows: Sequence[Row],
    tensors: Mapping[str, Any],
    maps: Mapping[str, KernelMap],
    forwards: Mapping[str, float],
    device: torch.device,
) -> dict[str, float]:
    """Return what each layer's kernel map cost: by how much its first user's forward is shorter once it is there.

    `tensors` are those of a pass: their coordinate manager has all maps. `forwards` are the seconds without.
    """
    cost: dict[KernelMap, float] = {}
    for row in rows:
        own = maps.get(row.id)
        if own is None or own in cost:
            continue
        again = []
        for _ in range(_REPEATS if max(own.kernel_size) > 1 or own.source != own.target else 0):
            start = moment(device)
            subnetwork.run_layer(row, tensors, minibatch=0)
            again.append(seconds_between(start, moment(device)))
        cost[own] = max(0.0, forwards[row.id] - statistics.median(again)) if again else 0.0  # a row alone needs no map
    return {id: cost[own] for id, own in maps.items()}
