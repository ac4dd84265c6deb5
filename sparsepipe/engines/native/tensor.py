"""The native engine's sparse tensor: features whose rows lie on a coordinate set of a minibatch's manager."""

from dataclasses import dataclass, replace

from torch import Tensor

from .coordinates import CoordinateManager, Stride


@dataclass(frozen=True, slots=True, eq=False)
class SparseTensor:
    features: Tensor  # [N, C], rows in the order of the coordinate set's sorted keys
    tensor_stride: Stride
    manager: CoordinateManager

    @property
    def coordinates(self) -> Tensor:
        """int32 [N, 1 + D], batch index first, in row order."""
        return self.manager.coordinates(self.tensor_stride)

    def shares_voxels(self, other: object) -> bool:
        """Return whether `other` is a sparse tensor whose rows lie on the same voxels."""
        if not isinstance(other, SparseTensor) or other.manager is not self.manager:
            return False
        return other.tensor_stride == self.tensor_stride

    def replace(self, features: Tensor, tensor_stride: Stride | None = None) -> "SparseTensor":
        return replace(self, features=features, tensor_stride=tensor_stride or self.tensor_stride)
