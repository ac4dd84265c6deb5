"""Hosts as other systems' files list them: a name and a number of devices, without their types and links."""

from collections.abc import Sequence
from dataclasses import dataclass

from ....errors import InputError
from ....util.io.fields import MOST_DEVICES, shown
from ....values.cluster import Cluster, DeviceType, Link, Node


@dataclass(frozen=True, slots=True)
class Host:
    """A host, which is its own address; `gpus` are the numbers of its GPUs where a file says which."""

    name: str
    num_devices: int
    ssh: str = ""  # such as user@name:2222, where the file names a user or a port
    gpus: tuple[int, ...] = ()

    @property
    def environment(self) -> tuple[tuple[str, str], ...]:
        return (("CUDA_VISIBLE_DEVICES", ",".join(map(str, self.gpus))),) if self.gpus else ()


@dataclass(frozen=True, slots=True)
class Unsaid:
    """Facts missing in those files: the type of the devices, their memory, and the links inside and between hosts."""

    device_type: str = "device"
    memory_bytes: float = float("inf")
    link: Link = Link()
    network: Link = Link()


def cluster_of_hosts(hosts: Sequence[Host], unsaid: Unsaid) -> Cluster:
    """The hosts as nodes of like devices; ranks are numbered host by host, in the file's order.

    Raises InputError for no hosts, two of one name, and more devices than a cluster may have.
    """
    if not hosts:
        raise InputError("hostfile.no_hosts", "names no hosts: expected at least one")
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        twice = max(names, key=names.count)
        raise InputError(
            "hostfile.host_twice", f"host {shown(twice)} is listed twice: list it once, with all its devices"
        )
    if (count := sum(host.num_devices for host in hosts)) > MOST_DEVICES:
        raise InputError(
            "hostfile.too_many_devices", f"{shown(count)} devices, expected {MOST_DEVICES} at most: correct the counts"
        )
    kind = DeviceType(unsaid.device_type, unsaid.memory_bytes)
    made = (
        Node(
            each_host.name,
            (kind,) * each_host.num_devices,
            unsaid.link,
            each_host.name,
            each_host.ssh,
            environment=each_host.environment,
        )
        for each_host in hosts
    )
    return Cluster(tuple(made), unsaid.network)
