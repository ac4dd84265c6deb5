"""A network as a table of rows: what each layer is, what feeds it, and how many parameters it holds.

One that is a torch module has a row by its name, which names the function that builds it: listing it imports no torch.
`TableBuilder` names layers, tracks channels and tensor strides, adds shared blocks.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..errors import InputError
from ..values.graph import Layer, LayerGraph

INPUT = "input"  # the name of the network's input: a tensor, not a layer
_FLOAT_BYTES = 4  # parameters are float32
_DIMENSION = 3  # spatial axes where a row does not say
CURVES = ("z", "z-trans", "hilbert", "hilbert-trans")  # through the voxels of a sample, for attention
_OF_EACH_AXIS = frozenset({"kernel_size", "stride", "dilation"})


def each_axis(value: int | Sequence[int], dimension: int) -> tuple[int, ...]:
    """Return a kernel size, stride or dilation for each of `dimension` axes: one number counts for all of them.

    Raises InputError for another number of them.
    """
    values = (value,) * dimension if isinstance(value, int) else tuple(value)
    if len(values) != dimension:
        raise InputError(
            "layer.axis_count",
            f"{list(values)} has {len(values)} numbers, expected one, or one per axis ({dimension})",
            dimension=dimension,
        )
    return values


def _kernel_volume(args: Mapping[str, Any]) -> int:
    return math.prod(each_axis(args["kernel_size"], args.get("dimension", _DIMENSION)))


def _convolution_parameters(args: Mapping[str, Any]) -> int:
    bias = args["out_channels"] if args.get("bias", False) else 0
    return int(_kernel_volume(args) * args["in_channels"] * args["out_channels"] + bias)


def _linear_parameters(args: Mapping[str, Any]) -> int:
    return int((args["in_channels"] + args.get("bias", True)) * args["out_channels"])


def _norm_parameters(args: Mapping[str, Any]) -> int:
    return 2 * int(args["channels"])  # weight and bias; running statistics are buffers


def _attention_parameters(args: Mapping[str, Any]) -> int:
    return int(4 * (args["channels"] + 1) * args["channels"])  # queries, keys, values, and what leads out


def _no_parameters(args: Mapping[str, Any]) -> int:
    return 0


# kind -> number of trained parameters. Comments name the arguments; an engine has one constructor for each kind.
LAYER_KINDS: dict[str, Callable[[Mapping[str, Any]], int]] = {
    # on sparse tensors; what has a kernel also takes dimension=3, the number of axes: kernel_size, stride and dilation
    # are one number, or a number for each axis
    "convolution": _convolution_parameters,  # in_channels, out_channels, kernel_size, stride=1, dilation=1, bias=False
    "transposed_convolution": _convolution_parameters,  # likewise; inputs (x, like): the output lies where `like` does
    "max_pool": _no_parameters,  # kernel_size, stride
    "average_pool": _no_parameters,  # kernel_size, stride; the mean of the voxels that are there
    "sum_pool": _no_parameters,  # kernel_size, stride
    "unpool": _no_parameters,  # kernel_size, stride; inputs (x, like); the sum of those a voxel is pooled into
    "average_unpool": _no_parameters,  # likewise the mean, native alone
    "max_unpool": _no_parameters,  # likewise the maximum, native alone
    "instance_norm": _norm_parameters,  # channels; statistics of each sample
    # channels, heads, patch_size, curves, position=0, level="", rotation=0, dimension=3; native alone. Attention among
    # `patch_size` voxels that follow each other on a curve: curves[position] of "z", "z-trans", "hilbert" and
    # "hilbert-trans", in training of a shuffle that layers of one level share. Rotation: the base of PointROPE; 0: none
    "serialised_attention": _attention_parameters,
    # sparse [N, C] -> dense rows [B, C]
    "global_max_pool": _no_parameters,
    "global_average_pool": _no_parameters,
    "global_sum_pool": _no_parameters,
    # on the rows of either
    "batch_norm": _norm_parameters,  # channels, epsilon=1e-5, momentum=0.1
    "layer_norm": _norm_parameters,  # channels; native alone
    "relu": _no_parameters,
    "leaky_relu": _no_parameters,  # negative_slope=0.01
    "gelu": _no_parameters,
    "linear": _linear_parameters,  # in_channels, out_channels, bias=True
    "dropout": _no_parameters,  # probability
    "drop_path": _no_parameters,  # probability; drops whole rows, native alone
    "add": _no_parameters,  # inputs on the same voxels
    "union_add": _no_parameters,  # inputs on any voxels of one tensor stride; the output lies on those of either
    "concatenate": _no_parameters,  # inputs on the same voxels, channels side by side
    # dense grids [B, C, size, ...]
    "dense_grid": _no_parameters,  # size, dimension=3; sparse -> dense, 0 where there is no voxel
    "dense_convolution": _convolution_parameters,  # as convolution, padding=0
    "dense_batch_norm": _norm_parameters,  # channels, dimension=3
    "dense_max_pool": _no_parameters,  # kernel_size, stride, dimension=3
    "flatten": _no_parameters,  # [B, C, size, ...] -> rows [B, C * size * ...]
}

_MAX_POOLS = ("max_pool", "dense_max_pool")  # a zero among numbers that are not negative came from a zero
_LIES_WHERE_THE_LAST_INPUT_DOES = frozenset({"transposed_convolution", "unpool", "average_unpool", "max_unpool"})


@dataclass(frozen=True, slots=True)
class Row:
    """One layer: `inputs` are ids of earlier rows, or "input"; `args` are its kind's arguments."""

    id: str
    kind: str
    inputs: tuple[str, ...]
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The value that it gives, of its own name."""
        return (self.id,)

    @property
    def description(self) -> str:
        return f"{self.kind}({', '.join(f'{key}={value}' for key, value in self.args.items())})"

    @property
    def dimension(self) -> int | None:
        """Number of spatial axes of the tensor it takes; None: any number, or none at all."""
        spatial = not {"kernel_size", "heads"}.isdisjoint(self.args) or self.kind.startswith("dense_")
        return self.args.get("dimension", _DIMENSION) if spatial else None

    @property
    def seed_name(self) -> str:
        """Name from which the random numbers of the forward are derived. Layers of one level draw equally."""
        return self.args.get("level") or self.id

    @property
    def kernel_volume(self) -> int:
        """Number of offsets of the kernel of a layer that has one."""
        return _kernel_volume(self.args)

    @property
    def num_parameters(self) -> int:
        return LAYER_KINDS[self.kind](self.args)


@dataclass(frozen=True)
class Network:
    """A table of rows in topological order, one value a row: the member of `AnyNetwork` (base.py) that engines build.

    Raises InputError if a row is unknown, repeated or out of order.
    """

    name: str
    rows: tuple[Row, ...]
    in_channels: int
    num_classes: int
    frozen: frozenset[str] = frozenset()  # names of tensors that are not trained
    frozen_rows: frozenset[str] = frozenset()  # ids of layers without any parameter that is

    def __post_init__(self) -> None:
        known = {INPUT}
        for row in self.rows:
            if row.kind not in LAYER_KINDS:
                raise InputError(
                    "layer.kind_unknown",
                    f"layer {row.id!r} of {self.name}: unknown kind {row.kind!r}, "
                    f"expected one of {', '.join(LAYER_KINDS)}",
                )
            if not row.id.isidentifier() or row.id in known:
                raise InputError(
                    "layer.name_malformed",
                    f"layer {row.id!r} of {self.name}: expected a new name of letters, digits and underscores",
                )
            if missing := [name for name in row.inputs if name not in known]:
                raise InputError(
                    "layer.input_unknown",
                    f"layer {row.id!r} of {self.name}: input {missing[0]!r} is not an earlier layer",
                )
            for name in _OF_EACH_AXIS & row.args.keys() if row.dimension else ():
                try:
                    each_axis(row.args[name], row.dimension or 0)
                except InputError as error:
                    raise error.within(f"layer {row.id!r} of {self.name}: {name} ") from None
            known.add(row.id)

    @property
    def inputs(self) -> tuple[str, ...]:
        return (INPUT,)

    @property
    def direct_inputs(self) -> tuple[str, ...]:
        """None: a sparse input has its coordinates in common with what crosses next to it."""
        return ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.rows[-1].id,)

    @cached_property
    def differentiable(self) -> frozenset[str]:
        found: set[str] = set()
        for row in self.rows:
            if (row.num_parameters and row.id not in self.frozen_rows) or found & set(row.inputs):
                found.add(row.id)
        return frozenset(found)

    @cached_property
    def rectified(self) -> frozenset[str]:
        found: set[str] = set()
        for row in self.rows:
            if row.kind == "relu" or (row.kind in _MAX_POOLS and found.issuperset(row.inputs)):
                found.add(row.id)
        return frozenset(found)

    def alive(self, before: Collection[str], *, training: bool = True) -> tuple[str, ...]:
        there = {*before, INPUT}
        needed = {name for row in self.rows if row.id not in there for name in row.inputs} | set(self.outputs)
        return tuple(name for name in (INPUT, *(row.id for row in self.rows)) if name in there & needed)

    @property
    def coarsest_stride(self) -> tuple[int, ...] | None:
        """The least tensor stride, on each axis, that every layer's own divides; None with a dense grid.

        A cloud moved by multiples of it is the same to the network. A dense grid begins at 0, whatever lies there.
        """
        return None if any(row.kind == "dense_grid" for row in self.rows) else self.coarsest_sparse_stride

    @property
    def coarsest_sparse_stride(self) -> tuple[int, ...]:
        """The least tensor stride, on each axis, that every layer's own on sparse tensors divides."""
        dimension = next((row.dimension for row in self.rows if row.dimension), _DIMENSION)
        strides = {INPUT: (1,) * dimension}
        for row in self.rows:
            like = row.inputs[-1] if row.kind in _LIES_WHERE_THE_LAST_INPUT_DOES else row.inputs[0]
            if row.kind == "dense_grid" or like not in strides:
                continue  # a dense grid, and what is made of it
            own = strides[like]
            if like == row.inputs[0]:
                steps = each_axis(row.args.get("stride", 1), dimension)
                own = tuple(before * step for before, step in zip(own, steps, strict=True))
            strides[row.id] = own
        return tuple(math.lcm(*axis) for axis in zip(*strides.values(), strict=True))

    def graph(self) -> LayerGraph:
        """Return the layer graph: one layer a row, in row order, and an edge for every input that is a layer."""
        position = {row.id: i for i, row in enumerate(self.rows)}
        layers = tuple(Layer(row.id, row.description, row.num_parameters * _FLOAT_BYTES) for row in self.rows)
        edges = [
            (position[name], j)
            for j, row in enumerate(self.rows)
            for name in dict.fromkeys(row.inputs)
            if name != INPUT
        ]
        return LayerGraph(layers, tuple(sorted(edges)))


