"""Load the profile and the cluster from a verb's options, and print their warnings on stderr."""

import argparse
from math import prod

from ..data.manifests import shipped
from ..errors import InputError
from ..launching.probes.hosts import with_unmeasured
from ..records.formats.clusters import load_cluster, tells_links, tells_types
from ..records.formats.dnn_partitioning import PartitioningFile, is_partitioning_file
from ..records.formats.dynpipe import is_layer_list, load_layer_lists
from ..records.formats.sparsepipe_servers import ServerFile
from ..util.io.fields import MOST_LIKE_DEVICES
from ..util.io.files import read_json
from ..values.cluster import Cluster, DeviceType, Link, Node
from ..values.plan import Plan
from ..values.profile import Profile
from .options import known_cluster
from .output import progress_line, warn


def profile_and_cluster(options: argparse.Namespace, *, warn: bool = True) -> tuple[Profile, Cluster]:
    """Join the profiles given and build the cluster given; --server-file and a graph of dnn-partitioning bring both.

    A profile given in addition to a server file replaces the file's profile of the same device types. `warn`: print the
    profile's warnings at once. Raises InputError for options that contradict each other, as `check_machines` does.
    """
    check_machines(options)
    if options.server_file:
        servers = ServerFile.load(options.server_file)
        names = ("bandwidth", "network")  # inside a server, between servers
        links = dict(zip(names, options.bandwidth or (), strict=False))
        instead = _joined(options.profile) if options.profile else None
        return servers.profile(instead), servers.cluster(**links, memory_bytes=options.memory or float("inf"))
    if not options.profile:
        raise InputError(
            "option.no_profile", "no profile given; add --profile [TYPE=]FILE, or --server-file (it names the profiles)"
        )
    if brought := _with_its_devices(options.profile):
        itself = options.cluster is not None and str(options.cluster) == options.profile[0]
        if (options.cluster or options.devices) and not itself:
            asked = "--cluster" if options.cluster else "--devices"
            raise InputError(
                "option.brings_devices", f"{options.profile[0]}: already defines the devices; omit {asked}"
            )
        return brought.profile, brought.cluster
    joined = _joined(options.profile)
    if warn:
        warn_of(joined)
    if options.cluster:
        cluster = _cluster_file(options, joined)
        joined, told = with_unmeasured(joined, cluster)
        for text in told:
            progress_line(f"warning: {text}")
        return joined, cluster
    if not options.devices:
        raise InputError("option.no_devices", "no devices given; add --cluster FILE, --server-file FILE or --devices N")
    return joined, _like_devices(joined, options.devices, options.bandwidth, options.memory)


def check_machines(options: argparse.Namespace) -> None:
    """Raise InputError where devices are told twice, and for memory or links of devices that are told elsewhere."""
    files = {"--cluster": options.cluster, "--server-file": options.server_file}
    named = [name for name, path in files.items() if path]
    if options.devices:
        named.append("--devices")
    if len(named) > 1:
        raise InputError(
            "option.devices_twice", f"{' and '.join(named)}: both define the devices; give only one of them"
        )
    facts = {"--bandwidth": options.bandwidth, "--memory": options.memory}
    asked = [name for name, value in facts.items() if value]
    if not asked:
        return
    if not named:
        raise InputError(
            "option.of_devices",
            f"{asked[0]} requires devices; add --devices N or a file of hosts, or omit it",
        )
    if options.cluster and tells_links(options.cluster):
        raise InputError(
            "option.of_cluster_file",
            f"{asked[0]} and --cluster {options.cluster} both define memory or links; change them in that file, and "
            f"omit {asked[0]}",
        )
    if not options.devices and len(options.bandwidth or ()) > 2:
        raise InputError(
            "option.too_many_bandwidths",
            f"{len(options.bandwidth)} values of --bandwidth with {named[0]}: expected at most two, within a host "
            "and between hosts",
        )


def _joined(given: list[str]) -> Profile:
    """The profiles given as [TYPE=]FILE, as one."""
    joined: Profile | None = None
    for text in given:
        name, equals, path = text.partition("=")
        one = load_profile(path, name) if equals else load_profile(text)
        try:
            joined = joined | one if joined else one
        except InputError as error:
            raise error.within(f"{path or text}: ") from None
    assert joined is not None
    return joined


def load_profile(path: str, device_type: str | None = None) -> Profile:
    """A profile in any format that is read: ours, a graph.txt, or DynPipe's lists by that of forward times."""
    if is_layer_list(path):
        return load_layer_lists(path, device_type=device_type or "device")
    return Profile.load(shipped(path, "profiles", ".json"), device_type=device_type)


def _with_its_devices(given: list[str]) -> PartitioningFile | None:
    """A graph of dnn-partitioning, where that is what was given."""
    if len(given) > 1 or "=" in given[0] or not given[0].endswith(".json"):
        return None
    is_one = is_partitioning_file(read_json(given[0], what="profile"))
    return PartitioningFile.load(given[0]) if is_one else None


def _cluster_file(options: argparse.Namespace, found: Profile) -> Cluster:
    """A cluster file of any kind; where it tells no device types, its devices are of the profile's."""
    path = known_cluster(options.cluster)
    kinds = found.device_types
    if len(kinds) > 1 and not tells_types(path):
        raise InputError(
            "cluster.no_device_types",
            f"{options.cluster}: contains no device types, but the profile has {', '.join(kinds)}; describe the "
            "cluster in a TOML file",
        )
    names = ("link", "network")  # inside a node, between nodes
    links = {name: Link(bandwidth) for name, bandwidth in zip(names, options.bandwidth or (), strict=False)}
    return load_cluster(path, device_type=kinds[0], memory_bytes=options.memory or float("inf"), **links)


def beyond_profile(plan: Plan, found: Profile) -> list[str]:
    """A plan's warnings without those that are the profile's."""
    return [text for text in plan.warnings if text not in found.warnings]


def warn_of(found: Profile) -> None:
    warn(found.warnings)


def _like_devices(found: Profile, counts: list[int], bandwidths: list[float] | None, memory: float | None) -> Cluster:
    """`--devices 4 --devices 2`: two nodes of four like devices, with a bandwidth for each level."""
    if len(found.device_types) > 1:
        raise InputError(
            "devices.heterogeneous_profile",
            f"--devices describes identical devices, but the profile has {', '.join(found.device_types)}; use "
            "--cluster",
        )
    if len(counts) > 2:
        raise InputError(
            "devices.too_many_levels",
            f"--devices was given {len(counts)} times; give it once, or twice (devices per node, then nodes)",
        )
    if any(count < 1 for count in counts):
        raise InputError("devices.below_one", f"device count {min(counts)}: expected at least 1")
    if prod(counts) > MOST_LIKE_DEVICES:
        raise InputError(
            "devices.too_many",
            f"--devices {' --devices '.join(map(str, counts))}: expected at most {MOST_LIKE_DEVICES} devices in total",
        )
    if bandwidths and len(bandwidths) != len(counts):
        raise InputError(
            "devices.bandwidth_count",
            f"{len(bandwidths)} values of --bandwidth for {len(counts)} of --devices; give --bandwidth once per "
            "--devices",
        )
    links = [Link(bandwidth) for bandwidth in bandwidths] if bandwidths else [Link()] * len(counts)
    kind = DeviceType(found.device_types[0], memory or float("inf"))
    nodes = range(counts[1] if len(counts) == 2 else 1)
    return Cluster(tuple(Node(f"node{k}", (kind,) * counts[0], links[0]) for k in nodes), links[-1])
