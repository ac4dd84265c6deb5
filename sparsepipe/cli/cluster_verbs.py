"""The verbs of the command line that look at clusters."""

import argparse
import math
from collections.abc import Callable, Mapping
from typing import Any

from ..cluster import Cluster, Link, Node
from ..display.html import counted
from ..display.markup import one_line
from ..formats.clusters import load_cluster_file
from .output import Answer, table


def show(options: argparse.Namespace) -> Answer:
    """The hosts and devices of a cluster's file."""
    found = load_cluster_file(options.file)
    cluster = found.cluster
    heading = f"{one_line(options.file)}: {found.kind}, {len(cluster.devices)} devices on {len(cluster.nodes)} hosts"
    rows = [("host", "address", "devices", "inside"), *(_row(node) for node in cluster.nodes)]
    between = [f"between hosts: {_link_text(cluster.network)}"] if len(cluster.nodes) > 1 else []
    return Answer(cluster_document(cluster), "\n".join([heading, table(rows), *between]))


def cluster_document(cluster: Cluster) -> dict[str, Any]:
    """A cluster as `cluster show --json` prints it: a link's bandwidth is null where nothing limits it."""
    nodes = [
        {"name": one.name, "address": one.address, "device_types": [kind.name for kind in one.device_types]}
        for one in cluster.nodes
    ]
    return {"nodes": nodes, "network": _link_document(cluster.network)}


def _link_document(link: Link) -> dict[str, float | None]:
    return {"bandwidth": link.bandwidth if math.isfinite(link.bandwidth) else None, "latency": link.latency}


def _row(node: Node) -> tuple[str, ...]:
    devices = counted(kind.name for kind in node.device_types)
    reached = f"{node.address} (ssh {node.ssh})" if node.ssh else node.address
    return (node.name, reached, devices, _link_text(node.link))


def _link_text(link: Link) -> str:
    """A link as one reads it: bytes a second, and the latency where there is one."""
    bandwidth = f"{link.bandwidth / 1e9:.3g} GB/s" if math.isfinite(link.bandwidth) else "bandwidth not given"
    return f"{bandwidth}, {link.latency * 1e6:.3g} us" if link.latency else bandwidth


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {"cluster show": show}
