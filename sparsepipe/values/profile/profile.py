"""A profile: a graph, and the costs of its layers on each device type."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...util.derived import Answer, Kept, canonical_text, digest_with, object_text, remembered, row_texts
from ...util.host.background_load import BackgroundLoad
from ...util.io.fields import number, shown, text, texts
from ...util.io.files import expanded, read_json, write_json
from ...util.text.numbers import SIZE_UNITS, Certainty, Printed, number_of
from ..graph import Layer, LayerGraph
from ..graph_text import GraphText, GraphTextNode
from .layer_cost import (
    CODED_FIELDS,
    COST_FIELDS,
    KEPT_FIELDS,
    MEMORY_FIELDS,
    CostSample,
    LayerCost,
    LayerLaws,
    checked_size,
)
from .size_laws import Array
from .stride_laws import StrideLaws

Costs = Mapping[str, tuple[LayerCost, ...]]  # device type → one cost per layer

FORMAT = "sparsepipe-profile-1"
_OF_VOXELS = {"size": "voxels", "sizes": "voxel_counts"}  # as files name them where the unit is voxels
_LEAST_SPAN = 2.0  # between the smallest and the largest minibatch that a profile was measured on
_POINT_AGREEMENT = 0.25  # share by which a whole pass may differ from what the laws of its layers say
_SIZE = "\0"  # stands in a text of costs for a size: no JSON has it
AGREEMENT = 0.1  # share of a whole step by which the sum over measured layers may differ from it


@dataclass(frozen=True, slots=True)
class StepOverhead:
    """Time of a training step beyond layers and optimizer on one device type, in seconds per minibatch."""

    input_seconds: float = 0.0  # of the first stage: to read a minibatch, and to put it on the device
    loss_seconds: float = 0.0  # of the last stage: loss and its gradient, and what is counted of a minibatch
    reading_seconds: float = 0.0  # of each further process that reads minibatches, such as their targets: to read one

    def __post_init__(self) -> None:
        for name in OVERHEAD_FIELDS:
            number(getattr(self, name), name)

    def slower(self, speed: float) -> "StepOverhead":
        """The same on a device of `speed` times this one's."""
        return StepOverhead(*(getattr(self, name) / speed for name in OVERHEAD_FIELDS))


_SECONDS = ("forward", "backward", "forward_spread", "backward_spread", "kernel_map_seconds")  # of a sample
OVERHEAD_FIELDS = tuple(item.name for item in fields(StepOverhead))


