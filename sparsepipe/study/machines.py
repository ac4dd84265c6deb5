"""Machines that figures plan for: those whose profiles were published, else this one and slower copies of it."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..data.folder import place_of
from ..data.manifests import get_manifest, manifests_folder
from ..errors import InputError
from ..util.io.files import expanded
from ..util.text.numbers import counted
from ..values.cluster import Cluster, DeviceType, Link, Node
from ..values.profile import LayerCost, Profile

PUBLISHED = {"RTX": "RTX", "TITAN V": "tv", "TITAN Xp": "txp"}  # device type → its published profile of MinkVGG
BATCH_SIZE = 64  # of the published profiles
INSIDE, BETWEEN = Link(12e9, 1e-5), Link(1.25e9, 5e-5)  # nominal: PCI Express 3.0 × 16; 10 Gbit/s Ethernet
SLOWER = {"full speed": 1.0, "¾ speed": 0.75, "½ speed": 0.5}  # assumed copies, where nothing published is there
_MIXES = ((1, 1, 1), (0, 2, 2), (4, 2, 1), (2, 2, 2))  # counts of the three types; the first three are SparsePipe's


def reference_seconds() -> float:
    """Measure how long fixed work of Python and NumPy takes on this processor.

    A duration divided by it compares processors, and says less about the load of this one than the duration itself.

    Returns:
        Seconds; about 0.05 on an idle processor.

    Example:
        >>> 0 < sp.study.machines.reference_seconds() < 60
        True

    See also:
        guides/claims
    """
    began = time.perf_counter()
    for _ in range(36):
        table: dict[int, int] = {}
        for k in range(8_000):
            table[k * k % 4_001] = table.get(k % 4_001, 0) + k
        values = np.arange(40_000) * 7_919 % 40_009
        np.minimum.accumulate(values[np.argsort(values, kind="stable")] + np.cumsum(values))
    return time.perf_counter() - began


@dataclass(frozen=True)
class Machines:
    """A profile on several device types, and where its numbers come from."""

    profile: Profile
    batch_size: int | None  # None: nobody knows, as of the profiles that PipeDream published
    said: str  # for a figure's note

    def alike(self, count: int) -> Cluster:
        """So many devices of the first type, each in a machine of its own."""
        kind = (DeviceType(self.profile.device_types[0]),)
        return Cluster(tuple(Node(f"machine {k}", kind, INSIDE) for k in range(count)), BETWEEN)

    @property
    def mixes(self) -> dict[str, Cluster]:
        """Clusters of unlike devices by what they hold; more than four devices stand on two nodes."""
        return {_label(self.profile.device_types, counts): self._mix(counts) for counts in _MIXES}

    def _mix(self, counts: Sequence[int]) -> Cluster:
        mix_types = [(DeviceType(name),) * n for name, n in zip(self.profile.device_types, counts, strict=True)]
        if sum(counts) <= 4:
            return Cluster((Node("one", tuple(d for part in mix_types for d in part), INSIDE),), INSIDE)
        return Cluster(
            (Node("one", mix_types[0], INSIDE), Node("two", (*mix_types[1], *mix_types[2]), INSIDE)), BETWEEN
        )


def published() -> Machines:
    """The published profiles of MinkVGG on three GPUs, which are part of the package."""
    print(f"published profiles of MinkVGG on {', '.join(PUBLISHED)}")
    return Machines(published_profile(PUBLISHED), BATCH_SIZE, f"MinkVGG, published profiles, batch size {BATCH_SIZE}")


def published_profile(names: Iterable[str]) -> Profile:
    """The published costs of MinkVGG on the device types of `names`, each by its name or by that of its file."""
    profile = Profile.load(manifests_folder().parent / "profiles" / "minkvgg-published.json")
    types = {file: name for name, file in PUBLISHED.items()}
    return replace(profile, costs={name: profile.costs[types.get(name, name)] for name in names})


def slower_copies(own: Profile, batch_size: int, said: str) -> Machines:
    """The device of a profile, and copies of it that are assumed to be slower."""
    (name,) = own.device_types
    costs = {kind: tuple(_slower(cost, speed) for cost in own.costs[name]) for kind, speed in SLOWER.items()}
    rates = {kind: rate / speed for kind, speed in SLOWER.items() for rate in own.update_rates.values()}
    overheads = {
        kind: overhead.slower(speed) for kind, speed in SLOWER.items() for overhead in own.step_overheads.values()
    }
    origin = {**own.origin, "assumed_speeds": SLOWER}
    assumed = replace(own, costs=costs, origin=origin, update_rates=rates, step_overheads=overheads)
    return Machines(assumed, batch_size, said)


def _slower(cost: LayerCost, speed: float) -> LayerCost:
    return cost.changed(lambda s: replace(s, forward=s.forward / speed, backward=s.backward / speed))


def published_dense(names: Sequence[str]) -> dict[str, Machines]:
    """PipeDream's published profiles of image networks by name, if they are; a line says what is left out.

    They are looked for as `published` does, below profiles/image_classification.
    """
    folder = _published_folder("image_classification")
    if folder is None:
        print("no profiles of PipeDream's here: their networks are left out")
        return {}
    profiles = {}
    for name in names:
        path = folder / name / "graph.txt"
        if not path.exists():
            print(f"no published profile {name}: it is left out")
            continue
        origin = {"published": f"PipeDream, {name}"}
        profile = replace(Profile.load(path, device_type="V100"), origin=origin)
        profiles[name] = Machines(profile, None, "PipeDream's published profiles")
    return profiles


def reference_folders() -> list[Path]:
    """Folders of published profiles and answers: SPARSEPIPE_REFERENCE, else alongside SPARSEPIPE_DATA."""
    named, data = os.environ.get("SPARSEPIPE_REFERENCE"), os.environ.get("SPARSEPIPE_DATA")
    beside = [expanded(part).parent / "reference" for part in (data or "").split(os.pathsep) if part]
    folders = [expanded(named)] if named else beside
    return [path.resolve() for path in folders]


def _published_folder(family: str) -> Path | None:
    folders = (path / "profiles" / family for path in reference_folders())
    return next((path for path in folders if path.is_dir()), None)


def _label(types: Sequence[str], counts: Sequence[int]) -> str:
    return counted(name for name, n in zip(types, counts, strict=True) for _ in range(n))


def published_profiles(folder: str = "", only: Sequence[str] = ()) -> dict[str, Profile]:
    """Return the profiles in a folder (graph.txt or JSON) by name. Default: those in data_manifests, which are printed.

    A graph.txt is named after its folder. `only` selects names. Raises InputError if none of them exists.
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


def folder_of(manifest: str, folder: str = "") -> Path | None:
    """Return the folder given, else where data are looked for; that nothing is there is said in one line."""
    if folder:
        return expanded(folder)
    path = place_of(get_manifest(manifest))
    if path is None:
        print(f"{manifest} is not here: sparsepipe data fetch {manifest}, or name its folder in SPARSEPIPE_DATA")
    return path
