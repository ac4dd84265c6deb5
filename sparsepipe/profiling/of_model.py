"""Profile a network by its name on a data set by its name: open both, choose minibatches, measure.

Which minibatches a network is measured on: from a tenth to twice the batch, and of small and large samples.

Costs are known at the sizes of the measurement, so the sizes cover what training will meet: the 1st to the 99th
percentile of
minibatches that are drawn at random from the samples at hand, and at least a factor of 8.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import data
from ..data.batch import PointBatch, Sample, collate
from ..data.examples.own import OwnExamples
from ..data.examples.recognising import is_examples
from ..data.order import Minibatches
from ..engines.native.coordinates import pack, unpack
from ..errors import InputError
from ..runtime.config import ProfileConfig, RunConfig
from ..runtime.workloads.opening import Dataset, LearningTask, one_minibatch, open_task
from ..runtime.workloads.resolved import ResolvedRun, resolve
from ..util.host.background_load import contending_processes
from ..util.host.cpu import check_threads
from ..util.io.fields import given_integer
from ..util.io.quantities import knows_its_keywords
from ..util.text.numbers import number_of, sizes_spread
from ..values.profile import Profile, voxels_by_stride
from .devices import limited_to, usable
from .measure import Progress, Training, profile

# Settings of a run that trains what was measured: the network, the data and the sizes.
_OF_RUN = ("model", "model_args", "data", "data_args", "loss", "loss_args", "batch_size", "num_points", "freeze")
# Settings of a run that `data_args` may hold: they say what samples are. A data function has options of its own.
_OF_CLOUDS, _OF_EXAMPLES = ("collate", "crop", "features"), ("collate",)
_PARTS = (0.1, 0.25, 0.5, 1.0, 2.0)  # of a minibatch's samples: the smallest tells what does not grow
_SPAN = 8.0  # least factor between the smallest and the largest minibatch
_DRAWS = 1000  # minibatches drawn at random for the percentiles
_STEP = 2.0  # most between two sizes of whole minibatches
_APART = 1.1  # least between any two sizes: closer ones tell nothing new
_LEAST_VOXELS = 100  # of a cropped minibatch: with fewer, coarse layers may be left with one, which batch norm refuses

# Minibatches that are read for their sizes: so many at least, and more for a few seconds.
_LEAST_READ, _MOST_READ, _READ_SECONDS = 6, 64, 5.0
_STRIDES = 8  # whose voxels are counted: up to 128
_MEASURING_SECONDS = 300.0  # after which no minibatch larger than training's is measured


@knows_its_keywords
def profile_model(
    model: str | nn.Module,
    source: str | Path,
    *,
    batch_size: int,
    voxel_size: float | None = None,
    num_points: int | str = "all",
    model_args: Mapping[str, Any] | None = None,
    data_args: Mapping[str, Any] | None = None,
    loss: str | None = None,
    loss_args: Mapping[str, Any] | None = None,
    freeze: Sequence[str] = (),
    engine: str = "auto",
    device: str = "cpu",
    device_type: str | None = None,
    repeats: int | None = None,
    threads: int = 1,
    seed: int = 0,
    beside: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Measure the costs of a network's layers on minibatches of the training split.

    Sizes range from a tenth to twice the batch size. They cover the 1st to 99th percentile of random minibatches, and
    at least a factor of 8. The measurement takes a few minutes at most.

    Args:
        model: Name of a built-in network, `package.module:function`, `path/net.py:function`, or a torch module.
        source: Folder or name of a data set, or a function such as `path/data.py:function`.
        batch_size: Samples per minibatch.
        voxel_size: Voxel edge, as a share of a cloud's longest side, or in metres if the data set is metric.
        num_points: Maximum number of points of a cloud, and number sampled from a mesh. "all": all points, 1,024 of a
            mesh.
        model_args: Arguments of the network's function.
        data_args: Arguments of the data set's function, `collate`, or of clouds `crop` and `features`.
        loss: Loss function, by name or as `path/loss.py:function`. Default: that of the data set.
        loss_args: Arguments of the loss function.
        freeze: Patterns of weights that the run freezes, such as "backbone.*": their layers get no gradients.
        engine: Sparse-convolution backend: "auto", "native", "minkowski", "spconv" or "torch".
        device: "cpu" or "cuda".
        device_type: Name of the device type in the profile. Default: its hardware name.
        repeats: Number of timed passes. Default: as many as a reliable median needs.
        threads: CPU threads per process, as in the later run.
        seed: Random seed of weights and samples.
        beside: Number of other processes that run the same workload during the measurement, like the other ranks of a
            run.
        progress: Callback that receives a line of text for each step.

    Returns:
        The profile, with time and memory of each layer at several sizes.

    Raises:
        InputError: Unknown names or invalid data.

    Example:
        >>> shapes = sp.data.make_shapes("shapes", num_train=8, num_test=4)
        >>> measured = sp.profile_model("minkpointnet", shapes, batch_size=8, voxel_size=0.1, repeats=2)
        >>> measured.size_unit, all(cost.at(500).forward >= 0 for cost in measured.costs[measured.device_types[0]])
        ('voxels', True)

    See also:
        background/measurement_quality, background/costs_by_size, guides/own_network, `partition`
    """
    usable(device)
    given_integer(threads, "threads:")
    check_threads(threads)
    ProfileConfig(device_type, repeats, beside)  # checks them
    names = _OF_EXAMPLES if is_examples(str(source)) else _OF_CLOUDS
    of_data = {name: value for name, value in (data_args or {}).items() if name in names and value is not None}
    data_args = {name: value for name, value in (data_args or {}).items() if name not in names}
    config = RunConfig(
        model=model if isinstance(model, str) else type(model).__name__,
        data=str(source),
        batch_size=batch_size,
        num_points=num_points,
        model_args=_as_json(model_args),
        data_args=_as_json(data_args),
        loss=loss,
        loss_args=_as_json(loss_args),
        freeze=tuple(freeze),
        engine=engine,
        device=device,
        threads=threads,
        seed=seed,
        validate=False,
    )
    if voxel_size is not None:
        config = config.replace(voxel_size=voxel_size)
    config = config.replace(**of_data)
    if beside and not isinstance(model, str):
        raise InputError(
            "profiler.not_importable",
            f"{number_of(beside, 'other process')} cannot import a {config.model}; write it to a file (%%writefile "
            "net.py), and give 'net.py:function'",
        )
    run = resolve(config, None if isinstance(model, str) else model)
    task, order = opened(run, voxel_size_given=voxel_size is not None)
    dataset = task.training
    if isinstance(dataset, data.VoxelDataset):  # those that a run will read, too
        splits = [split for split in ("train", "test") if split in dataset.folder.splits]
        run.check_clouds(splits, engine=task.engine.name)
    typical, shapes, sample_sizes, reading = _read(dataset, order)
    count = min(batch_size, len(dataset))
    if count < batch_size and progress:
        progress(
            f"batch size {batch_size}: the training split has {count} samples, so minibatches of {count} are measured"
        )
    batches = spread(dataset, sample_sizes, batch_size=count)
    origin = {
        "data": dataset.origin,
        "first_reading_seconds": reading,
        "seed": seed,
        "beside": beside,
        "sample_sizes": sizes_spread(list(sample_sizes.values())),
    }
    for name, value in (("model_args", config.model_args), ("loss", config.loss)):
        if value is not None:
            origin[name] = value
    if isinstance(model, str):  # another module cannot be named
        known = {name: getattr(config, name) for name in _OF_RUN}
        known |= {"voxel_size": voxel_size} | {name: getattr(config, name) for name in of_data}
        origin["settings"] = {name: value for name, value in known.items() if value not in (None, ())}
    likewise = config.replace(engine=task.engine.name).to_json()  # said aloud once, and theirs too
    training = Training(
        sizes=typical,
        batch_size=count,
        size_unit=dataset.size_unit,
        origin=origin,
        read=lambda k: dataset.batch(order[k % len(order)], epoch=1),
        reads_targets=not dataset.targets_are_labels,
        loss=task.loss,
        most_seconds=_MEASURING_SECONDS,
    )
    with contending_processes(beside, __package__, likewise) as others, limited_to(threads):
        measured = profile(
            task.network,
            batches,
            task.engine,
            device=device,
            device_type=device_type,
            repeats=repeats,
            seed=seed,
            training=replace(training, contending=others),
            progress=progress,
        )
    return replace(measured, voxels_by_stride=_of_its_strides(measured, batches, shapes)) if shapes else measured


