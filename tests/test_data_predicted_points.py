"""Rows of voxels know their places and points: addresses and classes of points against brute force."""

import json
from pathlib import Path

import numpy as np
import pytest
from coded import raises

from sparsepipe import data
from sparsepipe.data.predicted_points import joined
from sparsepipe.data.recipe import NOT_USED

SIZE = 0.25
MAP = np.array([448000.0, 5428000.0, 120.0])  # UTM, metres


def scans(root: Path, *, metric: bool = True, shift: np.ndarray | float = 0.0, broken: tuple[int, ...] = ()) -> Path:
    """Three test clouds of 60, 200 and 90 points, of which `broken` rows were not measured, and one for training."""
    random = np.random.default_rng(0)
    for split, name, count in (("train", "0", 70), ("test", "a", 60), ("test", "b", 200), ("test", "c", 90)):
        rows = np.column_stack([random.uniform(-2, 2, (count, 3)) + shift, random.integers(0, 3, count)])
        rows[list(broken), 1] = np.nan
        (root / "tile" / split).mkdir(parents=True, exist_ok=True)
        np.savetxt(root / "tile" / split / f"{name}.txt", rows, fmt="%.17g", header="x y z label", comments="")
    marker = {"metric": metric, "parts": ["low", "middle", "high"], "unmeasured": "drop"}
    (root / "dataset.json").write_text(json.dumps(marker))
    return root


def predicted(dataset: data.VoxelDataset) -> dict[str, np.ndarray]:
    """Predictions of a network that gives each voxel a class by chance."""
    found = joined([dataset.address(index) for index in range(len(dataset))])
    counts = dataset.voxel_counts()
    return found | {
        "name": np.array([dataset.name(index) for index in range(len(dataset))]),
        "sample": np.repeat(np.arange(len(dataset)), counts),
        "predictions": np.random.default_rng(1).integers(0, 3, counts.sum()),
    }


def file_points(dataset: data.VoxelDataset, index: int) -> np.ndarray:
    return np.loadtxt(dataset.files[index].path, skiprows=1)[:, :3]


@pytest.mark.parametrize("shift", [0.0, MAP, MAP * 100])
@pytest.mark.parametrize("broken", [(), (0, 7, 59)])
@pytest.mark.parametrize("num_points", ["all", 40])
def test_each_point_has_the_row_of_its_voxel(tmp_path, num_points, broken, shift) -> None:
    dataset = data.load(
        scans(tmp_path, shift=shift, broken=broken),
        split="test",
        voxel_size=SIZE,
        num_points=num_points,
        task="segmentation",
    )
    found = predicted(dataset)
    classes = data.to_points(found, tmp_path)
    assert list(classes) == [dataset.name(index) for index in range(3)] and len(found["point_offsets"]) == 4
    used_points = 0
    for index in range(3):
        points, own = file_points(dataset, index), found["sample"] == index
        assert np.array_equal(found["coordinates"][own], dataset.sample(index).coordinates.numpy())
        rows = found["point_row"][slice(*found["point_offsets"][index : index + 2])]
        assert len(rows) == len(points)
        used = rows != NOT_USED
        used_points += used.sum()
        assert used.sum() == (len(points) - len(broken) if num_points == "all" else 40)
        middles = found["origin"][index] + (found["coordinates"] + 0.5) * found["edge"][index]
        assert (np.abs(points[used] - middles[rows[used]]) <= SIZE / 2 + 1e-6).all(), "a point is in its voxel"
        assert own[rows[used]].all() and set(rows[used]) == set(np.flatnonzero(own)), "each voxel has a point"
        for place, point in enumerate(points):
            given = classes[dataset.name(index)][place]
            if np.isnan(point).any():
                assert given == data.IGNORED
                continue
            distances = np.where(own, np.linalg.norm(middles - point, axis=1), np.inf)
            nearest = np.flatnonzero(distances <= distances.min() + 1e-9)
            assert given in found["predictions"][[rows[place]] if used[place] else nearest]
    assert used_points


def test_objects_that_fill_the_unit_cube_are_found_in_the_units_of_their_files(tmp_path) -> None:
    dataset = data.load(scans(tmp_path, metric=False), split="test", voxel_size=0.1, num_points=50, task="segmentation")
    found = predicted(dataset)
    for index in range(3):
        points = file_points(dataset, index)
        rows = found["point_row"][slice(*found["point_offsets"][index : index + 2])]
        used = rows != NOT_USED
        drawn = points[used]
        edge = np.ptp(drawn, axis=0).max() * 0.1
        assert found["edge"][index] == pytest.approx(edge)
        cells = np.floor((drawn - drawn.min(axis=0)) / np.ptp(drawn, axis=0).max() / 0.1)
        assert np.array_equal(found["coordinates"][rows[used]], cells)


def test_vertices_of_a_mesh_get_the_nearest_voxels(tmp_path) -> None:
    corners = np.array([[0, 0, 0], [4, 0, 0], [4, 2, 0], [0, 2, 0]])
    for split in ("train", "test"):
        (tmp_path / "plate" / split).mkdir(parents=True)
        text = "\n".join(" ".join(map(str, corner)) for corner in corners)
        (tmp_path / "plate" / split / "0.off").write_text(f"OFF\n4 1 0\n{text}\n4 0 1 2 3\n")
    dataset = data.load(tmp_path, split="test", voxel_size=0.1)
    found = predicted(dataset)
    assert (found["point_row"] == NOT_USED).all() and len(found["point_row"]) == 4
    middles = found["origin"][0] + (found["coordinates"] + 0.5) * found["edge"][0]
    nearest = [np.linalg.norm(middles - corner, axis=1).argmin() for corner in corners]
    assert np.array_equal(data.to_points(found, tmp_path)["plate/test/0.off"], found["predictions"][nearest])


def test_what_does_not_belong_together_is_refused(tmp_path) -> None:
    dataset = data.load(scans(tmp_path), split="test", voxel_size=SIZE, num_points=40, task="segmentation")
    found = predicted(dataset)
    np.savez(tmp_path / "predictions.npz", **found)
    by_file, by_folder = (data.to_points(path, dataset) for path in (tmp_path / "predictions.npz", str(tmp_path)))
    assert all(np.array_equal(by_file[name], by_folder[name]) for name in by_file)
    np.save(tmp_path / "one.npy", np.zeros(3))
    for predictions, error in (
        (
            {name: found[name] for name in found if name != "point_row"},
            ("predictions.not_of_clouds", "point_row"),
        ),
        (tmp_path / "none.npz", ("predictions.unreadable",)),
        (tmp_path / "dataset.json", ("predictions.unreadable",)),
        (tmp_path / "one.npy", ("predictions.unreadable",)),
        (found | {"name": np.array(["x", "y", "z"])}, ("predictions.sample_unknown", "x")),
    ):
        with raises(*error):
            data.to_points(predictions, tmp_path)
    other = tmp_path / "tile" / "test" / "b.txt"
    other.write_text("\n".join(other.read_text().splitlines()[:100]))
    with raises("predictions.point_count", "99 points", "200"):
        data.to_points(found, tmp_path)
