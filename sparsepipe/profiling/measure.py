"""Measure every layer of a network on this machine, at several voxel counts: (network, batches, engine) -> Profile.

Bytes of what each layer gives as sockets between hosts carry it if nothing else is asked for, on one minibatch.

Outputs and their gradients go without the zeros and with coded exponents; the gradient of a ReLU's output only where
that is not zero; coordinates as packed keys (runtime/transport/compression.py, packet.py). What a GPU sends is plain.
"""

import math
import os
import statistics
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..engines import Engine
from ..engines.native.coordinates import CoordinateManager, pack
from ..engines.subnetwork import build
from ..errors import InputError
from ..networks.base import AnyNetwork, direct_reads
from ..networks.losses import Loss
from ..networks.rows import Row, each_axis
from ..runtime.transport.compression import Compressor, values_at
from ..runtime.transport.packet import FORWARD, Packet, Slot, encode
from ..util.host.background_load import num_processors, watched
from ..util.host.cpu import WAITING
from ..values.profile import CostSample, LayerCost, Profile, StepOverhead
from .devices import device_name, usable
from .layer_timer import Repeater, Repeats, Updates, ends, judged, moment, seconds_between, send_back, time_layers
from .temporary_bytes import kept_bytes, temporary_bytes

_REPEATS = 3  # of each layer that makes a kernel map, once the map is there

Progress = Callable[[str], None]
CPU = torch.device("cpu")
_LEAST_REPEATS, _MOST_REPEATS = 5, 30  # passes over a minibatch where nobody says how many
_SMALL_REPEATS = 20  # of what a step does beside its layers


