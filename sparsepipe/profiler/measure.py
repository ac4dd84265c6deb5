"""Measure every layer of a network on this machine, at several voxel counts: (network, batches, engine) -> Profile."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from .. import data
from ..data.batch import PointBatch
from ..data.order import Minibatches
from ..engines import Engine
from ..engines.native.coordinates import CoordinateManager, pack
from ..engines.subnetwork import build
from ..errors import InputError
from ..fields import given_integer
from ..host import cpu
from ..host.background_load import num_processors, watched
from ..host.contention import contending_processes
from ..host.openmp import WAITING, check_threads
from ..losses import CrossEntropy, Loss
from ..models.base import AnyNetwork
from ..models.rows import Row, each_axis
from ..profile import CostSample, LayerCost, Profile, StepOverhead
from ..runtime.config import DataConfig
from ..runtime.workloads.opening import Dataset, LearningTask, open_task
from .layer_timer import moment, seconds_between, time_layers
from .repeats import Repeater, Repeats
from .saved_bytes import kept_bytes

Progress = Callable[[str], None]
CPU = torch.device("cpu")
_LEAST_REPEATS, _MOST_REPEATS = 5, 30  # passes over a minibatch where nobody says how many
_MAP_REPEATS = 3  # of each layer that makes a kernel map, once the map is there
_SMALL_REPEATS = 20  # of what a step does beside its layers
_MOST_BESIDE = 64  # further processes: more would only fill the memory
_CANDIDATE_MINIBATCHES = 6  # at most so many minibatches' samples are looked at to choose what to measure on


def profile_model(
    model: str | nn.Module,
    source: str | Path,
    *,
    batch_size: int,
    voxel_size: float | None = None,
    num_points: int = 1024,
    model_args: Mapping[str, Any] | None = None,
    data_args: Mapping[str, Any] | None = None,
    loss: str | None = None,
    loss_args: Mapping[str, Any] | None = None,
    engine: str = "auto",
    device: str = "cpu",
    device_type: str | None = None,
    repeats: int | None = None,
    threads: int = 1,
    seed: int = 0,
    beside: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Profile a model on minibatches of a data set's training split, small, typical and large ones.

    `model` is a name of ours, `package.module:function` or `path/net.py:function` (called with `model_args`), or in a
    notebook an nn.Module itself. `source` is a data set's folder, a manifest's name, or a function of the user's own
    (called with `data_args`); point clouds need a `voxel_size`.
    `sizes` of the profile are those of random minibatches. On a CPU, `threads` cores make one device: measure
    with as many as each worker will have, and with `beside` so many further processes at the same work, as the other
    workers of the machine will be. Raises InputError for unknown names and bad data.
    """
    usable(device)
    given_integer(beside, "processes beside:")
    given_integer(batch_size, "batch size")
    given_integer(threads, "threads:")
    check_threads(threads)
    if not 0 <= beside <= _MOST_BESIDE:
        raise InputError(
            f"{beside} processes beside the one that is measured, expected 0 or more, at most {_MOST_BESIDE}"
        )
    config = DataConfig(
        model=model if isinstance(model, str) else type(model).__name__,
        data=str(source),
        batch_size=batch_size,
        num_points=num_points,
        model_args=_as_json(model_args),
        data_args=_as_json(data_args),
        loss=loss,
        loss_args=_as_json(loss_args),
        validate=False,
    )
    if voxel_size is not None:
        config = config.replace(voxel_size=voxel_size)
    if beside and not isinstance(model, str):
        raise InputError(
            f"a {config.model} profiled beside {beside} other processes, which cannot import it: write it to a file "
            "(%%writefile net.py) and give 'net.py:function'"
        )
    module = None if isinstance(model, str) else model
    task, order = opened(config, engine=engine, seed=seed, module=module, voxel_size_given=voxel_size is not None)
    dataset = task.training
    order = order[:_CANDIDATE_MINIBATCHES]
    start = time.perf_counter()
    typical = [dataset.batch(indices) for indices in order]
    reading = (time.perf_counter() - start) / len(order)
    count = min(batch_size, len(dataset))
    if isinstance(typical[0], PointBatch):
        batches = spread_batches(typical, batch_size=count)
    else:
        batches = spread_examples(dataset, [index for indices in order for index in indices], batch_size=count)
    origin = {"data": dataset.origin, "first_reading_seconds": reading, "seed": seed, "beside": beside}
    for name, value in (("model_args", config.model_args), ("loss", config.loss)):
        if value is not None:
            origin[name] = value
    counts = [batch.size for batch in typical if len(batch) == len(typical[0])]
    likewise = {"config": config.to_json(), "engine": engine, "seed": seed, "device": device, "threads": threads}
    with contending_processes(beside, __package__, likewise) as others, limited_to(threads):
        return profile(
            task.network,
            batches,
            task.engine,
            device=device,
            device_type=device_type,
            repeats=repeats,
            seed=seed,
            sizes=counts,
            origin=origin,
            progress=progress,
            others=others,
            read=lambda k: dataset.batch(order[k % len(order)], epoch=1),
            loss=task.loss,
            size_unit=dataset.size_unit,
        )


