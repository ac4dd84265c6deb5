"""One split of a data set as voxelized samples: read, sampled and voxelized on first use, then cached."""

import hashlib
import json
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from ..errors import InputError
from ..util.derived import sample_seed
from ..util.io.fields import given_integer
from ..util.io.options import tell
from ..util.text.numbers import number_of
from .augmentation import Augmentation, into_cube, named_augmentation, turned_about_z
from .batch import PointBatch, Sample, collate
from .cache import open_cache, sample_key
from .crops import Crop, named_crop
from .folder import files_digest, find, look_at, open_folder
from .formats import Cloud, Mesh
from .layouts import CLASSIFICATION, SEGMENTATION, DataFolder, SampleFile
from .reach import can_be_held, near_origin
from .recipe import ALL, MESH_POINTS, NOT_USED, OCCUPANCY, Address, Recipe, number_of_points, sample_points
from .voxels import (
    OutOfReach,
    cube_of,
    majority,
    metric_cells,
    metric_voxel_index,
    too_far,
    unit_cube,
    voxel_index,
)

_MAX_KEPT_BYTES = 2**30  # of samples in memory; what comes after is read again, from the cache where there is one
_SECONDS_UNTIL_SAID = 5.0  # between lines of progress while samples are counted
_TRAIN = "train"  # the split whose crops are random; other splits are covered by theirs
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
    crop: Crop | str | None = None,
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
        augmentation: Augmentation, or its name, or names joined by "+". It changes the samples in each epoch.
        crop: Part of a scene in metres, such as "sphere:radius=2". In split "train": a random one for each sample and
            epoch. In other splits: as many as cover the scene, each a sample, which an augmentation then changes.
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
    augmentation, crop = named_augmentation(augmentation), named_crop(crop)
    recipe = Recipe(voxel_size, num_points, seed, _names(features), augmentation, crop)
    folder = open_folder(find(source))
    return VoxelDataset(folder, split, recipe=recipe, task=task, cache=cache)


def _names(features: Sequence[str] | str) -> tuple[str, ...]:
    return (features,) if isinstance(features, str) else tuple(features)


@dataclass(frozen=True)
class _View:
    """A sample that is a part of a file: the cell of its crop, None for the whole, and by how much it is turned."""

    file: SampleFile
    cell: tuple[int, ...] | None
    degrees: float