Shape = list[int]  # voxels at strides of 1, 2, 4 and so on


def _read(dataset: Dataset, order: Minibatches) -> tuple[list[float], list[Shape], dict[int, float], float]:
    """Read minibatches: (sizes of whole ones, shapes of clouds, sizes of samples by index, seconds of reading one)."""
    seconds, number = 0.0, 0  # of reading alone: shapes are counted for the profile, not for training
    typical, shapes, samples = list[float](), list[Shape](), dict[int, float]()
    of_all = None if dataset.size_unit == "voxels" else dataset.sample_sizes()
    for number, indices in enumerate(order[:_MOST_READ], start=1):
        start = time.perf_counter()
        batch = dataset.batch(indices)
        seconds += time.perf_counter() - start
        sizes = batch.voxel_counts.tolist() if of_all is None else [of_all[index] for index in indices]
        samples.update(zip(indices, sizes, strict=True))
        if len(indices) == len(order[0]):
            typical.append(batch.size)
            shapes += [shape(batch)] if of_all is None else []
        if number >= _LEAST_READ and seconds > _READ_SECONDS:
            break
    return typical, shapes, samples, seconds / number


def shape(batch: PointBatch) -> Shape:
    """Count a minibatch's voxels at strides of 1, 2, 4 and so on, as a network that halves them has them."""
    coordinates, counts = batch.coordinates.clone(), [batch.size]
    for _ in range(_STRIDES - 1):
        coordinates[:, 1:] >>= 1
        coordinates = unpack(torch.unique(pack(coordinates)), coordinates.shape[1] - 1)
        counts.append(len(coordinates))
    return counts