def _as_json(args: Mapping[str, Any] | None) -> str | None:
    return json.dumps(dict(args)) if args else None


def opened(
    config: DataConfig,
    *,
    engine: str,
    seed: int,
    module: nn.Module | None = None,
    voxel_size_given: bool = True,
) -> tuple[LearningTask, Minibatches]:
    """Return what the settings name, for training alone, and the order of its minibatches.

    Raises InputError for point clouds without a voxel size.
    """
    task = open_task(config, engine_name=engine, seed=seed, module=module)
    if task.training.size_unit == "voxels" and not voxel_size_given:
        raise InputError(f"{config.data}: point clouds are profiled with a voxel size; give voxel_size, such as 0.05")
    count = len(task.training)
    return task, data.minibatches(count, batch_size=config.batch_size, seed=seed, epoch=0, shuffle=True)


@contextmanager
def limited_to(threads: int) -> Iterator[None]:
    """Keep torch, OpenMP and the BLAS libraries (MinkowskiEngine brings its own) to `threads` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        torch.set_num_threads(before)


def spread_batches(typical: Sequence[PointBatch], *, batch_size: int) -> tuple[PointBatch, ...]:
    """Choose up to three minibatches of `batch_size` samples: those of fewest, middling and most voxels.

    The number of samples stays what training uses: the classifier's cost depends on it. Where samples do not give
    three different voxel counts that way, halves and quarters of the largest minibatch step in.
    """
    samples = sorted((sample for batch in typical for sample in batch.samples()), key=len)
    return _spread(samples, batch_size, data.collate)


def spread_examples(dataset: Dataset, indices: Sequence[int], *, batch_size: int) -> tuple[Any, ...]:
    """The same of examples, by their sizes: minibatches of those samples of a data set whose indices are given.

    None has a single sample, unless all have: over that batch norm cannot normalise.
    """
    sizes = dataset.sample_sizes()
    return _spread(sorted(indices, key=lambda index: sizes[index]), batch_size, dataset.batch, least=2)


def _spread(
    samples: Sequence[Any], batch_size: int, made: Callable[[Sequence[Any]], Any], *, least: int = 1
) -> tuple[Any, ...]:
    """`samples` are sorted by size, `made` makes a minibatch of some of them: of `least` where it is a part of one."""
    starts = (0, (len(samples) - batch_size) // 2, len(samples) - batch_size)
    chosen = {batch.size: batch for batch in (made(samples[s : s + batch_size]) for s in starts)}
    for parts in (2, 4):
        if len(chosen) < 3 and batch_size >= parts * least:
            part = made(samples[-(batch_size // parts) :])
            chosen.setdefault(part.size, part)
    return tuple(chosen[count] for count in sorted(chosen))


def usable(name: str | torch.device) -> torch.device:
    """Return a device by name. Raises InputError for one that is not here."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError(f"device {name!r}: {str(error).splitlines()[0]}") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"device {str(device)!r}: torch sees {torch.cuda.device_count()} CUDA devices here; use 'cpu'")
    return device


