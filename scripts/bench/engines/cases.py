"""Networks on clouds: which, and one minibatch of each kind of clouds, real where there are such."""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from sparsepipe import data
from sparsepipe.data import PointBatch
from sparsepipe.data.formats.arrays import KITTI, read_scan
from sparsepipe.errors import InputError

from ..document import REPOSITORY

CLASSES = {"modelnet": 10, "modelnet-dense": 10, "kitti": 20}
_BATCH_SIZE, _VOXEL_SIZE, _SWEEP_VOXEL_SIZE = 8, 0.02, 0.1


@dataclass(frozen=True)
class Case:
    """One network on one kind of clouds."""

    model: str
    clouds: str

    @property
    def name(self) -> str:
        return f"{self.model} on {self.clouds}"


CASES = (
    Case("minkvgg16bn", "modelnet"),
    Case("minkunet34c", "modelnet"),
    Case("minkvgg16bn-narrow", "modelnet"),
    Case("minkunet34c-narrow", "modelnet"),
    Case("minkunet34c-segmentation", "kitti"),
    Case("minkvgg16bn", "modelnet-dense"),
    Case("minkunet34c", "modelnet-dense"),
    Case("minkvgg16bn", "kitti"),
)
_NUM_QUICK = 5  # of CASES
_REAL_SHAPES = Path("modelnet10-sample") / "ModelNet10"
_REAL_SWEEP = Path("scans") / "kitti_000008.bin"


def real(relative: Path) -> Path | None:
    """Find real data in the folders of SPARSEPIPE_DATA, else beside the repository."""
    named = os.environ.get("SPARSEPIPE_DATA", "")
    folders = [Path(name) for name in named.split(os.pathsep) if name] or [REPOSITORY.parent / "shared" / "data"]
    return next((folder / relative for folder in folders if (folder / relative).exists()), None)


def clouds(kind: str, scratch: Path) -> tuple[PointBatch, str]:
    """Make one minibatch; say where it comes from. `modelnet-dense` has all points of the CAD-like synthetic shapes."""
    generator = torch.Generator().manual_seed(0)
    if kind == "kitti":
        found = real(_REAL_SWEEP)
        if found is None:
            raise InputError(
                "dataset.not_found", f"no {_REAL_SWEEP} in SPARSEPIPE_DATA: the cases on a sweep are left out"
            )
        points = read_scan(found, columns=KITTI).points
        voxels = torch.from_numpy(data.voxelize(points, _SWEEP_VOXEL_SIZE))
        coordinates = torch.cat([voxels.new_zeros(len(voxels), 1), voxels], dim=1)
        labels = torch.randint(0, CLASSES[kind], (len(voxels),), generator=generator)
        batch = PointBatch(coordinates, torch.ones(len(voxels), 1), labels, per_voxel=True)
        return batch, f"real: one KITTI sweep, voxels of {_SWEEP_VOXEL_SIZE} m, random labels"
    found = real(_REAL_SHAPES) if kind == "modelnet" else None
    num_points = 1024 if kind == "modelnet" else 8192
    source = found or data.make_shapes(scratch / "shapes", num_train=_BATCH_SIZE, num_test=1)
    dataset = data.load(source, split="train", voxel_size=_VOXEL_SIZE, num_points=num_points)
    step = max(1, len(dataset) // _BATCH_SIZE)
    batch = dataset.batch([k * step for k in range(_BATCH_SIZE)])
    what = "real: ModelNet10 sample" if found else "synthetic: CAD-like shapes"
    labels = batch.labels % CLASSES[kind]
    origin = f"{what}, {num_points} points a cloud, voxel size {_VOXEL_SIZE}, batch {_BATCH_SIZE}"
    return PointBatch(batch.coordinates, batch.features, labels), origin


def for_network(case: Case, batch: PointBatch) -> PointBatch:
    """Give a classifying network one label a sample."""
    if case.model.endswith("segmentation") or "segmentation-" in case.model or not batch.per_voxel:
        return batch
    return PointBatch(batch.coordinates, batch.features, torch.zeros(len(batch), dtype=torch.int64))
