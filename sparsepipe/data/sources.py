"""Find a data set's folder, given its path or its manifest's name."""

import os
from collections.abc import Callable
from pathlib import Path

from ..errors import InputError
from ..util.io.files import expanded
from .manifests import Manifest, get_learned


def data_folders() -> tuple[Path, ...]:
    """Return where data sets are looked for: the folders of SPARSEPIPE_DATA, then where `fetch` puts them."""
    named = [expanded(part) for part in os.environ.get("SPARSEPIPE_DATA", "").split(os.pathsep) if part]
    return (*named, user_cache() / "data")


def user_cache() -> Path:
    """Return the user's cache folder, for what can be downloaded or computed again."""
    return expanded(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparsepipe"


def find(source: str | Path) -> Path:
    """Return the folder of a data set, given by its path or by the name of its manifest.

    Synthetic data sets are generated.

    Raises InputError for another name, for a manifest whose data no network can learn from, and if no data folder
    contains the data set.
    """
    path = expanded(source)
    if path.exists() or isinstance(source, Path) or os.sep in source:
        return path
    manifest, place = _known(source)
    return place or generator(manifest.generator)(data_folders()[-1] / manifest.folder)


def found(source: str) -> Path | None:
    """Return the folder of a data set as `find` does, None if it would be made: nothing is made.

    Raises InputError, as `find` and what opens its folder do, if there is no such data set.
    """
    path = expanded(source)
    if path.exists():
        return path
    if os.sep in source:
        raise InputError(
            "dataset.not_found",
            f"{source}: no such folder, expected a data set's folder, its name, or path/data.py:function",
        )
    _, place = _known(source)
    return place


def _known(name: str) -> tuple[Manifest, Path | None]:
    """The manifest of a data set, and its folder in a data folder; None if it can be made there."""
    manifest = get_learned(name)
    place = place_of(manifest)
    if place is None and not manifest.generator:
        places = ", ".join(str(folder) for folder in data_folders())
        raise InputError(
            "dataset.not_fetched",
            f"{name}: not found in {places}; run `sparsepipe data fetch {name}`, or name its folder in SPARSEPIPE_DATA",
            name=name,
        )
    return manifest, place


def place_of(manifest: Manifest) -> Path | None:
    """Return the first folder among the data folders that bears a data set's name, None if there is none."""
    places = (folder / name for folder in data_folders() for name in (manifest.name, manifest.folder))
    return next((place for place in places if place.is_dir()), None)


def generator(name: str) -> Callable[[Path], Path]:
    """Return the function that makes a data set in a folder. Raises InputError that lists the names there are."""
    from .digits import make_digits

    generators = {"digits": make_digits}
    if name not in generators:
        raise InputError(
            "dataset.generator_unknown", f"unknown data set generator {name!r}, expected one of {', '.join(generators)}"
        )
    return generators[name]