def profile(
    network: AnyNetwork,
    batches: Sequence[Any],
    engine: Engine,
    *,
    device: str | torch.device = "cpu",
    device_type: str | None = None,
    warmup: int = 2,
    repeats: int | None = None,
    seed: int = 0,
    sizes: Sequence[float] = (),
    origin: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    others: Sequence[int] = (),
    read: Callable[[int], Any] | None = None,
    loss: Loss | None = None,
    size_unit: str = "voxels",
) -> Profile:
    """Measure each layer's forward and backward on `batches` of different sizes; median, interquartile range.

    The first minibatch is warmed up `warmup` times, each further one once. Where `repeats` is not given, each is passed
    over at least 5 times, and up to 30 times until half a second has gone into it and, on the middle minibatch, the sum
    over layers agrees with whole steps, without a clock in them. `origin` of the profile says how they compare. An
    update by SGD with momentum follows each pass and step.
    Passes whose threads waited for a processor are taken again, for a while; `origin` says what other load there was.
    `others`: processes (their ids) that are at work on our behalf meanwhile. `read`: reads one of the data set's
    minibatches, by a number; a step is told what that takes where every processor is at work on layers, as the thread
    that reads ahead then takes the time of one. `sizes` defaults to those of `batches`. `loss`: what the last stage
    judges the output by, the cross entropy of classes where it is not given.
    Raises InputError without batches, without repeats, for two batches of the same size, or without the device.
    """
    batches = sorted(batches, key=lambda batch: batch.size)
    counts = [batch.size for batch in batches]
    if not counts or len(set(counts)) < len(counts):
        raise InputError(f"minibatches of {counts} {size_unit} to profile on: expected one or more, all different")
    least, most = (_LEAST_REPEATS, _MOST_REPEATS) if repeats is None else (repeats, repeats)
    if least < 1 or warmup < 0:
        raise InputError(f"{repeats} repeats after {warmup} warm-up passes: expected at least 1 and 0")
    say = progress or (lambda line: None)
    device = usable(device)
    subnetwork = build(network, engine, seed=seed).to(device)
    crowd = torch.get_num_threads() * (1 + len(others)) / num_processors()
    repeater = Repeater(subnetwork, optimizer(subnetwork), device, least, most, crowded=crowd > 1)
    samples: list[dict[str, CostSample]] = []
    taken: list[Repeats] = []
    middle = len(batches) // 2
    with watched(others) as watch:
        for position, batch in enumerate(batches):
            for _ in range(warmup if position == 0 else min(warmup, 1)):
                time_layers(subnetwork, batch, device=device)
            say(f"profile {network.name} on {engine.name}: {batch.size} {size_unit}, {position + 1} of {len(batches)}")
            taken.append(repeater.repeat(batch, whole=position == middle))
            samples.append(_samples(subnetwork, batch, taken[-1], device))
        reading = _median_seconds(read, CPU) if read else 0.0
        loss_seconds = _loss_seconds(subnetwork, batches[middle], device, loss)
    costs = tuple(LayerCost(tuple(found[row.id] for found in samples)) for row in network.rows)
    name = device_type or ("cpu" if device.type == "cpu" else torch.cuda.get_device_name(device).replace(" ", "-"))
    rounds = [one for repeats in taken for one in repeats.rounds]
    facts: dict[str, Any] = {
        "source": "measured",
        "model": network.name,
        "engine": engine.name,
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        **({"environment": {WAITING: os.environ[WAITING]}} if WAITING in os.environ else {}),
        "torch": str(torch.__version__),
        "batch_size": len(batches[middle]),
        f"measured_{size_unit}": counts,
        "repeats": [len(repeats.rounds) for repeats in taken],  # of each of them
        "repeated_again": [repeats.num_again for repeats in taken],  # as threads waited for a processor
        "layers_over_whole": taken[middle].layers_over_whole,  # sum of the layers' seconds over those of a whole step
        "reading_seconds": reading,
        "input_seconds": statistics.median(one.layers.input_seconds for one in rounds),
        "background_load": replace(watch.load, **_waits(taken), threads_per_processor=crowd).to_json(),
    }
    num_bytes = sum(parameter.nbytes for parameter in subnetwork.parameters())
    updates = [seconds for one in rounds for seconds in one.updates]
    rates = {name: statistics.median(updates) / num_bytes} if num_bytes else {}
    overhead = StepOverhead(facts["input_seconds"] + (reading if crowd >= 1 else 0.0), loss_seconds)
    typical = tuple(sizes or counts)
    told = {**facts, **(origin or {})}
    return Profile(network.graph(), {name: costs}, typical, told, rates, {name: overhead}, size_unit=size_unit)


def _median_seconds(work: Callable[[int], Any], device: torch.device) -> float:
    """Return the median seconds of `work`, a small part of a step, after a warm-up."""
    taken = []
    for k in range(_SMALL_REPEATS + 2):
        start = moment(device)
        work(k)
        taken.append(seconds_between(start, moment(device)))
    return statistics.median(taken[2:])


def _loss_seconds(subnetwork: Any, batch: Any, device: torch.device, loss: Loss | None) -> float:
    """Return the seconds that the last stage spends on a network's output: loss, its gradient, correct predictions."""
    engine, outputs = subnetwork.engine, subnetwork.network.outputs
    with torch.no_grad():
        entering = subnetwork.enter(engine.tensor(batch, device))
        tensors = subnetwork(entering, minibatch=0, keep=outputs)
    leaves = {name: _as_leaf(engine.features(tensors[name])) for name in outputs}
    output = subnetwork.result(leaves)
    target: Any = batch.target
    if loss is None:
        (rows,) = leaves.values()
        loss, target = CrossEntropy(rows.shape[1]), torch.arange(len(rows)) % rows.shape[1]
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]

    def judged(_: int) -> None:
        scalar, _outcome = loss(output, target, samples=len(batch))
        if scalar.requires_grad:
            torch.autograd.grad(scalar, wanted, allow_unused=True)

    return _median_seconds(judged, device)


def _as_leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point())


def _waits(taken: Sequence[Repeats]) -> dict[str, float | None]:
    """Return the share of waiting in those passes alone that count."""
    waits = [one.waited_share for repeats in taken for one in repeats.rounds if one.waited_share is not None]
    return {"run_queue_wait_share": statistics.fmean(waits) if waits else None}


