"""The synthetic data set: deterministic, marked, read as real data are, neither trivial nor impossible."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from coded import raises
from numpy.random import default_rng

from sparsepipe import data
from sparsepipe.data.formats import Mesh, read
from sparsepipe.data.recipe import sample_points
from sparsepipe.data.shapes import FAMILIES


def _digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return data.make_shapes(tmp_path_factory.mktemp("shapes") / "out", num_train=4, num_test=2, seed=5)


@pytest.mark.slow
def test_the_reader_finds_what_was_asked_for(shapes: Path) -> None:
    found = data.info(shapes)
    assert len(FAMILIES) >= 10
    assert found["classes"] == sorted(FAMILIES)
    assert found["splits"] == {"train": 4 * len(FAMILIES), "test": 2 * len(FAMILIES)}
    assert found["formats"] == {"off": 6 * len(FAMILIES)}
    dataset = data.load(shapes, split="train", voxel_size=0.05)
    assert dataset.synthetic
    assert dataset.origin["synthetic"]
    assert "synthetic" in dataset.origin["name"]


def test_a_seed_gives_the_same_bytes_and_another_seed_others(shapes: Path, tmp_path: Path) -> None:
    options = {"num_train": 1, "num_test": 1}
    few = data.make_shapes(tmp_path / "few", **options, seed=5, families=("chair", "gear"))
    assert data.make_shapes(tmp_path / "again", **options, seed=5, families=("chair", "gear")) == tmp_path / "again"
    assert _digest(tmp_path / "again") == _digest(few)
    same = "chair/train/chair_0001.off"
    assert _digest(few)[same] == _digest(shapes)[same]
    other = data.make_shapes(tmp_path / "other", **options, seed=6, families=("chair", "gear"))
    assert _digest(other)[same] != _digest(few)[same]


def test_no_two_shapes_are_equal(shapes: Path) -> None:
    meshes = {name: digest for name, digest in _digest(shapes).items() if name.endswith(".off")}
    assert len(set(meshes.values())) == len(meshes) == 6 * len(FAMILIES)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family_is_a_solid_that_reads_back(family: str, tmp_path: Path) -> None:
    for seed in range(2):
        shape = FAMILIES[family](default_rng(seed))
        assert np.isfinite(shape.vertices).all()
        assert shape.area > 0.1
        extent = np.ptp(np.asarray(shape.vertices), axis=0)
        assert extent.min() > 0.05 * extent.max()  # three-dimensional
    data.make_shapes(tmp_path / "one", num_train=1, num_test=1, families=(family,))
    mesh = read(tmp_path / "one" / family / "train" / f"{family}_0001.off")
    assert set(np.unique(mesh.faces)) <= set(range(len(mesh.vertices)))


def test_prisms_are_closed_and_have_the_volume_of_their_outline() -> None:
    from sparsepipe.data.shapes import _polar, _prism

    outline = _polar(np.ones(6), np.arange(6) * np.pi / 3)
    prism = _prism(outline, 0.5)
    assert prism.is_watertight
    assert prism.volume == pytest.approx(0.5 * 1.5 * 3**0.5)


def test_neighbours_tell_families_apart_often_but_not_always(shapes: Path) -> None:
    """One nearest neighbour on occupancy: far above chance, below certainty."""

    def histograms(split: str) -> tuple[np.ndarray, np.ndarray]:
        dataset = data.load(shapes, split=split, voxel_size=0.05)
        rows = np.zeros((len(dataset), 5, 5, 5))
        for index, row in enumerate(rows):
            np.add.at(row, tuple(np.minimum(dataset.sample(index).coordinates.numpy() // 4, 4).T), 1)
        rows = rows.reshape(len(dataset), -1)
        return rows / rows.sum(axis=1, keepdims=True), np.array(dataset.labels)

    (known, labels), (asked, truth) = histograms("train"), histograms("test")
    nearest = ((asked[:, None] - known[None]) ** 2).sum(axis=-1).argmin(axis=1)
    accuracy = (labels[nearest] == truth).mean()
    assert 5 / len(FAMILIES) < accuracy < 0.98


def test_the_same_call_leaves_the_folder_and_another_refuses_it(tmp_path: Path) -> None:
    options = {"num_train": 1, "num_test": 1, "families": ("box",)}
    out = data.make_shapes(tmp_path / "out", **options)
    before = (out / "box" / "train" / "box_0001.off").stat().st_mtime_ns
    assert data.make_shapes(tmp_path / "out", **options) == out
    assert (out / "box" / "train" / "box_0001.off").stat().st_mtime_ns == before
    with raises("out.not_empty"):
        data.make_shapes(out, **options, seed=1)
    (tmp_path / "file").write_text("")
    with raises("out.is_file"):
        data.make_shapes(tmp_path / "file", **options)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "out"]  # nothing half-made is left


def test_a_failure_halfway_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(rng: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(FAMILIES, "chair", fail)
    with pytest.raises(KeyboardInterrupt):
        data.make_shapes(tmp_path / "out", num_train=1, num_test=1, families=("box", "chair"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"families": ("teapot",)}, ("shapes.families_malformed", "teapot", "airplane, bed")),
        ({"families": ()}, ("shapes.families_malformed", "none")),
        ({"families": ("box", "box")}, ("shapes.families_malformed",)),
        ({"num_train": 0}, ("shapes.below_least", "training shapes", "0")),
        ({"num_test": -1}, ("shapes.below_least", "test shapes", "-1")),
        ({"seed": -1}, ("shapes.below_least", "seed", "-1")),
    ],
)
def test_bad_arguments_are_refused(tmp_path: Path, options: dict, error: tuple[str, ...]) -> None:
    with raises(*error):
        data.make_shapes(tmp_path / "out", **{"num_train": 1, "num_test": 1} | options)
    assert not (tmp_path / "out").exists()


def test_more_points_of_a_mesh_than_memory_holds_are_refused():
    """A million million points asked of a mesh ended in an error of memory that named nothing."""
    corners = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    with raises("sampling.too_many_points", "10000000", num_points=1000000000000):
        sample_points(Mesh(corners, np.array([[0, 1, 2]])), 10**12, seed=0)
