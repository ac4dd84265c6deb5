"""What one layer costs: as measured at a few sizes of minibatches, and by laws at every size."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...util.io.fields import MOST, given_number, number
from .size_laws import ATTENTION, BYTES, SECONDS, Array, SizeLaws


@dataclass(frozen=True, slots=True)
class CostSample:
    """Store the cost of one layer for minibatches of one size. Times are medians over repetitions.

    Attributes:
        size: Size of the minibatch at the network's input, in the profile's `size_unit`.
        forward: Time of the forward in seconds.
        backward: Time of the backward in seconds.
        output_bytes: Size of the output's features in bytes.
        coordinate_bytes: Size of the output's coordinates in bytes, if this layer creates a new set.
        saved_bytes: Activation memory in bytes, stored from forward to backward.
        forward_spread: Interquartile range of the forward in seconds.
        backward_spread: Interquartile range of the backward in seconds.
        kernel_map_pairs: Number of (input, output) pairs of the kernel map of a sparse convolution.
        kernel_map_seconds: Time to build the kernel map in seconds, part of the forward of the first layer that uses
            it.
        coded_output_bytes: Size of the output in bytes after lossless compression, the default between hosts. 0: not
            measured; `output_bytes` is used.
        coded_gradient_bytes: Compressed size of the output's gradient in bytes.
        coded_coordinate_bytes: Compressed size of the output's coordinates in bytes.
        kernel_map_bytes: Size of the kernel map in bytes, part of `saved_bytes`, stored until the end of the backward
            of all layers. This and the following fields are 0 if memory was not measured.
        saved_input_bytes: Size of stored outputs of other layers in bytes, part of `saved_bytes`, if no earlier layer
            stores them.
        backward_left_bytes: Bytes allocated in the backward and stored until the end of the backward of all layers.
        forward_temporary_bytes: Peak memory of the forward in bytes, without stored activations.
        backward_temporary_bytes: Peak memory of the backward in bytes, without stored activations and weight gradients.

    Raises:
        InputError: A value is negative or not finite.

    Example:
        >>> sp.CostSample(size=4096, forward=0.004, backward=0.009, output_bytes=1e6).saved_bytes
        0.0

    See also:
        background/costs_by_size, `LayerCost`
    """

    size: float
    forward: float
    backward: float
    output_bytes: float
    coordinate_bytes: float = 0.0
    saved_bytes: float = 0.0
    forward_spread: float = 0.0
    backward_spread: float = 0.0
    kernel_map_pairs: float = 0.0
    kernel_map_seconds: float = 0.0
    coded_output_bytes: float = 0.0
    coded_gradient_bytes: float = 0.0
    coded_coordinate_bytes: float = 0.0
    kernel_map_bytes: float = 0.0
    saved_input_bytes: float = 0.0
    backward_left_bytes: float = 0.0
    forward_temporary_bytes: float = 0.0
    backward_temporary_bytes: float = 0.0

    def __post_init__(self) -> None:
        values = _values_of(self)
        if {*map(type, values)} <= {int, float} and min(values) >= 0 and max(values) <= MOST >= sum(values):
            return  # all at once, as profiles have thousands; the sum, as `max` overlooks NaN
        for name, value in zip(COST_FIELDS, values, strict=True):
            number(value, name)

    def squeezed(self, ratio: float) -> "CostSample":
        """Return a copy whose features cross every stage boundary in 1/ratio of the bytes."""
        return replace(self, output_bytes=self.output_bytes / ratio, coded_output_bytes=0.0, coded_gradient_bytes=0.0)


COST_FIELDS = tuple(item.name for item in fields(CostSample))
CODED_FIELDS = tuple(name for name in COST_FIELDS if name.startswith("coded_"))
MEMORY_FIELDS = (
    "kernel_map_bytes",
    "saved_input_bytes",
    "backward_left_bytes",
    "forward_temporary_bytes",
    "backward_temporary_bytes",
)
_values_of = attrgetter(*COST_FIELDS)
_SPREADS = {"forward": "forward_spread", "backward": "backward_spread"}
_TIMES = (*_SPREADS, "kernel_map_seconds")
KEPT_FIELDS = ("saved_bytes", *MEMORY_FIELDS)
_COUNTS = tuple(name for name in COST_FIELDS if name.endswith(("bytes", "pairs")) and name not in KEPT_FIELDS)
_DRIVERS = ("output_bytes", "kernel_map_pairs")  # of seconds: voxels of the output, and what a convolution multiplies


def checked_size(size: float) -> float:
    """Return a minibatch's size. Raises InputError for one that is no number of 0 or more."""
    given_number(size, "a minibatch's size of")
    if not 0 <= size <= MOST:
        raise InputError("number.below_least", f"a minibatch size of {size} given, expected 0 or more")
    return float(size)


