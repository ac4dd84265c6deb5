"""The native engine: sparse layers without a compiler, on CPU and CUDA; MinkowskiEngine's semantics and state_dicts."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ...data.batch import PointBatch
from ...data.reach import reach, within_reach
from ...errors import InputError
from ...networks.base import LayerRow
from ...networks.rows import Row
from ..base import CoordinateSet, Feature, Parts, SceneGroup, checked
from ..dense import Slab
from ..subnetwork import Subnetwork
from . import direct
from .coordinates import CoordinateManager, SparseTensor, pack
from .layers import AnyTensor, build
from .space import Division, PartManager, PartRows, Regions
from .tuning import fused_kernels
from .warm_up import rehearse

__all__ = ["NativeEngine", "SceneGroup", "SparseTensor"]


class NativeEngine:
    """Sparse layers by gather, matrix product and scatter over cached kernel maps. Rows are sorted by coordinate."""

    name = "native"
    looks_voxels_up = False
    takes_points = True
    takes_examples = False
    shares_scenes = True
    divides_packets = True

    def layer(self, row: Row) -> nn.Module:
        return checked(build(row), row, self)

    def tensor(self, batch: PointBatch, device: Any = "cpu") -> SparseTensor:
        """Raises InputError for a sample too large for the keys; one too far from the origin is moved near it."""
        dimension = batch.coordinates.shape[1] - 1
        placed = within_reach(batch.coordinates.to(device), reach(self.name, dimension))
        keys, order = torch.sort(pack(placed))
        manager = CoordinateManager(dimension)
        stride = (1,) * dimension
        manager.insert(stride, keys)
        return SparseTensor(batch.features.to(device).index_select(0, order), stride, manager)

    def part(
        self, tensor: SparseTensor, group: SceneGroup, *, shares: Sequence[float], step: Sequence[int]
    ) -> SparseTensor:
        """Return this process's part of a minibatch whose scenes several processes share.

        Args:
            tensor: The whole minibatch, the same on all processes of `group`. All come here.
            group: The processes, one for each part.
            shares: Share of the work of each part.
            step: The coarsest tensor stride of the network's sparse layers. Borders are multiples of it, if the parts
                are even then.

        Returns:
            The features of the part's voxels, which may be none. Its layers exchange halos with the other parts. On a
            dense grid the part is a slab of the first spatial axis.
        """
        manager, coordinates = tensor.manager, tensor.coordinates
        regions = Regions.of(coordinates, shares, step=tuple(step))
        mine = regions.rows(coordinates, group.part)
        num_samples = len(manager.sample_sizes(tensor.tensor_stride))
        parts = PartManager(manager.dimension, regions, group, num_samples=num_samples, rows=mine)
        parts.insert(tensor.tensor_stride, manager.keys(tensor.tensor_stride).index_select(0, mine))
        return SparseTensor(tensor.features.index_select(0, mine), tensor.tensor_stride, parts)

    def rows_of_part(self, tensor: AnyTensor) -> Tensor | None:
        """Return which rows of the whole minibatch a part has, int64 [n]; None for a tensor that is no part."""
        manager = tensor.manager if isinstance(tensor, SparseTensor) else None
        return manager.rows if isinstance(manager, PartManager) else None

    def divide(
        self,
        sets: Sequence[CoordinateSet],
        group: SceneGroup,
        *,
        shares: Sequence[float],
        step: Sequence[int],
        like: AnyTensor | None = None,
    ) -> Division:
        """Divide the coordinate sets of a minibatch among processes that share its scenes: see `part`.

        Args:
            sets: Whole sets, the same on all processes of `group`.
            group: The processes, one for each part.
            shares: Share of the work of each part.
            step: The network's coarsest tensor stride.
            like: A part of the same minibatch, which is divided in the same way.

        Returns:
            The rows of this process's part, in each set.
        """
        manager = like.manager if isinstance(like, SparseTensor) else None
        known = manager.regions if isinstance(manager, PartManager) else None
        return Division.of(sets, group, shares=shares, step=tuple(step), regions=known)

    def join_part(self, parts: Parts, division: Division) -> dict[str, AnyTensor]:
        """Put a part of a minibatch together: `parts` has whole coordinate sets, and the features of this part."""
        managers: dict[int, CoordinateManager] = {}
        finest_first = sorted(range(len(parts.coordinate_sets)), key=lambda k: parts.coordinate_sets[k].tensor_stride)
        for k in finest_first:
            stride, coordinates, family, _ = parts.coordinate_sets[k]
            rows = division.rows[k]
            if family not in managers:
                managers[family] = division.manager(coordinates.shape[1] - 1, rows)
            mine = coordinates.index_select(0, rows)
            managers[family].insert(stride, pack(mine), mine)
        of_part = replace(
            parts,
            coordinate_sets=tuple(
                own._replace(coordinates=managers[own.family].coordinates(own.tensor_stride))
                for own in parts.coordinate_sets
            ),
        )
        return {name: _join(name, feature, of_part, managers) for name, feature in parts.features.items()}

    def part_rows(self, tensor: AnyTensor) -> PartRows | None:
        """Return the rows of a part among those of all parts; None for a tensor that every part has whole."""
        if isinstance(tensor, SparseTensor) and isinstance(tensor.manager, PartManager):
            return PartRows(tensor.manager, tensor.tensor_stride)
        return None

    def gather(self, tensors: Mapping[str, AnyTensor]) -> dict[str, AnyTensor]:
        """Put the parts of tensors together, on every process. All processes come here. There is no gradient."""
        managers: dict[int, CoordinateManager] = {}
        gathered: dict[str, AnyTensor] = {}
        for name, tensor in tensors.items():
            rows = self.part_rows(tensor)
            if rows is None or not isinstance(tensor, SparseTensor):
                gathered[name] = tensor
                continue
            known = id(rows.manager)
            manager = managers.setdefault(known, CoordinateManager(rows.manager.dimension))
            if rows.stride not in manager:
                manager.insert(rows.stride, rows.manager.everywhere(rows.stride).keys)
            gathered[name] = SparseTensor(rows.gather(tensor.features.detach()), rows.stride, manager)
        return gathered

    def split(self, tensors: Mapping[str, AnyTensor]) -> Parts:
        sets: dict[tuple[tuple[int, ...], int], CoordinateSet] = {}
        features: dict[str, Feature] = {}
        families: dict[int, int] = {}  # coordinate manager → its number
        for name, tensor in tensors.items():
            if not isinstance(tensor, SparseTensor):
                assert isinstance(tensor, Tensor), "a slab crosses no stage boundary"
                features[name] = Feature(tensor, None)
                continue
            stride, family = tensor.tensor_stride, families.setdefault(id(tensor.manager), len(families))
            manager = tensor.manager if type(tensor.manager) is CoordinateManager else None  # whole scenes alone
            sets.setdefault((stride, family), CoordinateSet(stride, tensor.coordinates, family, manager))
            features[name] = Feature(tensor.features, list(sets).index((stride, family)))
        return Parts(tuple(sets.values()), features)

    def join(self, parts: Parts) -> dict[str, AnyTensor]:
        """Put parts together: see `Engine.join`. Sets of an earlier stage's managers bring their kernel maps.

        Raises InputError for coordinates that are not sorted and distinct, or features of another length.
        """
        managers: dict[int, CoordinateManager] = {}
        made = {
            (own.family, id(own.manager)): own.manager
            for own in parts.coordinate_sets
            if isinstance(own.manager, CoordinateManager)
        }
        for stride, coordinates, family, _ in parts.coordinate_sets:
            manager = managers.setdefault(family, CoordinateManager(coordinates.shape[1] - 1))
            earlier = [known for (of_family, _), known in made.items() if of_family == family]
            if any(manager.share(stride, coordinates, known) for known in earlier):
                continue
            keys = pack(coordinates)
            if not bool((keys[1:] > keys[:-1]).all()):
                raise InputError(
                    "coordinates.not_sorted",
                    f"coordinates at tensor stride {stride} are not sorted and distinct; the native engine requires "
                    "both",
                )
            manager.insert(stride, keys, coordinates)
        return {name: _join(name, feature, parts, managers) for name, feature in parts.features.items()}

    def features(self, tensor: AnyTensor) -> Tensor:
        return tensor if isinstance(tensor, Tensor) else tensor.features

    def replace(self, tensor: AnyTensor, features: Tensor) -> AnyTensor:
        return features if isinstance(tensor, Tensor) else tensor.replace(features)

    def dimension(self, tensor: AnyTensor) -> int:
        return tensor.manager.dimension if isinstance(tensor, SparseTensor) else self.features(tensor).dim() - 2

    def map_bytes(self, tensor: AnyTensor) -> int:
        return tensor.manager.map_bytes if isinstance(tensor, SparseTensor) else 0

    def keeps_unseen(self, row: LayerRow) -> bool:
        return False

    def warm_up(
        self, subnetwork: Subnetwork, batch: Callable[[], PointBatch], device: Any, *, half: torch.dtype | None = None
    ) -> int:
        if torch.device(device).type == "cpu":
            direct.lanes()  # compiled once for a machine, which takes seconds
        if fused_kernels(torch.empty(0, device=device)) is None:
            return 0
        return rehearse(subnetwork, self.tensor(batch(), device), half)

    def rows(self, output: AnyTensor) -> Tensor:
        if isinstance(output, SparseTensor):
            raise InputError(
                "output.still_sparse",
                f"an output of {len(output.features)} voxels is still sparse: pool it globally first",
            )
        return output.whole() if isinstance(output, Slab) else output


def _join(name: str, feature: Feature, parts: Parts, managers: Mapping[int, CoordinateManager]) -> AnyTensor:
    if feature.coordinate_set is None:
        return feature.rows
    stride, coordinates, family, _ = parts.coordinate_sets[feature.coordinate_set]
    if len(feature.rows) != len(coordinates):
        raise InputError(
            "tensor.row_count",
            f"{name}: has {len(feature.rows)} feature rows but {len(coordinates)} coordinates; give one row per "
            "coordinate",
        )
    return SparseTensor(feature.rows, stride, managers[family])