@dataclass(frozen=True)
class Profile(Printed):
    """Store the costs of a network's layers on one or more device types.

    `profile_model` measures a profile; `save` and `load` write and read its file.

    Attributes:
        graph: The layers and their edges.
        costs: Device type → cost of each layer.
        sizes: Sizes of typical minibatches at the network's input, in `size_unit`. Planners use them.
        origin: Origin of the measurements: command, data, seed, machine.
        update_rates: Device type → optimizer time in seconds per byte of weights. Default: 0.
        step_overheads: Device type → time of a step in seconds outside layers and optimizer, such as reading and the
            loss.
        size_unit: Unit of sizes: "voxels" (active voxels), "tokens", "pixels" or "samples".
        sample_readers: Ids of layers that need data such as masks, word ids or targets. Their stages read minibatches
            themselves.
        voxels_by_stride: Voxels of each typical minibatch at the input and at each coarser stride [minibatches,
            strides]. They correct the time and memory of layers at coarse strides.

    Raises:
        InputError: No device type, unequal numbers of costs and layers, or malformed sizes.

    Example:
        >>> cost = sp.LayerCost((sp.CostSample(0, forward=0.01, backward=0.02, output_bytes=1e6),))
        >>> graph = sp.LayerGraph.chain([sp.Layer("a"), sp.Layer("b")])
        >>> own = sp.Profile(graph, {"cpu": (cost, cost)})
        >>> own.cost(1, "cpu").backward
        0.02
        >>> sp.Profile.load(own.save("profile.json")).device_types
        ('cpu',)

    See also:
        background/costs_by_size, background/measurement_quality, `profile_model`, `partition`
    """

    graph: LayerGraph
    costs: Costs
    sizes: tuple[float, ...] = ()
    origin: Mapping[str, Any] = field(default_factory=dict)
    update_rates: Mapping[str, float] = field(default_factory=dict)
    step_overheads: Mapping[str, StepOverhead] = field(default_factory=dict)
    size_unit: str = "voxels"
    sample_readers: tuple[str, ...] = ()
    voxels_by_stride: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        if unknown_readers := set(self.sample_readers) - {layer.id for layer in self.graph.layers}:
            raise InputError(
                "profile.reader_unknown",
                f"sample_readers names {shown(min(unknown_readers))}, expected layers of the graph",
            )
        if self.size_unit not in SIZE_UNITS:
            raise InputError(
                "profile.size_unit_unknown",
                f"size_unit {shown(self.size_unit)}: expected one of {', '.join(SIZE_UNITS)}",
            )
        for what, named in (("update_rates", self.update_rates), ("step_overheads", self.step_overheads)):
            if unknown := named.keys() - self.costs.keys():
                raise InputError(
                    "profile.device_type_unknown",
                    f"{what} names {min(unknown)!r}, expected device types of the profile: {', '.join(self.costs)}",
                )
        for name, rate in self.update_rates.items():
            number(rate, f"update_rates of {name!r}")
        for name, costs in self.costs.items():
            if len(costs) != len(self.graph.layers):
                raise InputError(
                    "profile.cost_count",
                    f"the profile of {name!r} has {len(costs)} costs for "
                    f"{number_of(len(self.graph.layers), 'layer')}; expected one per layer",
                )
        if not self.costs:
            raise InputError("profile.empty", "the profile has no device type, expected costs for at least one")
        if any(not 0 <= size < math.inf for size in self.sizes):
            raise InputError(
                "profile.sizes_malformed",
                "the profile's minibatch sizes are malformed: expected finite numbers of 0 or more",
            )
        rows = self.voxels_by_stride
        if len(set(map(len, rows))) > 1 or any(not 1 <= count < math.inf for row in rows for count in row):
            raise InputError(
                "profile.strides_malformed",
                "voxels_by_stride is malformed: expected equally many finite numbers of at least 1 per minibatch",
            )

    @property
    def device_types(self) -> tuple[str, ...]:
        return tuple(self.costs)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons why a measured profile is unreliable, as sentences. Empty for an imported profile."""
        return self.warnings_of(self.device_types)

    def warnings_of(self, device_types: Iterable[str]) -> tuple[str, ...]:
        """Return the `warnings` about some device types."""
        types = tuple(device_types)
        return remembered(self.kept, "warnings", types, lambda: self._warnings_of(types))

    def _warnings_of(self, device_types: tuple[str, ...]) -> tuple[str, ...]:
        warnings = [
            text
            for part in self.measured_parts(device_types)
            for text in (*_told_of_layers(part), *_told_of_load(part))
        ]
        kinds = [kind for part in self.measured_parts(device_types) for kind in part["device_types"]]
        kinds = [kind for kind in kinds if kind in self.costs]
        narrow: dict[str, list[str]] = {}
        for kind in kinds:
            narrow.setdefault(self._narrow_range(kind), []).append(kind)
        warnings += [
            f"profile of {', '.join(names)}: measured only at {span} {self.size_unit}; other sizes are extrapolated in "
            "proportion, profile again"
            for span, names in narrow.items()
            if span
        ]
        factors = {kind: factor for kind in kinds if (factor := self._contradictions[kind]) > 1 + _POINT_AGREEMENT}
        if factors:
            warnings.append(
                f"profile of {', '.join(factors)}: its layers' times contradict each other between sizes by up to "
                f"{max(factors.values()):.1f} x; profile again with nothing else at work"
            )
        unknown = [kind for kind in kinds if kind not in self.update_rates]
        if unknown and any(layer.parameter_bytes for layer in self.graph.layers):
            warnings.append(
                f"profile of {', '.join(unknown)}: no optimizer steps in it, none are counted; profile again"
            )
        return tuple(warnings)

    def measured_parts(self, device_types: Iterable[str]) -> list[dict[str, Any]]:
        """Return the parts of the origin about the measurement of some `device_types`."""
        asked, parts = set(device_types), self._joined()
        measured = [part for part in parts if part.get("source") == "measured"]
        return [part for part in measured if len(parts) == 1 or asked & set(part["device_types"])]

    def measured_sizes(self, device_type: str) -> tuple[float, float]:
        """Smallest and largest measured minibatch size on one device type. Costs beyond are extrapolated.

        Returns (0, 0) if costs do not depend on the size.
        """
        costs = self._of(device_type)

        def found() -> tuple[float, float]:
            lows = [cost.samples[0].size * cost.stretch for cost in costs]
            return min(lows), max(cost.samples[-1].size * cost.stretch for cost in costs)

        return remembered(self.kept, "measured sizes", device_type, found)

    def _narrow_range(self, device_type: str) -> str:
        """Return the size or sizes of the minibatches measured if they are nearly one; empty otherwise.

        Costs measured at size 0 hold at every size. A single size is enough where training's minibatches have it, too.
        """
        low, high = self.measured_sizes(device_type)
        if not high or (low < high and high >= _LEAST_SPAN * low):
            return ""
        if (
            low == high
            and self.sizes
            and all(high <= _LEAST_SPAN * size <= _LEAST_SPAN**2 * high for size in self.sizes)
        ):
            return ""
        return f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"

    @property
    def _contradictions(self) -> dict[str, float]:
        """Device type → times by which all layers together took more, or less, at one size than their laws say."""
        return self._of_samples("contradictions", lambda: {name: self._contradiction(name) for name in self.costs})

    def _of_samples(self, kind: str, make: Callable[[], Answer]) -> Answer:
        """Return what `make` finds of the samples, whatever they are stretched by: kept with the graph."""
        samples = [cost.samples for costs in self.costs.values() for cost in costs]
        key = (*self.costs, *map(id, samples))
        # With the samples, so that no others have their id.
        return remembered(self.graph.kept, kind, key, lambda: (samples, make()))[1]

    def _contradiction(self, device_type: str) -> float:
        costs = self.costs[device_type]
        if len({(cost.stretch, *(sample.size for sample in cost.samples)) for cost in costs}) > 1:
            return 1.0
        took = np.array([[sample.forward + sample.backward for sample in cost.samples] for cost in costs]).sum(axis=0)
        by_law = self._laws_of_samples.at(np.array([sample.size for sample in costs[0].samples], dtype=float))
        expected = (by_law["forward"] + by_law["backward"])[self._layers(device_type)].sum(axis=0)
        samples = self.samples_measured(device_type)  # fewer or more than a batch's take another time
        whole = np.array([samples.get(sample.size, 1.0) == 1 for sample in costs[0].samples])
        known = (took > 0) & (expected > 0) & whole
        return float(np.exp(np.abs(np.log(took[known] / expected[known])).max(initial=0.0)))

    @cached_property
    def kept(self) -> Kept:
        """Cache of values that depend only on this profile (see util/derived.py)."""
        return {}

    @cached_property
    def digest(self) -> str:
        """Return a short hash of the graph, costs, minibatch sizes and origin."""
        cached = self.graph.kept
        graph = remembered(cached, "graph's text", "", lambda: {k: canonical_text(v) for k, v in self._graph().items()})
        # With the values, so that no others have their ids.
        _, costs = remembered(cached, "costs' text", id(self.costs), lambda: (self.costs, self._costs_text()))
        besides, texts, rows = self._besides(), {**graph, "costs": costs}, self.voxels_by_stride
        if besides.pop("voxels_by_stride", None):
            _, texts["voxels_by_stride"] = remembered(
                cached, "strides' text", id(rows), lambda: (rows, canonical_text(rows))
            )
        return digest_with(besides, texts)

    def _costs_text(self) -> str:
        """`canonical_text` of the costs. All but their sizes is kept with the graph for costs that are stretched."""

        def written() -> list[str]:
            samples = (sample for costs in self.costs.values() for cost in costs for sample in cost.samples)
            rest = iter(row_texts(map(attrgetter(*self.columns[1:]), samples)))
            by_type = {}
            for name, costs in self.costs.items():
                layers = ("],[".join(f"{_SIZE},{next(rest)}" for _ in cost.samples) for cost in costs)
                by_type[name] = f"[[[{']],[['.join(layers)}]]]"
            return object_text(by_type).split(_SIZE)

        between = self._of_samples("samples' text", written)
        size_text = cache(lambda size: row_texts([[size]])[0])
        # In the order of the names, as a JSON object has them.
        sizes = [
            size_text(sample.size * cost.stretch)
            for _, costs in sorted(self.costs.items())
            for cost in costs
            for sample in cost.samples
        ]
        return between[0] + "".join(size + rest for size, rest in zip(sizes, between[1:], strict=True))

    @property
    def sized(self) -> bool:
        """Return whether costs depend on the minibatch size: sizes are given, or costs were measured at several."""
        return bool(self.sizes) or any(len(cost.samples) > 1 for costs in self.costs.values() for cost in costs)

    @property
    def batch_size(self) -> int | None:
        """Samples per minibatch. None if the origin does not contain it, as in most published profiles."""
        given_size = self.origin.get("batch_size")
        return given_size if isinstance(given_size, int) and given_size > 0 else None

    @property
    def typical_sizes(self) -> tuple[float, ...]:
        """Sizes of typical minibatches. Contains only the mean if none were given."""
        return self.sizes or (self.size(),)

    def size(self, quantile: float | None = None) -> float:
        """Mean size of a minibatch, or its `quantile` in [0, 1] (linear between sizes)."""
        if quantile is None:
            return self._mean_size
        counts = self._sorted_sizes
        position = quantile * (len(counts) - 1)
        low = min(int(position), len(counts) - 1)
        high = min(low + 1, len(counts) - 1)
        return counts[low] + (position - low) * (counts[high] - counts[low])

    @cached_property
    def _sorted_sizes(self) -> list[float]:
        measured = next(iter(self.costs.values()))[0]
        return sorted(self.sizes) or [sample.size for sample in measured.stretched]

    @cached_property
    def _mean_size(self) -> float:
        return sum(self._sorted_sizes) / len(self._sorted_sizes)

    @cached_property
    def _rows(self) -> dict[str, slice]:
        count = len(self.graph.layers)
        return {name: slice(k * count, (k + 1) * count) for k, name in enumerate(self.costs)}

    def cost(self, layer: int, device_type: str, size: float | None = None) -> CostSample:
        """Return the cost of one layer on one device type.

        Args:
            layer: Number of the layer in the graph.
            device_type: Name of the device type.
            size: Size of the minibatch in `size_unit`. Default: the mean of `sizes`.
        """
        count, layers = self.size() if size is None else checked_size(size), self._layers(device_type)
        key = (device_type, count)
        return remembered(self.kept, "samples at", key, lambda: self._laws.samples(count, layers))[layer]

    @cached_property
    def _laws(self) -> LayerLaws:
        """The laws of size that the layers' costs follow, those of each device type behind one another.

        A layer's seconds are taken at the size where the measured samples have as many voxels at its stride as typical
        minibatches have.
        """
        stretches = [cost.stretch for costs in self.costs.values() for cost in costs]
        if not self.voxels_by_stride:
            return self._laws_of_samples.stretched(stretches)
        densities = list[float]()
        for name, costs in self.costs.items():
            laws = self._strides(name)
            densities += [1.0] * len(costs) if laws is None else laws.densities
        return self._laws_of_samples.stretched(stretches, densities)

    @property
    def _laws_of_samples(self) -> LayerLaws:
        """The laws of what was measured, whatever typical minibatches are.

        They are kept with the graph, as profiles of other minibatches and voxels have the same measured costs.
        """
        every, attention = [cost for costs in self.costs.values() for cost in costs], self.size_unit == "tokens"
        samples = [self.samples_measured(name) for name, costs in self.costs.items() for _ in costs]
        key = (attention, *(tuple(sample.items()) for sample in samples), *(id(cost.samples) for cost in every))

        def fitted() -> tuple[list[LayerCost], LayerLaws]:  # with the costs, so that no others have their ids
            return every, LayerLaws.of(every, attention=attention, samples=samples if any(samples) else ())

        return remembered(self.graph.kept, "laws", key, fitted)[1]

    def samples_measured(self, device_type: str) -> dict[float, float]:
        """Number of samples in each measured minibatch size, as a fraction of the batch size. Empty if unknown.

        Not defined for sizes that do not follow from the number of samples, such as voxels.
        """
        if self.size_unit != "tokens" or self.batch_size is None:
            return {}
        samples_by_size = dict[float, float]()
        for part in self.measured_parts([device_type]):
            sizes, samples = part.get(f"measured_{self.size_unit}", ()), part.get("measured_samples", ())
            samples_by_size |= {
                size: count / self.batch_size for size, count in zip(sizes, samples, strict=False) if count > 0
            }
        return samples_by_size

    def _layers(self, device_type: str) -> slice:
        """The rows of one device type's layers among all laws."""
        self._of(device_type)
        return self._rows[device_type]

    def range_of_laws(self, device_type: str) -> tuple[float, float]:
        """Range of sizes in which all layers were measured on one device type. (0, inf) for costs without a size."""
        return self._laws.measured(self._layers(device_type))

    def certainty(self, sizes: float | Sequence[float] | None = None, types: Iterable[str] | None = None) -> Certainty:
        """Bound the error of the predicted seconds for minibatches of `sizes`, over all these sizes and device types.

        Default: the mean size, and all device types.
        """
        given = [self.size()] if sizes is None else sizes if isinstance(sizes, Iterable) else [sizes]
        extremes = {min(map(checked_size, given), default=0.0), max(map(checked_size, given), default=0.0)}
        names = tuple(dict.fromkeys(self.device_types if types is None else types))
        key = (names, *sorted(extremes))
        return remembered(self.kept, "certainty", key, lambda: self._certainty(names, np.array(sorted(extremes))))

    def _certainty(self, names: Iterable[str], sizes: Array) -> Certainty:
        found, shares = Certainty(), self._laws.uncertainty(sizes)
        for name in names:
            layers, costs = self._layers(name), self.costs_at(name, sizes)
            whole = (costs["forward"] + costs["backward"]).sum(axis=0)
            parts = zip(shares, (costs["forward"], costs["backward"]), strict=True)
            off = sum((share[layers] * seconds).sum(axis=0) for share, seconds in parts)
            low, high = self.range_of_laws(name)
            for size, seconds, may in zip(sizes.tolist(), whole.tolist(), np.asarray(off).tolist(), strict=True):
                factor = max(low / size if size else 1.0, size / high, 1.0)
                found |= Certainty(factor, may / seconds if seconds else 0.0)
        return found

    def layer_uncertainty(self, device_type: str, size: float | None = None) -> tuple[Array, Array]:
        """Shares by which the seconds of layers may be off at one size, about one standard deviation.

        Args:
            device_type: Name of the device type.
            size: Size of the minibatch in `size_unit`. Default: the mean of `sizes`.

        Returns:
            (measurement, extrapolation), [forward and backward, layers] each: the error of each layer at the nearest
            measured size, and what extrapolation to `size` adds, which has the same sign in all layers of a device.
        """
        count, layers = self.size() if size is None else checked_size(size), self._layers(device_type)
        nearest = float(np.clip(count, *self.range_of_laws(device_type)))
        there, here = (np.stack(self._laws.uncertainty(np.array([at])))[:, layers, 0] for at in (nearest, count))
        return there, np.sqrt(np.maximum(here**2 - there**2, 0.0))

    def costs_at(self, device_type: str, sizes: Sequence[float] | Array) -> Mapping[str, Array]:
        """Return the costs of all layers on one device type at `sizes`: cost field → array [layers, sizes]."""
        layers, counts = self._layers(device_type), np.asarray(sizes, dtype=float)
        of_all_types = remembered(self.kept, "costs at", counts.tobytes(), lambda: self._laws.at(counts))
        return {name: values[layers] for name, values in of_all_types.items()}

    def costs_of_large(self, device_type: str, sizes: Sequence[float] | Array) -> Mapping[str, Array]:
        """Return costs as `costs_at` does, but with stored activations of minibatches that are large at all strides.

        Additional fields: "large_output_bytes" and "large_coordinate_bytes", the outputs of such minibatches.
        """
        costs, laws = {**self.costs_at(device_type, sizes)}, self._strides(device_type)
        costs |= {f"large_{name}": costs[name] for name in ("output_bytes", "coordinate_bytes")}
        if laws is None:
            return costs
        for cost_name, values in laws.at(np.asarray(sizes, dtype=float), self.costs[device_type]).items():
            name = cost_name if cost_name in KEPT_FIELDS else f"large_{cost_name}"
            costs[name] = costs[name].copy()
            costs[name][laws.rows] = values
        return costs

    def averaged(self, sizes: Sequence[float]) -> "Profile":
        """Return a profile in which every minibatch has the average cost of `sizes`, whatever its size.

        The cost of varying sizes is the time under this profile minus the time under `profile.averaged(sizes)`.
        """
        counts = np.asarray(sizes, dtype=float)
        costs = {}
        for name in self.costs:
            means = {field: values.mean(axis=1).tolist() for field, values in self.costs_at(name, counts).items()}
            rows = ({field: values[k] for field, values in means.items()} for k in range(len(self.graph.layers)))
            costs[name] = tuple(LayerCost((CostSample(0, **row),)) for row in rows)
        return replace(self, costs=costs, sizes=(float(counts.mean()),), voxels_by_stride=())

    def _strides(self, device_type: str) -> StrideLaws | None:
        """The laws by each stride's voxels; None if the profile does not tell them of typical minibatches."""
        costs, typical = self.costs[device_type], self.voxels_by_stride
        if not typical:
            return None
        key = (id(typical), *(id(cost.samples) for cost in costs))
        # With the costs and the minibatches, so that no others have their ids.
        return remembered(
            self.graph.kept,
            "laws of strides",
            key,
            lambda: (costs, typical, StrideLaws.fit(costs, np.array(typical))),
        )[2]

    def time(self, layers: Iterable[int], device_type: str, size: float | None = None) -> tuple[float, float]:
        """Return the forward and backward seconds of all `layers`."""
        costs = [self.cost(layer, device_type, size) for layer in layers]
        return sum(cost.forward for cost in costs), sum(cost.backward for cost in costs)

    def _of(self, device_type: str) -> tuple[LayerCost, ...]:
        if device_type not in self.costs:
            raise InputError(
                "profile.no_device_type",
                f"no profile for device type {device_type!r}; this one has {', '.join(sorted(self.costs))}; profile "
                f"the model on such a device, or rename a profile (--profile {device_type}=FILE, in Python `renamed`)",
                device_type=device_type,
            )
        return self.costs[device_type]

    def __or__(self, other: "Profile") -> "Profile":
        """Join profiles of the same graph measured on different device types.

        The origin says what both have in common, and under "joined" where each device type's numbers come from.
        """
        if differences := graph_differences(self.graph, other.graph):
            raise InputError(
                "profile.graphs_differ",
                f"profiles of different graphs cannot be joined: {differences}; profile the same network",
            )
        if both := set(self.costs) & set(other.costs):
            raise InputError(
                "profile.device_type_twice",
                f"device type {min(both)!r} is in both profiles; rename one of them (TYPE=FILE)",
            )
        units = {one.size_unit for one in (self, other) if one.sized} or {self.size_unit}
        if len(units) > 1:
            raise InputError(
                "profile.size_units_differ",
                f"profiles with sizes in {' and over '.join(sorted(units))} cannot be joined; profile in the same unit",
            )
        common = {key: value for key, value in self.origin.items() if other.origin.get(key) == value}
        joined = [part for profile in (self, other) for part in profile._joined()]
        return Profile(
            self.graph,
            {**self.costs, **other.costs},
            self.sizes or other.sizes,
            {**common, "joined": joined},
            {**self.update_rates, **other.update_rates},
            {**self.step_overheads, **other.step_overheads},
            units.pop(),
            self.sample_readers or other.sample_readers,
            self.voxels_by_stride or other.voxels_by_stride,
        )

    def _joined(self) -> list[dict[str, Any]]:
        return self.origin.get("joined") or [{"device_types": list(self.costs), **self.origin}]

    def renamed(self, device_type: str) -> "Profile":
        """Return a copy with another device type name. Raises InputError unless there is exactly one type."""
        if len(self.costs) != 1:
            raise InputError(
                "profile.several_device_types",
                f"cannot rename a profile of {len(self.costs)} device types ({', '.join(self.costs)})",
            )
        ((old, costs),) = self.costs.items()
        rates = {device_type: self.update_rates[old]} if old in self.update_rates else {}
        overheads = {device_type: self.step_overheads[old]} if old in self.step_overheads else {}
        return replace(self, costs={device_type: costs}, update_rates=rates, step_overheads=overheads)

    def with_device_type(self, name: str, *, like: str, factor: float) -> "Profile":
        """Add a device type that takes `factor` times as long as the type `like`, with the same bytes.

        Raises InputError for a name that the profile has, and for a type that it does not have.
        """
        if like not in self.costs:
            raise InputError(
                "profile.no_device_type",
                f"no device type {like!r}, the profile knows {', '.join(self.costs)}",
                name=like,
            )
        if name in self.costs:
            raise InputError(
                "profile.device_type_twice", f"device type {name!r} is in the profile: give the new one another name"
            )
        rates, overheads = dict(self.update_rates), dict(self.step_overheads)
        if like in rates:
            rates[name] = rates[like] * factor
        if like in overheads:
            overheads[name] = overheads[like].slower(1 / factor)

        def slower(sample: CostSample) -> CostSample:
            return replace(sample, **{field: getattr(sample, field) * factor for field in _SECONDS})

        costs = {**self.costs, name: tuple(cost.changed(slower) for cost in self.costs[like])}
        return replace(self, costs=costs, update_rates=rates, step_overheads=overheads)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Return the fields of a cost in a file. Fields without measurements are omitted."""
        return self._of_samples("columns", self._columns_told)

    def _columns_told(self) -> tuple[str, ...]:
        samples = [sample for layers in self.costs.values() for cost in layers for sample in cost.samples]
        absent = {
            name
            for group in (CODED_FIELDS, MEMORY_FIELDS)
            if not any(map(any, map(attrgetter(*group), samples)))
            for name in group
        }
        return tuple(name for name in COST_FIELDS if name not in absent)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the profile's file."""
        besides = self._besides()
        head = {"format": besides.pop("format"), **self._graph(), **_sizes_written(self)}
        return {**head, "costs": self._costs(), **besides}

    def _graph(self) -> dict[str, Any]:
        layers = self.graph.layers
        edges = [[layers[i].id, layers[j].id] for i, j in self.graph.edges]
        return {"layers": [asdict(layer) for layer in layers], "edges": edges}

    def _costs(self) -> dict[str, Any]:
        columns = self.columns
        return {
            name: [[[getattr(sample, column) for column in columns] for sample in cost.stretched] for cost in costs]
            for name, costs in self.costs.items()
        }

    def _besides(self) -> dict[str, Any]:
        """Return what a profile's file holds beside its graph and its costs."""
        return {
            "format": FORMAT,
            **_sizes_written(self),
            "update_rates": dict(self.update_rates),
            **({"step_overheads": _written(self.step_overheads)} if self.step_overheads else {}),
            **({"sample_readers": list(self.sample_readers)} if self.sample_readers else {}),
            **({"voxels_by_stride": [list(row) for row in self.voxels_by_stride]} if self.voxels_by_stride else {}),
            "origin": dict(self.origin),
        }

    def save(self, path: Path | str) -> Path:
        """Write the profile atomically: as JSON if the name ends in .json, otherwise as a graph.txt.

        A graph.txt holds the mean minibatch's costs of one device type, unnamed. Raises InputError for several.
        """
        if not _is_graph_text(path):
            return write_json(path, self.to_json())
        if len(self.costs) != 1:
            raise InputError(
                "profile.several_device_types",
                f"{path}: a graph.txt file holds only one device type, but this profile has {', '.join(self.costs)}; "
                "give the file the suffix .json",
            )
        return self.to_graph_text().save(path)

    @classmethod
    def load(cls, path: Path | str, *, device_type: str | None = None) -> "Profile":
        """Read a profile JSON or a graph.txt. `device_type` renames its type (default for a graph.txt: "device").

        Raises InputError that names the file and the fault.
        """
        if _is_graph_text(path):
            return cls.from_graph_text(GraphText.load(path), device_type=device_type or "device")
        document = read_json(path, what="profile")
        try:
            profile = _from_document(document)
            _check_origin(profile)
            for name in profile.costs:
                profile._strides(name)  # refuses a file that tells of other strides than its layers have
        except InputError as error:
            raise error.within(f"{path}: ") from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                "profile.foreign", f"{path}: not a profile of sparsepipe ({error!r}); expected {FORMAT}"
            ) from None
        return profile.renamed(device_type) if device_type else profile

    @classmethod
    def from_graph_text(cls, text: GraphText, *, device_type: str = "device") -> "Profile":
        """Convert a graph.txt: milliseconds to seconds; lists of activations to sums (and a copy in `origin`)."""
        node_of = {node.id: node for node in text.nodes}
        nodes = [node_of[layer.id] for layer in text.graph.layers]
        costs = tuple(
            LayerCost((CostSample(0, n.forward_ms / 1e3, n.backward_ms / 1e3, sum(n.activation_bytes)),)) for n in nodes
        )
        lists = {n.id: list(n.activation_bytes) for n in nodes if len(n.activation_bytes) > 1}
        stages = {n.id: n.stage_id for n in nodes if n.stage_id is not None}
        origin = {
            "format": "graph.txt",
            "activation_lists": lists,
            "stage_ids": stages,
            "order": [n.id for n in text.nodes],
        }
        return cls(text.graph, {device_type: costs}, (), origin)

    def to_graph_text(self, device_type: str | None = None, size: float | None = None) -> GraphText:
        """Return the costs of one device type at one minibatch size as a graph.txt."""
        name = device_type or next(iter(self.costs))
        lists, stages = self.origin.get("activation_lists", {}), self.origin.get("stage_ids", {})
        nodes = {}
        for k, layer in enumerate(self.graph.layers):
            cost = self.cost(k, name, size)
            nodes[layer.id] = GraphTextNode(
                layer.id,
                layer.description or layer.id,
                round(cost.forward * 1e3, 9),
                round(cost.backward * 1e3, 9),
                tuple(lists.get(layer.id, (cost.output_bytes,))),
                layer.parameter_bytes,
                stages.get(layer.id),
            )
        order = self.origin.get("order", list(nodes))
        edges = tuple((self.graph.layers[i].id, self.graph.layers[j].id) for i, j in self.graph.edges)
        return GraphText(tuple(nodes[id] for id in order), edges)