@dataclass(frozen=True)
class Training:
    """Facts of a training run beyond its minibatches."""

    sizes: Sequence[float] = ()  # of its typical minibatches; none: those that are measured on
    batch_size: int | None = None  # samples of a minibatch; None: of the middle one that is measured on
    size_unit: str = "voxels"
    origin: Mapping[str, Any] = field(default_factory=dict)  # what the profile's origin says of it
    read: Callable[[int], Any] | None = None  # reads one of the data set's minibatches, by a number
    reads_targets: bool = False  # whether targets are in what is read, so that the last stage reads it too
    loss: Loss | None = None  # judges the output in the last stage; None: the cross entropy of classes
    most_seconds: float = math.inf  # of measuring, after which minibatches larger than training's are left out
    contending: Sequence[int] = ()  # ids of processes that run the same work meanwhile, as other workers will


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
    training: Training = Training(),
    progress: Progress | None = None,
) -> Profile:
    """Measure each layer's forward and backward on `batches` of different sizes; median, interquartile range.

    The first minibatch is warmed up `warmup` times, each further one once. If `repeats` is not given, each is passed
    over at least 5 times, and up to 30 times until half a second has gone into it and, on the most usual minibatch, the
    sum over layers agrees with whole steps, without a clock in them. `origin` of the profile says how they compare. An
    update by SGD with momentum follows each pass and step.
    Passes whose threads waited for a processor are taken again, for a while; `origin` says what other load there was.
    A step counts the reading time if every processor works on layers, as the thread that reads ahead
    then takes the time of one.
    Raises InputError without batches, without repeats, for two batches of the same size, or without the device.
    """
    batches = sorted(batches, key=lambda batch: batch.size)
    _check(batches, training.size_unit, warmup=warmup, repeats=repeats)
    say = progress or (lambda line: None)
    place = usable(device)
    subnetwork = build(network, engine, seed=seed).to(place)
    crowd = torch.get_num_threads() * (1 + len(training.contending)) / num_processors()
    least, most = (_LEAST_REPEATS, _MOST_REPEATS) if repeats is None else (repeats, repeats)
    repeater = Repeater(subnetwork, Updates(subnetwork), place, least, most, crowded=crowd > 1)
    samples: list[dict[str, CostSample]] = []
    taken: list[Repeats] = []
    usual = statistics.fmean(training.sizes) if training.sizes else batches[len(batches) // 2].size
    if training.sizes:  # parts of training's minibatches may be too small for a network
        parts = [batch for batch in batches[:-1] if batch.size < usual and not _takes(subnetwork, batch, place, say)]
        batches = [batch for batch in batches if not any(batch is part for part in parts)]
    middle = min(range(len(batches)), key=lambda k: abs(batches[k].size - usual))
    began = time.perf_counter()
    with watched(training.contending) as watch:
        for position, batch in enumerate(batches):
            took = time.perf_counter() - began
            if position > middle and took * batch.size / batches[position - 1].size > training.most_seconds:
                left = f"{batch.size:,} {training.size_unit} and more are omitted: measuring took {took:.0f} s so far"
                say(f"profile {network.name} on {engine.name}: {left}")
                break
            for _ in range(warmup if position == 0 else min(warmup, 1)):
                time_layers(subnetwork, batch, device=place)
            done = f"{batch.size:,} {training.size_unit}, {position + 1} of {len(batches)}, {took:.0f} s so far"
            say(f"profile {network.name} on {engine.name}: {done}")
            taken.append(repeater.repeat(batch, whole=position == middle))
            samples.append(_samples(subnetwork, batch, taken[-1], place, training.loss))
        batches = batches[: len(samples)]
        reading = _median_seconds(training.read, CPU) if training.read else 0.0
        loss_seconds = _loss_seconds(subnetwork, batches[middle], place, training.loss)
    name = device_type or ("cpu" if place.type == "cpu" else torch.cuda.get_device_name(place).replace(" ", "-"))
    rounds = [one_round for repeats in taken for one_round in repeats.rounds]
    putting = statistics.median(one_round.layers.input_seconds for one_round in rounds)
    num_bytes = sum(parameter.nbytes for parameter in subnetwork.parameters())
    updates = [seconds for one_round in rounds for seconds in one_round.updates]
    counts = [batch.size for batch in batches]
    counted = reading if crowd >= 1 else 0.0
    facts = {
        **_origin(network, engine, place),
        "batch_size": training.batch_size or len(batches[middle]),
        f"measured_{training.size_unit}": counts,
        **({"measured_samples": [len(batch) for batch in batches]} if training.size_unit == "tokens" else {}),
        **_repeats_told(taken, middle),
        "measuring_seconds": time.perf_counter() - began,
        "reading_seconds": reading,
        "input_seconds": putting,
        "background_load": replace(watch.load, **_waits(taken), threads_per_processor=crowd).to_json(),
    }
    return Profile(
        network.graph(),
        {name: tuple(LayerCost(tuple(sample[row.id] for sample in samples)) for row in network.rows)},
        tuple(training.sizes or counts),
        {**facts, **training.origin},
        {name: statistics.median(updates) / num_bytes} if num_bytes else {},
        {name: StepOverhead(putting + counted, loss_seconds, counted)},
        size_unit=training.size_unit,
        sample_readers=_sample_readers(network, targets=training.reads_targets),
    )


def _takes(subnetwork: Any, batch: Any, device: torch.device, say: Progress) -> bool:
    """Return whether a network can train on a minibatch; say so where it cannot."""
    try:
        time_layers(subnetwork, batch, device=device)
    except InputError as error:
        say(f"a minibatch of {batch.size:,} is omitted: {error}")
        return False
    return True


def _sample_readers(network: AnyNetwork, *, targets: bool) -> tuple[str, ...]:
    """Return the layers whose stages read minibatches themselves: for inputs of the network, the last for `targets`."""
    last = network.rows[-1]
    return tuple(
        row.id for row in network.rows if direct_reads(network, (row,), last=row is last) or (targets and row is last)
    )


def _check(batches: Sequence[Any], size_unit: str, *, warmup: int, repeats: int | None) -> None:
    counts = [batch.size for batch in batches]
    if not counts or len(set(counts)) < len(counts):
        raise InputError(
            "profiler.sizes_malformed",
            f"profiling minibatches of {counts} {size_unit} given, expected at least one size, all different",
        )
    if (repeats is not None and repeats < 1) or warmup < 0:
        raise InputError(
            "profiler.repeats_malformed",
            f"{repeats} repeats after {warmup} warm-up passes given, expected at least 1 repeat and 0 warm-up passes",
        )


def _origin(network: AnyNetwork, engine: Engine, device: torch.device) -> dict[str, Any]:
    """The measurement and its hardware."""
    return {
        "source": "measured",
        "model": network.name,
        "engine": engine.name,
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        **({"environment": {WAITING: os.environ[WAITING]}} if WAITING in os.environ else {}),
        "torch": str(torch.__version__),
    }


def _repeats_told(taken: Sequence[Repeats], middle: int) -> dict[str, Any]:
    """Number of passes over each minibatch, and the sum of the layers over the whole step."""
    return {
        "repeats": [len(repeats.rounds) for repeats in taken],
        "repeated_again": [repeats.num_again for repeats in taken],  # as threads waited for a processor
        "layers_over_whole": taken[middle].layers_over_whole,  # sum of the layers' seconds over those of a whole step
    }


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
    wanted = [leaf for leaf in leaves.values() if leaf.requires_grad]

    def work(_: int) -> None:
        scalar = judged(subnetwork, leaves, batch, loss)
        if scalar.requires_grad:
            torch.autograd.grad(scalar, wanted, allow_unused=True)

    return _median_seconds(work, device)


def _as_leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.is_floating_point())