def scaled(channels: int, width: float) -> int:
    """Return `channels` times a width multiplier, rounded, at least 1."""
    return max(1, math.floor(channels * width + 0.5))


@dataclass(frozen=True)
class ModuleNetwork:
    """A builder: `function` of the file `home` below sparsepipe.networks, called with `args` and facts of the data.

    Facts of the data (num_classes, in_channels, image_size, vocabulary_size, ...) are given to builders whose
    parameters have these names. What the user gives as model arguments comes last, over both.
    """

    home: str  # "images.resnet"
    function: str  # "resnet"
    args: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""  # one line for `sparsepipe models`
    takes: str = ""  # what data it is made for, in a few words: "images 224 x 224"


class TableBuilder:
    """Collects the rows of a network. Methods add rows after the last one, or those named; they return the new last."""

    def __init__(self, in_channels: int, **norm: float) -> None:
        """`norm`: arguments of every batch norm beside its channels."""
        self.rows: list[Row] = []
        self.norm: dict[str, Any] = dict(norm)
        self.channels: dict[str, int] = {INPUT: in_channels}  # of each tensor
        self.last = INPUT

    def add(self, id: str, kind: str, *after: str, output_channels: int | None = None, **args: object) -> str:
        """Add a row after the given tensors, with its arguments. Output channels default to its first input's."""
        inputs = after or (self.last,)
        self.rows.append(Row(id, kind, inputs, args))
        self.channels[id] = self.channels[inputs[0]] if output_channels is None else output_channels
        self.last = id
        return id

    def convolution(
        self, id: str, *after: str, channels: int, kind: str = "convolution", bias: bool = False, **args: object
    ) -> str:
        """Add a convolution of any kind, its input channels those of the tensor it follows."""
        in_channels = self.channels[(after or (self.last,))[0]]
        args = {"in_channels": in_channels, "out_channels": channels, **args, "bias": bias}
        return self.add(id, kind, *after, output_channels=channels, **args)

    def linear(self, id: str, *after: str, channels: int) -> str:
        """Add a linear layer, its input channels those of the tensor it follows."""
        in_channels = self.channels[(after or (self.last,))[0]]
        return self.add(id, "linear", *after, output_channels=channels, in_channels=in_channels, out_channels=channels)

    def normalised(self, tag: str, *after: str, relu: bool = True, **args: object) -> str:
        """Add a convolution, its batch norm and, unless told not to, a ReLU: conv<tag>, bn<tag>, relu<tag>."""
        self.convolution(f"conv{tag}", *after, **args)  # type: ignore[arg-type]
        self.add(f"bn{tag}", "batch_norm", channels=self.channels[self.last], **self.norm)
        return self.add(f"relu{tag}", "relu") if relu else self.last

    def basic_block(self, tag: str, *, channels: int, stride: int = 1) -> str:
        """Add two 3x3x3 convolutions around a shortcut (He et al., "Deep Residual Learning", figure 2)."""
        entry = self.last
        self.normalised(f"{tag}_1", channels=channels, kernel_size=3, stride=stride)
        branch = self.normalised(f"{tag}_2", channels=channels, kernel_size=3, stride=1, relu=False)
        return self._merge(tag, entry, branch, stride)

    def bottleneck(self, tag: str, *, channels: int, stride: int = 1) -> str:
        """Add a 1-3-1 bottleneck, four times wider at its end, around a shortcut (He et al., figure 5)."""
        entry = self.last
        self.normalised(f"{tag}_1", channels=channels, kernel_size=1, stride=1)
        self.normalised(f"{tag}_2", channels=channels, kernel_size=3, stride=stride)
        branch = self.normalised(f"{tag}_3", channels=4 * channels, kernel_size=1, stride=1, relu=False)
        return self._merge(tag, entry, branch, stride)

    def classifier(self, num_classes: int, *, width: float = 1.0) -> str:
        """Add the three linear layers by which Pointcept classifies samples, the first two with norm and dropout."""
        for number, channels in enumerate((256, 128), start=1):
            self.linear(f"class{number}_linear", channels=scaled(channels, width))
            self.add(f"class{number}_norm", "batch_norm", channels=self.channels[self.last])
            self.add(f"class{number}_relu", "relu")
            self.add(f"class{number}_dropout", "dropout", probability=0.5)
        return self.linear("fc", channels=num_classes)

    def _merge(self, tag: str, entry: str, branch: str, stride: int) -> str:
        channels = self.channels[branch]
        if stride != 1 or self.channels[entry] != channels:
            entry = self.normalised(f"{tag}_short", entry, channels=channels, kernel_size=1, stride=stride, relu=False)
        self.add(f"add{tag}", "add", branch, entry)
        return self.add(f"relu{tag}", "relu")