def _check_origin(profile: Profile) -> None:
    """Raise an error for an origin that is none, where the file can still be named."""
    for part in profile.measured_parts(profile.device_types):
        _told_of_layers(part), _told_of_load(part), tuple(part["device_types"])
    for name in profile.costs:
        profile.samples_measured(name)


def _told_of_layers(part: Mapping[str, Any]) -> list[str]:
    """Return a warning where the layers' times do not add up to that of a whole step."""
    ratio, expected = part.get("layers_over_whole", 1), f"{1 - AGREEMENT:.2f} to {1 + AGREEMENT:.2f}"
    warning = f"profile of {', '.join(part['device_types'])}: the layers' sum is {ratio:.3f} x a whole step, "
    warning += f"expected {expected}; profile again with nothing else at work, or with more repeats"
    return [warning] if abs(ratio - 1) > AGREEMENT else []


def _told_of_load(part: Mapping[str, Any]) -> list[str]:
    """Return warnings of other load during the measurement; none for profiles that were made before it was watched."""
    doubts = BackgroundLoad.from_json(part.get("background_load")).doubts()
    if not doubts:
        return []
    whose = f"profile of {', '.join(part['device_types'])}"
    return [f"{whose}: while it was measured, {' and '.join(doubts)}; profile again with nothing else at work"]