def _waits(taken: Sequence[Repeats]) -> dict[str, float | None]:
    """Return the share of waiting in those passes alone that count."""
    waits = [
        one_round.waited_share
        for repeats in taken
        for one_round in repeats.rounds
        if one_round.waited_share is not None
    ]
    return {"run_queue_wait_share": statistics.fmean(waits) if waits else None}


def _samples(
    subnetwork: Any, batch: Any, repeats: Repeats, device: torch.device, loss: Loss | None
) -> dict[str, CostSample]:
    """Turn the passes over one minibatch into one cost sample a layer."""
    saved_bytes, tensors = kept_bytes(subnetwork, batch, device=device)
    parts = subnetwork.engine.split(tensors)
    rows = [row for row in subnetwork.table if isinstance(row, Row)]  # of a traced module no kernel map is known
    maps = kernel_maps(rows, parts)
    known = {parts.features[name].coordinate_set for name in subnetwork.network.inputs if name in parts.features}
    median = repeats.median
    map_seconds = kernel_map_seconds(subnetwork, rows, tensors, maps, median.forward, device)
    crossing = _read_or_given(subnetwork.network)
    coded = coded_bytes(subnetwork, tensors, crossing=crossing, device=device)
    outputs = {name: features.nbytes for name, (features, _) in parts.features.items()}
    temporary = temporary_bytes(subnetwork, batch, saved_bytes, outputs, device=device, loss=loss)
    samples = {}
    for row in subnetwork.table:
        output_bytes = coordinate_bytes = 0
        for features, coordinate_set in (parts.features[value] for value in row.outputs if value in crossing):
            output_bytes += features.nbytes
            if coordinate_set is not None and coordinate_set not in known:
                coordinate_bytes += parts.coordinate_sets[coordinate_set].coordinates.nbytes
            known.add(coordinate_set)
        forward, backward = (
            [getattr(one_round.layers, way)[row.id] for one_round in repeats.rounds] for way in ("forward", "backward")
        )
        samples[row.id] = CostSample(
            batch.size,
            median.forward[row.id],
            median.backward[row.id],
            output_bytes,
            coordinate_bytes,
            saved_bytes[row.id].saved_bytes,
            _interquartile(forward),
            _interquartile(backward),
            maps[row.id].pairs if row.id in maps else 0,
            map_seconds.get(row.id, 0.0),
            *coded.get(row.id, CodedBytes()),
            saved_bytes[row.id].map_bytes,
            saved_bytes[row.id].input_bytes,
            *temporary[row.id],
        )
    return samples


def _read_or_given(network: AnyNetwork) -> frozenset[str]:
    """Return the values that another layer reads or that the network gives: those that may cross a boundary."""
    return frozenset(name for row in network.rows for name in row.inputs) | set(network.outputs)


