"""Which kind of file tells of a cluster, by what is in it, and the Cluster that it tells of."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ...cluster import Cluster, Link
from ...errors import InputError
from ...io.files import read_json, read_text
from ...io.paths import expanded
from ...io.yaml_files import read_yaml
from ..dnn_partitioning import PartitioningFile, is_partitioning_file
from ..sdpipe import cluster_of, load_nodes
from ..sparsepipe_servers import ServerFile
from .hostfile import load_hostfile
from .hosts import Host, Unsaid, cluster_of_hosts
from .machines import hosts_of_machines
from .ray_local import hosts_of_ray
from .slurm import hosts_of_job

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
    """How files of one kind are read, and whether they say what type each device is of, and its memory and links."""

    read: Callable[[Path, Unsaid], Cluster]
    tells_types: bool = False
    tells_links: bool = False  # and the memory of the devices: nothing but the file is asked


def load_cluster(path: Path | str, **unsaid: Any) -> Cluster:
    """Read any of the KINDS as a Cluster; see `load_cluster_file`."""
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

    "slurm", where no file has that name, is the job of Slurm by its environment `variables`.
    Raises InputError in one line that names the file, what is wrong, and what is expected.
    """
    path, unsaid = expanded(path), Unsaid(device_type, memory_bytes, link or Link(), network or Link())
    if path == Path(IN_SLURM) and not path.exists():
        return ClusterFile("slurm", cluster_of_hosts(hosts_of_job(variables), unsaid))
    kind = kind_of(path)
    return ClusterFile(kind, KINDS[kind].read(path, unsaid))


def tells_types(path: Path) -> bool:
    """Whether a file says what type each device is of, so that a profile of each type goes with it."""
    return (path != Path(IN_SLURM) or path.exists()) and KINDS[kind_of(path)].tells_types


def tells_links(path: Path) -> bool:
    """Whether a file alone says what memory the devices have, and what links there are between them."""
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
            f"{path}: of JSON, only graphs of dnn-partitioning describe a cluster; expected one of them, or TOML"
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
    found = [kind for key, kind in _YAML_KEYS.items() if isinstance(document, Mapping) and key in document]
    if len(found) != 1:
        raise InputError(
            f"{path}: expected nodes: as in SDPipe, machines: as in PipeDream and SparsePipe, or provider: as in Ray; "
            "a hostfile has lines such as 'gpu1 slots=4'"
        )
    return found[0]


def _of_yaml(hosts: Callable[[Path, Mapping[str, Any]], tuple[Host, ...]], path: Path, unsaid: Unsaid) -> Cluster:
    return _made(path, hosts(path, read_yaml(path, what="cluster file")), unsaid)


def _of_hostfile(path: Path, unsaid: Unsaid) -> Cluster:
    return _made(path, load_hostfile(path), unsaid)


def _made(path: Path, hosts: tuple[Host, ...], unsaid: Unsaid) -> Cluster:
    try:
        return cluster_of_hosts(hosts, unsaid)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


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
        raise InputError(f"{path}: {error}") from None


def _of_server_file(path: Path, unsaid: Unsaid) -> Cluster:
    """Its devices have types, its servers no addresses."""
    bandwidths = {"bandwidth": unsaid.link.bandwidth, "network": unsaid.network.bandwidth}
    return ServerFile.load(path).cluster(**bandwidths, memory_bytes=unsaid.memory_bytes)


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