@dataclass(frozen=True)
class LayerCost:
    """Store the costs of one layer at increasing sizes, with the cost model fitted to them.

    A single sample at size 0 is valid for every size, as in a graph.txt.

    Attributes:
        samples: Costs at increasing sizes.
        stretch: Factor on the sizes of the samples, for example for another voxel size. With 2, a minibatch of twice
            the size has the measured cost.

    Raises:
        InputError: No sample, or sizes that do not increase.

    Example:
        >>> cost = sp.LayerCost((sp.CostSample(1000, 0.01, 0.02, 1e6), sp.CostSample(4000, 0.04, 0.08, 4e6)))
        >>> round(cost.at(2000).forward, 4)
        0.02

    See also:
        background/costs_by_size, `Profile`
    """

    samples: tuple[CostSample, ...]
    stretch: float = 1.0

    def __post_init__(self) -> None:
        counts = [sample.size for sample in self.samples]
        if not counts or any(b <= a for a, b in zip(counts, counts[1:], strict=False)):
            raise InputError(
                "cost.sizes_malformed", f"cost samples are at sizes {counts}, expected one or more increasing sizes"
            )

    def at(self, size: float) -> CostSample:
        """Return the cost of a minibatch of this size, by the scaling law. Raises InputError for a size below 0."""
        return self._laws.samples(checked_size(size))[0]

    def changed(self, change: Callable[[CostSample], CostSample]) -> "LayerCost":
        """Return a copy whose cost samples are `change(sample)`, at the same sizes."""
        return replace(self, samples=tuple(map(change, self.samples)))

    @cached_property
    def stretched(self) -> tuple[CostSample, ...]:
        """Return the costs at increasing minibatch sizes, extrapolated beyond the measured ones."""
        if self.stretch == 1:
            return self.samples
        return tuple(replace(sample, size=sample.size * self.stretch) for sample in self.samples)

    @cached_property
    def _laws(self) -> "LayerLaws":
        return LayerLaws.of((self,)).stretched([self.stretch])


@dataclass(frozen=True, eq=False)
class LayerLaws:
    """The laws of size of several layers: those that were measured at the same sizes go together."""

    num_layers: int
    groups: tuple["_Group", ...]
    stretches: Array | None = None  # [layers]: of each layer's sizes; None: 1
    densities: Array | None = None  # [layers]: seconds are those of sizes so many times as large; None: 1

    @classmethod
    def of(
        cls,
        costs: Sequence[LayerCost],
        *,
        attention: bool = False,
        samples: Sequence[Mapping[float, float]] = (),
    ) -> "LayerLaws":
        """Fit the laws of what was measured. `attention`: seconds and kept bytes may grow with the square of sizes.

        `samples`: for each cost, how many the minibatch of each measured size had, as a share of a batch's.
        """
        same: dict[tuple[tuple[float, ...], tuple[float, ...]], list[int]] = {}
        for k, cost in enumerate(costs):
            x = tuple(sample.size for sample in cost.samples)
            shares = tuple(samples[k].get(size, 1.0) for size in x) if samples else ()
            same.setdefault((x, shares), []).append(k)
        groups = (
            _Group.of(costs, layers, np.array(x), attention=attention, samples=np.array(shares) if shares else None)
            for (x, shares), layers in same.items()
        )
        return cls(len(costs), tuple(groups))

    def stretched(self, stretches: Sequence[float], densities: Sequence[float] = ()) -> "LayerLaws":
        """The same laws for layers whose sizes are stretched, [layers]: evaluated elsewhere, not fitted again.

        `densities`: seconds are those of sizes so many times as large, as far as these were measured: [layers].
        """
        factors, denser = (
            None if all(factor == 1 for factor in stretches_or_densities) else np.array(stretches_or_densities)
            for stretches_or_densities in (stretches, densities)
        )
        return replace(self, stretches=factors, densities=denser)

    def measured(self, layers: slice) -> tuple[float, float]:
        """The range of sizes in which all these layers were measured: (0, inf) for costs that hold at every size."""
        lows, highs = np.zeros(self.num_layers), np.full(self.num_layers, np.inf)
        for group in self.groups:
            if group.sizes[-1]:
                lows[group.layers], highs[group.layers] = group.sizes[0], group.sizes[-1]
        if self.stretches is not None:
            lows, highs = lows * self.stretches, highs * self.stretches
        return float(lows[layers].max()), float(highs[layers].min())

    def at(self, sizes: Array) -> dict[str, Array]:
        """Evaluate seconds and bytes of the layers at each of `sizes`: field of a cost sample → [layers, sizes]."""
        values_by_name = {name: np.zeros((self.num_layers, len(sizes))) for name in (*_TIMES, *KEPT_FIELDS, *_COUNTS)}
        for group in self.groups:
            for part in group.parts:
                densities = self.densities if part is group.parts[0] else None
                values = part.laws.at(part.own(sizes, self.stretches, densities))
                for name, (layers, rows) in part.rows.items():
                    values_by_name[name][layers] = values[rows]
        values_by_name["kernel_map_seconds"] = np.minimum(
            values_by_name["kernel_map_seconds"], values_by_name["forward"]
        )
        return values_by_name

    def samples(self, size: float, layers: slice = slice(None)) -> tuple[CostSample, ...]:
        """These layers' costs at one size; their spreads are what their seconds may be off there, to both sides."""
        sizes = np.array([size])
        values_by_name = {name: values[layers, 0] for name, values in self.at(sizes).items()}
        for (name, spread), share in zip(_SPREADS.items(), self.uncertainty(sizes), strict=True):
            values_by_name[spread] = 2 * values_by_name[name] * share[layers, 0]
        columns = [values_by_name[name].tolist() for name in COST_FIELDS[1:]]
        return tuple(CostSample(size, *values) for values in zip(*columns, strict=True))

    def uncertainty(self, sizes: Array) -> tuple[Array, Array]:
        """Shares by which the layers' forwards and backwards may be off at each of `sizes`: [layers, sizes] each."""
        spreads = {name: np.zeros((self.num_layers, len(sizes))) for name in _SPREADS}
        for group in self.groups:
            seconds = group.parts[0]
            shares = seconds.laws.uncertainty(seconds.own(sizes, self.stretches, self.densities))
            for name in _SPREADS:
                layers, rows = seconds.rows[name]
                spreads[name][layers] = shares[rows]
        return spreads["forward"], spreads["backward"]


