"""Does it learn? Baselines to compare accuracies with, and real scans with synthetic labels."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from ..data import IGNORED, VoxelDataset, find, load
from ..data.folder import data_folders
from ..errors import InputError
from ..runtime.config import RunConfig


def most_frequent_share(labels: Iterable[Tensor]) -> float:
    """Return the share of all labels that are the most frequent one: naming it alone is right so often.

    `labels`: tensors of whole numbers, of any shape; `IGNORED` ones do not count. Raises ValueError if none counts.
    """
    counts = Counter[int]()
    for some in labels:
        values, found = some[some != IGNORED].unique(return_counts=True)
        counts.update(dict(zip(values.tolist(), found.tolist(), strict=True)))
    return max(counts.values()) / counts.total()


HEIGHTS = (-1.3, 0.0)  # metres from the sensor: the ground lies below the first, tall things reach over the second
FAR = 30.0  # metres
_ROAD, _CAR, _BUILDING, _VEGETATION = 40, 10, 50, 70  # raw labels of SemanticKITTI
ROOM_HEIGHTS = {"floor": 0.1, "table": 1.0, "wall": np.inf}  # metres over the floor, up to which a point is of a class


def real_shapes() -> str:
    """The folder of ModelNet10's sample where a data folder holds it; else "", and a line says so."""
    try:
        return str(find("modelnet10-sample"))
    except InputError as error:
        print(f"no real shapes: {error}")
        return ""


def gap_and_noise(one: Sequence[float], other: Sequence[float], num_samples: int) -> tuple[float, float]:
    """Distance of two accuracy curves (root mean square), and the noise expected from chance.

    Two networks that are each right with probability p still differ on `num_samples` samples: the difference of their
    accuracies has the variance 2 p (1 - p) / num_samples. The noise is two such standard errors, over the whole curve.
    """
    a, b = np.asarray(one), np.asarray(other)
    p = (a + b) / 2
    return float(np.sqrt(np.mean((a - b) ** 2))), float(2 * np.sqrt(np.mean(2 * p * (1 - p) / num_samples)))


def beside_level(accuracies: Iterable[float], level: float) -> str:
    """Say how all of some accuracies stand to a level: "more than", "no less than" where one just reaches it etc."""
    accuracies = [*accuracies]
    if min(accuracies) >= level:
        return "more than" if min(accuracies) > level else "no less than"
    return "less than" if max(accuracies) < level else "not always as much as"


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

    neighbours = KNeighborsClassifier(1).fit(voxel_histograms(train, cells), train.labels)
    return float(neighbours.score(voxel_histograms(test, cells), test.labels))


def commonest_share(config: RunConfig) -> float:
    """The `most_frequent_share` of the classes of the voxels that a run validates on."""
    dataset = load(
        config.data,
        split=config.validation_split,
        task=config.task,
        voxel_size=config.voxel_size,
        num_points=config.num_points,
        seed=config.seed,
    )
    return most_frequent_share([dataset.batch(range(len(dataset))).labels])


_WHERE = (
    "MMDetection3D has a KITTI sweep and a ScanNet room in its demo/data: put them into a folder scans/ of one that "
    "SPARSEPIPE_DATA names"
)


def labelled_scans(folder: Path, *, held_out: float = 0.0) -> dict[str, tuple[Path, str]]:
    """Label the first KITTI sweep and the first ScanNet room of the data folders' scans/: a data set, its held split.

    `held_out`: the share of a scan's points that the held split has alone, from 0 to below 1; 0: all points are in
    both, and a network is asked about what it was trained on. A line says which of the scans is nowhere.
    """
    if not 0 <= held_out < 1:
        raise InputError(
            "learning.held_out",
            f"held_out {held_out!r} given, expected a fraction of a scan's points from 0 to below 1",
            held_out=held_out,
        )
    of = f"-without-{held_out:g}" if held_out else ""
    scans = {}
    for name, (pattern, label, split) in _SCANS.items():
        paths = [path for data_folder in data_folders() for path in sorted(data_folder.glob(pattern))]
        if paths:
            scans[name] = label(paths[0], folder / f"labelled-{name}{of}", held_out=held_out), split
        else:
            where = ", ".join(map(str, data_folders()))
            print(f"no {pattern} in {where}: the {name} is left out. {_WHERE}", flush=True)
    return scans


