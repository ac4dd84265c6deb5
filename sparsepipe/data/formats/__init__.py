"""Readers of point-cloud and mesh files. A new format is a file here and a line in READERS."""

from pathlib import Path

import numpy as np

from ...errors import InputError, missing_extra
from ...util.io.files import expanded
from .arrays import read_npy, read_npz, read_scan
from .base import Cloud, Mesh, Reader, is_packed, stem_of, suffix_of
from .hdf5 import read_hdf5
from .las import read_las
from .meshes import read_obj, read_off, read_stl
from .pcd import read_pcd
from .ply import read_ply
from .reading import AS_THEY_ARE, Reading
from .text import read_csv, read_text_cloud

READERS: dict[str, Reader] = {
    ".off": read_off,
    ".obj": read_obj,
    ".stl": read_stl,
    ".pcd": read_pcd,
    ".ply": read_ply,
    ".txt": read_text_cloud,
    ".xyz": read_text_cloud,
    ".pts": read_text_cloud,
    ".asc": read_text_cloud,
    ".csv": read_csv,
    ".npy": read_npy,
    ".npz": read_npz,
    ".h5": read_hdf5,
    ".hdf5": read_hdf5,
    ".las": read_las,
    ".laz": read_las,
    ".bin": read_scan,
}


def read(path: Path | str, reading: Reading = AS_THEY_ARE) -> Mesh | Cloud:
    """Read one file by its suffix, or that before `.gz`, with what its folder declares of it.

    Raises InputError that names the file for anything wrong in it, or the extra that reads such files.
    """
    path = expanded(path)
    reader = READERS.get(suffix_of(path))
    if reader is None:
        given = suffix_of(path) or f"(no suffix{' before .gz' if is_packed(path) else ''})"
        raise InputError(
            "cloud.format_unknown",
            f"{path}: unknown format {given}, expected one of {', '.join(READERS)} (each also as .gz)",
        )
    # A number that is none, or too large for its type, is refused where it matters; NumPy would write a warning too.
    with np.errstate(invalid="ignore", over="ignore"):
        try:
            return reader(path, reading)
        except ImportError as error:
            raise missing_extra(error) or error from None


__all__ = ["READERS", "Cloud", "Mesh", "Reader", "Reading", "read", "stem_of", "suffix_of"]
