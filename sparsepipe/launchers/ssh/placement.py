"""Which ranks of a plan run on which host: a device's place among all devices of the cluster is its rank."""

from dataclasses import dataclass

from ...cluster import Cluster, Node
from ...errors import InputError

HOSTS = "hosts.toml"  # in the run's folder: the cluster that it was launched on


@dataclass(frozen=True)
class HostedRanks:
    """A host and the ranks of a job that run there."""

    node: Node
    ranks: tuple[int, ...]

    @property
    def named(self) -> str:
        """Its name in messages, and what it is reached by."""
        there = self.node.ssh_destination
        return self.node.name if there == self.node.name else f"{self.node.name} ({there})"


def hosted_ranks(count: int, cluster: Cluster) -> tuple[HostedRanks, ...]:
    """Return the hosts that a job of `count` ranks needs with their ranks, that of rank 0 first; hosts without a rank
    are left out.

    Raises InputError where the cluster has fewer devices than that, and for hosts of one address.
    """
    if count > len(cluster.devices):
        raise InputError(
            f"the plan has {count} ranks, the cluster {len(cluster.devices)} devices; plan for this cluster, or name "
            "more hosts in its file"
        )
    own: dict[str, list[int]] = {}
    for device in cluster.devices[:count]:
        own.setdefault(device.node.name, []).append(device.rank)
    nodes = {node.name: node for node in cluster.nodes}
    addresses = [nodes[name].address for name in own]
    for name in own:
        if len(own) > 1 and addresses.count(nodes[name].address) > 1:
            raise InputError(f"{nodes[name].address} is the address of more than one host; give each its own")
    return tuple(HostedRanks(nodes[name], tuple(ranks)) for name, ranks in own.items())
