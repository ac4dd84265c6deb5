"""One way of training one case, in a process of its own: its failures, its time, its peak and its weights."""

import gc
import hashlib
import json
import resource
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from scripts.bench.sizes.areas import Pictures
from sparsepipe import Plan, Profile, Stage
from sparsepipe.engines.allocator import free_bytes, return_freed_memory
from sparsepipe.networks.traced.subnetwork import LayerFailed
from sparsepipe.profiling.measure import Training, profile
from sparsepipe.profiling.of_model import opened
from sparsepipe.runtime.config import RunConfig
from sparsepipe.runtime.reporting.memory import PeakMemory
from sparsepipe.runtime.stages.base import Output
from sparsepipe.runtime.stages.memory_limit import RankMemory, SegmentChoice
from sparsepipe.runtime.stages.network_stage import NetworkStage
from sparsepipe.runtime.training_state.parameter_groups import open_optimizer
from sparsepipe.runtime.training_state.weights import Weights
from sparsepipe.runtime.workloads.opening import LearningTask
from sparsepipe.runtime.workloads.resolved import resolve
from sparsepipe.util.host.limits import limit_met
from sparsepipe.values.costs import LayerTable
from sparsepipe.values.recomputation import Segments, StageMemory

CPU = torch.device("cpu")
FACTOR = 20  # of the sizes
SIDE = 32  # of the smallest picture, in pixels
BLOCKS = 8  # of the controller
NOISE_BYTES = 16e6  # of Python, the input, and what libraries take besides tensors
CLOUDS = {"voxel_size": 0.02, "num_points": 1500}


@dataclass(frozen=True)
class Case:
    """A network, its data, and the most samples of a minibatch; 1: one sample, whose size differs."""

    model: str
    data: str
    most_samples: int

    def open(self) -> tuple[LearningTask, RunConfig]:
        config = RunConfig(self.model, self.data, engine="auto", learning_rate=1e-3, momentum=0.9, validate=False)
        config = config.replace(**CLOUDS) if "minkunet" in self.model else config
        return opened(resolve(config))[0], config

    def minibatches(self, task: LearningTask, count: int, seed: int) -> list[list[int]]:
        """Draw minibatches whose sizes spread evenly on a logarithmic scale."""
        random = np.random.default_rng(seed)
        if self.most_samples > 1:
            counts = np.exp(random.uniform(0, np.log(self.most_samples), count)).round().astype(int)
            return [random.choice(len(task.training), k, replace=False).tolist() for k in counts]
        sizes = np.asarray(task.training.sample_sizes())
        wanted = sizes.max() / FACTOR * FACTOR ** random.uniform(0, 1, count)
        return [[int(np.argmin(np.abs(np.log(sizes / size))))] for size in wanted]


def wide_pictures(split: str) -> Pictures:
    """Pictures whose areas differ by a factor of 20."""
    pictures = Pictures(120 if split == "train" else 8, 1)
    random = np.random.default_rng(2)
    sides = (SIDE * np.sqrt(FACTOR ** random.uniform(0, 1, len(pictures)))).astype(int)
    sides[:2] = SIDE, int(SIDE * np.sqrt(FACTOR))
    pictures._sides = np.stack([sides, sides], axis=1)
    return pictures


