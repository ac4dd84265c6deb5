"""Voxelize points: the voxels that they occupy, and each voxel's label and features from the points inside."""

import math

import numpy as np

from ..errors import InputError
from ..util.io.fields import given_number
from ..util.text.numbers import as_measured
from .labels import IGNORED

_INT32_MAX = 2**31 - 1
_EXACT = 2**53  # whole numbers from here on are not all float64's
_FAR = 2**30  # cells: a cloud that reaches beyond is given an origin of its own, so that int32 holds it
_FAR_STEP = 2**10 * 3**3 * 5 * 7  # cells that such an origin is a multiple of: every usual tensor stride divides it
_ROUNDING = 4 * np.finfo(np.float64).eps  # of a coordinate, a voxel size and their quotient together, with room


class OutOfReach(InputError):
    """A point that lies too far away: `point` is its row in the array that was given, `problem` what is wrong."""

    def __init__(self, point: int, place: np.ndarray, problem: str) -> None:
        super().__init__(
            "voxels.out_of_reach", f"point {point} at {[round(float(x), 3) for x in place]} {problem}", point=point
        )
        self.point, self.place, self.problem = point, place, problem

    def __reduce__(self) -> tuple[type["OutOfReach"], tuple[int, np.ndarray, str]]:
        return type(self), (self.point, self.place, self.problem)


def unit_cube(points: np.ndarray) -> np.ndarray:
    """Move and scale a cloud so that it starts at 0 and its longest side is 1: float64 [P, D]. Proportions are kept.

    Raises InputError if there are no points, a coordinate is not finite, or all points coincide.
    """
    points = _checked(points)
    low, extent = cube_of(points)
    moved: np.ndarray = (points - low) / extent
    return moved


