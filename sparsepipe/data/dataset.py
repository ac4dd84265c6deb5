"""One split of a data set as voxelized samples: read, sampled and voxelized on first use, then cached."""

import hashlib
import json
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ..errors import InputError
from ..util.derived.seeds import sample_seed
from ..util.io.fields import given_integer
from ..util.io.told import tell
from ..util.text.counting import number_of
from .address import NOT_USED, Address, number_of_points
from .augmentation import Augmentation, named_augmentation
from .batch import PointBatch, Sample, collate
from .cache import open_cache, sample_key
from .digest import files_digest
from .folder import open_folder
from .formats import Cloud, Mesh
from .layouts import CLASSIFICATION, SEGMENTATION, DataFolder, SampleFile
from .presence import look_at
from .reach import can_be_held, near_origin
from .recipe import ALL, OCCUPANCY, Recipe
from .sampling import MESH_POINTS, sample_points
from .sources import find
from .voxels import (
    OutOfReach,
    cube_of,
    majority,
    metric_cells,
    metric_voxel_index,
    too_far,
    unique_rows,
    unit_cube,
    voxel_index,
)

_MAX_KEPT_BYTES = 2**30  # of samples in memory; what comes after is read again, from the cache where there is one
_SECONDS_UNTIL_SAID = 5.0  # between lines of progress while samples are counted
_RESERVOIR = 4  # with augmentation: so many times the points of a sample are kept, of which each epoch draws its own


def load(
    source: str | Path,
    *,
    split: str,
    voxel_size: float,
    num_points: int | str | None = ALL,
    seed: int = 0,
    task: str | None = None,
    features: Sequence[str] = (OCCUPANCY,),
    augmentation: Augmentation | str | None = None,
    cache: Path | str | None = None,
) -> "VoxelDataset":
    """Open one split of a data set of point clouds or meshes.

    Objects are scaled to the unit cube before voxelization; scans keep their coordinates in metres. Each file is read
    on first access.

    Args:
        source: Folder in a supported layout, or the name of a data set.
        split: Name of the split, such as "train" or "test".
        voxel_size: Voxel edge, as a share of the longest side; for scans in metres.
        num_points: Maximum number of points of a cloud, and number sampled from a mesh. "all": all points, 1,024 of a
            mesh.
        seed: Random seed of the sampling.
        task: "classification" or "segmentation". Default: the data set's usual task.
        features: Names of the features of each voxel, such as "occupancy" or "normals".
        augmentation: Augmentation, or its name. It changes the samples in each epoch.
        cache: Folder of prepared samples. "off": no cache. Default: SPARSEPIPE_CACHE, or the user's cache.

    Returns:
        A `VoxelDataset` of the samples.

    Raises:
        InputError: A malformed folder or setting. A malformed file raises it on first access.

    Example:
        >>> shapes = sp.data.make_shapes("shapes", num_train=2, num_test=1, families=["box", "torus"])
        >>> train = sp.data.load(shapes, split="train", voxel_size=0.1, cache="off")
        >>> len(train), train.batch([0, 1]).coordinates.shape[1]  # sample index, x, y, z
        (4, 4)

    See also:
        guides/own_data, guides/scenes_of_varying_size
    """
    recipe = Recipe(voxel_size, num_points, seed, _names(features), named_augmentation(augmentation))
    folder = open_folder(find(source))
    return VoxelDataset(folder, split, recipe=recipe, task=task, cache=cache)


def _names(features: Sequence[str] | str) -> tuple[str, ...]:
    return (features,) if isinstance(features, str) else tuple(features)


