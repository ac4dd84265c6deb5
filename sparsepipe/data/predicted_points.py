"""Bring the predicted classes of voxels back to the points of the files that they were made of."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from ..errors import InputError
from ..util.io.files import expanded
from ..util.text.counting import number_of
from .address import NOT_USED, Address, number_of_points
from .dataset import VoxelDataset
from .folder import open_folder
from .formats import Mesh
from .labels import IGNORED
from .sources import find

_FILE = "predictions.npz"


def joined(addresses: Sequence[Address]) -> dict[str, np.ndarray]:
    """Return the addresses of samples one below the other, as predictions have them; see `to_points`."""
    firsts = np.cumsum([0, *(len(address.coordinates) for address in addresses)])
    rows = [
        np.where(address.voxel_of == NOT_USED, NOT_USED, address.voxel_of + first)
        for address, first in zip(addresses, firsts, strict=False)
    ]
    return {
        "coordinates": np.concatenate([address.coordinates for address in addresses]),
        "origin": np.stack([address.origin for address in addresses]),
        "edge": np.array([address.edge for address in addresses]),
        "point_row": np.concatenate(rows),
        "point_offsets": np.cumsum([0, *map(len, rows)]),
    }


def to_points(
    predictions: Path | str | Mapping[str, np.ndarray], data: Path | str | VoxelDataset
) -> dict[str, np.ndarray]:
    """Map the predicted classes of voxels to the points of the original files.

    Points have the order of the file (in S3DIS: of the concatenated files of a room). The points of a mesh are its
    vertices. A point that was not sampled, or that lacks a feature, gets the class of the nearest voxel. A point with
    NaN or infinite coordinates gets -100.

    Args:
        predictions: Path of a `predictions.npz`, its run directory, or its arrays.
        data: Data set: its folder, its name, or one of its splits as returned by `load`.

    Returns:
        Sample name → class of each point, int64 [P].

    Raises:
        InputError: Predictions that are not for voxels, or a different data set.

    Example:
        >>> import numpy as np
        >>> shapes = sp.data.make_shapes("shapes", num_train=2, num_test=1, families=["box"])
        >>> test = sp.data.load(shapes, split="test", voxel_size=0.2, task="segmentation")
        >>> try:
        ...     sp.data.to_points({"predictions": np.zeros(4)}, test)
        ... except sp.InputError as error:
        ...     print(error.code)
        predictions.not_of_clouds

    See also:
        guides/inference
    """
    arrays = _loaded(predictions)
    missing = [name for name in ("predictions", "name", "sample", "point_row", "coordinates") if name not in arrays]
    if missing:
        raise InputError(
            "predictions.not_of_clouds",
            f"{_named(predictions)}: has no {', '.join(missing)}, expected predictions of voxels of point clouds; "
            "sparsepipe predict with a network for segmentation",
        )
    folder = data.folder if isinstance(data, VoxelDataset) else open_folder(find(data))
    files = {file.name: file for file in folder.files}
    classes = {}
    for sample, name in enumerate(arrays["name"].tolist()):
        rows = arrays["point_row"][slice(*arrays["point_offsets"][sample : sample + 2])]
        chosen = np.where(rows == NOT_USED, IGNORED, arrays["predictions"][rows])
        if (rows == NOT_USED).any():
            if name not in files:
                raise InputError(
                    "predictions.sample_unknown",
                    f"{folder.path}: no sample {name!r}, which the predictions contain; give their data set",
                )
            content = folder.read(files[name])
            points, places = (
                (content.vertices, np.arange(len(content.vertices)))
                if isinstance(content, Mesh)
                else (content.points, content.file_rows)
            )
            if len(rows) != (num_points := number_of_points(content)):
                raise InputError(
                    "predictions.point_count",
                    f"{files[name].path}: {number_of(num_points, 'point')}, expected {len(rows)}, as the predictions "
                    "have; give the data set of these predictions",
                )
            open_ones = rows[places] == NOT_USED
            nearest = _nearest(points[open_ones], arrays, sample)
            chosen[places[open_ones]] = arrays["predictions"][nearest]
        classes[name] = chosen
    return classes


def _nearest(points: np.ndarray, arrays: Mapping[str, np.ndarray], sample: int) -> np.ndarray:
    """Return the row of the voxel of a sample whose middle is nearest to each point [P, D]."""
    from scipy.spatial import cKDTree  # here, as few ask for it

    own = np.flatnonzero(arrays["sample"] == sample)
    middles = arrays["origin"][sample] + (arrays["coordinates"][own] + 0.5) * arrays["edge"][sample]
    nearest: np.ndarray = own[cKDTree(middles).query(points)[1]]
    return nearest


def _loaded(predictions: Path | str | Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
    if isinstance(predictions, Mapping):
        return predictions
    path = expanded(predictions)
    path = path / _FILE if path.is_dir() else path
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except (OSError, ValueError, TypeError, BadZipFile) as error:  # another file, of one array or of none
        raise InputError("predictions.unreadable", f"{path}: cannot be read as predictions ({error})") from None


def _named(predictions: Path | str | Mapping[str, np.ndarray]) -> str:
    return "these arrays" if isinstance(predictions, Mapping) else str(predictions)
