"""Data that a host lacks and the launching host has: brought to the run's folder there, file by file, by hash.

A data set that a host has, by the path or the manifest's name that the settings say, is read where it is.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ...errors import InputError
from ...util.io.functions import is_function


class DataFile(NamedTuple):
    """A file of a data set here, and what it is called in the run's folder on a host."""

    path: Path
    name: str


def is_there(source: str) -> bool:
    """Return whether this host has a data set, or whoever reads it makes it."""
    from ...data.manifests import get_manifest  # no run of a replay needs it
    from ...data.sources import place_of

    if is_function(source) or Path(source).exists():
        return True
    with suppress(InputError):  # a path that is not there names no manifest
        manifest = get_manifest(source)
        return place_of(manifest) is not None or bool(manifest.generator)
    return False


def files_of(source: str) -> Iterator[DataFile]:
    """Yield the files of a data set on this host; none if it is not here."""
    from ...data.sources import find

    with suppress(InputError):
        place = find(source).resolve()
        paths = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in paths:
            if path.is_file():
                yield DataFile(path, f"{name_of(source)}/{path.relative_to(place).as_posix()}".removesuffix("/."))


def name_of(source: str) -> str:
    """Return what a data set that was brought is called in the run's folder on a host."""
    return f"data/{Path(source).resolve().name}"
