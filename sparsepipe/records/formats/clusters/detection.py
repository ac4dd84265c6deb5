"""Detect the kind of a cluster file by its content, and read the Cluster that it describes.

Hostfiles of ssh, mpirun and DeepSpeed, and files with a host list of Slurm: a host or several a line.

gpu1 slots=4          four devices
me@10.0.0.2 slots=2   reached as that user
gpu3                  one device
gpu4:4                four devices, as MPICH writes it
gpu5:2222             one device, reached through ssh at that port, as [gpu5]:2222 and ssh://gpu5:2222 are
[2001:db8::1]:22 slots=2   two devices, at port 22: with slots=, the number after a colon is a port
node[01-03,07] slots=8     # a list as Slurm writes it: each of them has eight

Ray's cluster yaml with the provider "local": hosts that are there already, a head and its workers.

    provider:
      type: local
      head_ip: 10.0.0.1
      worker_ips: [10.0.0.2, 10.0.0.3]
    auth:
      ssh_user: me

Each host has as many devices as a node type's `resources: {GPU: N}` says, one where none does. What Ray sets up on the
hosts (files, commands, docker) is no part of a cluster and is passed over.
Source: Ray's documentation, "Launching an on-premise cluster".

The `machines:` of PipeDream's and SparsePipe's driver yml: a GPU of a host for each rank.

    machines: ['server0:0', 'server0:1', 'server1:4', 'server1:5']     ranks 0 to 3

The numbers are the hosts' own: `server1:4` is the GPU that is number 4 there, and no other is seen by the worker.
Source: the driver of PipeDream's runtime, where WorkerInfo reads an entry.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ....errors import InputError
from ....util.host.ssh import Destination
from ....util.io.fields import MOST_DEVICES, integer, read_yaml, shown
from ....util.io.files import expanded, read_json, read_text
from ....util.text.numbers import number_of
from ....values.cluster import Cluster, Link
from ..dnn_partitioning import PartitioningFile, is_partitioning_file
from ..pipedream_conf import checked_values
from ..sdpipe import cluster_of, load_nodes
from ..sparsepipe_servers import ServerFile
from .slurm import Host, Unsaid, cluster_of_hosts, expand, hosts_of_job

_FORM = "'host:gpu', such as 'server0:0'"


def hosts_of_machines(path: Path, document: Mapping[str, Any]) -> tuple[Host, ...]:
    """The hosts of a driver file, in its order.

    Raises InputError that names the file and the entry, or a key or value that is none of a driver file's.
    """
    try:
        checked_values(document)
        return _machines(document.get("machines"))
    except InputError as error:
        raise error.within(f"{path}: ") from None


def _machines(entries: object) -> tuple[Host, ...]:
    if not isinstance(entries, list) or not entries:
        raise InputError("machines.malformed", f"machines is {shown(entries)}, expected a list of {_FORM}")
    if len(entries) > MOST_DEVICES:
        raise InputError(
            "hostfile.too_many_devices",
            f"machines lists {number_of(len(entries), 'GPU')}, expected at most {MOST_DEVICES}; list fewer GPUs",
        )
    devices_by_host: dict[str, list[int]] = {}
    last = None
    for index, entry in enumerate(entries):
        host, gpu = _machine(index, entry)
        if host in devices_by_host and host != last:
            raise InputError(
                "machines.host_scattered",
                f"machines[{index}]: host {shown(host)} occurs again after {shown(last)}; list all GPUs of a host "
                "together, because ranks are numbered by host",
            )
        if gpu in devices_by_host.setdefault(host, []):
            raise InputError(
                "machines.device_twice",
                f"machines[{index}]: {shown(entry)} is listed twice, but each GPU is one rank; remove one entry",
            )
        devices_by_host[host].append(gpu)
        last = host
    return tuple(Host(host, len(gpus), gpus=tuple(gpus)) for host, gpus in devices_by_host.items())


def _machine(place: int, entry: object) -> tuple[str, int]:
    host, colon, gpu = entry.rpartition(":") if isinstance(entry, str) else ("", "", "")
    if not host or not colon or not (gpu.isascii() and gpu.isdigit() and len(gpu) < 6):
        raise InputError("machines.malformed", f"machines[{place}] is {shown(entry)}, expected {_FORM}")
    return host, int(gpu)


_RAY_KEYS = {"type", "head_ip", "worker_ips", "external_head_ip"}


def hosts_of_ray(path: Path, document: Mapping[str, Any]) -> tuple[Host, ...]:
    """The head and the workers of Ray's document. Raises InputError that names the file and what is wrong in it."""
    try:
        return _ray_hosts(document)
    except InputError as error:
        raise error.within(f"{path}: ") from None


