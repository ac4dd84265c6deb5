"""Bare binary scans: rows of another length, type or byte order than declared are refused, not read as noise."""

from pathlib import Path

import numpy as np
import pytest
from coded import raises

from sparsepipe import data
from sparsepipe.data.folder import list_folder
from sparsepipe.data.formats import Reading, read
from sparsepipe.errors import InputError

KITTI = ("x", "y", "z", "intensity")
RINGS = (*KITTI, "ring")
COLOURED = ("x", "y", "z", "red", "green", "blue")
random = np.random.default_rng(0)


def _lidar(num_points: int, columns: tuple[str, ...]) -> np.ndarray:
    """Points of a sweep: tens of metres, a few metres high, and further columns of their own kind."""
    kinds = {
        "x": random.normal(0, 20, num_points),
        "y": random.normal(0, 20, num_points),
        "z": random.normal(-1, 0.8, num_points),
        "intensity": random.uniform(0, 1, num_points),
        "ring": random.integers(0, 64, num_points),
        **{colour: random.integers(0, 256, num_points) for colour in ("red", "green", "blue")},
    }
    return np.column_stack([kinds[name] for name in columns]).astype("<f4")


def _refused(path: Path, columns: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(path, Reading(columns=columns))
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("num_points", [60, 60_000])
@pytest.mark.parametrize("true", [KITTI, RINGS, COLOURED], ids=len)
@pytest.mark.parametrize("declared", [KITTI[:3], KITTI, RINGS, COLOURED], ids=len)
def test_rows_of_another_length_are_refused(
    tmp_path: Path, declared: tuple[str, ...], true: tuple[str, ...], num_points: int
) -> None:
    """All sizes are whole numbers of rows, and all of them were read, three of four as noise."""
    path = tmp_path / "a.bin"
    _lidar(num_points, true).tofile(path)
    if declared == true:
        assert len(read(path, Reading(columns=declared))) == num_points
    else:
        _refused(
            path,
            declared,
            f"repeat in rows of {len(true)}, but rows of {len(declared)} are declared: {' '.join(declared)}",
        )


@pytest.mark.parametrize("name", ["kitti_000008", "scannet_scene0000_00"])
def test_real_scans_are_known_from_their_misreadings(shared_data: Path, tmp_path: Path, name: str) -> None:
    true = KITTI if name.startswith("kitti") else COLOURED
    rows = np.fromfile(shared_data / "scans" / f"{name}.bin", "<f4").reshape(-1, len(true))
    rows = rows[: len(rows) // 60 * 60]
    rows.tofile(tmp_path / "a.bin")
    assert len(read(tmp_path / "a.bin", Reading(columns=true))) == len(rows)
    for declared in {KITTI[:3], KITTI, RINGS, COLOURED} - {true}:
        _refused(tmp_path / "a.bin", declared, f"repeat in rows of {len(true)}")
    for kind, words in ((">f4", "big-endian float32"), ("<f8", "float64"), (">f8", "big-endian float64")):
        rows.astype(kind).tofile(tmp_path / "b.bin")
        _refused(
            tmp_path / "b.bin",
            true,
            f"its numbers are rather {words}; convert the file by numpy.fromfile(NAME, '{kind}')",
        )


@pytest.mark.parametrize("kind", [">f4", "<f8", "<i4"])
def test_a_few_points_of_another_type_are_refused(tmp_path: Path, kind: str) -> None:
    (_lidar(8, KITTI) * [1, 1, 100, 1]).astype(kind).tofile(tmp_path / "a.bin")
    _refused(tmp_path / "a.bin", KITTI, "its numbers are rather")


@pytest.mark.parametrize("seed", range(30))
def test_sound_scans_are_never_refused(tmp_path: Path, seed: int) -> None:
    """Columns of all kinds: constant, counting, of one distribution, in the order of a rotating scanner, with NaN."""
    rng = np.random.default_rng(seed)
    width, num_points = int(rng.integers(3, 8)), int(rng.integers(1, 400))
    rows = rng.normal(size=(num_points, width)) * rng.uniform(0.01, 99, width) + rng.uniform(-9, 9, width)
    kinds = [
        np.zeros(num_points),
        np.arange(num_points),
        np.sin(np.arange(num_points) / 9),
        rng.uniform(size=num_points),
    ]
    for place in range(width):
        if rng.random() < 0.4:
            rows[:, place] = kinds[rng.integers(len(kinds))]
    rows[rng.random(num_points) < 0.1] = np.nan
    rows[0] = 1
    rows.astype("<f4").tofile(tmp_path / "a.bin")
    names = ("x", "y", "z", "a", "b", "c", "d")[:width]
    cloud = read(tmp_path / "a.bin", Reading(columns=names, unmeasured="drop"))
    assert len(cloud) + cloud.num_unmeasured == num_points


def test_check_finds_misread_scans(tmp_path: Path) -> None:
    path = tmp_path / "scan" / "train" / "a.bin"
    path.parent.mkdir(parents=True)
    _lidar(100, RINGS).tofile(path)
    (tmp_path / "dataset.json").write_text('{"metric": true, "columns": ["x", "y", "z", "intensity"]}')
    (fault,) = data.check(tmp_path, voxel_size=0.5).faults
    assert fault.file == str(path)
    with raises("scan.row_length", likely=5, width=4):
        folder = list_folder(tmp_path)
        folder.read(folder.files[0])


def test_colours_that_are_none_are_refused(tmp_path: Path) -> None:
    """A range of 0 to 1 was declared, and colours to 255 became 65,025."""
    rows = _lidar(40, COLOURED)
    rows.tofile(tmp_path / "a.bin")
    assert read(tmp_path / "a.bin", Reading(columns=COLOURED)).attributes.max() <= 255
    with raises("cloud.colour_out_of_range", "0", "1"):
        read(tmp_path / "a.bin", Reading(columns=COLOURED, colour_max=1))
    with raises("cloud.colour_out_of_range", "65535"):
        read(tmp_path / "a.bin", Reading(columns=("red", "green", "blue", "x", "y", "z")))
