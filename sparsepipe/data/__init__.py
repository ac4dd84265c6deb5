"""Point clouds from disk to minibatches of voxels."""

from .batch import PointBatch, Sample, collate
from .dataset import VoxelDataset, load
from .fetch import fetch
from .folder import DataFolder, info, open_folder
from .manifests import Manifest, find, list_datasets
from .order import minibatches
from .shapes import make_shapes
from .voxelize import unit_cube, voxelize

__all__ = [
    "DataFolder",
    "Manifest",
    "PointBatch",
    "Sample",
    "VoxelDataset",
    "collate",
    "fetch",
    "find",
    "info",
    "list_datasets",
    "load",
    "make_shapes",
    "minibatches",
    "open_folder",
    "unit_cube",
    "voxelize",
]
