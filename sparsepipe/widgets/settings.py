"""The settings of the partition explorer's controls as one value."""

from dataclasses import asdict, dataclass
from typing import Any

from ..cluster import Cluster
from ..display.html import counted
from ..display.numbers import voxel_size_text
from ..io.quantities import BANDWIDTH, SIZE, TIME
from .several import Several

AS_GIVEN, BY_TYPE = "as given", "one node per device type"  # how devices are placed on nodes


@dataclass(frozen=True)
class Settings:
    """None stands for what was given: links that differ from node to node, limits that differ from type to type."""

    devices: tuple[tuple[str, int], ...]  # (type, how many)
    placement: str
    bandwidth: float | None  # bytes/s within a node
    latency: float | None  # seconds
    network_bandwidth: float
    network_latency: float
    memory_bytes: float | None  # of every device
    batch_size: int | None  # None: the profile does not say
    voxel_size: float | None
    compression: float
    planner: str
    schedule: str
    weights: str
    num_microbatches: int
    stages_per_device: int
    recompute: bool = False
    cuts: tuple[int, ...] | None = None  # pinned: layers before each cut
    stage_devices: tuple[tuple[tuple[str, int], ...], ...] | None = None  # pinned: the devices of each stage
    several: Several | None = None  # pipelines; None: one

    def to_json(self) -> dict[str, Any]:
        """Plain values; "as given" for what stayed as it was given."""
        found = asdict(self) | {"devices": dict(self.devices)}
        if self.stage_devices is not None:
            found["stage_devices"] = [dict(group) for group in self.stage_devices]
        if self.several is None:
            del found["several"]
        for name in ("bandwidth", "latency", "memory_bytes"):
            found[name] = "as given" if found[name] is None else _finite(found[name])
        return found | {"network_bandwidth": _finite(self.network_bandwidth)}

    def told(self, cluster: Cluster) -> str:
        """One line: devices, links, memory, workload, planner. `cluster`: what they make of the cluster given."""
        parts = [devices_told(cluster), links_told(cluster), f"memory {memory_told(cluster)}"]
        if self.batch_size is not None:
            parts.append(f"batch size {self.batch_size}")
        if self.voxel_size is not None:
            parts.append(f"voxel size {voxel_size_text(self.voxel_size)}")
        if self.compression != 1:
            parts.append(f"boundaries compressed {self.compression:g} ×")
        chosen = "by hand" if self.cuts is not None or self.stage_devices is not None else self.planner
        several = f", {self.stages_per_device} stages per device" if self.stages_per_device > 1 else ""
        steps = f", {self.num_microbatches} microbatches per step" if self.num_microbatches > 1 else ""
        again = ", recomputation" if self.recompute else ""
        parts.append(f"planner {chosen}{several}{again}, schedule {self.schedule} ({self.weights}{steps})")
        if self.several is not None:
            parts.append(f"{self.several.count} pipelines, {self.several.rule}")
        return " · ".join(parts)


def devices_told(cluster: Cluster) -> str:
    """The devices in words, such as 2 × fast + slow on 2 nodes."""
    names = counted(device.type.name for device in cluster.devices)
    return f"{names} on {len(cluster.nodes)} nodes" if len(cluster.nodes) > 1 else names


def links_told(cluster: Cluster) -> str:
    """Bandwidth and latency within nodes and between them, of the links that there are."""
    own = [node.link for node in cluster.nodes if len(node.device_types) > 1]
    parts = []
    if own:
        parts.append(f"links {_links(own)}" + (" within nodes" if len(cluster.nodes) > 1 else ""))
    if len(cluster.nodes) > 1:
        parts.append(f"{_links([cluster.network])} between nodes")
    return ", ".join(parts) or "no links"


def memory_told(cluster: Cluster) -> str:
    """The limit of all devices, or of each type where they differ."""
    limits = {device.type.name: device.type.memory_bytes for device in cluster.devices}
    if len(set(limits.values())) == 1:
        return SIZE.shown(next(iter(limits.values())))
    return ", ".join(f"{name} {SIZE.shown(limit)}" for name, limit in limits.items())


def _links(links: Any) -> str:
    bandwidths = sorted(link.bandwidth for link in links)
    latencies = sorted(link.latency for link in links)
    told = _range(bandwidths, BANDWIDTH)
    return f"{told}, {_range(latencies, TIME)}" if latencies[-1] else told


def _range(values: list[float], quantity: Any) -> str:
    return " to ".join(dict.fromkeys(quantity.shown(value) for value in (values[0], values[-1])))


def _finite(value: float) -> float | str:
    """JSON knows no infinity."""
    return value if value < float("inf") else "no limit"
