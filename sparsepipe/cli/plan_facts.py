"""What a plan's file says of how it was made: the network, data and sizes of its profile, and its machines' options."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..records.formats.plan_files import check_plan
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from .profile_and_cluster import profile_and_cluster

_MACHINES = ("profile", "cluster", "server_file", "devices", "bandwidth", "memory")  # options of `plan`
_FACTS = ("voxel_size", "num_points")  # of the data, which profiles of before have alone


def machines_of(options: argparse.Namespace) -> dict[str, object]:
    """Return the options by which `plan` was told its profile and its devices, as the plan's file keeps them."""
    given = {name: getattr(options, name) for name in _MACHINES if getattr(options, name)}
    return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}


@dataclass(frozen=True)
class PlanFacts:
    """The provenance of a plan's file; empty for a file of another system, and for a plan that names none."""

    path: Path
    provenance: Mapping[str, object]

    @classmethod
    def load(cls, path: Path) -> "PlanFacts":
        """Read them. Raises InputError for a file that is no plan."""
        document = check_plan(path)
        facts = document.get("provenance") if isinstance(document, dict) else None
        return cls(path, facts if isinstance(facts, dict) else {})

    @property
    def origin(self) -> Mapping[str, object]:
        """The origin of its profile."""
        profiles = self.provenance.get("profiles")
        first = profiles[0] if isinstance(profiles, list) and len(profiles) == 1 else {}
        origin = first.get("origin") if isinstance(first, dict) else None
        return origin if isinstance(origin, dict) else {}

    @property
    def settings(self) -> dict[str, object]:
        """The settings of a run that its profile was measured with: network, data and sizes."""
        origin = self.origin
        if isinstance(known := origin.get("settings"), dict):
            return dict(known)
        data = origin.get("data")
        facts = {name: data[name] for name in _FACTS if name in data} if isinstance(data, dict) else {}
        facts |= {name: origin[name] for name in ("model", "batch_size", "model_args", "loss") if name in origin}
        return {name: value for name, value in facts.items() if value is not None}

    def expected(self, plan: Plan, model: str, *, cluster: Path | None) -> tuple[Profile, Cluster] | None:
        """Return the profile and the devices that it was made for; None if it names no files, or another network.

        `cluster`: a file of other devices. Raises InputError if the files are gone or have changed since.
        """
        machines = self.provenance.get("machines")
        if not isinstance(machines, dict) or self.origin.get("model", model) != model:
            return None
        paths = {name: Path(machines[name]) for name in ("cluster", "server_file") if name in machines}
        profile, devices = _of_machines({**machines, **paths})
        profiles = self.provenance.get("profiles")
        if not isinstance(profiles, list) or profile.digest != profiles[0].get("digest"):
            files = ", ".join(map(str, machines.get("profile") or paths.values()))
            raise InputError("plan.profile_changed", f"{files}: changed since {self.path} was planned")
        if cluster is not None and "profile" in machines:
            profile, devices = _of_machines({"profile": machines["profile"], "cluster": cluster})
        plan.check(profile.graph, devices)
        return profile, devices


def _of_machines(given: Mapping[str, object]) -> tuple[Profile, Cluster]:
    """Return what options of `plan` name, whose others are not given."""
    return profile_and_cluster(argparse.Namespace(**{**dict.fromkeys(_MACHINES), **given}), warn=False)
