"""Which devices a notebook plans for: this machine's by threads, measured ones kept here, published ones, or files."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import or_
from pathlib import Path

from ..data.manifests import manifests_folder, shipped
from ..errors import InputError
from ..networks import NETWORKS
from ..records.formats.sparsepipe_servers import ServerFile
from ..util.io.files import expanded
from ..util.text.numbers import voxel_size_text
from ..values.cluster import Cluster, DeviceType, Link, Node
from ..values.profile import Profile
from .machines import BETWEEN, INSIDE, PUBLISHED, published_profile

CORES = "cores"  # for a cluster: those of this machine
MEASURED = "measured"  # for a cluster: two machines of the types that were measured on this one (`two_machines`)
MIXED = "mixed-cores"  # the cluster that goes with the profiles of this repository
STAND_IN = "minkvgg16bn"  # whose profiles are kept here: planned for in place of another sparse network


def default_cluster(model: str, *, data: str, voxel_size: float, batch_size: int) -> str:
    """Return `MIXED` where profiles of its types are kept of `model` on such minibatches, else `MEASURED`.

    Kept ones are of synthetic shapes: `data` that somebody gave are others. Which minibatches have none is said.
    """
    profile_path = _profiles_of(model)
    if profile_path.exists() and not data:
        known = Profile.load(profile_path)
        if (known.batch_size, known.origin["data"]["voxel_size"]) == (batch_size, voxel_size):
            return MIXED
    print(
        f"no profiles of {model} on other devices exist for {data or 'synthetic shapes'}, {batch_size} per "
        f"minibatch, voxel size {voxel_size_text(voxel_size)}; using device types of this machine instead"
    )
    return MEASURED


def unlike_devices(
    model: str, *, profiles: Mapping[str, str] | None = None, cluster: str = "", server_file: str = ""
) -> tuple[Profile, Cluster] | None:
    """Return the costs of `model` on several types of devices, and how many of each there are.

    `profiles` names a file for each device type; without them they are those of data_manifests/profiles, or, for a
    cluster of their types, the published ones of RTX, TITAN V and TITAN Xp. For a sparse network of ours that has none
    there, those of `STAND_IN` stand in, which is said.
    `cluster` is a file, or the name of one in data_manifests/clusters. A SparsePipe `server_file` brings both, with
    nominal links. None for the cluster "cores", and if nothing is there for `model`: then this machine's cores are
    what can be measured. Raises InputError for a file that does not exist, and for a cluster without profiles.
    """
    if server_file:
        servers = ServerFile.load(server_file)
        return servers.profile(), servers.cluster(bandwidth=INSIDE.bandwidth, network=BETWEEN.bandwidth)
    if cluster == CORES:
        return None
    if not (cluster or profiles or _shipped(model)):
        print(f"no profile of {model} on other devices exists; using cores of this machine instead")
        return None
    devices = Cluster.load(_cluster_file(cluster or MIXED))
    return _costs(model, devices, profiles or {}), devices


def two_machines(measured: Sequence[Profile], *, inside: Link) -> tuple[Profile, Cluster]:
    """Return the costs and the devices of two machines, each with a device of every type that was measured here.

    `measured`: profiles of one network by processes of fewer and of more threads, each a type of device; each was
    measured alone. `inside` is the link between two processes of a machine, 10 Gbit/s Ethernet (nominal) the other one.
    """
    names = [f"{profile.origin['engine']}-{profile.origin['threads']}t" for profile in measured]
    costs = reduce(or_, [profile.renamed(name) for profile, name in zip(measured, names, strict=True)])
    kinds = tuple(DeviceType(name) for name in reversed(names))  # the fast one first, as on mixed-cores
    return costs, Cluster((Node("alpha", kinds, inside), Node("beta", kinds, inside)), BETWEEN)


def one_more(cluster: Cluster, name: str) -> Cluster:
    """Return the cluster with one more device of a type, in the last node that has one. Raises InputError without."""
    places = [k for k, node in enumerate(cluster.nodes) if name in [kind.name for kind in node.device_types]]
    if not places:
        raise InputError(
            "device_type.unknown",
            f"{name!r}: unknown device type, expected one of {', '.join(kind.name for kind in cluster.device_types)}",
            name=name,
        )
    nodes = list(cluster.nodes)
    node = nodes[places[-1]]
    kind = next(kind for kind in node.device_types if kind.name == name)
    nodes[places[-1]] = replace(node, device_types=(*node.device_types, kind))
    return replace(cluster, nodes=tuple(nodes))


def _shipped(model: str) -> Path | None:
    """The file of the profiles that are kept of a network; of `STAND_IN` for another sparse one of ours."""
    if (profile_path := _profiles_of(model)).exists():
        return profile_path
    return _profiles_of(STAND_IN) if model in NETWORKS else None


def _profiles_of(model: str) -> Path:
    return _data_manifests() / "profiles" / f"{model}.json"


def _costs(model: str, devices: Cluster, profiles: Mapping[str, str]) -> Profile:
    names = [kind.name for kind in devices.device_types]
    if profiles:
        profile = reduce(or_, [_named(name, expanded(path)) for name, path in profiles.items()])
    elif set(names) <= {*PUBLISHED, *PUBLISHED.values()}:
        profile = published_profile(names)
    elif shipped_path := _shipped(model):
        profile = Profile.load(shipped_path)
        if shipped_path.stem != model:
            print(f"no profiles of {model} on such devices exist; using those of {shipped_path.stem} instead")
    else:
        raise InputError(
            "profile.not_fetched",
            f"profiles of {', '.join(names)} not found; give their files, profiles = {{{names[0]!r}: FILE}}",
        )
    if missing := [name for name in names if name not in profile.device_types]:
        raise InputError(
            "profile.no_device_type",
            f"the cluster has devices of type {missing[0]!r}, but the profiles have "
            f"{', '.join(profile.device_types)}; add profiles = {{{missing[0]!r}: FILE}}, or use another cluster",
        )
    return profile


def _named(name: str, path: Path) -> Profile:
    """One file's costs; of one device type, under that name. A published graph.txt does not name its own."""
    if path.suffix == ".txt":
        return Profile.load(path, device_type=name)
    profile = Profile.load(path)
    return profile if name in profile.device_types else profile.renamed(name)


def _cluster_file(name: str) -> Path:
    path = shipped(name, "clusters", ".toml")
    if path.exists() or path.suffix:
        return path
    known = sorted(cluster_path.stem for cluster_path in (_data_manifests() / "clusters").glob("*.toml"))
    raise InputError(
        "cluster.not_found", f"{name}: no such file or known cluster; give a file, or one of {', '.join(known)}"
    )


def _data_manifests() -> Path:
    return manifests_folder().parent
