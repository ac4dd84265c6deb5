"""ModelNet as resampled text (modelnet40_normal_resampled): CLASS/NAME.txt, x,y,z,nx,ny,nz, and lists of each split."""

import re
from pathlib import Path

from ...errors import InputError
from ..formats import Cloud, Reading
from ..formats.base import NORMAL, POSITION
from ..formats.text import read_text_cloud
from .base import DataFolder, SampleFile, listed_lines, sample_of

_LISTS = ("modelnet40", "modelnet10")  # both lists may lie in one folder: the larger is the data set


def found(root: Path) -> bool:
    """Say whether a folder is of this layout."""
    return any((root / f"{name}_shape_names.txt").is_file() for name in _LISTS)


def opened(root: Path, marker: dict) -> DataFolder:
    """List the samples. Raises InputError where a list names an unknown class or a file that is not there."""
    prefix = next(name for name in _LISTS if (root / f"{name}_shape_names.txt").is_file())
    classes = tuple(listed_lines(root / f"{prefix}_shape_names.txt"))
    label = {name: index for index, name in enumerate(classes)}
    files: list[SampleFile] = []
    for split in ("train", "test"):
        path = root / f"{prefix}_{split}.txt"
        for line in listed_lines(path):
            name = re.sub(r"_\d+$", "", line)
            if name not in label:
                raise InputError(f"{path}: {line!r} is of no class in {prefix}_shape_names.txt; fetch it again")
            files.append(sample_of(root / name / f"{line}.txt", root, label=label[name], split=split))
    files.sort(key=lambda file: (file.label, file.name))
    return DataFolder(marker.get("name", root.name), root, classes, tuple(files), marker, "resampled text", _read)


def _read(file: SampleFile, reading: Reading) -> Cloud:
    return read_text_cloud(file.path, reading, columns=(*POSITION, *NORMAL))