def optimizer(subnetwork: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum and a learning rate of 0: it takes its time and leaves the weights as they are."""
    return torch.optim.SGD(subnetwork.parameters(), lr=0.0, momentum=0.9, fused=True)


def device_name(device: torch.device) -> str:
    """Return the product name of a GPU, or of this machine's processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu.name() or platform.machine()


def _samples(subnetwork: Any, batch: Any, repeats: Repeats, device: torch.device) -> dict[str, CostSample]:
    """Turn the passes over one minibatch into one cost sample a layer."""
    kept, tensors = kept_bytes(subnetwork, batch, device=device)
    parts = subnetwork.engine.split(tensors)
    rows = [row for row in subnetwork.table if isinstance(row, Row)]  # of a traced module no kernel map is known
    maps = _kernel_maps(rows, parts)
    known = {parts.features[name].coordinate_set for name in subnetwork.network.inputs if name in parts.features}
    median = repeats.median
    map_seconds = _kernel_map_seconds(subnetwork, rows, tensors, maps, median.forward, device)
    crossing = _read_or_given(subnetwork.network)
    found = {}
    for row in subnetwork.table:
        output_bytes = coordinate_bytes = 0
        for features, coordinate_set in (parts.features[value] for value in row.outputs if value in crossing):
            output_bytes += features.nbytes
            if coordinate_set is not None and coordinate_set not in known:
                coordinate_bytes += parts.coordinate_sets[coordinate_set].coordinates.nbytes
            known.add(coordinate_set)
        forward, backward = (
            [getattr(one.layers, way)[row.id] for one in repeats.rounds] for way in ("forward", "backward")
        )
        found[row.id] = CostSample(
            batch.size,
            median.forward[row.id],
            median.backward[row.id],
            output_bytes,
            coordinate_bytes,
            kept[row.id],
            _interquartile(forward),
            _interquartile(backward),
            maps[row.id].pairs if row.id in maps else 0,
            map_seconds.get(row.id, 0.0),
        )
    return found


class _KernelMap(NamedTuple):
    source: tuple[int, ...]  # tensor strides
    target: tuple[int, ...]
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    pairs: int


def _read_or_given(network: AnyNetwork) -> frozenset[str]:
    """Return the values that another layer reads or that the network gives: those that may cross a boundary."""
    return frozenset(name for row in network.rows for name in row.inputs) | set(network.outputs)


def _kernel_maps(rows: Sequence[Row], parts: Any) -> dict[str, _KernelMap]:
    """Name the kernel map of every layer that has one: a fact of the coordinates, so one count serves every engine.

    They are the layers with a kernel on voxels: convolutions, pools, and those that lead back up, whose map is that of
    the layer down.
    """
    if not parts.coordinate_sets:
        return {}
    manager = CoordinateManager(parts.coordinate_sets[0].coordinates.shape[1] - 1)
    for stride, coordinates in parts.coordinate_sets:
        manager.insert(stride, pack(coordinates).sort().values)
    maps = {}
    for row in rows:
        sides = [parts.features[name].coordinate_set for name in (row.inputs[0], row.id)]
        if "kernel_size" in row.args and None not in sides:
            source, target = sorted(
                parts.coordinate_sets[side].tensor_stride for side in sides
            )  # the kernel lies on target
            given = (row.args["kernel_size"], row.args.get("dilation", 1))
            size, dilation = (each_axis(own, manager.dimension) for own in given)
            pairs = manager.kernel_map(source, target, kernel_size=size, dilation=dilation).num_pairs
            maps[row.id] = _KernelMap(source, target, size, dilation, pairs)
    return maps


def _kernel_map_seconds(
    subnetwork: Any,
    rows: Sequence[Row],
    tensors: Mapping[str, Any],
    maps: Mapping[str, _KernelMap],
    forwards: Mapping[str, float],
    device: torch.device,
) -> dict[str, float]:
    """Return what each layer's kernel map cost: by how much its first user's forward is shorter once it is there.

    `tensors` are those of a pass: their coordinate manager has all maps. `forwards` are the seconds without.
    """
    cost: dict[_KernelMap, float] = {}
    for row in rows:
        own = maps.get(row.id)
        if own is None or own in cost:
            continue
        again = []
        for _ in range(_MAP_REPEATS if max(own.kernel_size) > 1 or own.source != own.target else 0):
            start = moment(device)
            subnetwork.run_layer(row, tensors, minibatch=0)
            again.append(seconds_between(start, moment(device)))
        cost[own] = max(0.0, forwards[row.id] - statistics.median(again)) if again else 0.0  # a row alone needs no map
    return {id: cost[own] for id, own in maps.items()}


def _interquartile(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low
