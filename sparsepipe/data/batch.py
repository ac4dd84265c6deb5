"""A minibatch of voxelized point clouds: every voxel's coordinates and features, every sample's label."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from ..util.text.numbers import number_of
from .labels import IGNORED


@dataclass(frozen=True, eq=False)
class Sample:
    """Store one voxelized point cloud with V voxels, D dimensions and C features.

    Attributes:
        coordinates: Integer coordinates of the voxels, int32 [V, D].
        features: Features of the voxels, float32 [V, C].
        label: Class of the cloud. For segmentation: class of each voxel, int64 [V].

    Example:
        >>> import torch
        >>> cloud = sp.data.Sample(torch.tensor([[0, 0, 0], [1, 0, 2]], dtype=torch.int32), torch.ones(2, 1), label=3)
        >>> len(cloud)
        2

    See also:
        guides/own_data, guides/own_sparse_module
    """

    coordinates: Tensor
    features: Tensor
    label: int | Tensor

    def __len__(self) -> int:
        return len(self.coordinates)


@dataclass(frozen=True, eq=False)
class PointBatch:
    """Store the voxels of several samples as one minibatch.

    Attributes:
        coordinates: int32 [N, 1+D], the index of the sample first. Rows of a sample are contiguous, samples are in
            order, and no voxel occurs twice.
        features: float32 [N, C].
        labels: int64, classes from 0: one for each sample [B], or with `per_voxel` one for each voxel [N]. IGNORED
            (-100, as in torch's cross_entropy): no class.

    Raises:
        InputError: Tensors that do not satisfy this.
    """

    coordinates: Tensor
    features: Tensor
    labels: Tensor
    per_voxel: bool = False

    def __post_init__(self) -> None:
        coordinates, features, labels = self.coordinates, self.features, self.labels
        if coordinates.dtype != torch.int32 or coordinates.ndim != 2 or coordinates.shape[1] < 2:
            raise InputError(
                "batch.coordinates_malformed",
                f"coordinates have type and shape {_described(coordinates)}, expected int32 [N, 1+D]; put the sample "
                "index in column 0",
            )
        if features.dtype != torch.float32 or features.ndim != 2 or len(features) != len(coordinates):
            raise InputError(
                "batch.features_malformed",
                f"features have type and shape {_described(features)}, expected float32 [{len(coordinates)}, C] with "
                "one row per voxel",
            )
        if labels.dtype != torch.int64 or labels.ndim != 1 or len(labels) == 0:
            shape = "[N] with N >= 1: one per voxel" if self.per_voxel else "[B] with B >= 1: one per sample"
            raise InputError(
                "batch.labels_malformed", f"labels have type and shape {_described(labels)}, expected int64 {shape}"
            )
        if self.per_voxel and len(labels) != len(coordinates):
            raise InputError("batch.label_count", f"{len(labels)} labels, expected {len(coordinates)}: one per voxel")
        if len({coordinates.device, features.device, labels.device}) != 1:
            raise InputError(
                "batch.devices_differ",
                f"coordinates, features and labels are on {coordinates.device}, {features.device} and {labels.device}; "
                "move them to one device",
            )
        self._check_samples()
        lowest = labels[labels != IGNORED] if self.per_voxel else labels
        if len(lowest) and int(lowest.min()) < 0:
            raise InputError(
                "batch.label_negative",
                f"label {int(lowest.min())} is negative, expected class indices from 0; check the labels",
            )
        if not bool(torch.isfinite(features).all()):
            raise InputError(
                "batch.features_not_finite",
                "features contain NaN or infinity, expected finite numbers; check the input clouds",
            )

    def _check_samples(self) -> None:
        index = self.coordinates[:, 0].long()
        if len(index) and (int(index.min()) < 0 or int(index.max()) >= len(self)):
            raise InputError(
                "batch.sample_index_out_of_range",
                f"sample indices run from {int(index.min())} to {int(index.max())}, "
                f"expected 0 to {len(self) - 1}{'' if self.per_voxel else f' for {len(self)} labels'}",
            )
        if bool((index[1:] < index[:-1]).any()):
            raise InputError(
                "batch.samples_scattered", "rows of one sample are not contiguous; order the rows by sample index"
            )
        empty = (torch.bincount(index, minlength=len(self)) == 0).nonzero().flatten().tolist()
        if empty:
            raise InputError(
                "batch.sample_empty",
                f"sample {empty[0]} of the minibatch has no voxels; remove empty clouds from the data",
            )
        if _has_duplicates(self.coordinates):
            raise InputError(
                "batch.voxel_twice", "a voxel occurs twice in one sample, expected unique coordinates; use voxelize()"
            )

    def __len__(self) -> int:
        """Count the samples."""
        return int(self.coordinates[:, 0].max()) + 1 if self.per_voxel else len(self.labels)

    @property
    def target(self) -> Tensor:
        """Return the target of the loss."""
        return self.labels

    @property
    def size(self) -> int:
        """Return the size that costs depend on: the number of active voxels."""
        return self.num_voxels

    @property
    def num_voxels(self) -> int:
        """Count the active voxels of all samples."""
        return len(self.coordinates)

    @property
    def voxel_counts(self) -> Tensor:
        """Count the active voxels of each sample: int64 [B]."""
        return torch.bincount(self.coordinates[:, 0].long(), minlength=len(self))

    def samples(self) -> tuple[Sample, ...]:
        """Split the minibatch into its samples: the inverse of `collate`."""
        counts = self.voxel_counts.tolist()
        labels = self.labels.split(counts) if self.per_voxel else self.labels.tolist()
        rows = zip(self.coordinates[:, 1:].split(counts), self.features.split(counts), labels, strict=True)
        return tuple(Sample(coordinates, features, label) for coordinates, features, label in rows)

    def take(self, indices: Sequence[int]) -> "PointBatch":
        """Return the chosen samples, complete and in the given order."""
        samples = self.samples()
        for index in indices:
            if not 0 <= index < len(samples):
                raise InputError(
                    "batch.sample_unknown",
                    f"sample {index} requested, but the minibatch has {len(samples)}; use 0 to {len(samples) - 1}",
                    index=index,
                )
        return collate([samples[index] for index in indices])

    def check_classes(self, num_classes: int) -> "PointBatch":
        """Return self. Raises InputError if a label lies outside `num_classes`."""
        if int(self.labels.max()) >= num_classes:
            raise InputError(
                "batch.label_out_of_range",
                f"label {int(self.labels.max())} is out of range for {number_of(num_classes, 'class')} (0 to "
                f"{num_classes - 1}); use a model with as many outputs as the data has classes",
            )
        return self


def collate(samples: Sequence[Sample]) -> PointBatch:
    """Put samples side by side into one minibatch, in order.

    Args:
        samples: Voxelized clouds, each with one class, or each with a class for each voxel.

    Returns:
        The minibatch, whose coordinates begin with the sample's index.

    Raises:
        InputError: No samples, or samples of different widths or kinds of labels.

    Example:
        >>> import torch
        >>> cloud = sp.data.Sample(torch.tensor([[0, 0, 0], [1, 0, 2]], dtype=torch.int32), torch.ones(2, 1), label=3)
        >>> batch = sp.data.collate([cloud, cloud])
        >>> batch.coordinates[:, 0].tolist(), batch.labels.tolist()
        ([0, 0, 1, 1], [3, 3])

    See also:
        guides/own_data, `data.Sample`
    """
    if not samples:
        raise InputError("batch.no_samples", "the minibatch is empty; expected at least one sample")
    for name, widths in (
        ("coordinates", {sample.coordinates.shape[1] for sample in samples}),
        ("features", {sample.features.shape[1] for sample in samples}),
    ):
        if len(widths) > 1:
            raise InputError(
                "batch.widths_differ",
                f"samples of one minibatch have {sorted(widths)} columns of {name}; expected the same number of "
                "columns in all",
                name=name,
            )
    labels = [sample.label for sample in samples]
    per_voxel = [label for label in labels if isinstance(label, Tensor)]
    if 0 < len(per_voxel) < len(samples):
        raise InputError(
            "batch.label_kinds_differ",
            "the minibatch mixes samples with one label and samples with a label per voxel; use only one kind",
        )
    counts = torch.tensor([len(sample) for sample in samples])
    index = torch.repeat_interleave(torch.arange(len(samples), dtype=torch.int32), counts)
    index = index.to(samples[0].coordinates.device)
    return PointBatch(
        coordinates=torch.cat([index[:, None], torch.cat([sample.coordinates for sample in samples])], dim=1),
        features=torch.cat([sample.features for sample in samples]),
        labels=torch.cat(per_voxel) if per_voxel else torch.tensor(labels, dtype=torch.int64, device=index.device),
        per_voxel=bool(per_voxel),
    )


def _described(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _has_duplicates(coordinates: Tensor) -> bool:
    """Return whether a row occurs twice, by one int64 key a row where the ranges allow, which they nearly always do."""
    low = coordinates.amin(dim=0).long()
    sizes = (coordinates.amax(dim=0).long() - low + 1).tolist()
    key = torch.zeros(len(coordinates), dtype=torch.int64, device=coordinates.device)
    capacity = 1
    for column, size in enumerate(sizes):
        capacity *= size
        if capacity >= 2**63:
            return len(torch.unique(coordinates, dim=0)) != len(coordinates)
        key = key * size + (coordinates[:, column].long() - low[column])
    if bool((key[1:] > key[:-1]).all()):  # what voxelize() makes: nothing to sort
        return False
    return len(torch.unique(key)) != len(key)


def scattered_batch(num_points: int, *, seed: int) -> PointBatch:
    """Return one cloud of about `num_points` voxels in a cube that they fill to a tenth, one feature each."""
    generator = torch.Generator().manual_seed(seed)
    side = max(2, round((10 * num_points) ** (1 / 3)))
    places = torch.randperm(side**3, generator=generator)[:num_points].sort().values
    axes = [torch.zeros_like(places), places // side**2, places // side % side, places % side]
    coordinates = torch.stack(axes, dim=1).to(torch.int32)
    features = torch.rand(len(places), 1, generator=generator)
    return PointBatch(coordinates, features, torch.zeros(1, dtype=torch.int64))
