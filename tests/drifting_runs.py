"""Simulated runs whose sizes vary tenfold: costs as measured, a machine's noise, and what goes wrong on the way."""

import json
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from sparsepipe import Cluster, CostSample, DeviceType, LayerCost, Link, Node, Plan, Profile, RunRecord, Stage, simulate
from sparsepipe.records import Origin
from sparsepipe.values.stragglers import Stragglers
from sparsepipe.values.trace import Span

MEASURED = Path(__file__).parent.parent / "data_manifests" / "profiles" / "minkvgg16bn.json"
_SIZES = (1000.0, 2500.0, 7401.0, 15000.0)


def profile_of_many_sizes():
    """MinkVGG16's layers as measured at 7,401 voxels; at other sizes a fifth of a layer's time stays, bytes do not.

    All of them together take .8 s there, however fast the machine was.
    """
    measured = Profile.load(MEASURED)
    kind = measured.device_types[0]
    samples = [layer.at(7401) for layer in measured.costs[kind]]
    pace = 0.8 / sum(sample.forward + sample.backward for sample in samples)

    def cost(sample, size):
        share = size / sample.size
        times = {
            name: getattr(sample, name) * pace * (0.2 + 0.8 * share)
            for name in ("forward", "backward", "kernel_map_seconds")
        }
        sizes = {name: getattr(sample, name) * share for name in ("output_bytes", "coordinate_bytes", "saved_bytes")}
        return CostSample(size, **times, **sizes)

    costs = tuple(LayerCost(tuple(cost(sample, size) for size in _SIZES)) for sample in samples)
    return Profile(measured.graph, {"cpu": costs}, _SIZES, {}, {"cpu": measured.update_rates[kind] * pace})


PROFILE = profile_of_many_sizes()
CPU = DeviceType("cpu")
LINK = Link(1e8, 1e-4)


def cluster_with(link=LINK, *, devices=2):
    return Cluster((Node("local", (CPU,) * devices, link),), link)


def halves(schedule="1f1b", **others):
    """Two stages on two ranks, of about half of the work each."""
    layers = [layer.id for layer in PROFILE.graph.layers]
    return Plan((Stage(tuple(layers[:12]), (0,)), Stage(tuple(layers[12:]), (1,))), schedule, **others)


def sizes_of(count, *, seed=0):
    """Voxels of as many minibatches, from 1,200 to 12,000, as likely at each scale."""
    return np.exp(np.random.default_rng(seed).uniform(np.log(1200), np.log(12000), count)).round()


@dataclass(frozen=True)
class Noise:
    """Of a machine: log-normal on every span, now and then a span that is interrupted, and sizes that are not exact."""

    times: float = 0.08
    sizes: float = 0.05
    interrupted: float = 0.02

    def on(self, spans, seed):
        random = np.random.default_rng([seed, 1])
        factors = np.exp(random.normal(0, self.times, len(spans)))
        factors *= 1 + (random.random(len(spans)) < self.interrupted) * random.exponential(2.0, len(spans))
        ends = [span.start + span.seconds * factor for span, factor in zip(spans, factors.tolist(), strict=True)]
        return [span._replace(end=end) for span, end in zip(spans, ends, strict=True)]

    def sizes_told(self, sizes, seed):
        factors = np.exp(np.random.default_rng([seed, 2]).normal(0, self.sizes, len(sizes)))
        return dict(enumerate((sizes * factors).tolist()))


@dataclass(frozen=True)
class Piece:
    """Minibatches in a row under the same conditions; stragglers count them from the piece's first on."""

    minibatches: int
    stragglers: str = ""
    link_factor: float = 1.0


def drifting(*pieces, seed=0, plan=None, noise=Noise()):
    """(spans, size of each minibatch) of a simulated run, piece after piece, each from an empty pipeline."""
    plan, sizes = plan or halves(), sizes_of(sum(piece.minibatches for piece in pieces), seed=seed)
    spans, first, begin = [], 0, 0.0
    for piece in pieces:
        own = sizes[first : first + piece.minibatches]
        link = Link(LINK.bandwidth / piece.link_factor, LINK.latency * piece.link_factor)
        cluster = cluster_with(link, devices=max(plan.ranks) + 1)
        trace = simulate(plan, PROFILE, cluster, own, stragglers=Stragglers.parse(piece.stragglers))
        for span in trace.spans:
            number, letters = first + span.minibatch, span.name.rstrip("0123456789")
            times = {"start": begin + span.start, "end": begin + span.end}
            spans.append(span._replace(minibatch=number, name=f"{letters}{number}", **times))
        first, begin = first + piece.minibatches, begin + trace.makespan
    return noise.on(spans, seed), noise.sizes_told(sizes, seed)


def as_measured(spans):
    """The same as a run records it: a send ends at once; the receiver waits from when it is free until it is there.

    What is there already is taken within a fifth of a millisecond.
    """
    free = free_before(spans)
    found = []
    for span in spans:
        if span.kind != "send":
            found.append(span)
            continue
        forwards = "F" in span.name
        stage = span.stage + 1 if forwards else span.stage - 1
        name = f"{stage}{'F' if forwards else 'B'}{span.minibatch}"
        begin = free[span.peer, name]
        found.append(span._replace(end=span.start + 1e-6))
        end = max(span.end, begin + 2e-4)
        found.append(Span(span.peer, name, begin, end, "wait", stage, span.minibatch, span.rank))
    return found


def free_before(spans):
    """(rank, name of a span of work) -> when the rank's work before it ended."""
    found, ended = {}, {}
    for span in sorted((s for s in spans if s.kind in ("forward", "backward")), key=lambda s: s.start):
        found[span.rank, span.name] = min(ended.get(span.rank, 0.0), span.start)
        ended[span.rank] = span.end
    return found


class WrittenRun:
    """A run's folder, to which rows are added as its ranks would."""

    def __init__(self, folder, plan=None, *, named=True):
        self.plan = plan or halves()
        self.record = RunRecord.create(folder, self.plan, {"engine": "replay", "model": "vgg"}, Origin())
        self.folder = folder
        if named:
            PROFILE.save(folder / "profile.json")
            (folder / "cluster.toml").write_text(cluster_with().to_toml())

    def add(self, spans, sizes, *, numbers=None, shift=0, unit="voxels"):
        """Add those spans and steps whose minibatches are among `numbers`, `shift` minibatches later."""
        chosen = [s for s in spans if numbers is None or s.minibatch in numbers]
        chosen.sort(key=lambda span: (span.rank, span.start))
        for rank, own in groupby(chosen, key=lambda span: span.rank):
            with (self.folder / f"trace-rank{rank}.jsonl").open("a") as file:
                file.writelines(
                    json.dumps(span._replace(minibatch=span.minibatch + shift)._asdict()) + "\n" for span in own
                )
        with (self.folder / "metrics.jsonl").open("a") as file:
            for number, size in sizes.items():
                if numbers is None or number in numbers:
                    row = {"event": "step", "epoch": 0, "minibatch": number + shift, unit: size}
                    file.write(json.dumps(row) + "\n")
        return self


SLOW_FROM = 80


def slowed(**others):
    """(spans, sizes) as measured, of a run whose rank 1 takes twice as long from minibatch 80 on."""
    spans, sizes = drifting(Piece(SLOW_FROM), Piece(60, "slow:rank=1,factor=2"), **others)
    return as_measured(spans), sizes