class Rows(nn.Module):
    """Layers of every pixel by itself, with batch norm, dropout and shortcuts, and their mean.

    Convolutions of oneDNN take several times the memory of tensors, which no profile of tensors counts.
    """

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(3, 64), nn.Linear(64, num_classes)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1)) for _ in range(6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.stem(x.movedim(1, -1).flatten(0, 2))
        for block in self.blocks:
            rows = rows + block(rows)
        scores: torch.Tensor = self.head(rows.mean(dim=0, keepdim=True))
        return scores


def deep(num_classes: int) -> nn.Module:
    return Rows(num_classes)


def profiled(case: Case, path: Path) -> Profile:
    """Profile a case on minibatches from its smallest to its largest."""
    task, _ = case.open()
    if case.most_samples > 1:
        picked = [list(range(k)) for k in (1, 2, 4, 9, case.most_samples)]
    else:
        sizes = np.asarray(task.training.sample_sizes())
        wanted = np.geomspace(sizes.min(), sizes.max(), 5)
        picked = [[int(np.argmin(np.abs(sizes - size)))] for size in wanted]
    batches = {batch.size: batch for batch in (task.training.batch(indices) for indices in picked)}
    judged = Training(size_unit=task.training.size_unit, loss=task.loss)
    found = profile(task.network, [batches[k] for k in sorted(batches)], task.engine, repeats=2, training=judged)
    found.save(path)
    return found


class Controller:
    """Decide how many of some equal blocks recompute, by a line through the last minibatches' measured peaks.

    peak = a + b × size × share of blocks that are kept. The idea is that of TRELLIS.2's controller of memory.
    """

    def __init__(self, num_layers: int, *, limit_bytes: float) -> None:
        ends = np.linspace(0, num_layers, BLOCKS + 1).round().astype(int).tolist()
        self._blocks = list(zip(ends, ends[1:], strict=False))
        self._limit_bytes = limit_bytes
        self._measured: deque[tuple[float, float]] = deque(maxlen=32)  # (size × share, peak)
        self._kept = 0

    def open(self, *_: Any) -> None: ...

    begin = leave = open

    def enter(self, stage: int, minibatch: int, size: float, part: float | None = None) -> SegmentChoice:
        """Return the blocks to recompute of a minibatch of this size."""
        share = 1.0 if not self._measured else 0.5
        if len({x for x, _ in self._measured}) > 1:
            slope, constant = np.polyfit(*np.array(self._measured).T, 1)
            share = (0.9 * self._limit_bytes - constant) / max(slope * size, 1e-9)
        self._kept = int(np.clip(share * BLOCKS, 0, BLOCKS))
        return SegmentChoice(tuple(self._blocks[: BLOCKS - self._kept]))

    def measured(self, size: float, peak_bytes: float) -> None:
        """Learn from a minibatch that is done."""
        self._measured.append((size * self._kept / BLOCKS, peak_bytes))


class Always:
    """The same segments for every minibatch."""

    def __init__(self, segments: Segments) -> None:
        self._segments = segments

    def open(self, *_: Any) -> None: ...

    begin = leave = open

    def enter(self, *_: Any) -> SegmentChoice:
        return SegmentChoice(self._segments)


def memory_of(found: Profile, size: float) -> StageMemory:
    """Return the layers of the whole network for a size."""
    (kind,) = found.device_types
    table = LayerTable.of(found, [size], [kind])
    return StageMemory.of(table, range(len(found.graph.layers)), [kind])


def train(case: Case, way: str, found: Profile, *, count: int, seed: int, share: float) -> dict[str, Any]:
    """Train in one way; return its row."""
    return_freed_memory()  # as workers under `--memory-limit` do; here in every way
    task, config = case.open()
    order = case.minibatches(task, count, seed)
    batches = {tuple(indices): task.training.batch(indices) for indices in order}
    sizes = [batches[tuple(indices)].size for indices in order]
    ids = tuple(layer.id for layer in found.graph.layers)
    plan = Plan((Stage(ids, (0,)),), "1f1b-flush", num_microbatches=1)
    whole = memory_of(found, max(sizes))
    weight_bytes = 2 * float(whole.weights.sum())
    least = weight_bytes + 1.09 * whole.leanest()[1].peak
    limit_bytes = max(share * (weight_bytes + whole.held().peak), least)
    memory: Any = None
    if way == "limit":
        memory = RankMemory(plan, 0, found, limit_bytes=limit_bytes)
    elif way == "always":
        memory = Always(whole.leanest()[0])
    elif way == "controller":
        memory = Controller(len(ids), limit_bytes=limit_bytes)
    _steps(case, task, config, plan, [min(batches.values(), key=lambda batch: batch.size)], None)  # brings libraries
    gc.collect()
    limit = -1
    if way in ("limit", "controller", "unprotected"):
        limit = int(_data_bytes() + limit_bytes + NOISE_BYTES)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))
    row = _steps(case, task, config, plan, [batches[tuple(indices)] for indices in order], memory)
    needed = sum(weight_bytes + memory_of(found, size).held().peak > limit_bytes for size in sorted(set(sizes)))
    return {
        "case": case.model,
        "way": way,
        "minibatches": count,
        "sizes": (min(sizes), max(sizes)),
        "limit_bytes": limit_bytes,
        "whole_bytes": weight_bytes + whole.held().peak,
        "sizes_beyond": needed / len(set(sizes)),
        "system_limit": limit,
        **row,
        **({"beyond": memory.minibatches_beyond} if way == "limit" else {}),
    }


def _steps(
    case: Case, task: LearningTask, config: RunConfig, plan: Plan, batches: Sequence[Any], memory: Any
) -> dict[str, Any]:
    runner = NetworkStage(
        task.network, task.engine, plan, 0, config=config, device=CPU, loss=task.loss,
        per_voxel=not task.training.targets_are_labels,
    )  # fmt: skip
    if memory is not None:
        runner.limit(memory)
    parameters = runner.parameters()
    weights = Weights(parameters, open_optimizer(config, parameters))
    weights.expect(range(len(batches)))
    watch, failed, losses, peaks = PeakMemory(CPU), [], [], []
    began, wall = time.process_time(), time.perf_counter()
    for m, batch in enumerate(batches):
        watch.restart(None)
        version = weights.acquire(weights.newest.index)
        gradients: list[Any] | None = None
        try:
            flight, outputs = runner.forward(batch, version, m)
            loss = runner.loss(outputs, batch.target, samples=len(batch))[0]
            flight.outputs = Output.of(loss)
            losses.append(float(loss.detach()))
            del outputs, loss
            gradients, _ = runner.backward(flight, [None])
        except (MemoryError, RuntimeError, LayerFailed) as error:
            # oneDNN says no more than that about memory.
            if not limit_met(error) and "could not create a primitive" not in str(error):
                raise
            failed.append(m)
            runner.begin(training=True)
        flight = None
        weights.release(version)
        if gradients is None:
            weights.skip()
        else:
            weights.accumulate(gradients)
            weights.update(weights.take_gradients(), config.learning_rate)
        peaks.append(watch.bytes())
        if isinstance(memory, Controller):
            memory.measured(batch.size, peaks[-1])
    seconds = time.process_time() - began
    digest = hashlib.sha256()
    for tensor in (*weights.newest.tensors.values(), *runner.buffers().values()):
        digest.update(tensor.detach().numpy().tobytes())
    return {
        "failed": failed,
        "seconds": seconds,
        "wall_seconds": time.perf_counter() - wall,
        "peak_bytes": max(peaks),
        "last_loss": losses[-1] if losses else None,
        "weights": digest.hexdigest(),
    }


def _data_bytes() -> int:
    """Bytes of the process that count for the system's limit, less those that its allocator has free."""
    rows = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(rows["VmData"].split()[0]) * 1024 - free_bytes()


if __name__ == "__main__":  # a way in a process of its own: what it is asked in JSON
    asked = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    own = Case(**asked.pop("case"))
    print(json.dumps(train(own, asked.pop("way"), Profile.load(asked.pop("profile")), **asked)))
