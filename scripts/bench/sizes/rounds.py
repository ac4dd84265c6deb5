"""Measure one case: a profile, then minibatches that it has not seen."""

import statistics
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from scripts.bench.document import say
from scripts.bench.sizes.stages import StagePeaks, equal_cuts, predicted_peaks
from sparsepipe import Profile, profile_model
from sparsepipe.data.folder import data_folders
from sparsepipe.data.formats import read
from sparsepipe.data.order import Minibatches
from sparsepipe.engines.subnetwork import build
from sparsepipe.planning.scale import Scale
from sparsepipe.profiling.devices import limited_to
from sparsepipe.profiling.layer_timer import time_layers
from sparsepipe.profiling.measure import Training, profile
from sparsepipe.profiling.of_model import cropped, opened, shape
from sparsepipe.runtime.config import RunConfig
from sparsepipe.runtime.workloads.opening import LearningTask, one_minibatch
from sparsepipe.runtime.workloads.resolved import resolve

MODEL_OF_VOXELS, VOXEL_SIZE, BATCH_SIZE = "minkvgg11bn-narrow", 0.03, 16
PASSES = 8  # over each minibatch, in two turns: the second tells what the machine itself changes
PARTS = (0.25, 0.5, 1.0, 2.0)  # of a minibatch, whose peaks are measured
VOXEL_SIZES, BATCH_SIZES = (0.02, 0.05, 0.1), (4, 64, 128)
CPU = torch.device("cpu")

Shares = dict[str, tuple[float, ...]]  # size of a minibatch → share of each stage, of two stages and of three


@dataclass(frozen=True)
class Case:
    """A network on a data set."""

    name: str
    model: str
    data: str
    batch_size: int
    voxel_size: float | None = None
    num_points: int = 1024


@dataclass(frozen=True)
class Row:
    """How far predictions are off, as shares of what was measured."""

    case: str
    network: str
    minibatches: int
    least: float
    most: float  # sizes of the minibatches
    profiled: tuple[float, float]
    median: float
    percentile_95: float
    epoch: float
    again: float  # median difference between two turns over one minibatch: the machine's own
    memory: Shares  # of peaks
    own_memory: Shares  # the same by a profile of that very minibatch
    profile_seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measured(case: Case, *, minibatches: int, seed: int) -> Row:
    """Profile a case, then train on `minibatches` others. Raises InputError for data that are not here."""
    found = _profile(case)
    config = RunConfig(case.model, case.data, batch_size=case.batch_size, num_points=case.num_points, seed=seed + 1)
    config = config if case.voxel_size is None else config.replace(voxel_size=case.voxel_size)
    task, order = opened(resolve(config))
    subnetwork = build(task.network, task.engine, seed=seed)
    batches = [task.training.batch(indices) for indices in order[:minibatches]]
    sizes = [batch.size for batch in batches]
    (kind,) = found.device_types
    with limited_to(1):
        turns = np.array([[_seconds(subnetwork, batch) for batch in batches] for _ in range(2)])
        memory, own_memory = _memory(found, task, order, config)
    seconds = turns.mean(axis=0)
    costs = found.costs_at(kind, sizes)
    predicted = (costs["forward"] + costs["backward"]).sum(axis=0)
    off = np.abs(predicted / seconds - 1)
    return Row(
        case.name,
        case.model,
        len(batches),
        min(sizes),
        max(sizes),
        found.measured_sizes(kind),
        float(np.median(off)),
        float(np.quantile(off, 0.95)),
        float(predicted.sum() / seconds.sum() - 1),
        float(np.median(np.abs(turns[1] / turns[0] - 1))),
        memory,
        own_memory,
        found.origin["measuring_seconds"],
    )


