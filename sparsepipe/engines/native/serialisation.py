"""Voxels of each sample in one line: Z and Hilbert curves, and the windows of that line that attention looks at.

Wu et al., "Point Transformer V3: Simpler, Faster, Stronger" (2024), section 4. Curves:

    z                bits of the axes interleaved, those of the first axis highest
    hilbert          Skilling, "Programming the Hilbert curve" (2004): neighbours on the curve are neighbours in space
    z-trans, ...     the same with the first two axes swapped

A sample's curve begins at the corner of its bounding box and depends on nothing but that sample's voxels: neither the
other samples of a minibatch nor the cut of a network changes it, and a sample moved by whole strides keeps it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


def places_in_samples(coordinates: Tensor, stride: Sequence[int], num_samples: int) -> tuple[Tensor, Tensor]:
    """Return how far each voxel lies from the corner of its sample's bounding box, in strides.

    Args:
        coordinates: int32 [N, 1 + D], batch index first.
        stride: The tensor stride.
        num_samples: Number of samples, B.

    Returns:
        int64 [N, D], and int64 [B], the largest of each sample's.
    """
    samples = coordinates[:, 0].long()
    places = coordinates[:, 1:].long().div(torch.tensor(stride, device=coordinates.device), rounding_mode="floor")
    rows = samples.unsqueeze(1).expand_as(places)
    corners = places.new_zeros(num_samples, places.shape[1]).scatter_reduce(0, rows, places, "amin", include_self=False)
    places = places - corners.index_select(0, samples)
    farthest = places.new_zeros(num_samples).scatter_reduce(0, samples, places.amax(dim=1), "amax")
    return places, farthest


def z_codes(places: Tensor, depth: int) -> Tensor:
    """Return the place on a Z curve of each of `places` [N, D], whose numbers have at most `depth` bits: int64 [N]."""
    num_axes = places.shape[1]
    spread = torch.zeros_like(places)
    for bit in range(depth):
        spread |= (places >> bit & 1) << bit * num_axes
    return (spread << torch.arange(num_axes - 1, -1, -1, device=places.device)).sum(dim=1)


def hilbert_codes(places: Tensor, depth: int, depths: Tensor | None = None) -> Tensor:
    """Return the place on a Hilbert curve of each of `places` [N, D], whose numbers have at most `depth` bits.

    Args:
        places: int64 [N, D], 0 or more.
        depth: Bits of the largest number.
        depths: int64 [N], for each row the bits of its own curve's cube, `depth` if there are none. The curve of a
            smaller cube is the beginning of that of a larger one with its axes rotated, once a bit.

    Returns:
        int64 [N].
    """
    num_axes = places.shape[1]
    if depths is not None:
        turns = (depth - depths).unsqueeze(1) + torch.arange(num_axes, device=places.device)
        places = places.gather(1, turns % num_axes)
    axes = list(places.unbind(dim=1))
    for bit in range(depth - 1, 0, -1):
        lower = (1 << bit) - 1
        for number in range(num_axes):  # a set bit inverts the first axis below it, another swaps it with this one
            is_set = (axes[number] >> bit & 1) == 1
            swapped = torch.where(is_set, 0, (axes[0] ^ axes[number]) & lower)
            axes[0] = axes[0] ^ torch.where(is_set, lower, swapped)
            axes[number] = axes[number] ^ swapped
    for number in range(1, num_axes):
        axes[number] = axes[number] ^ axes[number - 1]
    parity = torch.zeros_like(axes[0])
    for bit in range(depth - 1, 0, -1):
        parity ^= torch.where((axes[-1] >> bit & 1) == 1, (1 << bit) - 1, 0)
    return z_codes(torch.stack([axis ^ parity for axis in axes], dim=1), depth)


def curve_order(coordinates: Tensor, places: Tensor, farthest: Tensor, curve: str) -> Tensor:
    """Return the rows of voxels in the order of their samples and, within each, of a curve: int64 [N].

    `places` and `farthest` are those of `places_in_samples`. In a sample whose farthest place is 2^k - 1 Pointcept's
    Hilbert curve has one bit more than ours, which rotates its axes.
    """
    depths = [int(place).bit_length() for place in farthest.tolist()]
    depth, samples = max(depths, default=0), coordinates[:, 0].long()
    if curve.endswith("-trans"):
        places = places[:, [1, 0, *range(2, places.shape[1])]] if places.shape[1] > 1 else places
    if curve.startswith("z"):
        codes = z_codes(places, depth)
    else:
        of_rows = torch.tensor(depths, device=places.device).index_select(0, samples)
        codes = hilbert_codes(places, depth, of_rows)
    return torch.sort(samples << depth * places.shape[1] | codes).indices


@dataclass(frozen=True)
class Windows:
    """Sets of voxels that attend to each other: windows of a curve, by row.

    A sample of more than `size` voxels has windows of that size, one after the other, the last one moved back to end
    with the sample: what it shares with the window before counts there alone. A smaller sample has one, of its size.

        sample of 7, size 3     0 1 2 | 3 4 5 | 4 5 6       of the last one only 6 is a result

    `rows` are those of all full windows, then those of the smaller ones, each filled up to the longest of them.
    """

    rows: Tensor  # int64 [num_full * size + num_small * longest]
    num_full: int
    size: int
    num_small: int
    longest: int
    slots: Tensor  # int64 [N]: where in `rows` each row's result is
    present: Tensor | None  # bool [num_small, longest], False where a window is filled up; None: all are


def windows(order: Tensor, sample_sizes: Sequence[int], size: int) -> Windows:
    """Cut the curve of each sample into windows of `size` voxels.

    Args:
        order: int64 [N], rows by sample and, within each, by a curve.
        sample_sizes: Voxels of each sample.
        size: Voxels of a window, 1 or more.
    """
    device, small = order.device, [count for count in sample_sizes if 0 < count <= size]
    longest, num_full = max(small, default=0), sum(-(-count // size) for count in sample_sizes if count > size)
    starts: list[int] = []  # of full windows
    filled, slots = [], []
    first, small_slot = 0, num_full * size
    for count in sample_sizes:
        places = torch.arange(count, device=device)
        if count > size:
            slots.append(places + len(starts) * size)
            starts += range(first, first + count - size, size)
            starts.append(first + count - size)
            slots[-1][(count - 1) // size * size :] += -count % size  # the last window ends with the sample
        elif count:
            slots.append(places + small_slot)
            filled.append(first + torch.arange(longest, device=device).clamp_(max=count - 1))
            small_slot += longest
        first += count
    full = (torch.tensor(starts, device=device).unsqueeze(1) + torch.arange(size, device=device)).flatten()
    chosen = torch.cat([full.long(), *filled])
    sizes = torch.tensor(small, device=device).unsqueeze(1)
    present = torch.arange(longest, device=device) < sizes if small and min(small) < longest else None
    by_row = torch.empty_like(order)
    by_row[order] = torch.cat(slots) if slots else order
    return Windows(order.index_select(0, chosen), num_full, size, len(small), longest, by_row, present)
