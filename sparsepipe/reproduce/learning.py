"""Does it learn? Runs of one process each, side by side, and what they are held against."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ..data import VoxelDataset
from ..errors import InputError
from ..launchers import launch
from ..launchers.folders import new_folder
from ..models import network
from ..plan import Plan, Stage
from ..record import RunRecord
from ..runtime.config import RunConfig
from .kept import newest

HEIGHTS = (-1.3, 0.0)  # metres from the sensor: the ground lies below the first, tall things reach over the second
FAR = 30.0  # metres
_ROAD, _CAR, _BUILDING, _VEGETATION = 40, 10, 50, 70  # raw labels of SemanticKITTI


def alone(model: str) -> Plan:
    """The whole network in one process."""
    ids = tuple(layer.id for layer in network(model, num_classes=2).graph().layers)
    return Plan((Stage(ids, (0,)),), planner="one process")


def train_side_by_side(runs: Path, configs: Mapping[str, RunConfig]) -> dict[str, RunRecord]:
    """Train every configuration in a process of its own, all at once; finished runs under the same one are taken."""
    found = {name: newest(runs, name, config) for name, config in configs.items()}
    for name, record in found.items():
        print(f"{name}: from runs/{record.name}" if record else f"{name}: training now", flush=True)
    missing = [name for name, record in found.items() if record is None]
    jobs = {name: launch(alone(configs[name].model), configs[name], run_dir=new_folder(runs, name)) for name in missing}
    try:
        for job in jobs.values():
            job.wait()
    except BaseException:
        for job in jobs.values():
            job.cancel()
        raise
    trained = {name: job.record for name, job in jobs.items()}
    return {name: record or trained[name] for name, record in found.items()}


def voxel_histograms(dataset: VoxelDataset, cells: int) -> np.ndarray:
    """Each sample's share of voxels in each cell of a grid over the unit cube: [samples, cells³]."""
    histograms = np.zeros((len(dataset), cells, cells, cells))
    side = round(1 / dataset.recipe.voxel_size) + 1  # voxels along the longest side, both ends among them
    for index in range(len(dataset)):
        places = dataset.sample(index).coordinates.numpy() * cells // side
        np.add.at(histograms[index], tuple(places.T), 1)
        histograms[index] /= histograms[index].sum()
    return histograms.reshape(len(dataset), -1)


def nearest_neighbour_accuracy(train: VoxelDataset, test: VoxelDataset, cells: int) -> float:
    """The share of test samples whose nearest training histogram (Euclidean) is of their class."""
    from sklearn.neighbors import KNeighborsClassifier

    found = KNeighborsClassifier(1).fit(voxel_histograms(train, cells), train.labels)
    return float(found.score(voxel_histograms(test, cells), test.labels))


def labelled_sweep(scan: Path, folder: Path) -> Path:
    """Lay a LiDAR sweep out as SemanticKITTI, to train on and to validate on, labelled by height and distance.

    The labels are synthetic: what a network must find in the geometry, not what stands in the street. Raises InputError
    for a file that is no sweep of x, y, z and intensity.
    """
    content = scan.read_bytes()
    if not content or len(content) % 16:
        raise InputError(f"{scan}: {len(content)} bytes, expected rows of four float32: a KITTI sweep")
    points = np.frombuffer(content, dtype="<f4").reshape(-1, 4)
    height, far = points[:, 2], np.hypot(points[:, 0], points[:, 1]) > FAR
    labels = np.select([far, height < HEIGHTS[0], height < HEIGHTS[1]], [_VEGETATION, _ROAD, _CAR], _BUILDING)
    for sequence in ("00", "08"):  # of which SemanticKITTI trains and validates on
        for kind, name, data in (("velodyne", "000000.bin", content), ("labels", "000000.label", None)):
            path = folder / "sequences" / sequence / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(labels.astype("<u4").tobytes() if data is None else data)
    return folder
