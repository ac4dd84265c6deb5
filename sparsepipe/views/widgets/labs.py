"""My lab: the devices and the network that the partition explorer plans for, from a menu, a file, or card by card."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import ipywidgets

from ...data.manifests import shipped
from ...errors import InputError
from ...records.formats.clusters import load_cluster
from ...util.host.background_load import num_processors
from ...util.text.numbers import number_of
from ...values.cluster import Cluster, DeviceType
from ...values.profile import Profile
from . import looks
from .controls import dropdown, folded, memory_slider, number_slider, written
from .html_view import Messages
from .settings import devices_told

# Its name: (profile, cluster), both part of the package.
PRESETS = {
    "2 RTX + 2 TITAN V": ("minkvgg-published", "rtx-titan-v"),
    "4 processes, 2 engines": ("minkvgg16bn", "mixed-cores"),
}
THIS_MACHINE = "this machine"
MEASURED = "minkvgg11bn-narrow"  # the network that is measured here
_MOST_PROCESSES = 8
_SPEEDS = (*(k / 20 for k in range(2, 21)), *(k / 4 for k in range(5, 17)))


@dataclass(frozen=True)
class Lab:
    """A network's costs on device types, and the devices that there are.

    Raises InputError for devices whose type the profile does not know.
    """

    profile: Profile
    cluster: Cluster

    def __post_init__(self) -> None:
        for name in (device_type.name for device_type in self.cluster.device_types):
            if name not in self.profile.device_types:
                known = ", ".join(self.profile.device_types)
                raise InputError(
                    "profile.no_device_type",
                    f"the cluster has devices of type {name!r}, the profile knows {known}: "
                    f"profile the model on a {name}, or rename the profile with profile.renamed({name!r})",
                    name=name,
                )

    @classmethod
    def of(cls, profile: object, cluster: object) -> "Lab":
        """Return the lab of what a caller gave. Raises InputError for values of another kind."""
        if not isinstance(profile, Profile):
            raise _other_kind(profile, "Profile")
        if not isinstance(cluster, Cluster):
            raise _other_kind(cluster, "Cluster")
        return cls(profile, cluster)

    @classmethod
    def preset(cls, name: str) -> "Lab":
        """Return a lab of `PRESETS`, whose files are part of the package."""
        profile, cluster = PRESETS[name]
        return cls(
            Profile.load(shipped(profile, "profiles", ".json")), Cluster.load(shipped(cluster, "clusters", ".toml"))
        )

    @classmethod
    def measured_here(cls, progress: Callable[[str], None]) -> "Lab":
        """Measure `MEASURED` on synthetic shapes now, and return the lab of this machine's devices.

        These are its GPUs; without one, processes of one thread, one for each processor up to eight. `progress`
        receives a line of text for each step. Raises InputError if a measurement fails.
        """
        from ...data.shapes import make_shapes
        from ...launching.probes.measure import loopback_link
        from ...profiling import profile_model  # which brings torch
        from ...profiling.devices import num_gpus

        gpus = num_gpus()
        with TemporaryDirectory() as folder:
            shapes = make_shapes(Path(folder) / "shapes", num_train=4, num_test=1)
            device, kind = ("cuda", None) if gpus else ("cpu", "core")
            settings: dict[str, Any] = {"batch_size": 8, "voxel_size": 0.05, "device": device, "device_type": kind}
            profile = profile_model(MEASURED, shapes, progress=progress, **settings)
        count = gpus or min(num_processors(), _MOST_PROCESSES)
        return cls(profile, Cluster.uniform(count, device_type=profile.device_types[0], link=loopback_link()))

    @property
    def network(self) -> str:
        """The name of the network, if the profile has it."""
        return str(self.profile.origin.get("model") or number_of(len(self.profile.graph.layers), "layer"))

    def with_cluster_file(self, path: str) -> "Lab":
        """Return the devices of a file, with this profile. Raises InputError if it cannot be read."""
        return Lab(self.profile, load_cluster(path))

    def with_card(self, *, like: str, speed: float, memory_bytes: float | None, host: str) -> "Lab":
        """Return the lab with one more device, `speed` times as fast as those of the type `like`.

        `memory_bytes` None: as much as those have. Raises InputError if the type or the host is unknown.
        """
        known = {device.type.name: device.type for device in self.cluster.devices}
        if host not in [node.name for node in self.cluster.nodes]:
            raise InputError("explorer.host_unknown", f"no host {host!r} in the lab", name=host)
        same = speed == 1 and memory_bytes in (None, known[like].memory_bytes if like in known else None)
        name = like if same else _card_name(like, speed, memory_bytes)
        profile = self.profile
        if name not in profile.device_types:
            profile = profile.with_device_type(name, like=like, factor=1 / speed)
        limit = memory_bytes or (known[like].memory_bytes if like in known else float("inf"))
        card = known.get(name) or DeviceType(name, limit)
        nodes = [
            replace(node, device_types=(*node.device_types, card)) if node.name == host else node
            for node in self.cluster.nodes
        ]
        return Lab(profile, replace(self.cluster, nodes=tuple(nodes)))


def _other_kind(given: object, kind: str) -> InputError:
    return InputError(
        "explorer.value_kind",
        f"{given!r} given, expected a {kind}: {kind}.load(path) reads one",
        given=given,
        kind=kind,
    )


def _card_name(like: str, speed: float, memory_bytes: float | None) -> str:
    parts = [f"{like} × {speed:g}" if speed != 1 else like]
    return ", ".join([*parts, *([f"{memory_bytes / 1e9:g} GB"] if memory_bytes else [])])


class LabMenu:
    """`menu` for the header, `fold` and `cards` below the map; `opened` is called with each lab that is chosen.

    The first entry of the menu is the lab `given`, if there is one.
    """

    def __init__(self, given: Lab | None, messages: Messages, opened: Callable[[Lab], None]) -> None:
        self._opened = opened
        self._labs: dict[str, Lab | None] = {} if given is None else {devices_told(given.cluster): given}
        self._labs |= dict.fromkeys((*PRESETS, THIS_MACHINE))  # which are read, or measured, when they are chosen
        name = next(iter(self._labs))
        self.lab = given or Lab.preset(name)
        self.menu = looks.Dropdown(options=list(self._labs), description="my lab", tooltip="devices to plan for")
        self.like = dropdown("a card like", list(self.lab.profile.device_types), "device type that the card resembles")
        self.speed = number_slider("times as fast", 1.0, _SPEEDS, "speed of the card compared with that type")
        self.memory = memory_slider("card's memory", "memory of the card; as given: as much as that type")
        self.host = dropdown("host", [node.name for node in self.lab.cluster.nodes], "host that the card is put into")
        self.add = looks.Button(description="add card", icon="plus", tooltip="adds one such device to the lab")
        self.file = written("cluster file", example="cluster.toml", tip="path of a file of hosts; press Enter")
        self.cards = looks.VBox([self.like, self.speed, self.memory, self.host, self.add, self.file])
        self.fold = folded("Add a card, or open a file", "shows how to change the lab", self.cards)
        self.menu.observe(partial(self._chosen, messages), names="value")
        self.add.on_click(messages.shown(lambda _: self._add()))
        self.file.observe(messages.shown(self._read), names="value")

    @property
    def controls(self) -> list[ipywidgets.DOMWidget]:
        """Controls to display below the map."""
        return [self.fold, self.cards]

    def open(self, lab: Lab, name: str) -> None:
        """Open a lab, and offer it in the menu from now on. Raises InputError if it cannot be planned."""
        self._opened(lab)
        self.lab = lab
        self._labs = {name: lab, **{other: known for other, known in self._labs.items() if other != name}}
        self.menu.options = list(self._labs)  # which chooses the first: the lab that is open already

    def _chosen(self, messages: Messages, change: Mapping[str, str]) -> None:
        name = change["new"]
        if name == THIS_MACHINE and self._labs[name] is None:
            self._measure(messages, change["old"])
        else:
            messages.shown(self._open_again)(name)

    def _open_again(self, name: str) -> None:
        lab = self._labs[name] or Lab.preset(name)
        self._labs[name] = lab
        if lab != self.lab:
            self._opened(lab)
            self.lab = lab
        self.like.options = list(lab.profile.device_types)
        self.host.options = [node.name for node in lab.cluster.nodes]

    def _measure(self, messages: Messages, before: str) -> None:
        """Measure this machine in a thread of its own, and open it then; the menu goes back to `before` if it fails."""
        name = f"this machine, for {id(self)}"

        def measure() -> None:
            try:
                lab = Lab.measured_here(messages.say)
            except BaseException:
                self.menu.value = before
                raise
            if self.menu.value == THIS_MACHINE:
                self.open(lab, THIS_MACHINE)
            else:  # another lab was chosen meanwhile
                self._labs[THIS_MACHINE] = lab

        if name not in [thread.name for thread in threading.enumerate()]:
            messages.say(f"measuring {MEASURED} on this machine: this takes ten seconds or more")
            threading.Thread(target=messages.shown(measure), name=name, daemon=True).start()

    def _add(self) -> None:
        limit = self.memory.value or None
        lab = self.lab.with_card(like=self.like.value, speed=self.speed.value, memory_bytes=limit, host=self.host.value)
        self.open(lab, devices_told(lab.cluster))

    def _read(self, change: Mapping[str, str]) -> None:
        if path := change["new"].strip():
            self.open(self.lab.with_cluster_file(path), path)