def _of_its_strides(
    profile: Profile, batches: Sequence[PointBatch], shapes: Sequence[Shape]
) -> tuple[tuple[float, ...], ...]:
    """Take from `shapes` the strides that the network has: those with the counts that were met in `batches`.

    Empty if it has another stride than powers of two, or one alone.
    """
    (costs,) = profile.costs.values()
    counts, _ = voxels_by_stride(costs)
    known = {batch.size: shape(batch) for batch in batches}
    there = np.array([known[size] for size in counts[0]]).T  # [strides, minibatches]
    places = [np.flatnonzero((there == stride_count).all(axis=1)) for stride_count in counts]
    if len(counts) == 1 or not all(map(len, places)):
        return ()
    return tuple(tuple(float(layer_shape[place[0]]) for place in places) for layer_shape in shapes)


def _as_json(args: Mapping[str, Any] | None) -> str | None:
    return json.dumps(dict(args)) if args else None


def opened(run: ResolvedRun, *, voxel_size_given: bool = True) -> tuple[LearningTask, Minibatches]:
    """Return what the settings name, for training alone, and the order of its minibatches.

    Raises InputError for point clouds without a voxel size.
    """
    config, task = run.config, open_task(run, validates=False)
    if task.training.size_unit == "voxels" and not voxel_size_given:
        text = f"{config.data}: profiling point clouds requires a voxel size; give {{voxel_size}}, such as 0.05"
        raise InputError("profiler.no_voxel_size", text, setting="voxel_size")
    count = len(task.training)
    in_order = isinstance(task.training, OwnExamples) and task.training.in_order
    options: dict[str, Any] = {"batch_size": config.batch_size, "seed": config.seed, "shuffle": not in_order}
    return task, data.minibatches(count, epoch=0, **options)