class VoxelDataset:
    """Read the samples of one split, ordered by class, then by name. Samples are read on first use and cached."""

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
                f"{folder.path}: unknown task {self.task!r}, expected {' or '.join(folder.tasks)}",
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
                f"{folder.path}: its clouds have coordinates in metres, but this augmentation scales clouds to the "
                "unit cube; use another augmentation, such as scans",
            )
        if recipe.crop is not None and not folder.metric:
            raise InputError(
                "crop.of_objects",
                f"{folder.path}: crop {recipe.crop} requested, but its clouds are objects in the unit cube; crop "
                'only scenes in metres ("metric": true in dataset.json)',
            )
        if recipe.augmentation is not None and recipe.augmentation.mix and self.task != SEGMENTATION:
            raise InputError(
                "augmentation.mix_of_samples",
                f"{folder.path}: mixing scenes requires a label per point, but samples have one class each; omit the "
                "mix",
            )
        self._sources = folder.split(split) if files is None else tuple(files)
        self._last_read: tuple[SampleFile, Mesh | Cloud] | None = None  # of files that several samples are parts of
        self._cache = open_cache(cache)
        self._kept: dict[int, Any] = {}  # samples, or with augmentation what they are drawn from
        self._kept_bytes = 0
        self._counts: dict[int, int] = {}
        self._digest: dict[str, str] | None = None
        self._bounds: tuple[tuple[int, ...] | None, int | None] = None, None  # steps and reach, see `near_origin`

    def __len__(self) -> int:
        return len(self.files)

    @property
    def files(self) -> tuple[SampleFile, ...]:
        """Return the file of each sample. In an evaluation with crops or views, several samples share a file."""
        return self._sources if self._views is None else tuple(view.file for view in self._views)

    @property
    def _changes(self) -> bool:
        """Return whether samples change from epoch to epoch."""
        recipe = self.recipe
        return recipe.augmentation is not None or (recipe.crop is not None and self.split == _TRAIN)

    @property
    def size_changes(self) -> bool:
        """Return whether the points of a sample change in each epoch, by random crops or mixed scenes."""
        recipe = self.recipe
        mixes = recipe.augmentation is not None and bool(recipe.augmentation.mix)
        return mixes or (recipe.crop is not None and self.split == _TRAIN)

    @cached_property
    def _views(self) -> tuple[_View, ...] | None:
        """The parts of files that samples are, in an evaluation with crops or views; None: whole files.

        With crops every file is read, once for all processes that share a cache.
        """
        recipe = self.recipe
        changes = recipe.augmentation is not None
        if self.split == _TRAIN or (recipe.crop is None and (changes or recipe.views == 1)):
            return None
        turns = [360 * turn / recipe.views for turn in range(recipe.views)]
        cells = self._cells_of_files()
        return tuple(
            _View(file, cell, turn)
            for file, of_file in zip(self._sources, cells, strict=True)
            for cell in of_file
            for turn in turns
        )

    def _cells_of_files(self) -> list[list[tuple[int, ...] | None]]:
        """Return the cells of the crops that cover each file; without crops one that is the whole."""
        crop = self.recipe.crop
        if crop is None:
            return [[None] for _ in self._sources]
        if not self._sources:
            raise InputError(
                "dataset.no_files", f"{self.folder.path}: no files to crop in split {self.split}; give one at least"
            )
        key, said = None, time.monotonic()
        if self._cache is not None:
            facts = json.dumps([[self._key(file) for file in self._sources], str(crop)])
            key = hashlib.sha256(f"crops {facts}".encode()).hexdigest()
            cached = self._cache.load(key) or {}
            if {"cells", "counts"} <= set(cached):
                parts = np.split(cached["cells"], np.cumsum(cached["counts"])[:-1])
                return [list(map(tuple, part.tolist())) for part in parts]
        parts = []
        for number, file in enumerate(self._sources, start=1):
            cloud = self._drawn(file, self.folder.read(file), None)
            try:
                parts.append(crop.cells(cloud.points))
            except InputError as error:
                raise error.within(f"{file.path}: ") from None
            if time.monotonic() > said + _SECONDS_UNTIL_SAID:
                tell(f"{self.folder.name}: divided {number} of {number_of(len(self._sources), 'scene')} into crops")
                said = time.monotonic()
        self._save(key, {"cells": np.concatenate(parts), "counts": np.array([len(part) for part in parts])})
        return [list(map(tuple, part.tolist())) for part in parts]

    def name(self, index: int) -> str:
        """Return the path of a sample in the data set."""
        return self.files[index].name

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names of samples, or of voxels for segmentation; a label is an index into them."""
        return self.folder.classes if self.task == CLASSIFICATION else self.folder.parts

    @property
    def labels(self) -> tuple[int, ...]:
        """Class of each sample. Raises InputError if only voxels have classes."""
        if not self.folder.classes:
            raise InputError(
                "dataset.no_class_labels",
                f"{self.folder.path}: its scans have labels per point, not per scan; use the point labels of batch()",
            )
        return tuple(cast("int", file.label) for file in self.files)

    @property
    def size_unit(self) -> str:
        """Return the unit of the size that costs depend on."""
        return "voxels"

    @property
    def targets_are_labels(self) -> bool:
        """Return whether each sample has one class, which is known without reading it."""
        return self.task != SEGMENTATION

    @property
    def loss(self) -> str:
        """Name of the default loss."""
        return "voxels" if self.task == SEGMENTATION else "classes"

    @property
    def facts(self) -> dict[str, object]:
        """Return the properties of the data that a function which builds a network may take."""
        return {"num_classes": len(self.classes), "in_channels": self.in_channels}

    def sample_sizes(self) -> list[int]:
        """Return the number of voxels of each sample. Reads all samples."""
        return list(self.voxel_counts().tolist())

    @property
    def in_channels(self) -> int:
        """Return the number of features of a voxel: `in_channels` of a network."""
        return self.recipe.in_channels

    @property
    def synthetic(self) -> bool:
        """Return whether the shapes were generated. Titles of their figures say so."""
        return self.folder.synthetic

    @property
    def origin(self) -> dict[str, object]:
        """Return source and preparation of the samples, for records: JSON-ready, without absolute paths."""
        if self._digest is None:
            paths = (path for file in self._sources for path in (file.path, *file.companions))
            self._digest = files_digest(paths, [(file.name, file.num_bytes) for file in self._sources])
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

        This costs one file-system call per file. Runs do it before they start.
        """
        look_at((path for file in self._sources for path in (file.path, *file.companions)), self.split)

    def points(self, index: int) -> np.ndarray:
        """Return the points of one sample before augmentation and voxelization: float64 [P, 3]. Not cached."""
        return self._placed(self._cloud(index, self.read(self.files[index])), self.files[index]).points

    def sample(self, index: int, *, epoch: int = 0) -> Sample:
        """Return one voxelized sample. Raises InputError that names the file if it cannot be read.

        With an augmentation, the sample depends on seed, name and `epoch`.
        """
        if self._changes:
            return self._augmented(index, epoch)
        sample = self._kept.get(index)
        if sample is None:
            file = self.files[index]
            key = self._key(file, index)
            sample = self._cached_sample(key, file)
            if sample is None:
                sample = self._voxelized(self._placed(self._cloud(index, self.read(file)), file), file)
                self._save(key, _arrays_of(sample))
            self._keep(index, sample, sum(tensor.nbytes for tensor in (sample.coordinates, sample.features)))
        return sample

    def address(self, index: int) -> Address:
        """Read the file of a sample again, and return the position of its voxels there, without augmentation.

        Not cached.
        """
        file, voxel_size = self.files[index], self.recipe.voxel_size
        content = self.read(file)
        upright = self._cloud(index, content, turned=False)
        is_turned = self._views is not None and bool(self._views[index].degrees)
        cloud = self._cloud(index, content) if is_turned else upright
        rows, voxels = self._cells(self._placed(cloud, file), file)
        if self.folder.metric:
            cells, moved = metric_cells(upright.points, voxel_size)
            origin, edge = moved * voxel_size, voxel_size
        else:
            origin, extent = cube_of(upright.points)
            edge = extent * voxel_size
            cells = np.floor((upright.points - origin) / edge).astype(np.int64)
        if is_turned:  # where the first point of each voxel was before the turn
            rows = cells[np.unique(voxels, return_index=True)[1]]
        voxel_of = np.full(number_of_points(content), NOT_USED)
        if isinstance(content, Cloud):
            voxel_of[cloud.file_rows] = voxels
        return Address(rows.astype(np.int32), origin, edge, voxel_of)

    def made(self, file: SampleFile, content: Mesh | Cloud) -> Sample:
        """Voxelize the content of a file, without augmentation. Raises InputError that names the file."""
        return self._voxelized(self._placed(self._drawn(file, content, self.recipe.most_points), file), file)

    def examined(self, file: SampleFile, content: Mesh | Cloud) -> Sample:
        """Check all points of a file's content, then voxelize it. Raises InputError that names the file."""
        if self.task == SEGMENTATION:
            self.point_labels(content, file)
        sample = self.made(file, content)
        if self._within_reach(sample) is None:
            raise self._out_of_reach(file, content)
        return sample

    def near_origin(self, steps: tuple[int, ...] | None, *, reach: int | None = None) -> "VoxelDataset":
        """Return this split with metric clouds moved near the origin in each `batch`, by multiples of `steps` voxels.

        With the network's coarsest tensor stride as `steps`, results are bit-identical, even for clouds far away on a
        map. A sample beyond an engine's `reach` (see `reach.reach`) raises InputError with its file and point when it
        is read. None, for networks that place voxels in a dense grid, moves nothing. Clouds scaled to the unit cube are
        not moved.
        """
        moved = copy(self)
        moved._bounds = steps if self.folder.metric else None, reach
        return moved

    def with_views(self, count: int) -> "VoxelDataset":
        """Return this split with `count` copies of each cloud, turned about z in equal steps, for votes.

        Split "train" stays as it is: its clouds come once an epoch.

        Raises:
            InputError: A count below 1.

        Example:
            >>> shapes = sp.data.make_shapes("shapes", num_train=2, num_test=1, families=["box", "torus"])
            >>> test = sp.data.load(shapes, split="test", voxel_size=0.1)
            >>> len(test), len(test.with_views(4))
            (2, 8)

        See also:
            guides/scenes, `data.vote`, `data.to_points`
        """
        turned = copy(self)
        turned.recipe = replace(self.recipe, views=count)
        turned._kept, turned._kept_bytes, turned._counts, turned._digest = {}, 0, {}, None
        for name in ("_views", "_shared_facts"):  # of other views
            vars(turned).pop(name, None)
        return turned

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> PointBatch:
        """Return the chosen samples of an epoch as one minibatch, in the given order."""
        for index in indices:
            if not 0 <= index < len(self):
                raise InputError(
                    "dataset.sample_unknown",
                    f"sample {index} requested, but split {self.split} has {len(self)}; use 0 to {len(self) - 1}",
                    index=index,
                    split=self.split,
                )
        return collate([self.placed(index, epoch=epoch) for index in indices])

    def placed(self, index: int, *, epoch: int = 0) -> Sample:
        """Return a sample as it is in a `batch`. Raises InputError if it lies beyond the engine's reach."""
        sample, file = self.sample(index, epoch=epoch), self.files[index]
        placed = self._within_reach(sample)
        if placed is None:
            raise self._out_of_reach(file, self.folder.read(file))
        return placed

    def _within_reach(self, sample: Sample) -> Sample | None:
        """Return a sample moved near the origin, None if the engine cannot hold it there."""
        steps, reach = self._bounds
        placed = sample if steps is None else near_origin(sample, steps)
        return placed if reach is None or can_be_held(placed, reach) else None

    def _out_of_reach(self, file: SampleFile, content: Mesh | Cloud) -> InputError:
        cloud = self._drawn(file, content, self.recipe.most_points)  # of a crop the whole: that is too long as well
        voxel_size = self.recipe.voxel_size * (1 if self.folder.metric else cube_of(cloud.points)[1])
        return self._named(
            too_far(cloud.points, voxel_size, f"the {self._bounds[1]} that the engine holds"), cloud, file
        )

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
            keys = [self._key(file, index) for index, file in enumerate(self.files)]
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

    def read(self, file: SampleFile) -> Mesh | Cloud:
        """Return the content of a file. The last one stays in memory if several samples are parts of it."""
        if self._views is None:
            return self.folder.read(file)
        last = self._last_read  # another thread may replace it
        if last is None or last[0] != file:
            last = self._last_read = file, self.folder.read(file)
        return last[1]

    def _cloud(self, index: int, content: Mesh | Cloud, *, turned: bool = True) -> Cloud:
        """Return the points that a sample is made of, as they lie in the file, or turned as its view is."""
        file, most = self.files[index], self.recipe.most_points
        if self._views is None:
            return self._drawn(file, content, most)
        view, crop = self._views[index], self.recipe.crop
        if view.cell is None or crop is None:
            cloud = self._drawn(file, content, most)
        else:
            whole = self._drawn(file, content, None)
            cloud = whole.take(crop.rows(whole.points, np.array(view.cell)))
            cloud = sample_points(cloud, most, seed=sample_seed(self.recipe.seed, f"{file.name}:{view.cell}"))
        return turned_about_z(cloud, view.degrees) if turned and view.degrees else cloud

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
        cell = "" if self._views is None else f":{self._views[index].cell}:{self._views[index].degrees}"
        seed = sample_seed(self.recipe.seed, f"{self.files[index].name}{cell}:{epoch}")
        cloud = self._changed(index, seed)
        if self.recipe.augmentation is not None and (mix := self.recipe.augmentation.mix):
            random = np.random.default_rng([seed, 2])
            if random.random() < mix:
                other = int(random.integers(len(self)))
                name = f"{self.files[other].name}:{epoch}:on {self.files[index].name}"
                cloud = self._on_top(cloud, self._changed(other, sample_seed(self.recipe.seed, name)), other)
                if self.recipe.augmentation.in_cube:
                    cloud = replace(cloud, points=into_cube(cloud.points))
        return self._voxelized(cloud, self.files[index])

    def _changed(self, index: int, seed: int) -> Cloud:
        """Return an epoch's points of a sample: drawn from its reservoir, or from a random crop of it, then changed.

        Crops that cover a scene are not drawn.
        """
        file, recipe = self.files[index], self.recipe
        if self._views is not None and recipe.augmentation is not None:
            return recipe.augmentation.apply(self._cloud(index, self.read(file)), seed=seed)
        kept = self._kept.get(index)
        if kept is None:
            kept = self._reservoir(file)
            arrays = (kept[0].points, kept[0].attributes)
            self._keep(index, kept, sum(array.nbytes for array in arrays if array is not None))
        cloud, count = kept
        if recipe.crop is not None:
            cloud = cloud.take(recipe.crop.random_rows(cloud.points, np.random.default_rng([seed, 1])))
        chosen = self._placed(sample_points(cloud, count, seed=seed), file)
        return chosen if recipe.augmentation is None else recipe.augmentation.apply(chosen, seed=seed)

    def _on_top(self, cloud: Cloud, other: Cloud, index: int) -> Cloud:
        """Put another sample's points on a cloud, middle on middle, floor on floor (Nekrasov et al., Mix3D, 2021)."""
        if cloud.names != other.names:
            raise InputError(
                "augmentation.mix_of_columns",
                f"{self.files[index].path}: has {', '.join(other.names) or 'points alone'}, but a scene to mix it "
                f"with has {', '.join(cloud.names) or 'points alone'}; use scenes with the same columns, or omit the "
                "mix",
            )
        bounds = [np.array([each.points.min(axis=0), each.points.max(axis=0)]) for each in (cloud, other)]
        middles = [bound.mean(axis=0) for bound in bounds]
        moved = np.array([*(middles[0] - middles[1])[:2], bounds[0][0, 2] - bounds[1][0, 2]])
        pairs = [(cloud.attributes, other.attributes), (cloud.labels, other.labels)]
        attributes, labels = (None if a is None or b is None else np.concatenate([a, b]) for a, b in pairs)
        return Cloud(np.concatenate([cloud.points, other.points + moved]), attributes, cloud.names, labels)

    def _reservoir(self, file: SampleFile) -> tuple[Cloud, int | None]:
        """Return the points that epochs draw from, and how many each draws; None: all of them. Crops need them all."""
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
        whole = count is None or (self.recipe.crop is not None and isinstance(content, Cloud))
        cloud = self._drawn(file, content, None if whole or count is None else _RESERVOIR * count)
        names = np.frombuffer(json.dumps(cloud.names).encode(), dtype=np.uint8)
        arrays = {"points": cloud.points, "names": names, "count": np.array([count or 0])}
        for name, array in (("attributes", cloud.attributes), ("labels", cloud.labels)):
            if array is not None:
                arrays[name] = array
        self._save(key, arrays)
        return cloud, count

    def _voxelized(self, cloud: Cloud, file: SampleFile) -> Sample:
        coordinates, index = self._cells(cloud, file)
        try:
            features = self.recipe.voxel_features(cloud, index, len(coordinates))
        except InputError as error:
            raise error.within(f"{file.path}: ") from None
        label: int | torch.Tensor | None = file.label
        if self.task == SEGMENTATION:
            label = torch.from_numpy(majority(self.point_labels(cloud, file), index, len(coordinates)))
        assert label is not None
        return Sample(torch.from_numpy(coordinates), torch.from_numpy(features), label)

    def _cells(self, cloud: Cloud, file: SampleFile) -> tuple[np.ndarray, np.ndarray]:
        """Return the voxels of a cloud that is placed, or will be, and which of them each point is in."""
        index_of = metric_voxel_index if self.folder.metric else voxel_index
        try:
            return index_of(cloud.points, self.recipe.voxel_size)
        except OutOfReach as error:
            raise self._named(error, cloud, file) from None
        except InputError as error:
            raise error.within(f"{file.path}: ") from None

    def point_labels(self, cloud: Mesh | Cloud, file: SampleFile) -> np.ndarray:
        """Return the class of each point, or of each face: int64 [P]. Raises InputError for unknown classes."""
        if cloud.labels is None:
            raise InputError(
                "dataset.no_point_labels",
                f"{file.path}: its points have no labels, but segmentation needs them; choose another task",
            )
        if (label := cloud.labels.max()) >= len(self.classes):
            first = int(cloud.labels.argmax())
            where = f"face {first}" if isinstance(cloud, Mesh) else f"point {cloud.file_rows[first]}"
            raise InputError(
                "dataset.label_out_of_range",
                f"{file.path}: label {label} is out of range for {number_of(len(self.classes), 'class')}; "
                f'correct the label of {where} or the list of parts, or set "ignore": [{label}] in dataset.json',
            )
        return cloud.labels

    # --- what is kept -------------------------------------------------------------------------------------------

    def _keep(self, index: int, value: object, num_bytes: int) -> None:
        if self._kept_bytes + num_bytes <= _MAX_KEPT_BYTES:
            self._kept[index] = value
            self._kept_bytes += num_bytes

    def _key(self, file: SampleFile, index: int | None = None) -> str | None:
        """Return the key of a file, or of the sample `index` that is a part of it, in the cache; None without one."""
        if self._cache is None:
            return None
        facts = self._shared_facts | {
            "name": file.name,  # decides the points drawn
            "files": [path.name for path in (file.path, *file.companions)],  # S3DIS: names tell the points' classes
            "entry": file.entry,
        }
        if index is not None and self._views is not None:
            facts["view"] = [self._views[index].cell, self._views[index].degrees]
        return sample_key(self._cache, (file.path, *file.companions), facts)

    @cached_property
    def _shared_facts(self) -> dict[str, object]:
        """Return what decides every sample of this split, beside its file."""
        augmented, crop = self._changes, self.recipe.crop
        return {
            "what": "reservoir" if augmented else "voxels",
            "layout": self.folder.layout,
            "metric": self.folder.metric,
            "parts": len(self.folder.parts),  # labels beyond them are refused
            "task": self.task,
            "recipe": None if augmented else self.recipe.facts(),
            "draw": [ALL if augmented and crop is not None else self.recipe.num_points, self.recipe.seed],
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
