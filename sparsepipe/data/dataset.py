"""A split of a data set as voxels: read, sampled and voxelized when first asked for, then kept in memory."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ..errors import InputError
from .batch import PointBatch, Sample, collate
from .folder import DataFolder, SampleFile, open_folder
from .formats import read
from .manifests import find
from .sampling import derived_seed, sample_points
from .voxels import unit_cube, voxelize

_MAX_HASHED_BYTES = 256 * 2**20  # contents are hashed up to here (about a second), names and sizes beyond


def load(source: str | Path, *, split: str, voxel_size: float, num_points: int = 1024, seed: int = 0) -> "VoxelDataset":
    """Open one split of a folder in ModelNet's layout, or of a data set that a manifest names.

    Each cloud has `num_points` points at most, drawn by `seed` and the sample's name, and is scaled to the unit cube
    before it is voxelized at `voxel_size`; every voxel's feature is 1.
    Raises InputError for a bad folder now, for a bad file when it is read.
    """
    if not 0 < voxel_size <= 1:
        raise InputError(f"voxel size {voxel_size} given, expected above 0 and at most 1, as clouds fill the unit cube")
    if num_points < 1:
        raise InputError(f"{num_points} points a sample given, expected at least 1")
    folder = open_folder(find(source))
    return VoxelDataset(folder, split, voxel_size=voxel_size, num_points=num_points, seed=seed)


class VoxelDataset:
    """Samples of one split, in class order then name. Reading is deferred; what was voxelized once is kept."""

    def __init__(self, folder: DataFolder, split: str, *, voxel_size: float, num_points: int, seed: int) -> None:
        self.folder = folder
        self.split = split
        self.voxel_size = voxel_size
        self.num_points = num_points
        self.seed = seed
        self.files = folder.split(split)
        self._samples: list[Sample | None] = [None] * len(self.files)
        self._digest: dict[str, str] | None = None

    def __len__(self) -> int:
        return len(self.files)

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; a label is an index into them."""
        return self.folder.classes

    @property
    def labels(self) -> tuple[int, ...]:
        """Each sample's class."""
        return tuple(file.label for file in self.files)

    @property
    def synthetic(self) -> bool:
        """Say whether the shapes were generated: figures made from them must say so in their title."""
        return self.folder.synthetic

    @property
    def origin(self) -> dict:
        """Say where the samples come from and how they were made, for records: JSON-ready, no absolute path."""
        if self._digest is None:
            self._digest = _digest(self.files)
        return {
            "name": self.folder.name,
            "split": self.split,
            "samples": len(self),
            "classes": list(self.classes),
            "synthetic": self.synthetic,
            "voxel_size": self.voxel_size,
            "num_points": self.num_points,
            "seed": self.seed,
            **self._digest,
        }

    def points(self, index: int) -> np.ndarray:
        """Return one sample's points in the unit cube, before voxelization: float64 [P, 3]. Not kept."""
        file = self.files[index]
        content = read(file.path)
        try:
            return unit_cube(sample_points(content, self.num_points, seed=derived_seed(self.seed, file.name)))
        except InputError as error:
            raise InputError(f"{file.path}: {error}") from None

    def sample(self, index: int) -> Sample:
        """Return one voxelized sample. Raises InputError that names the file where it cannot be read."""
        sample = self._samples[index]
        if sample is None:
            coordinates = torch.from_numpy(voxelize(self.points(index), self.voxel_size))
            sample = Sample(coordinates, torch.ones(len(coordinates), 1), self.files[index].label)
            self._samples[index] = sample
        return sample

    def batch(self, indices: Sequence[int]) -> PointBatch:
        """Return the chosen samples side by side, in the order given."""
        for index in indices:
            if not 0 <= index < len(self):
                raise InputError(f"sample {index} asked of {len(self)} in split {self.split}; use 0 to {len(self) - 1}")
        return collate([self.sample(index) for index in indices])

    def voxel_counts(self) -> np.ndarray:
        """Count the active voxels of every sample: int64 [len(self)]. Reads all samples."""
        return np.array([len(self.sample(index)) for index in range(len(self))], dtype=np.int64)


def _digest(files: Sequence[SampleFile]) -> dict[str, str]:
    """Hash the names and contents of the files; of a large data set their names and sizes, and say which."""
    whole = sum(file.num_bytes for file in files) <= _MAX_HASHED_BYTES
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\0{file.num_bytes}\0".encode())
        if whole:
            digest.update(file.path.read_bytes())
    return {"sha256": digest.hexdigest(), "sha256_of": "names, sizes and contents" if whole else "names and sizes"}
