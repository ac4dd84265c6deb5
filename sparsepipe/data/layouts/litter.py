"""Files that operating systems and tools leave in folders (.DS_Store, ._x …): ignored in every layout."""

import os
from pathlib import Path

from ...errors import InputError

_NAMES = {
    "__macosx",  # macOS, in archives
    "icon\r",
    "thumbs.db",  # Windows
    "ehthumbs.db",
    "desktop.ini",
    "$recycle.bin",
    "system volume information",
    "lost+found",  # Linux
    "@eadir",  # network storage
    "__pycache__",
}
_STREAM = ":zone.identifier"  # Windows: where a file was downloaded from


def is_litter(name: str) -> bool:
    """Return whether a file or folder of this name belongs to no data set: hidden (`._x`, `.DS_Store`) or a
    system's.
    """
    lower = name.lower()
    return name.startswith(".") or lower in _NAMES or lower.endswith(_STREAM)


def entries(folder: Path) -> list[Path]:
    """List what is inside a folder, by name, without litter. Raises InputError if it cannot be listed."""
    return [folder / entry.name for entry in _listed(folder)]


def folders(path: Path) -> list[Path]:
    """List the folders inside one, by name, without litter. Raises InputError if it cannot be listed."""
    return [path / entry.name for entry in _listed(path) if _is_folder(entry)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder: not where it is a link that leads nowhere, or if no one may look."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def _listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as inside:  # it knows folders from files without asking for each
            return sorted((entry for entry in inside if not is_litter(entry.name)), key=lambda entry: entry.name)
    except OSError as error:
        raise InputError(
            "folder.unlistable", f"{folder}: cannot be listed ({error.strerror}); check its path and permissions"
        ) from None