def cube_of(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the lowest corner [D] and the edge of the cube that `unit_cube` brings to the unit cube."""
    low = points.min(axis=0)
    extent = float((points.max(axis=0) - low).max())
    if not extent > 0:
        raise InputError(
            "cloud.no_extent", f"all {len(points)} points are identical, expected distinct points; remove the cloud"
        )
    return low, extent


def voxelize(points: np.ndarray, voxel_size: float) -> np.ndarray:
    """Return the voxels that `points` [P, D] occupy: floor(point / voxel_size), int32 [V, D], each once.

    Voxels are in lexicographic order, which does not depend on the order of the points. Raises InputError for no
    points, NaN or infinite points, a voxel size that is not above 0, or voxels beyond int32.
    """
    return voxel_index(points, voxel_size)[0]


def voxel_index(points: np.ndarray, voxel_size: float) -> tuple[np.ndarray, np.ndarray]:
    """Return what `voxelize` does, and which of these voxels each point lies in: int64 [P]."""
    cells = np.floor(_in_voxels(points, voxel_size))
    if (farthest := np.abs(cells).max(axis=1)).max() > _INT32_MAX:
        raise OutOfReach(
            int(farthest.argmax()),
            points[farthest.argmax()],
            f"is in voxel {as_measured(farthest.max())} at voxel size {voxel_size}, beyond int32; remove it, "
            "or use larger voxels or unit_cube()",
        )
    rows, index = unique_rows(cells.astype(np.int64))
    return rows.astype(np.int32), index


def metric_voxel_index(points: np.ndarray, voxel_size: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the voxels and the index of `voxel_index` for a cloud that may lie anywhere, such as at map coordinates.

    Two things differ, so that a cloud gives the same voxels wherever it was moved by whole voxels. A point within
    float64's rounding of a voxel's side counts as on it: 0.15 / 0.05 and 448000.15 / 0.05 both are whole. A cloud too
    far away for int32 is moved by a whole number of voxels that every usual tensor stride divides.
    Raises InputError also if its extent is beyond int32, and for coordinates that were rounded to float32 at a place
    where that is coarser than a voxel.
    """
    cells, _ = metric_cells(points, voxel_size)
    rows, index = unique_rows(cells)
    return rows.astype(np.int32), index


def metric_cells(points: np.ndarray, voxel_size: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the voxel of each point, int64 [P, D], and the voxels [D] that the cloud was moved by, as it lay too far.

    See `metric_voxel_index`.
    """
    _check_resolution(np.asarray(points), voxel_size)
    places = _in_voxels(points, voxel_size)
    if (farthest := np.abs(places).max(axis=1)).max() >= _EXACT:
        raise OutOfReach(
            int(farthest.argmax()),
            points[farthest.argmax()],
            f"is in voxel {as_measured(farthest.max())} at voxel size {voxel_size}, beyond the resolution of 64-bit "
            "coordinates; remove it, or use larger voxels",
        )
    whole = np.rint(places)
    on_a_side = np.abs(places - whole) <= _ROUNDING * np.maximum(np.abs(places), 1)
    cells = np.where(on_a_side, whole, np.floor(places)).astype(np.int64)
    low, high = cells.min(axis=0), cells.max(axis=0)
    moved = np.zeros_like(low)
    if max(np.abs(low).max(), np.abs(high).max()) > _FAR:
        moved = low // _FAR_STEP * _FAR_STEP
        if (high - low).max() > _INT32_MAX - _FAR_STEP:
            raise too_far(points, voxel_size, "int32")
    return cells - moved, moved


def too_far(points: np.ndarray, voxel_size: float, what: str) -> OutOfReach:
    """Return what to raise for a cloud too long for `what`: it names the point that is farthest from the middle."""
    offsets = np.abs(points - np.median(points, axis=0))
    point, axis = np.unravel_index(offsets.argmax(), offsets.shape)
    return OutOfReach(
        int(point),
        points[point],
        f"lies {as_measured(offsets[point, axis] / voxel_size)} voxels of {voxel_size} from the middle of its cloud, "
        f"along axis {axis}, beyond {what}; remove it, use a larger voxel size, or cut the cloud into pieces",
    )


def _in_voxels(points: np.ndarray, voxel_size: float) -> np.ndarray:
    """Return points measured in voxels, float64 [P, D]; infinite if the quotient is too large for a float64."""
    given_number(voxel_size, "voxel size")
    if not (math.isfinite(voxel_size) and voxel_size > 0):
        raise InputError(
            "voxels.size_out_of_range", f"voxel size {voxel_size} given, expected a positive number such as 0.02"
        )
    with np.errstate(over="ignore"):  # refused by the caller
        return _checked(points) / voxel_size


def _check_resolution(points: np.ndarray, voxel_size: float) -> None:
    """Raise InputError if an axis was rounded to float32 more coarsely than the voxels.

    Told by its values: all are float32's, and some are odd multiples of float32's step at the largest of them.
    """
    for axis, column in zip("xyz", np.asarray(points, dtype=np.float64).T, strict=False):
        largest = np.abs(column).max(initial=0.0)
        if not 2.0**24 * voxel_size < largest < np.finfo(np.float32).max:
            continue
        step = float(np.spacing(np.float32(largest)))
        if step > voxel_size and (column.astype(np.float32) == column).all() and (column % (2 * step)).any():
            raise InputError(
                "cloud.rounded",
                f"its {axis} reaches {largest:.0f}, where 32-bit numbers have steps of {step:g}, more than the voxel "
                f"size {voxel_size}; store 64-bit numbers, or subtract an offset first",
                axis=axis,
            )


def majority(labels: np.ndarray, index: np.ndarray, num_voxels: int) -> np.ndarray:
    """Return the commonest label [P] in each voxel: int64 [V]; of several the smallest, IGNORED if no point has one.

    `index` [P] says which voxel each point lies in.
    """
    winners = np.full(num_voxels, IGNORED, dtype=np.int64)
    votes = labels != IGNORED
    ballots, counts = np.unique(np.stack([index[votes], labels[votes]], axis=1), axis=0, return_counts=True)
    voxels, candidates = ballots.T
    order = np.lexsort((candidates, -counts, voxels))  # by voxel, then votes, then label
    first, places = np.unique(voxels[order], return_index=True)
    winners[first] = candidates[order][places]
    return winners


def mean_in_voxels(values: np.ndarray, index: np.ndarray, num_voxels: int) -> np.ndarray:
    """Return the mean of `values` [P, C] over the points of each voxel: float32 [V, C]."""
    counts = np.bincount(index, minlength=num_voxels)
    sums = [np.bincount(index, weights=column, minlength=num_voxels) for column in values.T]
    return (np.stack(sums, axis=1) / counts[:, None]).astype(np.float32)


def _checked(points: np.ndarray) -> np.ndarray:
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] == 0:
        raise InputError("cloud.shape", f"points of shape {list(points.shape)} given, expected [P, D]")
    if len(points) == 0:
        raise InputError("cloud.no_points", "the cloud is empty, expected at least one point; remove it")
    bad = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(bad):
        raise InputError(
            "cloud.not_finite",
            f"point {bad[0]} is {points[bad[0]].tolist()} ({len(bad)} of {len(points)} points are NaN or infinite), "
            "expected finite coordinates; remove these points",
        )
    return points


def unique_rows(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sort int64 rows [P, D], keep each once, say where each went: by one integer key a row where the ranges fit."""
    low = rows.min(axis=0)
    sizes = [int(size) for size in rows.max(axis=0) - low + 1]
    if math.prod(sizes) >= 2**63:
        unique, index = np.unique(rows, axis=0, return_inverse=True)
        return unique, index.reshape(-1)
    keys, index = np.unique(np.ravel_multi_index(tuple((rows - low).T), sizes), return_inverse=True)
    return np.stack(np.unravel_index(keys, sizes), axis=1) + low, index