def _is_graph_text(path: Path | str) -> bool:
    return expanded(path).suffix != ".json"


def graph_differences(a: LayerGraph, b: LayerGraph) -> str:
    """Return in a few words how two graphs differ; empty when they have the same layers and edges."""
    ids_a, ids_b = [layer.id for layer in a.layers], [layer.id for layer in b.layers]
    if missing := sorted(set(ids_a) ^ set(ids_b)):
        return (
            f"{number_of(len(missing), 'layer')} {'is' if len(missing) == 1 else 'are'} in only one of them, "
            f"{missing[0]!r} among them"
        )
    if {(ids_a[i], ids_a[j]) for i, j in a.edges} != {(ids_b[i], ids_b[j]) for i, j in b.edges}:
        return "their edges differ"
    if ids_a != ids_b:
        return "their layers come in different orders"
    return ""


def _from_document(document: Mapping[str, Any]) -> Profile:
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise InputError("profile.malformed", f"not a profile: expected a JSON object with format {FORMAT!r}")
    layers = [
        Layer(
            text(entry["id"], "layer id"),
            text(entry["description"], "description"),
            number(entry["parameter_bytes"], "parameter_bytes"),
        )
        for entry in document["layers"]
    ]
    graph = LayerGraph.from_ids(layers, [(text(a, "edge"), text(b, "edge")) for a, b in document["edges"]])
    if graph.layers != tuple(layers):
        raise InputError("profile.not_topological", "the layers are not in topological order")
    unit = text(document.get("size_unit", "voxels"), "size_unit")
    sizes, size = (_OF_VOXELS[name] if unit == "voxels" else name for name in ("sizes", "size"))
    columns = ["size" if column == size else column for column in texts(document["columns"], "columns")]
    costs = {}
    for name, rows in document["costs"].items():
        costs[name] = tuple(_cost(samples, columns, f"{name}, layer {k}") for k, samples in enumerate(rows))
    counts = tuple(number(count, sizes) for count in document[sizes])
    if not isinstance(document["origin"], Mapping):
        raise InputError("profile.origin_malformed", "origin is not an object, expected the source of the numbers")
    rates = {name: number(rate, "update_rates") for name, rate in document.get("update_rates", {}).items()}
    overheads = {
        name: _overhead(overhead_document, name)
        for name, overhead_document in document.get("step_overheads", {}).items()
    }
    readers = tuple(texts(document.get("sample_readers", []), "sample_readers"))
    strides = tuple(
        tuple(number(count, "voxels_by_stride") for count in row) for row in document.get("voxels_by_stride", [])
    )
    return Profile(graph, costs, counts, document["origin"], rates, overheads, unit, readers, strides)