def _ray_hosts(document: Mapping[str, Any]) -> tuple[Host, ...]:
    provider = document.get("provider")
    if not isinstance(provider, Mapping):
        raise InputError(
            "hostfile.provider_malformed",
            f"provider is {shown(provider)}, expected type: local, head_ip and worker_ips",
        )
    if provider.get("type") != "local":
        raise InputError(
            "hostfile.provider_type",
            f"provider type {shown(provider.get('type'))} is not supported; use type local with head_ip and worker_ips",
        )
    if unknown := [key for key in provider if key not in _RAY_KEYS]:
        raise InputError(
            "hostfile.provider_key",
            f"provider has the unknown key {shown(unknown[0])}, expected {', '.join(sorted(_RAY_KEYS))}",
        )
    workers = provider.get("worker_ips") or []
    if not isinstance(workers, list):
        raise InputError("hostfile.workers_malformed", f"worker_ips is {shown(workers)}, expected a list of hosts")
    names = [provider.get("head_ip"), *workers]
    if wrong := [name for name in names if not isinstance(name, str) or not name]:
        raise InputError(
            "hostfile.host_malformed",
            f"host {shown(wrong[0])}: expected head_ip and each entry of worker_ips to be a name or an address",
        )
    auth = document.get("auth") or {}
    user = auth.get("ssh_user") if isinstance(auth, Mapping) else None
    if user is not None and not isinstance(user, str):
        raise InputError("hostfile.user_malformed", f"ssh_user is {shown(user)}, expected a user name")
    count = _devices(document.get("available_node_types") or {})
    return tuple(Host(name, count, f"{user}@{name}" if user else "") for name in names)


def _devices(types: object) -> int:
    """The GPUs of a host, which are the same for all: the local provider knows one type of node."""
    if not isinstance(types, Mapping):
        raise InputError(
            "hostfile.node_types_malformed", f"available_node_types is {shown(types)}, expected a table of node types"
        )
    counts = set()
    for name, kind in types.items():
        resources = (kind.get("resources") or {}) if isinstance(kind, Mapping) else None
        if not isinstance(resources, Mapping):
            raise InputError(
                "hostfile.node_types_malformed",
                f"available_node_types: {shown(name)} is {shown(kind)}, expected resources: {{GPU: N}}",
            )
        counts.add(integer(resources.get("GPU", 1), f"{shown(name)}: GPU", least=1, most=MOST_DEVICES))
    if len(counts) > 1:
        raise InputError(
            "hostfile.heterogeneous_types",
            f"node types have {', '.join(map(str, sorted(counts)))} GPUs, but a local cluster needs identical hosts; "
            "use one node type",
        )
    return counts.pop() if counts else 1


_KNOWN = ("slots", "max_slots", "max-slots")  # the latter bound what mpirun may start beyond the slots

IN_SLURM = "slurm"  # instead of a file: the hosts of the job in which this runs
_YAML = re.compile(r"(?:['\"][^'\"]*['\"]|[A-Za-z_]\w*)\s*:(?:\s|$)|---\s*$")
_TOML = re.compile(r"\[\[?\s*[\w.\"'-]+\s*\]\]?\s*(?:#.*)?$|[A-Za-z_][\w.-]*\s*=")


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """A cluster, and which kind of file told of it."""

    kind: str
    cluster: Cluster


@dataclass(frozen=True, slots=True)
class Kind:
    """Reader of files of one kind, and whether they say what type each device is of, and its memory and links."""

    read: Callable[[Path, Unsaid], Cluster]
    tells_types: bool = False
    tells_links: bool = False  # and the memory of the devices: nothing but the file is asked


