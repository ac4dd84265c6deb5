"""The reference engine: NVIDIA's MinkowskiEngine behind the engine protocol. The only file that imports it."""

import json
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from ..data.batch import PointBatch
from ..data.examples import ExampleBatch
from ..data.reach import check_within, reach, within_reach
from ..errors import InputError
from ..networks.base import LayerRow
from ..networks.batch_norm import GroupBatchNorm
from ..networks.rows import Row, each_axis
from ..util.host.imports import restore_removed_names
from .base import CoordinateSet, Feature, Parts, SceneGroup, SeededDropout, TableWriter, checked
from .dense import ACTIVATIONS, DENSE_LAYERS, Slab, dense_grid
from .native import layers as native
from .native.coordinates import SparseTensor, Stride, pack, unpack
from .native.space import PartManager, PartMap, Regions
from .plain import on_device

restore_removed_names()
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it says at every import that it was built without CUDA
    import MinkowskiEngine as ME

# Sparse, points with their voxels (a TensorField), dense rows [B, C] after global pooling; parts of shared scenes.
AnyTensor: TypeAlias = ME.SparseTensor | ME.TensorField | Tensor | SparseTensor | Slab
_SPARSE = (ME.SparseTensor, ME.TensorField)


class MinkowskiEngine:
    """The real MinkowskiEngine. Rows of an input keep the minibatch's order; later sets are ordered by the library."""

    name = "minkowski"
    looks_voxels_up = True
    takes_points = True
    takes_examples = True
    shares_scenes = True
    divides_packets = False

    def layer(self, row: Row) -> nn.Module:
        with warnings.catch_warnings():
            # Its layers instantiate autograd functions, which torch deprecates and still allows.
            warnings.filterwarnings("ignore", message="<class 'Minkowski", category=DeprecationWarning)
            if row.kind not in LAYERS:
                raise InputError(
                    "layer.kind_unsupported",
                    f"layer {row.id!r}: MinkowskiEngine has no {row.kind}; use engine 'native'",
                    layer=row.id,
                    kind=row.kind,
                )
            if row.kind == "max_pool" and _leaves_voxels_out(row):
                raise InputError(
                    "layer.pool_with_gaps",
                    f"layer {row.id!r}: its kernel is smaller than its stride, and MinkowskiEngine's max_pool writes "
                    "out of bounds where no voxel lies under a kernel; use engine 'native', or a kernel as large as "
                    "the stride",
                    layer=row.id,
                )
            space: dict[str, Any] = (
                {} if row.dimension is None else {"dimension": row.dimension}
            )  # which the library wants named
            return checked(LAYERS[row.kind](**{**row.args, **space}), row, self)

    def tensor(self, batch: PointBatch | ExampleBatch, device: torch.device | str = "cpu") -> Any:
        """Put a minibatch on a device: voxels as a sparse tensor, plain tensors as the network takes them."""
        if isinstance(batch, ExampleBatch):
            return on_device(batch.inputs, device)
        dimension = batch.coordinates.shape[1] - 1
        limit = reach(self.name, dimension)
        coordinates = within_reach(batch.coordinates.to(device), limit)
        check_within(coordinates, limit)
        coordinate_set = CoordinateSet((1,) * dimension, coordinates)
        return self.join(Parts((coordinate_set,), {"input": Feature(batch.features.to(device), 0)}))["input"]

    def part(
        self, tensor: ME.SparseTensor, group: SceneGroup, *, shares: Sequence[float], step: Sequence[int]
    ) -> SparseTensor:
        """Return this process's part of a minibatch whose scenes several processes share, as engine native does.

        The library computes convolutions and pools of a part. Borders are always multiples of `step`, since its pools
        take each voxel of their input to be within one of their output.
        """
        dimension = tensor.D
        keys, order = torch.sort(pack(within_reach(tensor.C, reach("native", dimension))))
        coordinates = unpack(keys, dimension)
        regions = Regions.of(coordinates, shares, step=tuple(step), nested=True)
        mine = regions.rows(coordinates, group.part)
        rows, num_samples = order.index_select(0, mine), int(coordinates[-1, 0]) + 1
        parts = PartCoordinates(dimension, regions, group, num_samples=num_samples, rows=rows)
        stride = tuple(tensor.tensor_stride)
        parts.insert(stride, keys.index_select(0, mine))
        return SparseTensor(tensor.F.index_select(0, rows), stride, parts)

    def rows_of_part(self, tensor: AnyTensor) -> Tensor | None:
        """Return which rows of the whole minibatch a part has, int64 [n]; None for a tensor that is no part."""
        manager = tensor.manager if isinstance(tensor, SparseTensor) else None
        return manager.rows if isinstance(manager, PartManager) else None

    def split(self, tensors: Mapping[str, AnyTensor]) -> Parts:
        sets: dict[tuple[tuple[int, ...], int], CoordinateSet] = {}
        features: dict[str, Feature] = {}
        families: dict[tuple[int, str], int] = {}  # manager, its name of what is at a stride → the number of that
        fields = FieldWriter()

        def number_of(map_key: ME.CoordinateMapKey, manager: ME.CoordinateManager) -> int:
            stride, origin = map_key.get_key()
            if not families:
                families[id(manager), ""] = 0
            key = tuple(stride), families.setdefault((id(manager), origin), len(families))
            if key not in sets:
                sets[key] = CoordinateSet(key[0], manager.get_coordinates(map_key), key[1])
            return list(sets).index(key)

        for name, tensor in tensors.items():
            features[name] = Feature(self.features(tensor), None)
            if isinstance(tensor, ME.SparseTensor):
                number = number_of(tensor.coordinate_map_key, tensor.coordinate_manager)
                features[name] = Feature(tensor.F, number)
            elif isinstance(tensor, ME.TensorField):
                voxels = _voxels_of(tensor).items()
                numbered = {number_of(key, tensor.coordinate_manager): rows for key, rows in voxels}
                fields.add(name, tensor, numbered)
        return Parts(tuple(sets.values()), features, fields.tables())

    def join(self, parts: Parts) -> dict[str, AnyTensor]:
        """Raises InputError for coordinates that are not distinct."""
        manager, keys = None, []
        for stride, coordinates, family, _ in parts.coordinate_sets:
            manager = manager or FieldManager(coordinates)
            origin = f"family{family}" if family else ""  # where a layer looks for the voxels of a stride by itself
            key, (kept, _) = manager.insert_and_map(coordinates.contiguous(), list(stride), origin)
            if len(kept) != len(coordinates):
                raise InputError(
                    "coordinates.not_distinct",
                    f"{len(kept)} of {len(coordinates)} coordinates at stride {stride} are distinct; remove "
                    "duplicate voxels",
                )
            keys.append(key)
        if manager is not None:
            _insert_samples(manager, parts.coordinate_sets)
        tensors = {name: _join(name, feature, keys, manager, parts) for name, feature in parts.features.items()}
        return tensors | read_fields(parts, keys, manager)

    def features(self, tensor: AnyTensor) -> Tensor:
        if isinstance(tensor, (SparseTensor, Slab)):
            return tensor.features
        return tensor.F if isinstance(tensor, _SPARSE) else tensor

    def replace(self, tensor: AnyTensor, features: Tensor) -> AnyTensor:
        if isinstance(tensor, (SparseTensor, Slab)):
            return tensor.replace(features)
        return _with_features(tensor, features) if isinstance(tensor, _SPARSE) else features

    def dimension(self, tensor: AnyTensor) -> int:
        if isinstance(tensor, SparseTensor):
            return tensor.manager.dimension
        return tensor.D if isinstance(tensor, _SPARSE) else self.features(tensor).dim() - 2

    def map_bytes(self, tensor: AnyTensor) -> int:
        return 0  # its coordinate manager does not tell

    def keeps_unseen(self, row: LayerRow) -> bool:
        return "convolution" in row.kind or "pool" in row.kind  # its own functions; kernel maps, the winners of a pool

    def warm_up(
        self, subnetwork: nn.Module, batch: Callable[[], PointBatch], device: Any, *, half: torch.dtype | None = None
    ) -> int:
        return 0  # the library measures nothing

    def rows(self, output: AnyTensor) -> Tensor:
        if isinstance(output, Slab):
            return output.whole()
        if isinstance(output, Tensor):
            return output
        if isinstance(output, SparseTensor) or not _one_voxel_each(output):
            raise InputError(
                "output.still_sparse",
                f"an output of {len(self.features(output))} voxels is still sparse: pool it globally first",
            )
        return output.F.index_select(0, torch.argsort(output.C[:, 0]))

    def correct(self, module: nn.Module) -> list[str]:
        """Have global means and sums of a module of the library's own layers in the rows of their samples.

        Returns the names of the layers that were changed. See `GlobalPool`.
        """
        changed = []
        for name, part in module.named_modules():
            if type(part) in _ORDERED and part.pooling_mode != _ORDERED[type(part)]:
                part.pooling_mode = _ORDERED[type(part)]
                changed.append(name)
        return changed


