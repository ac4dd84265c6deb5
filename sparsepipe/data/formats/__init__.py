"""File formats, one reader each. A new format is a file here and a line in READERS."""

from pathlib import Path

from ...errors import InputError
from .base import Cloud, Mesh, Reader
from .off import read_off
from .pcd import read_pcd

READERS: dict[str, Reader] = {".off": read_off, ".pcd": read_pcd}


def read(path: Path | str) -> Mesh | Cloud:
    """Read one file by its suffix. Raises InputError that names the file for anything wrong in it."""
    path = Path(path)
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"{path}: unknown format {path.suffix or '(no suffix)'}, expected one of {', '.join(READERS)}")
    return reader(path)


__all__ = ["READERS", "Cloud", "Mesh", "Reader", "read"]