def load_cluster(path: Path | str, **unsaid: Any) -> Cluster:
    """Load a cluster from a TOML file, a hostfile, Slurm, or a file of another system.

    Args:
        path: The file; "slurm": the current Slurm job.
        unsaid: Defaults for values that the file may omit: `device_type`, `memory_bytes` (bytes), `link`, `network`.

    Returns:
        The cluster.

    Raises:
        InputError: A malformed file. The message contains the expected format.

    Example:
        >>> from sparsepipe.records.formats.clusters import load_cluster
        >>> _ = Path("cluster.toml").write_text(cluster.to_toml())
        >>> len(load_cluster("cluster.toml").devices)
        2

    See also:
        guides/describe_a_cluster, `Cluster`
    """
    return load_cluster_file(path, **unsaid).cluster


def load_cluster_file(
    path: Path | str,
    *,
    device_type: str = "device",
    memory_bytes: float = float("inf"),
    link: Link | None = None,
    network: Link | None = None,
    variables: Mapping[str, str] = os.environ,
) -> ClusterFile:
    """Read any of the KINDS. The options are for the files that leave out such facts; ours says them itself.

    "slurm", if no file has that name, is the job of Slurm by its environment `variables`.
    Raises InputError in one line that names the file, what is wrong, and what is expected.
    """
    path, unsaid = expanded(path), Unsaid(device_type, memory_bytes, link or Link(), network or Link())
    if path == Path(IN_SLURM) and not path.exists():
        return ClusterFile("slurm", cluster_of_hosts(hosts_of_job(variables), unsaid))
    kind = kind_of(path)
    return ClusterFile(kind, KINDS[kind].read(path, unsaid))


def tells_types(path: Path) -> bool:
    """Return whether a file says what type each device is of, so that a profile of each type goes with it."""
    return (path != Path(IN_SLURM) or path.exists()) and KINDS[kind_of(path)].tells_types


def tells_links(path: Path) -> bool:
    """Return whether a file alone says what memory the devices have, and what links there are between them."""
    return (path != Path(IN_SLURM) or path.exists()) and KINDS[kind_of(path)].tells_links