def _leaves_voxels_out(row: Row) -> bool:
    """Return whether some voxels lie under no kernel of a pool, so that a kernel may have none.

    A kernel begins at its output's voxel if its size is even or the library takes the stride's cells, else half of it
    lies before.
    """
    sizes, strides = (each_axis(row.args.get(name, 1), row.dimension or 1) for name in ("kernel_size", "stride"))
    if sizes == strides:
        return False
    reaches = [size if size % 2 == 0 else size // 2 + 1 for size in sizes]
    return any(reach < stride for reach, stride in zip(reaches, strides, strict=True))


class FieldManager(ME.CoordinateManager):
    """A coordinate manager that also knows the voxels of points which were made on an earlier stage.

    A layer's field has nothing of its input's but the points, and the library asks the manager for their voxels.
    """

    def __init__(self, coordinates: Tensor) -> None:
        super().__init__(
            D=coordinates.shape[1] - 1,
            num_threads=torch.get_num_threads(),  # else it sets torch's number, too, to all processors
            coordinate_map_type=ME.CoordinateMapType.CUDA if coordinates.is_cuda else ME.CoordinateMapType.CPU,
        )
        self.rows: dict[tuple[ME.CoordinateMapKey, ME.CoordinateMapKey], Tensor] = {}  # points, voxels → row of each

    def exists_field_to_sparse(self, points: ME.CoordinateMapKey, voxels: ME.CoordinateMapKey) -> bool:
        return (points, voxels) in self.rows or bool(super().exists_field_to_sparse(points, voxels))

    def field_to_sparse_keys(self, points: ME.CoordinateMapKey) -> list[ME.CoordinateMapKey]:
        return [*super().field_to_sparse_keys(points), *(key for field, key in self.rows if field == points)]

    def get_field_to_sparse_map(
        self, points: ME.CoordinateMapKey, voxels: ME.CoordinateMapKey
    ) -> tuple[Tensor | None, Tensor]:
        if (points, voxels) in self.rows:
            return None, self.rows[points, voxels]  # the library reads the second alone
        point_of, rows = super().get_field_to_sparse_map(points, voxels)
        return point_of, rows


class FieldWriter:
    """Takes TensorFields apart into a table of facts (JSON) and one of integers: points, and the voxel of each."""

    def __init__(self) -> None:
        self._facts: dict[str, dict[str, object]] = {}
        self._points: dict[tuple[int, ME.CoordinateMapKey], list[int]] = {}  # where those of several fields are
        self._integers = TableWriter()

    def add(self, name: str, field: ME.TensorField, voxels: Mapping[int, Tensor]) -> None:
        """Note a field. `voxels`: the row of each point in coordinate sets, by the set's number."""
        points = id(field.coordinate_manager), field.coordinate_field_map_key
        if points not in self._points:
            self._points[points] = self._integers.add(field.C.float().contiguous().view(torch.int32))
        self._facts[name] = {
            "stride": field.coordinate_field_map_key.get_tensor_stride(),
            "mode": field.quantization_mode.name,
            "points": self._points[points],
            "voxels": [[number, self._integers.add(rows.int())] for number, rows in voxels.items()],
        }

    def tables(self) -> tuple[Tensor, ...]:
        return self._integers.tables(self._facts) if self._facts else ()


def read_fields(
    parts: Parts, keys: Sequence[ME.CoordinateMapKey], manager: FieldManager | None
) -> dict[str, ME.TensorField]:
    """Put TensorFields together again, with the rows of their points in the coordinate sets that came with them.

    Fields of the same points have them in common again, as the library combines no others.
    """
    fields: dict[str, ME.TensorField] = {}
    inserted: dict[tuple[int, ...], ME.CoordinateMapKey] = {}
    if not parts.tables:
        return fields
    facts, integers = parts.tables
    for name, known in json.loads(facts.cpu().numpy().tobytes()).items():
        points = integers[slice(*known["points"])].view(torch.float32).view(-1, len(known["stride"]) + 1)
        manager = manager or FieldManager(points)
        same = tuple(known["points"])
        if same not in inserted:
            inserted[same] = manager.insert_field(points, known["stride"], "")
        fields[name] = ME.TensorField(
            parts.features[name].rows,
            coordinate_field_map_key=inserted[same],
            coordinate_manager=manager,
            quantization_mode=ME.SparseTensorQuantizationMode[known["mode"]],
        )
        voxels = {keys[k]: integers[slice(*bounds)] for k, bounds in known["voxels"]}
        fields[name]._inverse_mapping = voxels
        manager.rows |= {(inserted[same], key): rows for key, rows in voxels.items()}
    return fields


def _voxels_of(field: ME.TensorField) -> dict[ME.CoordinateMapKey, Tensor]:
    """Return the row of each point in each set of voxels, also those that were made of another field of its points."""
    key, manager = field.coordinate_field_map_key, field.coordinate_manager
    known = {voxels: manager.get_field_to_sparse_map(key, voxels)[1] for voxels in manager.field_to_sparse_keys(key)}
    return known | field._inverse_mapping


def _insert_samples(manager: FieldManager, sets: Sequence[CoordinateSet]) -> None:
    """Put the samples in their order as the rows of global pooling, which else come in the order of a hash map.

    So `pool(x).F` has the rows of its samples, whatever a network does with them, and wherever it is cut.
    """
    if any(not any(sample_set.tensor_stride) for sample_set in sets):  # a pooled tensor brings them
        return
    count = max(
        (int(sample_set.coordinates[:, 0].max()) + 1 for sample_set in sets if len(sample_set.coordinates)), default=0
    )
    samples = sets[0].coordinates.new_zeros(count, sets[0].coordinates.shape[1])
    samples[:, 0] = torch.arange(count)
    manager.insert_and_map(samples, [0] * (samples.shape[1] - 1), "")


def _join(
    name: str, feature: Feature, keys: list[ME.CoordinateMapKey], manager: FieldManager | None, parts: Parts
) -> AnyTensor:
    if feature.coordinate_set is None:
        return feature.rows
    coordinates = parts.coordinate_sets[feature.coordinate_set].coordinates
    if len(feature.rows) != len(coordinates):
        raise InputError(
            "tensor.row_count",
            f"{name}: has {len(feature.rows)} feature rows but {len(coordinates)} coordinates; give one row per "
            "coordinate",
        )
    # With a key instead of coordinates the library takes the rows as they are, the very tensor, in the set's order.
    return ME.SparseTensor(feature.rows, coordinate_map_key=keys[feature.coordinate_set], coordinate_manager=manager)


def _with_features(tensor: ME.SparseTensor | ME.TensorField, features: Tensor) -> ME.SparseTensor | ME.TensorField:
    if isinstance(tensor, ME.TensorField):
        field = ME.TensorField(
            features,
            coordinate_field_map_key=tensor.coordinate_field_map_key,
            coordinate_manager=tensor.coordinate_manager,
            quantization_mode=tensor.quantization_mode,
        )
        field._inverse_mapping = tensor._inverse_mapping
        return field
    return ME.SparseTensor(
        features, coordinate_map_key=tensor.coordinate_map_key, coordinate_manager=tensor.coordinate_manager
    )


class PartCoordinates(PartManager):
    """The coordinate sets of one part, and the library's own sets for each kernel.

    For the library a part is a tensor of its voxels and of its halo, and the output lies on the part's voxels.
    """

    @cached_property
    def _library_sets(
        self,
    ) -> dict[Hashable, tuple[PartMap | None, ME.CoordinateManager, ME.CoordinateMapKey, ME.CoordinateMapKey]]:
        return {}

    searches_pairs = False

    def library_sets(
        self,
        entering: Stride,
        leaving: Stride,
        *,
        size: Stride,
        dilation: Stride,
        tiles: bool,
        upward: bool,
    ) -> tuple[PartMap | None, ME.CoordinateManager, ME.CoordinateMapKey, ME.CoordinateMapKey]:
        """Return the map of a kernel with the halo, and the library's sets: its manager, its input's and output's key.

        `tiles`: no voxel is under two kernels, so that there is no halo. `upward`: the output is the finer set.
        """
        cached = entering, leaving, size, dilation, tiles
        if cached not in self._library_sets:
            part_map = None
            if upward and not tiles:
                part_map = self.upward_map(leaving, entering, kernel_size=size, dilation=dilation)
            elif not tiles:
                part_map = self.kernel_map(entering, leaving, kernel_size=size, dilation=dilation)
            keys = self.keys(entering) if part_map is None else part_map.keys_with_halo
            self._library_sets[cached] = part_map, *self._inserted(keys, entering, leaving)
        return self._library_sets[cached]

    def _inserted(
        self, keys: Tensor, entering: Stride, leaving: Stride
    ) -> tuple[ME.CoordinateManager, ME.CoordinateMapKey, ME.CoordinateMapKey]:
        """Return a manager of the library with a layer's input and output voxels, and their keys there."""
        sets = [unpack(keys, self.dimension), self.coordinates(leaving)]
        if not all(map(len, sets)):  # the library has no empty sets: a voxel of another sample, apart from all others
            apart = sets[0].new_zeros(1, 1 + self.dimension)
            apart[0, 0] = self.num_samples
            sets = [torch.cat([coordinates, apart]) for coordinates in sets]
        manager = FieldManager(sets[0])
        inserted = [
            manager.insert_and_map(coordinates.contiguous(), list(stride), name)[0]
            for coordinates, stride, name in zip(sets, (entering, leaving), ("in", "out"), strict=True)
        ]
        return manager, inserted[0], inserted[1]


def _on_features(function: Callable[[Tensor], Tensor], tensor: AnyTensor) -> AnyTensor:
    if isinstance(tensor, (SparseTensor, Slab)):
        return tensor.replace(function(tensor.features))
    return _with_features(tensor, function(tensor.F)) if isinstance(tensor, ME.SparseTensor) else function(tensor)


class Activation(nn.Module):
    def __init__(self, function: Callable[..., Tensor], **args: float) -> None:
        super().__init__()
        self.function, self.args = function, args

    def forward(self, tensor: AnyTensor) -> AnyTensor:
        return _on_features(lambda rows: self.function(rows, **self.args), tensor)


class Linear(ME.MinkowskiLinear):
    """MinkowskiLinear that also takes the dense rows of a globally pooled tensor."""

    def __init__(self, in_channels: int, out_channels: int, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, bias=bias)

    def forward(self, input: AnyTensor) -> AnyTensor:
        return _on_features(self.linear, input)


class BatchNorm(ME.MinkowskiBatchNorm):
    def __init__(self, channels: int, *, epsilon: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(channels)
        self.bn = GroupBatchNorm(channels, eps=epsilon, momentum=momentum)

    def forward(self, input: AnyTensor) -> AnyTensor:
        parts = input.manager if isinstance(input, SparseTensor) else input
        group = parts.group if isinstance(parts, (PartManager, Slab)) else None
        return _on_features(partial(self.bn, group=group), input)


class Dropout(SeededDropout):
    """Dropout whose mask goes by the voxels' order, not by the rows': that differs between partitions of a network."""

    def forward(self, tensor: AnyTensor, *, seed: int) -> AnyTensor:
        if not isinstance(tensor, ME.SparseTensor):
            return _on_features(partial(self.drop, seed=seed, among=native.numbers_among(tensor)), tensor)
        order = torch.arange(len(tensor), device=tensor.device)
        for column in tensor.C.unbind(dim=1)[::-1]:  # in the end by sample, then by the first axis, as keys are sorted
            order = order[torch.argsort(column[order], stable=True)]
        dropped = self.drop(tensor.F.index_select(0, order), seed)
        return _with_features(tensor, dropped.index_select(0, torch.argsort(order)))


def _one_voxel_each(tensor: ME.SparseTensor) -> bool:
    """Return whether every sample has one voxel. The library refuses to pool such a tensor over its samples."""
    return len(tensor) == int(tensor.C[:, 0].max()) + 1


class InstanceNorm(ME.MinkowskiInstanceNorm):
    def __init__(self, channels: int) -> None:
        super().__init__(channels)

    def forward(self, input: ME.SparseTensor | SparseTensor) -> ME.SparseTensor | SparseTensor:
        if isinstance(input, SparseTensor):
            return native.instance_norm(input, self.weight, self.bias)
        if not _one_voxel_each(input):
            return super().forward(input)
        return _with_features(input, (input.F - input.F) * self.weight + self.bias)  # each voxel is its sample's mean


class GlobalPool(nn.Module):
    """Global pooling with its rows, which come in the order of a hash map, put in batch order.

    In the library's default mode sums and means are in another order than their coordinates, from three or four
    samples on; in the mode of kernel maps they are not.
    """

    def __init__(
        self, pool: Callable[..., nn.Module], *, mode: ME.PoolingMode, of_parts: Callable[..., Tensor]
    ) -> None:
        super().__init__()
        self.pool, self.of_parts = pool(mode=mode), of_parts

    def forward(self, tensor: ME.SparseTensor | SparseTensor) -> Tensor:
        if isinstance(tensor, SparseTensor):
            return native.pool_samples(self.of_parts, tensor.features, tensor)
        if not _one_voxel_each(tensor):
            tensor = self.pool(tensor)
        return tensor.F.index_select(0, torch.argsort(tensor.C[:, 0]))


_ORDERED = {  # layers whose default mode mixes samples up: the mode that does not
    ME.MinkowskiGlobalPooling: ME.PoolingMode.GLOBAL_AVG_POOLING_KERNEL,
    ME.MinkowskiGlobalAvgPooling: ME.PoolingMode.GLOBAL_AVG_POOLING_KERNEL,
    ME.MinkowskiGlobalSumPooling: ME.PoolingMode.GLOBAL_SUM_POOLING_KERNEL,
}


def _run_on_part(
    layer: Callable[..., ME.SparseTensor],
    kernel: ME.KernelGenerator,
    part: SparseTensor,
    like: SparseTensor | None,
    *,
    pools: bool,
) -> SparseTensor:
    """Run a layer of the library with a kernel on a part; its output lies on `like`, else on a set that it makes.

    `kernel`: the library's kernel generator. `pools`: the layer pools.
    """
    parts = part.manager
    assert isinstance(parts, PartCoordinates)
    size, stride, dilation = (
        tuple(numbers) for numbers in (kernel.kernel_size, kernel.kernel_stride, kernel.kernel_dilation)
    )
    entering = leaving = part.tensor_stride
    if like is not None:
        leaving = like.tensor_stride
    elif max(stride) > 1:
        leaving = parts.downsampled(entering, stride)
    tiles = pools and size == stride  # no voxel is under two kernels, also where these are odd
    part_map, manager, in_key, out_key = parts.library_sets(
        entering, leaving, size=size, dilation=dilation, tiles=tiles, upward=like is not None
    )
    rows = part.features if part_map is None else part_map.with_halo(part.features)
    if missing := manager.size(in_key) - len(rows):
        rows = functional.pad(rows, (0, 0, 0, missing))
    tensor = ME.SparseTensor(rows, coordinate_map_key=in_key, coordinate_manager=manager)
    return part.replace(layer(tensor, out_key).F[: len(parts.keys(leaving))], leaving)


class LibraryConvolution(ME.MinkowskiConvolution):
    def forward(self, input: ME.SparseTensor | SparseTensor) -> ME.SparseTensor | SparseTensor:
        if not isinstance(input, SparseTensor):
            return super().forward(input)
        if self.use_mm:
            rows = input.features @ self.kernel
            return input.replace(rows if self.bias is None else rows + self.bias)
        return _run_on_part(super().forward, self.kernel_generator, input, None, pools=False)


class TransposedConvolution(ME.MinkowskiConvolutionTranspose):
    def forward(self, input: ME.SparseTensor | SparseTensor, like: ME.SparseTensor) -> ME.SparseTensor | SparseTensor:
        if isinstance(input, SparseTensor):
            return _run_on_part(super().forward, self.kernel_generator, input, like, pools=False)
        return super().forward(input, like.coordinate_map_key)


class _LibraryPool(nn.Module):
    def forward(self, input: ME.SparseTensor | SparseTensor) -> ME.SparseTensor | SparseTensor:
        if isinstance(input, SparseTensor):
            return _run_on_part(super().forward, self.kernel_generator, input, None, pools=True)
        return super().forward(input)


class LibraryMaxPool(_LibraryPool, ME.MinkowskiMaxPooling):
    pass


class LibraryAveragePool(_LibraryPool, ME.MinkowskiAvgPooling):
    pass


class LibrarySumPool(_LibraryPool, ME.MinkowskiSumPooling):
    pass


class Unpool(ME.MinkowskiPoolingTranspose):
    def forward(self, input: ME.SparseTensor | SparseTensor, like: ME.SparseTensor) -> ME.SparseTensor | SparseTensor:
        if isinstance(input, SparseTensor):
            return _run_on_part(super().forward, self.kernel_generator, input, like, pools=True)
        return super().forward(input, like.coordinate_map_key)


class Add(nn.Module):
    def forward(self, *tensors: AnyTensor) -> AnyTensor:
        return _merge(lambda rows: sum(rows[1:], start=rows[0]), tensors)


class UnionAdd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.union = ME.MinkowskiUnion()

    def forward(self, *tensors: ME.SparseTensor) -> ME.SparseTensor | SparseTensor:
        if isinstance(tensors[0], SparseTensor):
            return native.UnionAdd()(*tensors)
        if all(tensor.coordinate_map_key == tensors[0].coordinate_map_key for tensor in tensors):
            return _merge(lambda rows: sum(rows[1:], start=rows[0]), tensors)  # the library's own is on other rows
        return self.union(*tensors)


class Concatenate(nn.Module):
    def forward(self, *tensors: AnyTensor) -> AnyTensor:
        return _merge(lambda rows: torch.cat(rows, dim=1), tensors)


def _merge(function: Callable[[list[Tensor]], Tensor], tensors: tuple[AnyTensor, ...]) -> AnyTensor:
    """Merge tensors on the same voxels, or dense ones: the library's own + and cat allow no more, and check it."""
    first = tensors[0]
    if not isinstance(first, ME.SparseTensor):
        return native.merge(function, tensors)
    sparse: list[Any] = list(tensors)
    strides = [list(tensor.tensor_stride) for tensor in sparse]
    if any(tensor.coordinate_map_key != first.coordinate_map_key for tensor in sparse):
        raise InputError(
            "tensor.strides_differ",
            f"tensors with different strides ({strides}) cannot be combined; use tensors with the same voxels",
        )
    return _with_features(first, function([tensor.F for tensor in sparse]))


class DenseGrid(nn.Module):
    def __init__(self, *, size: int, dimension: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, tensor: ME.SparseTensor | SparseTensor) -> Tensor | Slab:
        if isinstance(tensor, SparseTensor):
            return native.grid_of(tensor, self.size)
        return dense_grid(tensor.C, tensor.F, self.size)


LAYERS: dict[str, Callable[..., nn.Module]] = {
    "convolution": LibraryConvolution,
    "transposed_convolution": TransposedConvolution,
    "max_pool": LibraryMaxPool,
    "average_pool": LibraryAveragePool,
    "sum_pool": LibrarySumPool,
    "unpool": Unpool,
    "instance_norm": InstanceNorm,
    "global_max_pool": partial(
        GlobalPool,
        ME.MinkowskiGlobalMaxPooling,
        mode=ME.PoolingMode.GLOBAL_MAX_POOLING_PYTORCH_INDEX,
        of_parts=native.global_max_pool,
    ),
    "global_average_pool": partial(
        GlobalPool,
        ME.MinkowskiGlobalAvgPooling,
        mode=ME.PoolingMode.GLOBAL_AVG_POOLING_KERNEL,
        of_parts=native.global_average_pool,
    ),
    "global_sum_pool": partial(
        GlobalPool,
        ME.MinkowskiGlobalSumPooling,
        mode=ME.PoolingMode.GLOBAL_SUM_POOLING_KERNEL,
        of_parts=native.global_sum_pool,
    ),
    "batch_norm": BatchNorm,
    "linear": Linear,
    "dropout": Dropout,
    "add": Add,
    "union_add": UnionAdd,
    "concatenate": Concatenate,
    "dense_grid": DenseGrid,
    **{name: partial(Activation, function) for name, function in ACTIVATIONS.items()},
    **DENSE_LAYERS,
}
