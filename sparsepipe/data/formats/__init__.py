"""Readers of point-cloud and mesh files. A new format is a file here and a line in READERS."""

from pathlib import Path

import numpy as np

from ...errors import InputError
from ...io.paths import expanded
from .base import Cloud, Mesh, Reader
from .hdf5 import read_hdf5
from .las import read_las
from .npz import read_npy, read_npz
from .off import read_off
from .pcd import read_pcd
from .ply import read_ply
from .reading import AS_THEY_ARE, Reading
from .scan import read_scan
from .text import read_text_cloud

READERS: dict[str, Reader] = {
    ".off": read_off,
    ".pcd": read_pcd,
    ".ply": read_ply,
    ".txt": read_text_cloud,
    ".xyz": read_text_cloud,
    ".pts": read_text_cloud,
    ".npy": read_npy,
    ".npz": read_npz,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".las": read_las,
    ".laz": read_las,
    ".bin": read_scan,
}


def read(path: Path | str, reading: Reading = AS_THEY_ARE) -> Mesh | Cloud:
    """Read one file by its suffix, with what its folder declares of it.

    Raises InputError that names the file for anything wrong in it.
    """
    path = expanded(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: unknown format {path.suffix or '(no suffix)'}, expected one of {', '.join(READERS)}")
    # A number that is none, or too large for its type, is refused where it matters; NumPy would write a warning too.
    with np.errstate(invalid="ignore", over="ignore"):
        return reader(path, reading)


__all__ = ["READERS", "Cloud", "Mesh", "Reader", "Reading", "read"]
