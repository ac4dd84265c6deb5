"""Find a data set's folder, given its path or its manifest's name."""

import os
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError
from .manifests import Manifest, get_learned


def data_folders() -> tuple[Path, ...]:
    """Return where data sets are looked for: the folders of SPARSEPIPE_DATA, then where `fetch` puts them."""
    named = [Path(part) for part in os.environ.get("SPARSEPIPE_DATA", "").split(os.pathsep) if part]
    return (*named, user_cache() / "data")


def user_cache() -> Path:
    """Return the user's cache folder, for what can be downloaded or computed again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparsepipe"


def find(source: str | Path) -> Path:
    """Return the folder of a data set given by path or by its manifest's name; one that is made here is made now.

    Raises InputError where it is neither, where no network learns from what the manifest tells of, and where no data
    folder holds it yet.
    """
    path = Path(source)
    if path.exists() or isinstance(source, Path) or os.sep in source:
        return path
    manifest = _known(source)
    return place_of(manifest) or generator(manifest.generator)(data_folders()[-1] / manifest.folder)


def check_found(source: str) -> None:
    """Raise InputError, as `find` and what opens its folder do, where there is no such data set; nothing is made."""
    if Path(source).exists():
        return
    if os.sep in source:
        raise InputError(f"{source}: no such folder, expected a data set's folder, its name, or path/data.py:function")
    _known(source)


def _known(name: str) -> Manifest:
    """The manifest of a data set that is in a data folder, or can be made there."""
    manifest = get_learned(name)
    if place_of(manifest) is None and not manifest.generator:
        places = ", ".join(str(folder) for folder in data_folders())
        raise InputError(
            f"{name}: not in {places}; run `sparsepipe data fetch {name}`, or name its folder in SPARSEPIPE_DATA"
        )
    return manifest


def place_of(manifest: Manifest) -> Path | None:
    """Return the first folder among the data folders that bears a data set's name, None where there is none."""
    places = (folder / name for folder in data_folders() for name in (manifest.name, manifest.folder))
    return next((place for place in places if place.is_dir()), None)


def generator(name: str) -> Callable[[Path], Path]:
    """Return the function that makes a data set in a folder. Raises InputError that lists the names there are."""
    from .digits import make_digits

    generators = {"digits": make_digits}
    if name not in generators:
        raise InputError(f"no generator {name!r} of data sets, expected one of {', '.join(generators)}")
    return generators[name]
