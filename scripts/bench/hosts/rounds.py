"""The competitors in turn over one shaped link, and what they sent."""

import statistics
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from network_hosts import Host, Network

from scripts.bench.document import say
from scripts.bench.rounds import load, quartiles, ratios
from scripts.bench.runtime.cases import CASES, Case
from scripts.bench.runtime.plans import plans, predict
from scripts.bench.runtime.processes import start
from sparsepipe.launching.probes.hosts import HostProbe
from sparsepipe.launching.probes.measure import measure_network_time
from sparsepipe.runtime.wire.handshake import new_secret
from sparsepipe.values.cluster import Cluster, DeviceType, Link, Node
from sparsepipe.values.costs import LayerTable
from sparsepipe.values.plan import Plan
from sparsepipe.values.profile import Profile

COMPETITORS = ("limit", "predicted", "pipeline", "ddp")
_BITS = 8


@dataclass(frozen=True)
class Bench:
    """One workload between two hosts, whose processes meet in `folder`."""

    name: str
    folder: Path
    network: Network
    repeats: int
    seconds: float

    @property
    def case(self) -> Case:
        return CASES[self.name]

    def profile(self) -> Profile:
        """Profile while another process does the same: both cores busy, as they will be."""
        start("profile", self.name, self.folder, self.seconds, world_size=2)
        return Profile.load(self.folder / "profile-0.json")

    def over(self, rate: str, found: Profile) -> dict[str, Any]:
        """Measure all competitors over links of a rate such as "200mbit"."""
        for host in self.network.hosts:
            self.network.shape(host, rate)
        link = self._start("link")[0]
        each = self._network_seconds()
        cluster = cluster_of(Link(link["bandwidth"], link["latency"]), each)
        plan, _ = plans(found, cluster)
        plan.save(self.folder / "plan.json")
        told = f"{link['bandwidth'] / 1e6:.1f} MB/s, {1e3 * link['latency']:.2f} ms, {1e9 * each:.1f} ns a byte"
        say(f"{self.name} over {rate} ({told} of a processor): {plan}")
        result: dict[str, list[float]] = {role: [] for role in COMPETITORS}
        sent: dict[str, list[float]] = {"predicted": [], "pipeline": [], "ddp": []}
        loads = []
        for repeat in range(self.repeats):
            loads.append(round(load(), 2))
            for role, rated, each in self._round(plan, found, cluster):
                result[role].append(rated)
                sent.get(role, []).append(each)
                say(f"{self.name}, {rate}, {repeat + 1}/{self.repeats}: {role} {rated:.1f} samples/s")
        return summary(result, sent, batch_size=self.case.batch_size, rate=bits_a_second(rate)) | {
            "link": {key: link[key] for key in ("bandwidth", "latency")} | {"network_seconds_per_byte": each},
            "plan": [list(stage.layers) for stage in plan.stages],
            "load": loads,
        }

    def _round(self, plan: Plan, found: Profile, cluster: Cluster) -> Iterator[tuple[str, float, float]]:
        """Yield each competitor, its samples a second, and the bytes that its busier host sent for a minibatch."""
        batch = self.case.batch_size
        limit = sum(
            one["samples_per_second"] for one in start("single", self.name, self.folder, self.seconds, world_size=2)
        )
        yield "limit", limit, 0.0
        rated = predict(plan, found, self.case, step_seconds=2 * batch / limit, cluster=cluster)
        yield "predicted", rated, expected_bytes(plan, found)
        for role, extra in (("pipeline", ["--sockets"]), ("ddp", ["--batch-size", str(batch // 2)])):
            before = [sent_bytes(host) for host in self.network.hosts]
            told = self._start(role, extra)[0]
            most = max(sent_bytes(host) - was for host, was in zip(self.network.hosts, before, strict=True))
            yield role, told["samples_per_second"], most / told["minibatches"]

    def _network_seconds(self) -> float:
        """Return what a byte takes of a processor's time at either end, as `sparsepipe cluster measure` finds it."""
        secret = new_secret().hex()
        with ExitStack() as stack:
            begun = []
            for host in self.network.hosts:
                node = Node(host.name, (DeviceType("cpu"),), address=host.address)
                begun.append(HostProbe(node, before=host.command([], only_network=True)))
                stack.callback(begun[-1].close)
            ports = [one.ask("listen", address=one.node.address, secret=secret)["port"] for one in begun]
            return statistics.mean(measure_network_time(begun, ports, secret).values())

    def _start(self, role: str, extra: list[str] | None = None) -> list:
        before = [host.command([], only_network=True) for host in self.network.hosts]
        return start(
            role,
            self.name,
            self.folder,
            self.seconds,
            world_size=2,
            extra=extra or [],
            before=before,
            interface="eth0",
        )


def cluster_of(link: Link, network_seconds_per_byte: float) -> Cluster:
    """Two hosts of one device each, and the link between them."""
    kind = DeviceType("cpu", network_seconds_per_byte=network_seconds_per_byte)
    nodes = (Node(f"host{k}", (kind,), address=f"10.77.0.{k}") for k in (1, 2))
    return Cluster(tuple(nodes), link)


def expected_bytes(plan: Plan, found: Profile) -> float:
    """Return how many bytes the busier host sends for a minibatch of mean size, as the simulator counts them."""
    table, index = LayerTable.of(found, [found.size()]), found.graph.index
    before, sent = set(found.graph.input_layers), Counter[int]()
    for stage, following in zip(plan.stages, plan.stages[1:], strict=False):
        before |= {index[id] for id in stage.layers}
        forward, backward = table.payload(before, between_hosts=True)
        sent[stage.ranks[0]] += float(forward[0])
        sent[following.ranks[0]] += float(backward[0])
    return max(sent.values(), default=0.0)


def sent_bytes(host: Host) -> int:
    """Return how many bytes a host's interface has sent, headers of packets included."""
    words = host.command(["cat", "/proc/net/dev"], only_network=True)
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (line,) = (line for line in told.splitlines() if line.strip().startswith("eth0:"))
    return int(line.partition(":")[2].split()[8])


def bits_a_second(rate: str) -> float:
    return float(rate.removesuffix("mbit")) * 1e6


def summary(
    result: dict[str, list[float]], sent: dict[str, list[float]], *, batch_size: int, rate: float
) -> dict[str, Any]:
    """Return the part of the document that is about one link: medians, every run, ratios, and shares of the link."""
    document: dict[str, Any] = {role: statistics.median(found) for role, found in result.items()}
    document["runs"] = result
    for other in ("limit", "predicted", "ddp"):
        low, middle, high = quartiles(ratios(result["pipeline"], result[other]))
        document[f"pipeline/{other}"] = {"median": middle, "low": low, "high": high}
    for role, each in sent.items():
        bytes_of_each = statistics.median(each)
        share = _BITS * bytes_of_each * document[role] / batch_size / rate
        document[f"{role}_link"] = {"megabytes": bytes_of_each / 1e6, "share": share}
    return document
