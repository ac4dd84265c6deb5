"""Where what others measured lies: a folder that is named, or one of the data folders."""

from pathlib import Path

from ..data.manifests import get_manifest
from ..data.sources import place_of
from ..util.io.paths import expanded


def folder_of(manifest: str, folder: str = "") -> Path | None:
    """Return the folder given, else where data are looked for; that nothing is there is said in one line."""
    if folder:
        return expanded(folder)
    path = place_of(get_manifest(manifest))
    if path is None:
        print(f"{manifest} is not here: sparsepipe data fetch {manifest}, or name its folder in SPARSEPIPE_DATA")
    return path
