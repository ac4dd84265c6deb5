"""How far from the origin an engine can hold voxels: the bounds, and samples moved so that they are within them."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..errors import InputError
from .batch import Sample

# dimension -> bits per spatial axis of the native engine's keys; what is left of 63 bits holds the batch index
AXIS_BITS = {1: 31, 2: 22, 3: 16, 4: 12}
_STEPS = {1: 5760, 2: 5760, 3: 5760, 4: 240}  # voxels; samples move by these: usual tensor strides divide them
_EXACT = {"minkowski": 2**22}  # it divides by strides in float32, which beyond 2^24 gives other voxels


def reach(engine: str, dimension: int) -> int:
    """Return the voxels from the origin, along each axis, that an engine can hold: those of [-reach, reach).

    Of "auto" it is the native engine's, whose keys leave an outer quarter of each axis free: a key plus a kernel offset
    never runs into the next axis. Raises InputError for a dimension that its keys do not have.
    """
    if engine in _EXACT:
        return _EXACT[engine]
    if dimension not in AXIS_BITS:
        raise InputError(
            "coordinates.dimension",
            f"coordinates have {dimension} spatial axes, expected 1 to 4 after the batch index",
        )
    return 3 << (AXIS_BITS[dimension] - 3)


def within_reach(coordinates: Tensor, limit: int) -> Tensor:
    """Return coordinates [N, 1 + D] with each sample moved near the origin, where any is beyond `limit` of it.

    The order of voxels within a sample stays, and so does what a network whose tensor strides divide the step makes of
    them. What fits is returned as it is, and so is what `check_within` or the keys refuse.
    """
    dimension = coordinates.shape[1] - 1
    if dimension not in AXIS_BITS or not len(coordinates):
        return coordinates
    index = coordinates[:, 0].long()
    if _fits(coordinates, limit) or int(index.min()) < 0:
        return coordinates
    places = coordinates[:, 1:].long()
    rows = index[:, None].expand_as(places)
    bounds = places.new_zeros(int(index.max()) + 1, dimension)
    lows, highs = (bounds.scatter_reduce(0, rows, places, how, include_self=False) for how in ("amin", "amax"))
    step = _STEPS[dimension]
    origins = (lows + highs).div(2 * step, rounding_mode="floor") * step
    moved = (places - origins.index_select(0, index)).to(coordinates.dtype)
    return torch.cat([coordinates[:, :1], moved], dim=1)


def check_within(coordinates: Tensor, limit: int) -> None:
    """Raise InputError if coordinates [N, 1 + D] lie beyond `limit`."""
    if len(coordinates) and not _fits(coordinates, limit):
        low, high = (int(bound) for bound in torch.aminmax(coordinates[:, 1:]))
        raise InputError(
            "coordinates.out_of_range",
            f"voxel coordinates {low}..{high}: expected {-limit}..{limit - 1} in {coordinates.shape[1] - 1} "
            "dimensions; use a larger voxel size, or split the cloud",
        )


def _fits(coordinates: Tensor, limit: int) -> bool:
    low, high = (int(bound) for bound in torch.aminmax(coordinates[:, 1:]))
    return -limit <= low and high < limit


def near_origin(sample: Sample, steps: Sequence[int]) -> Sample:
    """Return the sample moved so that its middle lies near the origin, by a multiple of `steps` voxels on each axis."""
    coordinates = sample.coordinates.long()
    low, high = coordinates.amin(dim=0), coordinates.amax(dim=0)
    step = torch.tensor(tuple(steps), dtype=torch.int64, device=coordinates.device)
    middle = (low + high).div(2, rounding_mode="floor").div(step, rounding_mode="floor")
    return replace(sample, coordinates=(coordinates - middle * step).to(torch.int32))


def can_be_held(sample: Sample, limit: int) -> bool:
    """Return whether an engine that reaches as far as `limit` can hold a sample, wherever it lies."""
    if _fits(rows := torch.nn.functional.pad(sample.coordinates, (1, 0)), limit):
        return True
    return _fits(within_reach(rows, limit), limit)
