"""Bring the predicted classes of voxels back to the points of the files that they were made of, by votes of crops and
views.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..util.io.files import expanded
from ..util.text.numbers import number_of
from .dataset import VoxelDataset
from .folder import find, open_folder
from .formats import Cloud, Mesh
from .labels import IGNORED
from .layouts import DataFolder, SampleFile
from .recipe import NOT_USED, Address, number_of_points

POINT_METRIC = "point_mean_iou"  # of a run's validation
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

    A point in several crops, or views, gets the class with the largest sum of probabilities. Points have the order of
    the file (in S3DIS: of the concatenated files of a room). The points of a mesh are its vertices. A point that was
    not sampled, or that lacks a feature, gets the class of the nearest voxel. A point with NaN or infinite coordinates
    gets -100.

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
            f"{_named(predictions)}: has no {', '.join(missing)}, expected voxel predictions of point clouds; run "
            "`sparsepipe predict` with a segmentation network",
        )
    folder = data.folder if isinstance(data, VoxelDataset) else open_folder(find(data))
    files = {file.name: file for file in folder.files}
    return {
        name: _of_points(arrays, samples, name, folder, files.get(name))
        for name, samples in _samples_of_names(arrays).items()
    }


def vote(predictions: Path | str | Mapping[str, np.ndarray]) -> dict[str, int]:
    """Return the class of each sample by the votes of its views: that whose probabilities add up to the most.

    Args:
        predictions: A `predictions.npz` of classes of samples, the directory of the run that wrote it, or its arrays.

    Returns:
        Name of each sample → class.

    Raises:
        InputError: Predictions without a row of outputs for each sample.

    Example:
        >>> import numpy as np
        >>> rows = {"name": np.array(["a", "a", "b"]), "sample": np.arange(3)}
        >>> sp.data.vote(rows | {"outputs": np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])})
        {'a': 1, 'b': 0}

    See also:
        guides/scenes, guides/inference
    """
    arrays = _loaded(predictions)
    outputs, names = arrays.get("outputs"), arrays.get("name")
    if outputs is None or names is None or outputs.ndim != 2 or len(outputs) != len(names):
        raise InputError(
            "predictions.not_of_samples",
            f"{_named(predictions)}: has no outputs per sample, expected classification outputs",
        )
    probabilities = _probabilities(outputs)
    return {
        name: int(probabilities[samples].sum(axis=0).argmax()) for name, samples in _samples_of_names(arrays).items()
    }


class PointVotes:
    """Classes of points by the votes of crops and views, compared with their labels while a validation runs.

    A scene is voted on once the outputs of all of its samples are added, so memory holds those of few scenes. If
    replicas of the last stage have some samples each, they keep their outputs until `gather`.
    """

    def __init__(self, split: VoxelDataset) -> None:
        self._split = split
        self._outputs: dict[int, np.ndarray] = {}  # of samples whose scene is not voted on yet: [V, C]
        count = len(split.classes)
        self.confusion = torch.zeros(count, count, dtype=torch.float64)  # points by label and class

    @cached_property
    def _samples(self) -> dict[str, list[int]]:
        """The samples of each scene."""
        return _samples_of_names({"name": np.array([self._split.name(k) for k in range(len(self._split))])})

    def add(self, outputs: Tensor, samples: Tensor) -> None:
        """Add outputs of voxels [N, C] in the order of the data, and the sample of each, int64 [N].

        Raises InputError if they are not one score for each class, and for points without labels.
        """
        if outputs.ndim != 2 or outputs.shape[1] != len(self.confusion):
            raise InputError(
                "metric.output_malformed",
                f"metric {POINT_METRIC}: the network returns {list(outputs.shape)}, expected a row per voxel with "
                f"{number_of(len(self.confusion), 'score')}, one per class",
                name=POINT_METRIC,
            )
        added = samples.unique().tolist()
        for sample in added:
            self._outputs[sample] = outputs[samples == sample].float().numpy()
        for name in dict.fromkeys(self._split.name(sample) for sample in added):
            if self._outputs.keys() >= {*self._samples[name]}:
                self._vote(name, [self._outputs.pop(sample) for sample in self._samples[name]])

    def gather(self, *, rank: int, world_size: int, add_up: Callable[[Tensor], Tensor]) -> None:
        """Vote on the other scenes, dealt to the ranks, and sum all counts: all ranks come here."""
        counts = torch.zeros(len(self._split), dtype=torch.float64)
        for sample, outputs in self._outputs.items():
            counts[sample] = len(outputs)
        add_up(counts)
        for k, (name, samples) in enumerate(self._samples.items()):
            rows = counts[samples].long().tolist()
            if not any(rows):
                continue
            table = torch.zeros(sum(rows), len(self.confusion), dtype=torch.float64)
            parts = table.split(rows)
            for sample, part in zip(samples, parts, strict=True):
                if sample in self._outputs:
                    part.copy_(torch.from_numpy(self._outputs.pop(sample)))
            add_up(table)
            if k % world_size == rank:
                self._vote(name, [part.float().numpy() for part in parts])
        add_up(self.confusion)

    def _vote(self, name: str, outputs: Sequence[np.ndarray]) -> None:
        """Count the labelled points of a scene by label and class, from the outputs of its samples."""
        samples, split, count = self._samples[name], self._split, len(self.confusion)
        file, rows = split.files[samples[0]], np.concatenate(outputs)
        numbers = np.repeat(np.arange(len(samples)), [len(part) for part in outputs])
        arrays = joined([split.address(sample) for sample in samples])
        arrays |= {"outputs": rows, "predictions": rows.argmax(axis=1), "sample": numbers}
        content = split.read(file)
        if isinstance(content, Mesh):
            raise not_of_points(file.path)
        classes = _of_points(arrays, range(len(samples)), name, split.folder, file, content)[content.file_rows]
        labels = split.point_labels(content, file)
        known = labels != IGNORED
        cells = np.bincount(labels[known] * count + classes[known], minlength=count**2)
        self.confusion += torch.from_numpy(cells.reshape(count, count))


def not_of_points(where: object) -> InputError:
    """Return the error of the metric of points for other data: `where` names them."""
    return InputError(
        "metric.not_of_points",
        f"{{metrics}} {POINT_METRIC}: {where} has no point clouds with a class per point; omit the metric",
        setting="metrics",
    )


def _samples_of_names(arrays: Mapping[str, np.ndarray]) -> dict[str, list[int]]:
    """Return the samples of each name: several, if they are crops or views of one file."""
    samples: dict[str, list[int]] = {}
    for sample, name in enumerate(arrays["name"].tolist()):
        samples.setdefault(name, []).append(sample)
    return samples


def _of_points(
    arrays: Mapping[str, np.ndarray],
    samples: Sequence[int],
    name: str,
    folder: DataFolder,
    file: SampleFile | None,
    content: Mesh | Cloud | None = None,
) -> np.ndarray:
    """Return the class of each point of a file, int64 [P], from the samples that are made of it.

    `content`: what the file holds, if it is read already.
    """
    parts = [arrays["point_row"][slice(*arrays["point_offsets"][sample : sample + 2])] for sample in samples]
    if len({len(rows) for rows in parts}) > 1 or (len(samples) > 1 and "outputs" not in arrays):
        raise InputError(
            "predictions.not_of_clouds",
            f"{name}: its parts have different numbers of points, or lack outputs; run predict again",
        )
    used = np.max(parts, axis=0) != NOT_USED
    if len(samples) == 1:
        chosen = np.where(used, arrays["predictions"][parts[0]], IGNORED)
    else:
        votes = np.zeros((len(used), arrays["outputs"].shape[1]))
        for rows in parts:
            there = rows != NOT_USED
            votes[there] += _probabilities(arrays["outputs"][rows[there]])
        chosen = np.where(used, votes.argmax(axis=1), IGNORED)
    if used.all():
        return chosen
    if file is None:
        raise InputError(
            "predictions.sample_unknown",
            f"{folder.path}: has no sample {name!r}, but the predictions have it; give the data set they were "
            "computed on",
        )
    content = folder.read(file) if content is None else content
    points, places = (
        (content.vertices, np.arange(len(content.vertices)))
        if isinstance(content, Mesh)
        else (content.points, content.file_rows)
    )
    if len(used) != (num_points := number_of_points(content)):
        raise InputError(
            "predictions.point_count",
            f"{file.path}: has {number_of(num_points, 'point')}, but the predictions have {len(used)}; give the data "
            "set they were computed on",
        )
    open_ones = ~used[places]
    nearest = _nearest(points[open_ones], arrays, samples)
    chosen[places[open_ones]] = arrays["predictions"][nearest]
    return chosen


def _nearest(points: np.ndarray, arrays: Mapping[str, np.ndarray], samples: Sequence[int]) -> np.ndarray:
    """Return the row of the voxel of a file's samples whose middle is nearest to each point [P, D]."""
    from scipy.spatial import cKDTree  # here, as few ask for it

    rows = np.flatnonzero(np.isin(arrays["sample"], samples))
    sample_of = arrays["sample"][rows]
    middles = arrays["origin"][sample_of] + (arrays["coordinates"][rows] + 0.5) * arrays["edge"][sample_of, None]
    nearest: np.ndarray = rows[cKDTree(middles).query(points)[1]]
    return nearest


def _probabilities(outputs: np.ndarray) -> np.ndarray:
    """Return the softmax of rows of outputs: float64 [N, C]."""
    shifted = np.exp(outputs.astype(np.float64) - outputs.max(axis=1, keepdims=True))
    probabilities: np.ndarray = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities


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
