"""Measure every layer of a network on this machine, at several voxel counts: (network, batches, engine) -> Profile."""

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

from .. import data
from ..data.batch import PointBatch
from ..data.order import Minibatches
from ..engines import Engine, Subnetwork
from ..engines import engine as engine_by_name
from ..engines.native.coordinates import CoordinateManager, pack
from ..errors import InputError
from ..fields import given_integer
from ..host import cpu
from ..host.background_load import num_processors, watched
from ..host.contention import contending_processes
from ..host.openmp import WAITING, check_threads
from ..losses import CrossEntropy
from ..models import INPUT, Network, network
from ..models.rows import each_axis
from ..profile import CostSample, LayerCost, Profile, StepOverhead
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
    model: str,
    source: str | Path,
    *,
    voxel_size: float,
    batch_size: int,
    num_points: int = 1024,
    engine: str = "auto",
    device: str = "cpu",
    device_type: str | None = None,
    repeats: int | None = None,
    threads: int = 1,
    seed: int = 0,
    beside: int = 0,
    progress: Progress | None = None,
) -> Profile:
    """Profile a named model on minibatches of a data set's training split, sparse, typical and crowded ones.

    `sizes` of the profile are those of random minibatches. On a CPU, `threads` cores make one device: measure
    with as many as each worker will have, and with `beside` so many further processes at the same work, as the other
    workers of the machine will be. Raises InputError for unknown names and bad data.
    """
    chosen = engine_by_name(engine)
    usable(device)
    given_integer(beside, "processes beside:")
    given_integer(batch_size, "batch size")
    given_integer(threads, "threads:")
    check_threads(threads)
    if not 0 <= beside <= _MOST_BESIDE:
        raise InputError(
            f"{beside} processes beside the one that is measured, expected 0 or more, at most {_MOST_BESIDE}"
        )
    sizes: dict[str, Any] = {"voxel_size": voxel_size, "batch_size": batch_size, "num_points": num_points, "seed": seed}
    net, dataset, order = opened(model, source, **sizes)
    order = order[:_CANDIDATE_MINIBATCHES]
    start = time.perf_counter()
    typical = [dataset.batch(indices) for indices in order]
    reading = (time.perf_counter() - start) / len(order)
    batches = spread_batches(typical, batch_size=min(batch_size, len(dataset)))
    origin = {"data": dataset.origin, "first_reading_seconds": reading, "seed": seed, "beside": beside}
    counts = [batch.num_voxels for batch in typical if len(batch) == len(typical[0])]
    likewise = {"model": model, "source": str(source), **sizes, "engine": engine, "device": device, "threads": threads}
    with contending_processes(beside, __package__, likewise) as others, limited_to(threads):
        return profile(
            net,
            batches,
            chosen,
            device=device,
            device_type=device_type,
            repeats=repeats,
            seed=seed,
            sizes=counts,
            origin=origin,
            progress=progress,
            others=others,
            read=lambda k: dataset.batch(order[k % len(order)], epoch=1),
        )