def kind_of(path: Path | str) -> str:
    """The kind of a file, one of KINDS. Raises InputError for one that cannot be read, or is of none of them."""
    path = expanded(path)
    if path.suffix == ".toml":
        return "toml"
    if path.suffix == ".json":
        if is_partitioning_file(read_json(path, what="cluster file")):
            return "dnn-partitioning"
        raise InputError(
            "hostfile.json_unknown",
            f"{path}: this JSON file describes no cluster; give a dnn-partitioning graph or a TOML file",
        )
    if path.suffix in (".yml", ".yaml"):
        return _kind_of_yaml(path)
    lines = read_text(path, what="cluster file").splitlines()
    first = next((line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    if _TOML.match(first):
        return "toml"
    if _YAML.match(first):
        return _kind_of_yaml(path)
    return "server file" if first.startswith("Server") and len(first.split()) == 1 else "hostfile"


_YAML_KEYS = {"machines": "driver yml", "nodes": "heturun nodes", "provider": "ray yaml"}


def _kind_of_yaml(path: Path) -> str:
    document = read_yaml(path, what="cluster file")
    matching_kinds = [kind for key, kind in _YAML_KEYS.items() if isinstance(document, Mapping) and key in document]
    if len(matching_kinds) != 1:
        raise InputError(
            "hostfile.yaml_unknown",
            f"{path}: unknown YAML file, expected a key nodes (SDPipe), machines (PipeDream, SparsePipe) or provider "
            "(Ray); a hostfile has lines such as 'gpu1 slots=4'",
        )
    return matching_kinds[0]


def _of_yaml(hosts: Callable[[Path, Mapping[str, Any]], tuple[Host, ...]], path: Path, unsaid: Unsaid) -> Cluster:
    return _made(path, hosts(path, read_yaml(path, what="cluster file")), unsaid)


def _of_hostfile(path: Path, unsaid: Unsaid) -> Cluster:
    return _made(path, load_hostfile(path), unsaid)


def _made(path: Path, hosts: tuple[Host, ...], unsaid: Unsaid) -> Cluster:
    try:
        return cluster_of_hosts(hosts, unsaid)
    except InputError as error:
        raise error.within(f"{path}: ") from None


def _of_nodes(path: Path, unsaid: Unsaid) -> Cluster:
    nodes = load_nodes(path)
    try:
        return cluster_of(
            nodes,
            device_type=unsaid.device_type,
            memory_bytes=unsaid.memory_bytes,
            link=unsaid.link,
            network=unsaid.network,
        )
    except InputError as error:
        raise error.within(f"{path}: ") from None


def _of_server_file(path: Path, unsaid: Unsaid) -> Cluster:
    """Its devices have types, its servers no addresses."""
    return ServerFile.load(path).cluster(
        bandwidth=unsaid.link.bandwidth, network=unsaid.network.bandwidth, memory_bytes=unsaid.memory_bytes
    )


KINDS: Mapping[str, Kind] = {
    "toml": Kind(lambda path, unsaid: Cluster.load(path), tells_types=True, tells_links=True),
    "hostfile": Kind(_of_hostfile),
    "driver yml": Kind(partial(_of_yaml, hosts_of_machines)),
    "heturun nodes": Kind(_of_nodes),
    "ray yaml": Kind(partial(_of_yaml, hosts_of_ray)),
    "server file": Kind(_of_server_file, tells_types=True),
    "dnn-partitioning": Kind(
        lambda path, unsaid: PartitioningFile.load(path).cluster, tells_types=True, tells_links=True
    ),
}


_LEAST_PORT, _LEAST_FREE_PORT = 22, 1024  # below: slots, no sshd listens there; from there on: a port; between: either


def load_hostfile(path: Path | str) -> tuple[Host, ...]:
    """Read a hostfile. Raises InputError that names file and line."""
    hosts: list[Host] = []
    lines: dict[str, int] = {}  # host → line
    for number, line in enumerate(read_text(path, what="hostfile").splitlines(), start=1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if not words:
            continue
        try:
            for host in _hosts(words):
                if host.name in lines:
                    raise InputError(
                        "hostfile.host_twice",
                        f"host {shown(host.name)} is listed twice, first in line {lines[host.name]}; list it once, "
                        "with slots=N for all its devices",
                    )
                lines[host.name] = number
                hosts.append(host)
            if len(hosts) > MOST_DEVICES:
                raise InputError("hostfile.too_many_hosts", f"more than {MOST_DEVICES} hosts; correct the host ranges")
        except InputError as error:
            raise error.within(f"{path}:{number}: ") from None
    if not hosts:
        raise InputError(
            "hostfile.no_hosts", f"{path}: lists no hosts, expected one line per host, such as 'gpu1 slots=4'"
        )
    return tuple(hosts)


def _hosts(words: list[str]) -> list[Host]:
    slots: int | None = None
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in _KNOWN:
            raise InputError(
                "hostfile.slots_malformed",
                f"{shown(word)} follows host {shown(words[0])}, expected slots=N and one host per line",
            )
        count = _count(words[0], key, value)
        slots = count if key == _KNOWN[0] else slots
    return [_host(text, slots) for text in _destinations(words[0])]


def _destinations(text: str) -> list[str]:
    """The hosts that one word names: one, or those of a list as Slurm writes it, each with the number after it."""
    try:
        Destination.parse(text)
        if "," not in text:
            return [text]
    except InputError:
        pass
    listed, colon, number = text.rpartition(":")
    if not (colon and number.isascii() and number.isdigit()):
        listed, number = text, ""
    if ":" in listed:
        raise InputError(
            "hostfile.host_malformed", f"host {shown(text)}: expected host:port or slots=N, one host per line"
        )
    return [f"{name}:{number}" if number else name for name in expand(listed)]


def _host(text: str, slots: int | None) -> Host:
    try:
        destination = Destination.parse(text)
    except InputError as error:
        raise error.within("host ", "; devices are written slots=N, a host a line") from None
    number = destination.port
    if number is None:
        port = None
    elif slots is not None or number >= _LEAST_FREE_PORT or text.startswith("ssh://"):
        port = number
    elif number < _LEAST_PORT:
        slots, port = number, None
    else:
        host = destination._replace(port=None)
        raise InputError(
            "hostfile.number_undecided",
            f"host {shown(text)}: it is unclear if {number} is a device count or an ssh port; write '{host} "
            f"slots={number}' or '{destination} slots=1'",
        )
    ssh = destination._replace(port=port)
    return Host(ssh.host, slots or 1, str(ssh) if ssh.user or ssh.port else "")


def _count(host: str, key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 7 and 1 <= int(value) <= MOST_DEVICES):
        raise InputError(
            "hostfile.slots_malformed",
            f"host {shown(host)} has {key} = {shown(value)}, expected a whole number of at least 1",
        )
    return int(value)
