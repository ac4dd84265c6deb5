"""The parts of a cluster: device types, links, and nodes with their devices."""

import re
from dataclasses import dataclass

from ..errors import InputError
from ..util.host.ssh import Destination, is_loopback
from ..util.io.fields import MOST, given_number, shown

# A host's name or address; what begins with a dash, ssh would take for an option.
_HOST = re.compile(r"[^\s\x00-\x20\x7f-][^\s\x00-\x20\x7f]{0,254}")
_VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")  # of an environment


@dataclass(frozen=True, slots=True)
class DeviceType:
    """Describe a type of device, such as a GPU model.

    Attributes:
        name: Name of the device type, as in profiles.
        memory_bytes: Memory of one device in bytes. Default: no limit.
        reference_seconds: Time of a reference layer in seconds, from `sparsepipe cluster measure`. None: unknown.
        network_seconds_per_byte: Compute time in seconds per byte that the device sends to or receives from another
            host. CPUs spend it on compression, copies and the network stack; for GPUs it is 0.
            `sparsepipe cluster measure` measures it.

    Raises:
        InputError: `memory_bytes` or `reference_seconds` is not above 0, or `network_seconds_per_byte` is below 0.

    Example:
        >>> sp.DeviceType("rtx3090", memory_bytes=24e9).memory_bytes
        24000000000.0

    See also:
        guides/describe_a_cluster, `Cluster`
    """

    name: str
    memory_bytes: float = float("inf")
    reference_seconds: float | None = (
        None  # of the reference layer, as `sparsepipe cluster measure` found; None: unknown
    )
    network_seconds_per_byte: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.network_seconds_per_byte <= MOST:
            raise InputError(
                "device_type.network_seconds",
                f"device type {self.name!r} has network_seconds_per_byte {self.network_seconds_per_byte}, expected 0 "
                "or more",
            )
        if self.reference_seconds is not None and not 1 / MOST <= self.reference_seconds <= MOST:
            raise InputError(
                "device_type.reference_seconds",
                f"device type {self.name!r} has reference_seconds {self.reference_seconds}, expected more than 0",
            )
        if not self.memory_bytes > 0:
            raise InputError(
                "device_type.memory",
                f"device type {self.name!r} has {self.memory_bytes} bytes of memory, expected more than 0",
            )


@dataclass(frozen=True, slots=True)
class Link:
    """Describe the connection between two devices by bandwidth and latency.

    10 Gbit/s Ethernet is Link(1.25e9, 50e-6), PCIe 3.0 x16 is Link(12e9, 1e-5). Transfers over Link() take no time.

    Attributes:
        bandwidth: Bandwidth in bytes per second.
        latency: Latency in seconds per message.

    Raises:
        InputError: The bandwidth is not above 0, or the latency is below 0.

    Example:
        >>> ethernet = sp.Link(bandwidth=1.25e9, latency=50e-6)
        >>> round(ethernet.transfer_time(2.5e9), 3)
        2.0

    See also:
        guides/describe_a_cluster, `Cluster`
    """

    bandwidth: float = float("inf")
    latency: float = 0.0

    def __post_init__(self) -> None:
        given_number(self.bandwidth, "a link's bandwidth of")
        given_number(self.latency, "a link's latency of")
        if not self.bandwidth >= 1 / MOST:
            raise InputError("link.bandwidth", f"bandwidth {self.bandwidth} bytes/s given, expected more than 0")
        if not 0 <= self.latency <= MOST:
            raise InputError("link.latency", f"latency {self.latency} s given, expected 0 or more")

    def transfer_time(self, num_bytes: float) -> float:
        """Return the seconds that one message of `num_bytes` takes."""
        return self.latency + num_bytes / self.bandwidth


@dataclass(frozen=True, slots=True)
class Node:
    """Describe a machine: its devices, the link between them, and its network address.

    Attributes:
        name: Name of the machine, unique in its cluster.
        device_types: Type of each device. A node may have devices of several types.
        link: Link between two devices of this node.
        address: Host name or IP address on the cluster's network, to which sockets are bound.
        ssh: Destination for `ssh`: an alias in ssh_config, or user@host:port. Default: the address.
        interpreter: Path of the Python interpreter on the machine. Default: the path on the launching machine.
        environment: Environment variables of processes on the machine, as pairs (name, value).

    Raises:
        InputError: A node without a device, or a malformed address, ssh destination, interpreter or environment.

    Example:
        >>> gpu = sp.DeviceType("rtx3090", memory_bytes=24e9)
        >>> node = sp.Node("gpu-1", (gpu, gpu), link=sp.Link(12e9, 1e-5), address="10.0.0.1")
        >>> node.is_local
        False

    See also:
        guides/describe_a_cluster, `Cluster`
    """

    name: str
    device_types: tuple[DeviceType, ...]
    link: Link = Link()
    address: str = "127.0.0.1"
    ssh: str = ""
    interpreter: str = ""
    environment: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        where = f"node {self.name!r}"
        if not self.device_types:
            raise InputError(
                "cluster.device_count_zero", f"{where} has a device count of 0: expected at least one device"
            )
        for what, host in (("address", self.address), ("ssh", self.ssh or "default")):
            if not _HOST.fullmatch(host):
                raise InputError(
                    "cluster.host_malformed",
                    f"{where} has {what} {shown(host)}, expected a host name or address such as 10.0.0.1",
                )
            try:
                destination = Destination.parse(host)
            except InputError as error:
                raise error.within(f"{where} has {what} ") from None
            if what == "address" and destination.host != host:  # sockets are bound to it
                raise InputError(
                    "cluster.host_with_user",
                    f"{where} has address {shown(host)}, expected {destination.host!r}; move the user and the port "
                    f"to ssh, such as ssh = {str(destination)!r}",
                )
        if "\0" in self.interpreter or "\n" in self.interpreter or self.interpreter.startswith("-"):
            raise InputError(
                "cluster.interpreter_malformed",
                f"{where} has interpreter {shown(self.interpreter)}, expected the path of a Python interpreter",
            )
        for key, value in self.environment:
            if not _VARIABLE.fullmatch(key) or "\0" in value or "\n" in value:
                raise InputError(
                    "cluster.environment_malformed",
                    f"{where}: environment {shown(key)} = {shown(value)}, expected NAME = a single-line string",
                )

    @property
    def is_local(self) -> bool:
        """Return whether the node's address is the loopback address of this machine."""
        return not self.ssh and is_loopback(self.address)

    @property
    def ssh_destination(self) -> str:
        """Return the destination argument for `ssh`."""
        return self.ssh or self.address


@dataclass(frozen=True, slots=True)
class Device:
    rank: int
    node: Node
    type: DeviceType