def spread(dataset: Dataset, sizes: dict[int, float], *, batch_size: int) -> tuple[Any, ...]:
    """Make minibatches of different sizes, smallest first, of the samples whose sizes are given by index.

    Parts of a minibatch have fewer samples; of point clouds also a part of each sample, cut off along its longest axis,
    if there are not enough samples: for less than one, of the smallest sample that has as much. Minibatches of other
    examples have at least two samples, unless all have one: over a single sample batch norm cannot normalise.
    """
    sizes = dict(sorted(sizes.items(), key=itemgetter(1)))
    clouds = dataset.size_unit == "voxels"
    least = 1 if clouds else min(2, batch_size)
    made = [_part(dataset, sizes, part * batch_size, least=least, clouds=clouds) for part in _PARTS]
    batches_by_size = {batch.size: batch for batch in made}
    most = 2 * batch_size
    while max(batches_by_size) < _SPAN * min(batches_by_size) and most < 2 * _SPAN * batch_size:
        most *= 2
        larger = _part(dataset, sizes, most, least=least, clouds=clouds)
        batches_by_size[larger.size] = larger
    for indices in _whole(list(sizes), list(sizes.values()), batch_size):
        batch = dataset.batch(one_minibatch(dataset, indices))
        if all(max(batch.size, size) >= _APART * min(batch.size, size) for size in batches_by_size):
            batches_by_size[batch.size] = batch
    return tuple(batches_by_size[size] for size in sorted(batches_by_size))


def _part(dataset: Dataset, sizes: Mapping[int, float], samples: float, *, least: int, clouds: bool) -> Any:
    """A minibatch of typical samples: as many small as middling and large ones, some again if there are too few.

    `sizes`: of samples by index, growing.
    """
    order, count = list(sizes), max(least, round(samples))
    indices = [order[int((k + 0.5) * len(order) / count)] for k in range(count)]
    if clouds and samples < 1:
        voxels = samples * float(np.mean(list(sizes.values())))
        indices = [next(index for index in order if sizes[index] >= voxels)]
        samples = voxels / sizes[indices[0]]
    batch = dataset.batch(one_minibatch(dataset, indices))
    whole = not clouds or samples >= count or batch.size * samples / count < _LEAST_VOXELS
    return batch if whole else cropped(batch, samples / count)


def _whole(order: Sequence[int], sizes: Sequence[float], batch_size: int) -> list[Sequence[int]]:
    """Minibatches of similar samples, from the 1st to the 99th percentile of random ones, at most _STEP apart."""
    if len(order) <= batch_size:
        return []
    random = np.random.default_rng(0)
    drawn = np.array(sizes)[random.integers(len(sizes), size=(_DRAWS, batch_size))].sum(axis=1)
    low, high = np.quantile(drawn, (0.01, 0.99))
    sums = np.convolve(sizes, np.ones(batch_size), mode="valid")  # of each run of samples that are next in size
    steps = max(1, math.ceil(math.log(max(high / max(low, 1.0), 1.0), _STEP)))
    starts = {int(np.abs(sums - aim).argmin()) for aim in np.geomspace(max(low, 1.0), max(high, 1.0), steps + 1)}
    return [order[start : start + batch_size] for start in sorted(starts)]


def cropped(batch: PointBatch, share: float) -> PointBatch:
    """Keep a share of every sample's voxels: those at one end of its longest axis, as dense as before."""
    return collate([_cropped(sample, share) for sample in batch.samples()])


def _cropped(sample: Sample, share: float) -> Sample:
    extent = sample.coordinates.amax(dim=0) - sample.coordinates.amin(dim=0)
    along = sample.coordinates[:, int(extent.argmax())]
    nearest_rows = torch.argsort(along, stable=True)[: max(1, round(share * len(along)))].sort().values
    label = sample.label[nearest_rows] if isinstance(sample.label, Tensor) else sample.label
    return Sample(sample.coordinates[nearest_rows], sample.features[nearest_rows], label)