def _sizes_written(profile: Profile) -> dict[str, Any]:
    """Return how a file names sizes: profiles over voxels as they always did, others by the unit that they state."""
    if profile.size_unit == "voxels":
        return {
            _OF_VOXELS["sizes"]: list(profile.sizes),
            "columns": [_OF_VOXELS.get(name, name) for name in profile.columns],
        }
    return {"size_unit": profile.size_unit, "sizes": list(profile.sizes), "columns": list(profile.columns)}


def _written(overheads: Mapping[str, StepOverhead]) -> dict[str, dict[str, float]]:
    """Return what a file holds of them: reading alone may be left out, as files from before have it."""
    return {
        name: {key: value for key, value in asdict(overhead).items() if value or key != "reading_seconds"}
        for name, overhead in overheads.items()
    }


def _overhead(told: Mapping[str, Any], device_type: str) -> StepOverhead:
    known = {name: told[name] for name in OVERHEAD_FIELDS if name in told}
    try:
        return StepOverhead(**known)
    except InputError as error:
        raise error.within(f"step_overheads of {device_type!r}: ") from None


def _cost(samples: Sequence[Sequence[float]], columns: Sequence[str], where: str) -> LayerCost:
    try:
        return LayerCost(tuple(CostSample(**dict(zip(columns, sample, strict=True))) for sample in samples))
    except InputError as error:
        raise error.within(f"{where}: ") from None
