"""Folder layouts of data sets, a file for each.

`found(root)` says whether a folder has the layout, `opened(root, marker)` lists its samples.
"""

from types import ModuleType

from ..labels import CLASSIFICATION, SEGMENTATION
from . import classes, hdf5, nuscenes, pointcept, resampled, s3dis, scannet, semantickitti, shapenetpart
from .base import MARKER, SPLITS, DataFolder, LeftOut, SampleFile, folders, is_litter, read_marker

LAYOUTS: tuple[ModuleType, ...] = (
    *(resampled, hdf5, shapenetpart, s3dis, semantickitti, nuscenes, scannet, pointcept, classes),  # in this order
)
FALLBACK = classes  # says what is there where no layout is

__all__ = [
    "CLASSIFICATION",
    "FALLBACK",
    "LAYOUTS",
    "MARKER",
    "SEGMENTATION",
    "SPLITS",
    "DataFolder",
    "LeftOut",
    "SampleFile",
    "folders",
    "hdf5",
    "is_litter",
    "read_marker",
]
