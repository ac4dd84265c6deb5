"""The verbs of the command line that look at clusters."""

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from ..errors import one_line
from ..launching.probes import check_cluster, measure_cluster
from ..launching.probes.check import HostFacts
from ..records.formats.clusters import load_cluster, load_cluster_file
from ..util.host.addresses import is_loopback
from ..util.io.files import write_atomic
from ..util.text.counting import counted, number_of
from ..util.text.numbers import as_measured, duration
from ..values.cluster import Cluster, Link, Node
from ..views.values import link_text
from .options import known_cluster
from .output import Answer, table


def show(options: argparse.Namespace) -> Answer:
    """The hosts and devices of a cluster's file."""
    found = load_cluster_file(known_cluster(options.file))
    cluster = found.cluster
    heading = (
        f"{one_line(options.file)}: {found.kind}, {number_of(len(cluster.devices), 'device')} on "
        f"{number_of(len(cluster.nodes), 'host')}"
    )
    rows = [("host", "address", "devices", "inside"), *(_row(node) for node in cluster.nodes)]
    between = [f"between hosts: {_link_text(cluster.network)}"] if len(cluster.nodes) > 1 else []
    between += _network_time_lines(cluster)
    if len(cluster.nodes) > 1 and any(is_loopback(node.address) for node in cluster.nodes):
        between.append("a loopback as address: such hosts can be planned for; give each its own to run there")
    return Answer(cluster_document(cluster), "\n".join([heading, table(rows), *between]))


def check(options: argparse.Namespace) -> Answer:
    """Whether the hosts of a cluster's file can work together."""
    report = check_cluster(load_cluster(known_cluster(options.file)))
    rows: list[tuple[str, ...]] = [("host", "python", "torch", "devices", "memory", "disk free", "clock")]
    rows += [_facts_row(one) for one in report.hosts]
    document = {"hosts": [asdict(one) for one in report.hosts], "problems": list(report.problems)}
    more = f" (and {len(report.problems) - 1} more)" if len(report.problems) > 1 else ""
    fault = f"{report.problems[0]}{more}" if report.problems else ""
    return Answer(document, "\n".join([table(rows), *report.problems[1:]]), fault)


def measure(options: argparse.Namespace) -> Answer:
    """Links and devices of a cluster as they are, written where planners read them."""
    cluster = load_cluster(options.file)
    out = options.out or options.file.with_suffix(".toml")
    found = measure_cluster(cluster, device=options.device)
    write_atomic(out, found.cluster.to_toml())
    links = [
        {"between": list(one.between), **_link_document(one.link), "seconds": dict(one.seconds)} for one in found.links
    ]
    document = {
        "out": str(out),
        "links": links,
        "reference_seconds": {name: list(took) for name, took in found.reference_seconds.items()},
        **cluster_document(found.cluster),
    }
    rows = [("host", "devices", "reference layer", "inside")]
    rows += [
        (
            node.name,
            counted(kind.name for kind in node.device_types),
            duration(found.reference_seconds[node.name][0]),
            _link_text(node.link),
        )
        for node in found.cluster.nodes
    ]
    between = [f"{' - '.join(one.between)}: {_link_text(one.link)}" for one in found.links]
    between += _network_time_lines(found.cluster)
    return Answer(document, "\n".join([f"{one_line(out)}: written", table(rows), *between]))


def _facts_row(one: HostFacts) -> tuple[str, ...]:
    devices = counted(one.gpus) if one.gpus else number_of(one.cores, "core")
    sizes = (f"{one.memory_bytes / 1e9:.1f} GB", f"{one.disk_bytes / 1e9:.1f} GB")
    return (one.name, one.python, one.packages.get("torch", "–"), devices, *sizes, f"{one.clock_seconds:+.1f} s")


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """A cluster as `cluster show --json` prints it: a link's bandwidth is null where nothing limits it.

    `network_seconds_per_byte` has the device types of which some of their own time is known to go there.
    """
    nodes = [
        {"name": one.name, "address": one.address, "device_types": [kind.name for kind in one.device_types]}
        for one in cluster.nodes
    ]
    document = {"nodes": nodes, "network": _link_document(cluster.network)}
    return document | ({"network_seconds_per_byte": told} if (told := _network_time(cluster)) else {})


def _network_time(cluster: Cluster) -> dict[str, float]:
    known = {kind.name: kind.network_seconds_per_byte for kind in cluster.device_types}
    return {name: seconds for name, seconds in known.items() if seconds}


def _network_time_lines(cluster: Cluster) -> list[str]:
    return [
        f"{name}: {as_measured(seconds * 1e9)} ns of its own time for each byte to or from another host"
        for name, seconds in _network_time(cluster).items()
    ]


def _link_document(link: Link) -> dict[str, float | None]:
    return {"bandwidth": link.bandwidth if math.isfinite(link.bandwidth) else None, "latency": link.latency}


def _row(node: Node) -> tuple[str, ...]:
    devices = counted(kind.name for kind in node.device_types)
    reached = f"{node.address} (ssh {node.ssh})" if node.ssh else node.address
    return (node.name, reached, devices, _link_text(node.link))


def _link_text(link: Link) -> str:
    return link_text(link, unlimited="bandwidth not given")


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "cluster show": show,
    "cluster check": check,
    "cluster measure": measure,
}