def _interquartile(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return high - low


class LayerKernelMap(NamedTuple):
    source: tuple[int, ...]  # tensor strides
    target: tuple[int, ...]
    kernel_size: tuple[int, ...]
    dilation: tuple[int, ...]
    pairs: int


def kernel_maps(rows: Sequence[Row], parts: Any) -> dict[str, LayerKernelMap]:
    """Name the kernel map of every layer that has one: a fact of the coordinates, so one count serves every engine.

    They are the layers with a kernel on voxels: convolutions, pools, and those that lead back up, whose map is that of
    the layer down.
    """
    managers: dict[int, CoordinateManager] = {}
    for stride, coordinates, family, _ in parts.coordinate_sets:
        manager = managers.setdefault(family, CoordinateManager(coordinates.shape[1] - 1))
        manager.insert(stride, pack(coordinates).sort().values)
    maps = {}
    for row in rows:
        sides = [parts.features[name].coordinate_set for name in (row.inputs[0], row.id)]
        if "kernel_size" in row.args and None not in sides:
            # The kernel lies on the target.
            source, target = sorted(parts.coordinate_sets[side].tensor_stride for side in sides)
            manager = managers[parts.coordinate_sets[sides[1]].family]
            given = (row.args["kernel_size"], row.args.get("dilation", 1))
            size, dilation = (each_axis(given_map, manager.dimension) for given_map in given)
            pairs = manager.kernel_map(source, target, kernel_size=size, dilation=dilation).num_pairs
            maps[row.id] = LayerKernelMap(source, target, size, dilation, pairs)
    return maps


def kernel_map_seconds(
    subnetwork: Any,
    rows: Sequence[Row],
    tensors: Mapping[str, Any],
    maps: Mapping[str, LayerKernelMap],
    forwards: Mapping[str, float],
    device: torch.device,
) -> dict[str, float]:
    """Return what each layer's kernel map cost: by how much its first user's forward is shorter once it exists.

    `tensors` are those of a pass: their coordinate manager has all maps. `forwards` are the seconds without.
    """
    cost: dict[LayerKernelMap, float] = {}
    for row in rows:
        own = maps.get(row.id)
        if own is None or own in cost:
            continue
        again = []
        for _ in range(_REPEATS if max(own.kernel_size) > 1 or own.source != own.target else 0):
            start = moment(device)
            subnetwork.run_layer(row, tensors, minibatch=0)
            again.append(seconds_between(start, moment(device)))
        cost[own] = max(0.0, forwards[row.id] - statistics.median(again)) if again else 0.0  # a row alone needs no map
    return {id: cost[own] for id, own in maps.items()}


class CodedBytes(NamedTuple):
    """Of one layer; 0: there is none, or it was not looked at."""

    outputs: int = 0
    gradients: int = 0
    coordinates: int = 0


def coded_bytes(
    subnetwork: Any, tensors: Mapping[str, Any], *, crossing: Collection[str], device: torch.device
) -> dict[str, CodedBytes]:
    """Send back what a loss would through `tensors`, a whole forward's values; return each layer's bytes by its id.

    `crossing`: the values that may cross a boundary. Their graph is spent. Nothing is said of a GPU's.
    """
    if device.type != "cpu":
        return {}
    network, engine = subnetwork.network, subnetwork.engine
    parts = engine.split({name: tensors[name] for name in tensors if name in crossing})
    known = {parts.features[name].coordinate_set for name in network.inputs if name in parts.features}
    slots = {name: _coded(Slot(feature.rows)) for name, feature in parts.features.items()}
    gradients = _gradient_bytes(subnetwork, tensors, slots)
    bytes_by_layer = {}
    for row in subnetwork.table:
        names = [name for name in row.outputs if name in slots]
        coordinates = 0
        for name in names:
            coordinate_set = parts.features[name].coordinate_set
            if coordinate_set is not None and coordinate_set not in known:
                _, payload = encode(Packet(FORWARD, 0, 0, (), (parts.coordinate_sets[coordinate_set],)))
                coordinates += len(payload)
            known.add(coordinate_set)
        outputs = sum(_num_bytes(slots[name]) for name in names)
        bytes_by_layer[row.id] = CodedBytes(outputs, sum(gradients.get(name, 0) for name in names), coordinates)
    return bytes_by_layer


def _gradient_bytes(subnetwork: Any, tensors: Mapping[str, Any], slots: Mapping[str, Slot]) -> dict[str, int]:
    """Bytes of the gradient of each value, where one comes back for it."""
    bytes_by_layer: dict[str, int] = {}

    def watch(name: str, rows: Tensor) -> None:
        present = slots[name].present if name in subnetwork.network.rectified else None

        def take(gradient: Tensor) -> None:
            bytes_by_layer[name] = _num_bytes(
                _coded(Slot(gradient if present is None else values_at(present, gradient)))
            )

        rows.register_hook(take)

    for name in slots:
        rows = subnetwork.engine.features(tensors[name])
        if rows.requires_grad:
            watch(name, rows)
    send_back(ends(subnetwork, tensors), torch.device("cpu"))
    return bytes_by_layer


def _coded(slot: Slot) -> Slot:
    (small,) = Compressor("lossless").shrink((slot,))
    return small


def _num_bytes(slot: Slot) -> int:
    return sum(section.nbytes for section in slot.sections)
