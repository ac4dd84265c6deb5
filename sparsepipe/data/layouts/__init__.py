"""Layouts of data sets, one a file.

`found(root)` says whether a folder is of it, `opened(root, marker)` lists its samples.
"""

from types import ModuleType

from . import classes, hdf5, resampled, s3dis, semantickitti, shapenetpart
from .base import CLASSIFICATION, MARKER, SEGMENTATION, SPLITS, DataFolder, SampleFile, folders

LAYOUTS: tuple[ModuleType, ...] = (resampled, hdf5, shapenetpart, s3dis, semantickitti)  # known by their own files
FALLBACK = classes

__all__ = [
    "CLASSIFICATION",
    "FALLBACK",
    "LAYOUTS",
    "MARKER",
    "SEGMENTATION",
    "SPLITS",
    "DataFolder",
    "SampleFile",
    "folders",
]