def scans_text(scans: Collection[str], *, held_out: float) -> str:
    """Say in words which scans a figure is about, and what of them is held out: not by the names of their folders."""
    if not scans:
        return ""
    names = " and ".join(f"a real {name}" for name in scans)
    of = "each" if len(scans) > 1 else "it"
    return f"{names}, {f'{held_out:.0%} of {of}' if held_out else 'nothing'} held out"


def labelled_sweep(scan: Path, folder: Path, *, held_out: float = 0.0) -> Path:
    """Lay a LiDAR sweep out as SemanticKITTI, to train on and to validate on, labelled by height and distance.

    The labels are synthetic: what a network must find in the geometry, not what stands in the street. What is held out
    is a sector: the points that lie leftmost as the sensor sees them. Raises InputError for a file that is no sweep of
    x, y, z and intensity.
    """
    points = _rows(scan, scan.read_bytes(), 4, "a KITTI sweep")
    height, far = points[:, 2], np.hypot(points[:, 0], points[:, 1]) > FAR
    labels = np.select([far, height < HEIGHTS[0], height < HEIGHTS[1]], [_VEGETATION, _ROAD, _CAR], _BUILDING)
    parts = _parts(np.arctan2(points[:, 1], points[:, 0]), held_out)
    for sequence, part in zip(("00", "08"), parts, strict=True):  # of which SemanticKITTI trains and validates on
        files = ("velodyne", "000000.bin", points[part]), ("labels", "000000.label", labels[part].astype("<u4"))
        for kind, name, data in files:
            path = folder / "sequences" / sequence / kind / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.tobytes())
    return folder


def labelled_room(scan: Path, folder: Path, *, held_out: float = 0.0) -> Path:
    """Lay an indoor room out as S3DIS, to train on and to test on, labelled by height: synthetic labels, as a sweep's.

    What is held out is the end of the room with the largest x. Raises InputError for a file that is no room of x, y, z,
    red, green and blue.
    """
    points = _rows(scan, scan.read_bytes(), 6, "a ScanNet room")
    bands = np.digitize(points[:, 2] - points[:, 2].min(), list(ROOM_HEIGHTS.values()))
    for area, part in zip((1, 5), _parts(points[:, 0], held_out), strict=True):  # of which S3DIS trains and tests on
        objects = folder / f"Area_{area}" / "room_1" / "Annotations"
        objects.mkdir(parents=True, exist_ok=True)
        for k, name in enumerate(ROOM_HEIGHTS):
            if (in_band := part & (bands == k)).any():  # a part may be without a class
                np.savetxt(objects / f"{name}_1.txt", points[in_band], fmt="%.6g")
    return folder


def _parts(order: np.ndarray, held_out: float) -> tuple[np.ndarray, np.ndarray]:
    """Points for training and for testing: the last share in an order, or all in both where it is 0."""
    held = order > np.quantile(order, 1 - held_out) if held_out else np.ones(len(order), bool)
    return ~held if held_out else held, held


# name -> (where it lies in a data folder, what labels it, the split of its layout that is validated on)
_SCANS = {
    "sweep": ("scans/kitti*.bin", labelled_sweep, "validation"),
    "room": ("scans/scannet*.bin", labelled_room, "test"),
}


def _rows(scan: Path, content: bytes, width: int, what: str) -> np.ndarray:
    if not content or len(content) % (4 * width):
        raise InputError(
            "scan.size_odd", f"{scan}: {len(content)} bytes, expected rows of {width} float32: {what}", width=width
        )
    return np.frombuffer(content, dtype="<f4").reshape(-1, width)