class VoxelDataset:
    """Samples of one split, ordered by class, then name. They are read on first use and cached."""

    def __init__(
        self,
        folder: DataFolder,
        split: str,
        *,
        recipe: Recipe,
        task: str | None = None,
        cache: Path | str | None = None,
        files: Sequence[SampleFile] | None = None,
    ) -> None:
        """Take all samples of the split, or these `files` of it, though a class may have none among them."""
        self.folder = folder
        self.split = split
        self.recipe = recipe
        self.task = task or folder.tasks[0]
        if self.task not in folder.tasks:
            raise InputError(
                "dataset.task_unknown",
                f"{folder.path}: task {self.task!r} asked, expected {' or '.join(folder.tasks)}",
                task=self.task,
            )
        if not folder.metric and recipe.voxel_size > 1:
            raise InputError(
                "voxels.size_out_of_range",
                f"voxel size {recipe.voxel_size} given, expected above 0 and at most 1, because clouds are scaled to "
                "the unit cube",
            )
        if folder.metric and recipe.augmentation is not None and recipe.augmentation.in_cube:
            raise InputError(
                "augmentation.of_unit_cube",
                f"{folder.path}: its clouds have coordinates in metres, but the requested augmentation scales "
                "them to the unit cube; use another one, such as scans",
            )
        self.files = folder.split(split) if files is None else tuple(files)
        self._cache = open_cache(cache)
        self._kept: dict[int, Any] = {}  # samples, or with augmentation what they are drawn from
        self._kept_bytes = 0
        self._counts: dict[int, int] = {}
        self._digest: dict[str, str] | None = None
        self._steps: tuple[int, ...] | None = None  # see `near_origin`
        self._reach: int | None = None

    def __len__(self) -> int:
        return len(self.files)

    def name(self, index: int) -> str:
        """Return a sample's path inside the data set."""
        return self.files[index].name

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of samples, or of voxels for segmentation; a label is an index into them."""
        return self.folder.classes if self.task == CLASSIFICATION else self.folder.parts

    @property
    def labels(self) -> tuple[int, ...]:
        """Each sample's class. Raises InputError if only voxels have classes."""
        if not self.folder.classes:
            raise InputError(
                "dataset.no_class_labels",
                f"{self.folder.path}: its scans have no class labels; use the point labels of batch()",
            )
        return tuple(cast("int", file.label) for file in self.files)

    @property
    def size_unit(self) -> str:
        """Return what a minibatch's costs grow with."""
        return "voxels"

    @property
    def targets_are_labels(self) -> bool:
        """Return whether samples have classes as a whole, which need no reading."""
        return self.task != SEGMENTATION

    @property
    def loss(self) -> str:
        """The name of the loss that they are trained with."""
        return "voxels" if self.task == SEGMENTATION else "classes"

    @property
    def facts(self) -> dict[str, object]:
        """Return what a network's builder may ask of the data."""
        return {"num_classes": len(self.classes), "in_channels": self.in_channels}

    def sample_sizes(self) -> list[int]:
        """Return the voxels of each sample: all are read for it."""
        return list(self.voxel_counts().tolist())

    @property
    def in_channels(self) -> int:
        """Count the features of a voxel: a network's `in_channels`."""
        return self.recipe.in_channels

    @property
    def synthetic(self) -> bool:
        """Return whether the shapes were generated: figures made from them must say so in their title."""
        return self.folder.synthetic

    @property
    def origin(self) -> dict[str, object]:
        """Return the source of the samples and how they were made, for records: JSON-ready, without absolute paths."""
        if self._digest is None:
            paths = (path for file in self.files for path in (file.path, *file.companions))
            self._digest = files_digest(paths, [(file.name, file.num_bytes) for file in self.files])
        return {
            "name": self.folder.name,
            "split": self.split,
            "samples": len(self),
            "task": self.task,
            "classes": list(self.classes),
            "synthetic": self.synthetic,
            **self.recipe.facts(),
            **self._declared,
            **self._digest,
        }

    def look(self) -> None:
        """Check that all files exist, without reading them. Raises InputError if one is empty or unreadable.

        What it costs is a question to the file system for each: a run does so before it begins.
        """
        look_at((path for file in self.files for path in (file.path, *file.companions)), self.split)

    def points(self, index: int) -> np.ndarray:
        """Return one sample's points before augmentation and voxelization: float64 [P, 3]. Not kept."""
        file = self.files[index]
        return self._placed(self._drawn(file, self.folder.read(file), self.recipe.most_points), file).points

    def sample(self, index: int, *, epoch: int = 0) -> Sample:
        """Return one voxelized sample. Raises InputError that names the file if it cannot be read.

        `epoch` matters with an augmentation alone: then a sample is decided by seed, name and epoch.
        """
        if self.recipe.augmentation is not None:
            return self._augmented(index, epoch)
        sample = self._kept.get(index)
        if sample is None:
            file = self.files[index]
            key = self._key(file)
            sample = self._cached_sample(key, file)
            if sample is None:
                sample = self.made(file, self.folder.read(file))
                self._save(key, _arrays_of(sample))
            self._keep(index, sample, sum(tensor.nbytes for tensor in (sample.coordinates, sample.features)))
        return sample

    def address(self, index: int) -> Address:
        """Read a sample's file again to say where its voxels lie there, without augmentation. Not kept."""
        file, voxel_size = self.files[index], self.recipe.voxel_size
        content = self.folder.read(file)
        cloud = self._drawn(file, content, self.recipe.most_points)
        if self.folder.metric:
            cells, moved = metric_cells(cloud.points, voxel_size)
            (rows, voxels), origin, edge = unique_rows(cells), moved * voxel_size, voxel_size
        else:
            origin, extent = cube_of(cloud.points)
            (rows, voxels), edge = voxel_index(self._placed(cloud, file).points, voxel_size), extent * voxel_size
        voxel_of = np.full(number_of_points(content), NOT_USED)
        if isinstance(content, Cloud):
            voxel_of[cloud.file_rows] = voxels
        return Address(rows.astype(np.int32), origin, edge, voxel_of)

    def made(self, file: SampleFile, content: Mesh | Cloud) -> Sample:
        """Voxelize what was read of a file, without augmentation. Raises InputError that names the file."""
        return self._voxelized(self._placed(self._drawn(file, content, self.recipe.most_points), file), file)

    def examined(self, file: SampleFile, content: Mesh | Cloud) -> Sample:
        """Look at all points that were read of a file, then voxelize it. Raises InputError that names the file."""
        if self.task == SEGMENTATION:
            self._point_labels(content, file)
        sample = self.made(file, content)
        if self._within_reach(sample) is None:
            raise self._out_of_reach(file, content)
        return sample

    def near_origin(self, steps: tuple[int, ...] | None, *, reach: int | None = None) -> "VoxelDataset":
        """Return this split with metric clouds moved near the origin in each `batch`, by multiples of `steps` voxels.

        A sample beyond an engine's `reach` (see `reach.reach`) is refused when it is read, with its file and point.
        With a network's coarsest tensor stride as `steps` nothing else changes: where a cloud lies, on a map of a whole
        country too, then makes no difference to what the network computes, bit for bit. None, of a network that places
        voxels in a dense grid, moves nothing, nor are clouds moved that were scaled to the unit cube.
        """
        moved = copy(self)
        moved._steps = steps if self.folder.metric else None
        moved._reach = reach
        return moved

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> PointBatch:
        """Return the chosen samples of an epoch side by side, in the order given."""
        for index in indices:
            if not 0 <= index < len(self):
                raise InputError(
                    "dataset.sample_unknown",
                    f"sample {index} asked of {len(self)} in split {self.split}; use 0 to {len(self) - 1}",
                    index=index,
                    split=self.split,
                )
        return collate([self.placed(index, epoch=epoch) for index in indices])

    def placed(self, index: int, *, epoch: int = 0) -> Sample:
        """Return a sample as `batch` has it. Raises InputError if it lies beyond the engine's reach."""
        sample, file = self.sample(index, epoch=epoch), self.files[index]
        placed = self._within_reach(sample)
        if placed is None:
            raise self._out_of_reach(file, self.folder.read(file))
        return placed

    def _within_reach(self, sample: Sample) -> Sample | None:
        """Return a sample moved near the origin, None if the engine cannot hold it there."""
        placed = sample if self._steps is None else near_origin(sample, self._steps)
        return placed if self._reach is None or can_be_held(placed, self._reach) else None

    def _out_of_reach(self, file: SampleFile, content: Mesh | Cloud) -> InputError:
        cloud = self._drawn(file, content, self.recipe.most_points)
        voxel_size = self.recipe.voxel_size * (1 if self.folder.metric else cube_of(cloud.points)[1])
        return self._named(too_far(cloud.points, voxel_size, f"the {self._reach} that the engine holds"), cloud, file)

    def _named(self, error: OutOfReach, cloud: Cloud, file: SampleFile) -> InputError:
        """Return an error that names the file and the point by its row there."""
        row = int(cloud.file_rows[error.point])
        return OutOfReach(row, error.place, error.problem).within(f"{file.path}: ")

    def voxel_counts(self) -> np.ndarray:
        """Count the active voxels of every sample, of epoch 0: int64 [len(self)].

        Reads all samples, once for all processes that share a cache.
        """
        if len(self._counts) < len(self):
            self._index_sizes()
        return np.array([self._counts[index] for index in range(len(self))], dtype=np.int64)

    def _index_sizes(self) -> None:
        """Find the voxels of each sample in the cache, or read the samples; says so if it takes long."""
        key = None
        if self._cache is not None:
            keys = [self._key(file) for file in self.files]
            facts = json.dumps([keys, self.recipe.facts()], sort_keys=True, default=str)
            key = hashlib.sha256(f"voxel counts {facts}".encode()).hexdigest()
            found = self._cache.load(key) or {}
            if found.get("counts", np.empty(0)).shape == (len(self),):
                self._counts = dict(enumerate(found["counts"].tolist()))
                return
        said = time.monotonic()
        for index in range(len(self)):
            if index not in self._counts:
                self._counts[index] = len(self.sample(index))
            if time.monotonic() > said + _SECONDS_UNTIL_SAID:
                tell(f"{self.folder.name}: counted the voxels of {index + 1} of {number_of(len(self), 'sample')}")
                said = time.monotonic()
        self._save(key, {"counts": np.array([self._counts[index] for index in range(len(self))])})

    # --- one sample, step by step -------------------------------------------------------------------------------

    def _drawn(self, file: SampleFile, content: Mesh | Cloud, num_points: int | None) -> Cloud:
        """Draw points of what a file holds, by the seed and its name."""
        if isinstance(content, Cloud):
            content = self.recipe.measured(content, file.path, self.folder.reading)
        try:
            drawn = sample_points(content, num_points, seed=sample_seed(self.recipe.seed, file.name))
        except InputError as error:
            raise error.within(f"{file.path}: ") from None
        return drawn if isinstance(content, Cloud) else self.recipe.measured(drawn, file.path, self.folder.reading)

    def _placed(self, cloud: Cloud, file: SampleFile) -> Cloud:
        """Bring an object into the unit cube; a scan keeps its metres."""
        if self.folder.metric:
            return cloud
        try:
            return replace(cloud, points=unit_cube(cloud.points))
        except InputError as error:
            raise error.within(f"{file.path}: ") from None

    def _augmented(self, index: int, epoch: int) -> Sample:
        """Draw an epoch's points from the sample's reservoir, then change them, by seed, name and epoch."""
        given_integer(epoch, "epoch")
        if epoch < 0:
            raise InputError("dataset.epoch_negative", f"epoch {epoch} given, expected 0 or more", epoch=epoch)
        file, recipe = self.files[index], self.recipe
        assert recipe.augmentation is not None
        kept = self._kept.get(index)
        if kept is None:
            kept = self._reservoir(file)
            arrays = (kept[0].points, kept[0].attributes)
            self._keep(index, kept, sum(array.nbytes for array in arrays if array is not None))
        cloud, count = kept
        seed = sample_seed(recipe.seed, f"{file.name}:{epoch}")
        chosen = self._placed(sample_points(cloud, count, seed=seed), file)
        return self._voxelized(recipe.augmentation.apply(chosen, seed=seed), file)

    def _reservoir(self, file: SampleFile) -> tuple[Cloud, int | None]:
        """Return the points that epochs draw from, and how many each draws; None: all of them."""
        count = self.recipe.most_points
        key = self._key(file)
        arrays = None if key is None or self._cache is None else self._cache.load(key)
        if arrays is not None and "points" in arrays:
            names = json.loads(arrays["names"].tobytes())
            cloud = Cloud(arrays["points"], arrays.get("attributes"), tuple(names), arrays.get("labels"))
            return cloud, int(arrays["count"][0]) or None
        content = self.folder.read(file)
        if count is None and isinstance(content, Mesh):
            count = MESH_POINTS
        cloud = self._drawn(file, content, None if count is None else _RESERVOIR * count)
        names = np.frombuffer(json.dumps(cloud.names).encode(), dtype=np.uint8)
        arrays = {"points": cloud.points, "names": names, "count": np.array([count or 0])}
        for name, array in (("attributes", cloud.attributes), ("labels", cloud.labels)):
            if array is not None:
                arrays[name] = array
        self._save(key, arrays)
        return cloud, count

    def _voxelized(self, cloud: Cloud, file: SampleFile) -> Sample:
        try:
            index_of = metric_voxel_index if self.folder.metric else voxel_index
            coordinates, index = index_of(cloud.points, self.recipe.voxel_size)
            features = self.recipe.voxel_features(cloud, index, len(coordinates))
        except OutOfReach as error:
            raise self._named(error, cloud, file) from None
        except InputError as error:
            raise error.within(f"{file.path}: ") from None
        label: int | torch.Tensor | None = file.label
        if self.task == SEGMENTATION:
            label = torch.from_numpy(majority(self._point_labels(cloud, file), index, len(coordinates)))
        assert label is not None
        return Sample(torch.from_numpy(coordinates), torch.from_numpy(features), label)

    def _point_labels(self, cloud: Mesh | Cloud, file: SampleFile) -> np.ndarray:
        if cloud.labels is None:
            raise InputError(
                "dataset.no_point_labels",
                f"{file.path}: its points have no labels, which segmentation needs; choose another task",
            )
        if (label := cloud.labels.max()) >= len(self.classes):
            first = int(cloud.labels.argmax())
            where = f"face {first}" if isinstance(cloud, Mesh) else f"point {cloud.file_rows[first]}"
            raise InputError(
                "dataset.label_out_of_range",
                f"{file.path}: label {label} is out of range for {number_of(len(self.classes), 'class')}; "
                f'correct the label of {where} or the list of parts, or declare "ignore": [{label}] in dataset.json',
            )
        return cloud.labels

    # --- what is kept -------------------------------------------------------------------------------------------

    def _keep(self, index: int, value: object, num_bytes: int) -> None:
        if self._kept_bytes + num_bytes <= _MAX_KEPT_BYTES:
            self._kept[index] = value
            self._kept_bytes += num_bytes

    def _key(self, file: SampleFile) -> str | None:
        """Return a sample's key in the cache, None without one."""
        if self._cache is None:
            return None
        facts = self._shared_facts | {
            "name": file.name,  # decides the points drawn
            "files": [path.name for path in (file.path, *file.companions)],  # S3DIS: names tell the points' classes
            "entry": file.entry,
        }
        return sample_key(self._cache, (file.path, *file.companions), facts)

    @cached_property
    def _shared_facts(self) -> dict[str, object]:
        """Return what decides every sample of this split, beside its file."""
        augmented = self.recipe.augmentation is not None
        return {
            "what": "reservoir" if augmented else "voxels",
            "layout": self.folder.layout,
            "metric": self.folder.metric,
            "parts": len(self.folder.parts),  # labels beyond them are refused
            "task": self.task,
            "recipe": None if augmented else self.recipe.facts(),
            "draw": [self.recipe.num_points, self.recipe.seed],
            **self._declared,
            "asked": list(self.recipe.features) if augmented else None,  # decides which points count as measured
        }

    @property
    def _declared(self) -> dict[str, object]:
        facts = self.folder.reading.facts()
        return {"reading": facts} if facts else {}

    def _cached_sample(self, key: str | None, file: SampleFile) -> Sample | None:
        arrays = None if key is None or self._cache is None else self._cache.load(key)
        if arrays is None or not {"coordinates", "features"} <= set(arrays):
            return None
        label = torch.from_numpy(arrays["labels"]) if "labels" in arrays else file.label
        assert label is not None
        return Sample(torch.from_numpy(arrays["coordinates"]), torch.from_numpy(arrays["features"]), label)

    def _save(self, key: str | None, arrays: dict[str, np.ndarray]) -> None:
        if key is not None and self._cache is not None:
            self._cache.save(key, arrays)


def _arrays_of(sample: Sample) -> dict[str, np.ndarray]:
    arrays = {"coordinates": sample.coordinates.numpy(), "features": sample.features.numpy()}
    return arrays | ({"labels": sample.label.numpy()} if isinstance(sample.label, torch.Tensor) else {})