def opened(
    model: str, source: str | Path, *, voxel_size: float, batch_size: int, num_points: int, seed: int
) -> tuple[Network, data.VoxelDataset, Minibatches]:
    """Return a network, the training split of a data set, and the order of its minibatches."""
    dataset = data.load(source, split="train", voxel_size=voxel_size, num_points=num_points, seed=seed)
    order = data.minibatches(len(dataset), batch_size=batch_size, seed=seed, epoch=0, shuffle=True)
    net = network(model, num_classes=len(dataset.classes))
    return net, dataset.near_origin(net.coarsest_stride), order


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
    starts = (0, (len(samples) - batch_size) // 2, len(samples) - batch_size)
    chosen = {batch.num_voxels: batch for batch in (data.collate(samples[s : s + batch_size]) for s in starts)}
    for parts in (2, 4):
        if len(chosen) < 3 and batch_size >= parts:
            part = data.collate(samples[-(batch_size // parts) :])
            chosen.setdefault(part.num_voxels, part)
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
    network: Network,
    batches: Sequence[PointBatch],
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
    read: Callable[[int], PointBatch] | None = None,
) -> Profile:
    """Measure each layer's forward and backward on `batches` of different voxel counts; median, interquartile range.

    The first minibatch is warmed up `warmup` times, each further one once. Where `repeats` is not given, each is passed
    over at least 5 times, and up to 30 times until half a second has gone into it and, on the middle minibatch, the sum
    over layers agrees with whole steps, without a clock in them. `origin` of the profile says how they compare. An
    update by SGD with momentum follows each pass and step.
    Passes whose threads waited for a processor are taken again, for a while; `origin` says what other load there was.
    `others`: processes (their ids) that are at work on our behalf meanwhile. `read`: reads one of the data set's
    minibatches, by a number; a step is told what that takes where every processor is at work on layers, as the thread
    that reads ahead then takes the time of one. `sizes` defaults to those of `batches`.
    Raises InputError without batches, without repeats, for two batches of the same voxel count, or without the device.
    """
    batches = sorted(batches, key=lambda batch: batch.num_voxels)
    counts = [batch.num_voxels for batch in batches]
    if not counts or len(set(counts)) < len(counts):
        raise InputError(f"minibatches of {counts} voxels to profile on: expected one or more, all different")
    least, most = (_LEAST_REPEATS, _MOST_REPEATS) if repeats is None else (repeats, repeats)
    if least < 1 or warmup < 0:
        raise InputError(f"{repeats} repeats after {warmup} warm-up passes: expected at least 1 and 0")
    say = progress or (lambda line: None)
    device = usable(device)
    subnetwork = Subnetwork(network, engine, seed=seed).to(device)
    crowd = torch.get_num_threads() * (1 + len(others)) / num_processors()
    repeater = Repeater(subnetwork, optimizer(subnetwork), device, least, most, crowded=crowd > 1)
    samples: list[dict[str, CostSample]] = []
    taken: list[Repeats] = []
    middle = len(batches) // 2
    with watched(others) as watch:
        for position, batch in enumerate(batches):
            for _ in range(warmup if position == 0 else min(warmup, 1)):
                time_layers(subnetwork, batch, device=device)
            say(f"profile {network.name} on {engine.name}: {batch.num_voxels} voxels, {position + 1} of {len(batches)}")
            taken.append(repeater.repeat(batch, whole=position == middle))
            samples.append(_samples(subnetwork, batch, taken[-1], device))
        reading = _median_seconds(read, CPU) if read else 0.0
        loss_seconds = _loss_seconds(subnetwork, batches[middle], device)
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
        "measured_voxels": counts,
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
    return Profile(network.graph(), {name: costs}, typical, {**facts, **(origin or {})}, rates, {name: overhead})


def _median_seconds(work: Callable[[int], Any], device: torch.device) -> float:
    """Return the median seconds of `work`, a small part of a step, after a warm-up."""
    taken = []
    for k in range(_SMALL_REPEATS + 2):
        start = moment(device)
        work(k)
        taken.append(seconds_between(start, moment(device)))
    return statistics.median(taken[2:])


def _loss_seconds(subnetwork: Subnetwork, batch: PointBatch, device: torch.device) -> float:
    """Return the seconds that the last stage spends on a network's output: loss, its gradient, correct predictions."""
    engine, last = subnetwork.engine, subnetwork.table[-1].id
    with torch.no_grad():
        tensors = subnetwork({INPUT: engine.tensor(batch, device)}, minibatch=0, keep=(last,))
    rows = engine.features(tensors[last]).detach().requires_grad_()
    num_classes = rows.shape[1]
    labels, criterion = torch.arange(len(rows)) % num_classes, CrossEntropy(num_classes)

    def judged(_: int) -> None:
        loss, _outcome = criterion(rows, labels, samples=len(batch))
        torch.autograd.grad(loss, rows)

    return _median_seconds(judged, device)


def _waits(taken: Sequence[Repeats]) -> dict[str, float | None]:
    """Return the share of waiting in those passes alone that count."""
    waits = [one.waited_share for repeats in taken for one in repeats.rounds if one.waited_share is not None]
    return {"run_queue_wait_share": statistics.fmean(waits) if waits else None}


def optimizer(subnetwork: Subnetwork) -> torch.optim.Optimizer:
    """SGD with momentum and a learning rate of 0: it takes its time and leaves the weights as they are."""
    return torch.optim.SGD(subnetwork.parameters(), lr=0.0, momentum=0.9, fused=True)


def device_name(device: torch.device) -> str:
    """Return the product name of a GPU, or of this machine's processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu.name() or platform.machine()


def _samples(
    subnetwork: Subnetwork, batch: PointBatch, repeats: Repeats, device: torch.device
) -> dict[str, CostSample]:
    """Turn the passes over one minibatch into one cost sample a layer."""
    kept, tensors = kept_bytes(subnetwork, batch, device=device)
    parts = subnetwork.engine.split(tensors)
    maps = _kernel_maps(subnetwork, parts)
    known = {parts.features[INPUT].coordinate_set}
    median = repeats.median
    map_seconds = _kernel_map_seconds(subnetwork, tensors, maps, median.forward, device)
    found = {}
    for row in subnetwork.table:
        rows, coordinate_set = parts.features[row.id]
        coordinate_bytes = 0
        if coordinate_set is not None and coordinate_set not in known:
            coordinates = parts.coordinate_sets[coordinate_set].coordinates
            coordinate_bytes = coordinates.numel() * coordinates.element_size()
        known.add(coordinate_set)
        forward, backward = (
            [getattr(one.layers, way)[row.id] for one in repeats.rounds] for way in ("forward", "backward")
        )
        found[row.id] = CostSample(
            batch.num_voxels,
            median.forward[row.id],
            median.backward[row.id],
            rows.numel() * rows.element_size(),
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


def _kernel_maps(subnetwork: Subnetwork, parts: Any) -> dict[str, _KernelMap]:
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
    for row in subnetwork.table:
        ends = [parts.features[name].coordinate_set for name in (row.inputs[0], row.id)]
        if "kernel_size" in row.args and None not in ends:
            source, target = sorted(
                parts.coordinate_sets[end].tensor_stride for end in ends
            )  # the kernel lies on target
            given = (row.args["kernel_size"], row.args.get("dilation", 1))
            size, dilation = (each_axis(own, manager.dimension) for own in given)
            pairs = manager.kernel_map(source, target, kernel_size=size, dilation=dilation).num_pairs
            maps[row.id] = _KernelMap(source, target, size, dilation, pairs)
    return maps


def _kernel_map_seconds(
    subnetwork: Subnetwork,
    tensors: Mapping[str, Any],
    maps: Mapping[str, _KernelMap],
    forwards: Mapping[str, float],
    device: torch.device,
) -> dict[str, float]:
    """Return what each layer's kernel map cost: by how much its first user's forward is shorter once it is there.

    `tensors` are those of a pass: their coordinate manager has all maps. `forwards` are the seconds without.
    """
    cost: dict[_KernelMap, float] = {}
    for row in subnetwork.table:
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
