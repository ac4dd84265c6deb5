"""Whether a cluster's hosts can work together: each is asked what it has, and whether it reaches the others."""

import ipaddress
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import InputError
from ...runtime.wire.handshake import new_secret
from ...util.host.ssh import is_loopback
from ...util.text.numbers import number_of
from ...values.cluster import Cluster, Node
from .hosts import HostProbe, for_each, probes

_MOST_CLOCK_SECONDS = 5.0
_LEAST_DISK_BYTES = 1e9
_SLOW_HOST = 60.0  # seconds for one question: torch is looked for on a cold disk


@dataclass(frozen=True)
class HostFacts:
    """Properties of a host; its clock is `clock_seconds` ahead of this machine's, give or take `clock_doubt`."""

    name: str
    hostname: str
    python: str
    packages: dict[str, str]
    code: str | None
    cores: int
    gpus: tuple[str, ...]
    gpu_memory_bytes: tuple[float, ...]
    memory_bytes: float
    disk_folder: str  # in which runs are put there
    disk_bytes: float  # free in it
    clock_seconds: float
    clock_doubt: float
    executable: str


@dataclass(frozen=True)
class ClusterReport:
    """Reports of the hosts, and each problem in one line with host name and remedy."""

    hosts: tuple[HostFacts, ...]
    problems: tuple[str, ...]


def check_cluster(cluster: Cluster) -> ClusterReport:
    """Ask every host, all at a time. What is wrong is in the report, hosts that do not answer included."""
    here = Node("this machine", cluster.nodes[0].device_types[:1])
    with probes([here, *cluster.nodes]) as (own, *begun):
        facts = _facts(own)
        if isinstance(facts, InputError):
            raise facts
        told = for_each(_facts, begun)
        found = [(probe.node, one) for probe, one in zip(begun, told, strict=True) if isinstance(one, HostFacts)]
        problems = [*unlike_networks(cluster.nodes), *(str(one) for one in told if isinstance(one, InputError))]
        problems += [text for node, one in found for text in _wrong(node, one, facts)]
        reached = {node.name for node, _ in found}
        problems += unreached([probe for probe in begun if probe.node.name in reached])
    return ClusterReport(tuple(one for _, one in found), tuple(problems))


def unlike_networks(nodes: Sequence[Node]) -> list[str]:
    """Addresses that cannot be on one network: some a loopback and others not, or of IPv4 and of IPv6."""
    loopback = [node.name for node in nodes if is_loopback(node.address)]
    found = []
    if loopback and len(loopback) < len(nodes):
        found.append(
            f"{loopback[0]}: its loopback address cannot be reached from other hosts; give its network address"
        )
    families: dict[int, str] = {}
    for node in nodes:
        try:
            families.setdefault(ipaddress.ip_address(node.address).version, node.name)
        except ValueError:
            continue  # a name
    if len(families) > 1:
        names = " and ".join(f"{name} (IPv{family})" for family, name in families.items())
        found.append(f"{names}: addresses of different networks; give the addresses on their common network")
    return found


def unreached(begun: Sequence[HostProbe]) -> list[str]:
    """List why hosts do not reach each other: a wrong address, a firewall, another network."""
    secret = new_secret().hex()
    ports = for_each(lambda probe: _tried(probe, "listen", address=probe.node.address, secret=secret), begun)
    found = [
        f"{said} for {probe.node.address}; give its address on the cluster's network"
        for probe, said in zip(begun, ports, strict=True)
        if isinstance(said, InputError)
    ]
    open_ones = [
        (probe.node, said["port"]) for probe, said in zip(begun, ports, strict=True) if not isinstance(said, InputError)
    ]

    def reach(probe: HostProbe) -> dict[str, Any] | InputError:
        peers = [(node.name, node.address, port) for node, port in open_ones if node.name != probe.node.name]
        return _tried(probe, "reach", peers=peers, secret=secret, timeout=_SLOW_HOST + 11.0 * len(peers))

    for probe, said in zip(begun, for_each(reach, begun), strict=True):
        if isinstance(said, InputError):
            found.append(str(said))
            continue
        found += [
            f"{probe.node.name}: does not reach {name} ({why}); are both addresses on one network, and ports open?"
            for name, why in said["failed"].items()
        ]
    return found


def _tried(probe: HostProbe, what: str, **facts: Any) -> dict[str, Any] | InputError:
    try:
        return probe.ask(what, **facts)
    except InputError as error:
        return error


def _facts(probe: HostProbe) -> HostFacts | InputError:
    """Ask twice: the first answer waits for the connection and the start of Python, the second times the clock."""
    said = _tried(probe, "facts", timeout=_SLOW_HOST)
    if isinstance(said, InputError):
        return said
    before = time.time()
    clock = _tried(probe, "clock")
    after = time.time()
    if isinstance(clock, InputError):
        return clock
    gpus = said.pop("gpus")
    return HostFacts(
        probe.node.name,
        gpus=tuple(name for name, _ in gpus),
        gpu_memory_bytes=tuple(size for _, size in gpus),
        clock_seconds=clock["clock"] - (before + after) / 2,
        clock_doubt=(after - before) / 2,
        **said,
    )


def _wrong(node: Node, there: HostFacts, here: HostFacts) -> list[str]:
    """List why a host cannot work with this machine, and what is less than in the cluster file."""
    name, found = node.name, []
    if there.python != here.python:
        found.append(
            f"{name}: has Python {there.python}, but this machine has {here.python}; name an interpreter of the same "
            "version"
        )
    for package in here.packages:
        version = there.packages.get(package)
        if version != here.packages[package]:
            told = f"{package} {version}" if version else f"no {package}"
            found.append(
                f"{name}: has {told}, but this machine has {here.packages[package]}; install the same version in "
                f"{there.executable}"
            )
    if there.code is not None and there.code != here.code and "sparsepipe" not in "".join(found):
        found.append(f"{name}: other files of sparsepipe (digest {there.code}, here {here.code}); install the same")
    if there.gpus and len(node.device_types) > len(there.gpus):
        found.append(
            f"{name}: the file lists {number_of(len(node.device_types), 'device')}, but the host has "
            f"{number_of(len(there.gpus), 'GPU')}; correct one of them"
        )
    if abs(there.clock_seconds) - there.clock_doubt > _MOST_CLOCK_SECONDS:
        way = "ahead" if there.clock_seconds > 0 else "behind"
        found.append(f"{name}: its clock is {abs(there.clock_seconds):.0f} s {way}; set it (timedatectl, chrony)")
    if there.disk_bytes < _LEAST_DISK_BYTES:
        where = f"{there.disk_folder}, where runs are put"
        found.append(f"{name}: only {there.disk_bytes / 1e9:.2f} GB free in {where}; free at least 1 GB")
    limits = there.gpu_memory_bytes or (there.memory_bytes / len(node.device_types),) * len(node.device_types)
    for kind, limit in zip(node.device_types, limits, strict=False):
        if kind.memory_bytes != float("inf") and kind.memory_bytes > limit:
            found.append(
                f"{name}: a {kind.name} has {kind.memory_bytes / 1e9:.1f} GB in the file, but {limit / 1e9:.1f} GB "
                "on the host; correct memory_bytes"
            )
            break
    return found