@dataclass(frozen=True, eq=False)
class _Part:
    """Laws that are fitted together, of some fields: those of a field are `rows` of the laws, for some layers."""

    laws: SizeLaws
    rows: Mapping[str, tuple[NDArray[np.intp], slice]]

    @classmethod
    def of(
        cls, layers: NDArray[np.intp], sizes: Array, values: Mapping[str, Array], names: Sequence[str], **options: Any
    ) -> "_Part":
        """Fit the fields `names` of `values`: field → [layers, S]. Rows without any value stay 0."""
        rows, first, used = {}, 0, []
        for name in names:
            some = np.flatnonzero(values[name].any(axis=1))
            rows[name] = layers[some], slice(first, first + len(some))
            first += len(some)
            used.append(some)
        spreads = [values[_SPREADS.get(name, "no_spread")][some] for name, some in zip(names, used, strict=True)]
        columns = [values[name][some] for name, some in zip(names, used, strict=True)]
        if drivers := options.get("drivers"):
            options["drivers"] = [
                tuple(np.concatenate([part[some] for some in used]) for part in driver) for driver in drivers
            ]
        return cls(SizeLaws.fit(sizes, np.concatenate(columns), np.concatenate(spreads), **options), rows)

    def own(self, sizes: Array, stretches: Array | None, densities: Array | None) -> Array:
        """The sizes at which the laws say what minibatches of `sizes` cost: [sizes], or of each row [rows, sizes].

        Densities take no size out of the measured range: they were counted of minibatches that lie within it.
        """
        if stretches is None and densities is None:
            return sizes
        layers = np.concatenate([layers for layers, _ in self.rows.values()])
        effective_sizes = sizes if stretches is None else sizes / stretches[layers, None]
        if densities is None:
            return effective_sizes
        low, high = self.laws.measured
        return np.clip(
            effective_sizes * densities[layers, None],
            np.minimum(effective_sizes, low),
            np.maximum(effective_sizes, high),
        )

    def lines(self, name: str, layers: NDArray[np.intp]) -> tuple[Array, Array]:
        """Constants and slopes of one field's laws, for `layers`; 0 of those that are not fitted."""
        known, rows = self.rows[name]
        coefficients = np.zeros((2, int(layers.max()) + 1))
        coefficients[:, known] = self.laws.constants[rows], self.laws.slopes[rows]
        constants, slopes = coefficients[:, layers]
        return constants, slopes


@dataclass(frozen=True, eq=False)
class _Group:
    """Laws of layers with samples at the same sizes."""

    layers: NDArray[np.intp]
    sizes: Array
    parts: tuple[_Part, ...]  # seconds first

    @classmethod
    def of(
        cls,
        costs: Sequence[LayerCost],
        chosen: list[int],
        sizes: Array,
        *,
        attention: bool,
        samples: Array | None,
    ) -> "_Group":
        layers = np.array(chosen)
        table = np.array([[_values_of(sample) for sample in costs[k].samples] for k in chosen], dtype=float)
        values = {name: table[:, :, k] for k, name in enumerate(COST_FIELDS)}
        values["no_spread"] = np.zeros_like(values["forward"])
        counts = _Part.of(layers, sizes, values, _COUNTS if attention else (*_COUNTS, *KEPT_FIELDS), power=BYTES)
        seconds = _Part.of(
            layers,
            sizes,
            values,
            _TIMES,
            power=ATTENTION if attention else SECONDS,
            drivers=[(values[name], *counts.lines(name, layers)) for name in _DRIVERS],
            samples=samples,
        )
        parts = [_Part.of(layers, sizes, values, KEPT_FIELDS, power=ATTENTION, samples=samples)] if attention else []
        return cls(layers, sizes, (seconds, counts, *parts))
