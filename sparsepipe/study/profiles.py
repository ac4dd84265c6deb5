"""Profiles that others published, and those that are shipped, by the name of their network."""

from collections.abc import Sequence

from ..data.manifests import manifests_folder
from ..errors import InputError
from ..util.io.paths import expanded
from ..values.profile import Profile


def published_profiles(folder: str = "", only: Sequence[str] = ()) -> dict[str, Profile]:
    """Return the profiles below a folder (graph.txt, or JSON) by name; without one those of data_manifests, aloud.

    A graph.txt is called as the folder that it lies in. `only`: these names alone.
    Raises InputError if none of them exists.
    """
    if not folder:
        print("no folder of published profiles is named: those of data_manifests/profiles are planned")
    profiles_folder = expanded(folder) if folder else manifests_folder().parent / "profiles"
    paths = {path.parent.name: path for path in sorted(profiles_folder.rglob("graph.txt"))}
    paths |= {path.stem: path for path in sorted(profiles_folder.rglob("*.json"))}
    chosen = {name: path for name, path in paths.items() if not only or name in only}
    if not chosen:
        wanted = f"no profile of {', '.join(only)}" if only else "no graph.txt and no JSON below it"
        raise InputError("profile.not_found", f"{profiles_folder}: {wanted}; it has {', '.join(paths) or 'none'}")
    return {name: Profile.load(path) for name, path in chosen.items()}