def _seconds(subnetwork: Any, batch: Any) -> float:
    time_layers(subnetwork, batch, device=CPU)
    return statistics.median(time_layers(subnetwork, batch, device=CPU).seconds for _ in range(PASSES // 2))


def _memory(found: Profile, task: LearningTask, order: Minibatches, config: RunConfig) -> tuple[Shares, Shares]:
    """Compare the peaks of stages, by size of a minibatch, a quarter to twice the batch.

    Predicted by the profile with the minibatch's voxels at each stride, or number of samples, and by a profile of that
    very minibatch: what these differ by is its samples' shape, as far as these do not tell it.
    """
    settings = RunConfig(**{**config.to_json(), "learning_rate": 0.01, "momentum": 0.9})
    judged = Training(size_unit=found.size_unit, loss=task.loss)
    plans = [equal_cuts(found, count) for count in (2, 3)]
    shares, own_shares = Shares(), Shares()
    for batch in _parts(task, order, config.batch_size):
        own = profile(task.network, [batch], task.engine, repeats=1, training=judged)
        took = [StagePeaks(task, plan, settings).measured(batch, minibatches=2 * len(plan.stages)) for plan in plans]
        like_it = replace(found, origin={**found.origin, "batch_size": len(batch)})
        if found.voxels_by_stride:
            like_it = replace(like_it, voxels_by_stride=(tuple(shape(batch)[: len(found.voxels_by_stride[0])]),))
        for known, by_size in ((like_it, shares), (own, own_shares)):
            guessed = [predicted_peaks(known, plan, batch.size) for plan in plans]
            by_size[f"{batch.size:g}"] = tuple(
                guess / peak - 1 for guess, peak in zip(chain(*guessed), chain(*took), strict=True)
            )
    return shares, own_shares


def _parts(task: LearningTask, order: Minibatches, batch_size: int) -> list[Any]:
    dataset, clouds = task.training, task.training.size_unit == "voxels"
    indices = [index for k in range(2) for index in order[k]]
    found = []
    for part in PARTS:
        count = max(1 if clouds else 2, round(part * batch_size))
        batch = dataset.batch(one_minibatch(dataset, indices[:count]))
        found.append(cropped(batch, part) if clouds and part * batch_size < 1 else batch)
    return found


def scaled(data: Path) -> list[dict[str, float]]:
    """Compare a profile at other voxel and batch sizes with profiles measured there: a row for each, its own, too."""
    known = _profile(Case("", MODEL_OF_VOXELS, str(data), BATCH_SIZE, VOXEL_SIZE))
    counts = {VOXEL_SIZE: known.size() / BATCH_SIZE}
    there: dict[tuple[int, float], Profile] = {}
    for voxel_size in VOXEL_SIZES:
        there[BATCH_SIZE, voxel_size] = _profile(Case("", MODEL_OF_VOXELS, str(data), BATCH_SIZE, voxel_size))
        counts[voxel_size] = there[BATCH_SIZE, voxel_size].size() / BATCH_SIZE
    for batch_size in BATCH_SIZES:
        there[batch_size, VOXEL_SIZE] = _profile(Case("", MODEL_OF_VOXELS, str(data), batch_size, VOXEL_SIZE))
    there[BATCH_SIZE, VOXEL_SIZE] = _profile(Case("", MODEL_OF_VOXELS, str(data), BATCH_SIZE, VOXEL_SIZE))  # again
    scale, layers = Scale.of(known, counts), range(len(known.graph.layers))
    assert scale is not None
    rows = []
    for (batch_size, voxel_size), own in there.items():
        guess = scale.scaled(known, batch_size, voxel_size)
        (kind,) = known.device_types
        predicted, took = (sum(one.time(layers, kind)) for one in (guess, own))
        rows.append({"batch_size": batch_size, "voxel_size": voxel_size, "off": predicted / took - 1})
    return rows


def _profile(case: Case) -> Profile:
    return profile_model(
        case.model,
        case.data,
        batch_size=case.batch_size,
        voxel_size=case.voxel_size,
        num_points=case.num_points,
        progress=say,
    )


def tiles(folder: Path, *, least: int = 300, most: int = 5000, seed: int = 0) -> Path:
    """Cut the LAS files and scans below SPARSEPIPE_DATA into upright tiles; where none are there, make no folder.

    Each is halved across its longer side until it has fewer points than a number drawn between `least` and `most`.
    """
    random = np.random.default_rng(seed)
    for kind, pattern in (("air", "outside/clouds/**/*.las"), ("ground", "scans/*.bin")):
        cut = []
        for path in (path for root in data_folders() for path in sorted(root.glob(pattern))):
            left = [np.asarray(read(path).points, dtype=np.float32)[:, :3]]
            while left:
                points = left.pop()
                if len(points) <= random.uniform(least, most):
                    cut.append(points)
                    continue
                axis = int(np.argmax(np.ptp(points[:, :2], axis=0)))
                low = points[:, axis] <= np.median(points[:, axis])
                left += [points[low], points[~low]] if 0 < low.sum() < len(points) else []
        if not cut:
            return folder
        for split in ("train", "test"):
            (folder / kind / split).mkdir(parents=True)
        for k, points in enumerate(cut):
            np.save(folder / kind / ("train" if k % 8 else "test") / f"{kind}_{k:03d}.npy", points)
    return folder


def varied_clouds(folder: Path, *, samples: int = 40, seed: int = 0) -> Path:
    """Write clouds of 1,700 to 50,000 points on bent surfaces: a coefficient of variation above .7."""
    random = np.random.default_rng(seed)
    for kind, bend in (("waves", 4.0), ("bowls", 1.5)):
        for split, count in (("train", samples), ("test", 4)):
            (folder / kind / split).mkdir(parents=True)
            for k in range(count):
                points = int(np.clip(9000 * np.exp(0.9 * random.standard_normal()), 1700, 50_000))
                x, y = random.random((2, points))
                z = 0.5 + 0.3 * np.sin(bend * x + k) * np.cos(bend * y)
                np.save(folder / kind / split / f"{kind}_{k:03d}.npy", np.stack([x, y, z], axis=1).astype(np.float32))
    return folder
