"""Packed colours, arrays by the names in use, LAS; and files that claim more than they hold, in bounded memory."""

import io
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import laspy
import numpy as np
import pytest
from coded import raises
from pypcd4 import Encoding, PointCloud

from sparsepipe.data.formats import READERS, Cloud, Reading, read
from sparsepipe.data.formats.las import claimed_points
from sparsepipe.errors import InputError

random = np.random.default_rng(0)
POINTS = random.normal(size=(40, 3)).astype(np.float32)
RGB = random.integers(0, 256, size=(40, 3)).astype(np.uint32)
PACKED = (RGB[:, 0] << 16 | RGB[:, 1] << 8 | RGB[:, 2]).astype(np.uint32)
COLOURS = ("red", "green", "blue")

# --- packed colours ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", list(Encoding)[:3])
@pytest.mark.parametrize("alpha", [0, 255])
@pytest.mark.parametrize("kind", [np.float32, np.uint32])
def test_packed_colours_of_a_pcd_are_colours(tmp_path: Path, encoding: Encoding, alpha: int, kind: type) -> None:
    """They were dropped: 'no colours in it'. With an alpha of 255 the bits are those of NaN, or of a large number."""
    packed = PACKED | np.uint32(alpha << 24)
    if encoding == Encoding.ASCII and alpha and kind is np.float32:
        kind = np.uint32  # PCL writes them so, as a NaN would not come back
    name = "rgba" if kind is np.uint32 else "rgb"
    path = tmp_path / "a.pcd"
    columns = [*POINTS.T, packed.view(kind)]
    PointCloud.from_points(columns, ("x", "y", "z", name), (*[np.float32] * 3, kind)).save(path, encoding=encoding)
    if encoding == Encoding.ASCII and kind is np.float32:  # whose writer rounds
        rows = zip(POINTS.tolist(), packed.view(np.float32).tolist(), strict=True)
        head = path.read_text().partition("DATA ascii\n")
        path.write_text(head[0] + head[1] + "".join(f"{x!r} {y!r} {z!r} {c!r}\n" for (x, y, z), c in rows))
    cloud = read(path)
    assert cloud.names == COLOURS
    np.testing.assert_array_equal(cloud.attributes, RGB)


def test_packed_colours_of_a_pcd_written_as_whole_numbers_beside_capital_fields(tmp_path: Path) -> None:
    rows = "".join(f"{x} {y} {z} {c}\n" for (x, y, z), c in zip(POINTS.tolist(), PACKED, strict=True))
    head = "FIELDS X Y Z rgb\nSIZE 4 4 4 4\nTYPE F F F F\nPOINTS 40\nDATA ascii\n"
    path = tmp_path / "a.pcd"
    for end in ("\n", "\r\n", "\r"):
        path.write_text((head + rows).replace("\n", end), newline="")
        np.testing.assert_array_equal(read(path).attributes, RGB)
    path.write_text(head.replace("rgb", "x") + rows)
    with raises("cloud.columns_conflict", "X", word="x", meaning="x"):
        read(path)


# --- arrays -----------------------------------------------------------------------------------------------------------


def _npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _npz(**arrays: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def _read(folder: Path, name: str, content: bytes, **declared: object) -> Cloud:
    path = folder / name
    path.write_bytes(content)
    return read(path, Reading(**declared))


@pytest.mark.parametrize("points", ["coord", "coords", "points", "xyz", "pos", "arr_0", "data", "Points"])
@pytest.mark.parametrize(("colour", "label"), [("color", "segment"), ("colors", "label"), ("rgb", "labels")])
def test_the_usual_names_of_arrays_are_known(tmp_path: Path, points: str, colour: str, label: str) -> None:
    arrays = {points: POINTS, colour: RGB, label: np.arange(40), "normal": POINTS, "instance": np.eye(2)}
    cloud = _read(tmp_path, "a.npz", _npz(**arrays))
    np.testing.assert_array_equal(cloud.points, POINTS)
    assert cloud.names == (*COLOURS, "nx", "ny", "nz")
    np.testing.assert_array_equal(cloud.attributes, np.column_stack([RGB, POINTS]))
    assert cloud.labels.tolist() == list(range(40))


def test_arrays_of_several_columns_and_files_of_one_array(tmp_path: Path) -> None:
    wide = np.column_stack([POINTS, RGB])
    for name, content in (("a.npy", _npy(wide)), ("a.npz", _npz(arr_0=wide)), ("b.npz", _npz(points=wide))):
        cloud = _read(tmp_path, name, content)
        np.testing.assert_array_equal(cloud.points, POINTS)
        np.testing.assert_array_equal(cloud.attributes, RGB)
    assert len(_read(tmp_path, "c.npy", _npy(np.asfortranarray(POINTS)))) == 40
    five = np.column_stack([POINTS, np.arange(40), np.arange(40) % 3])
    with raises("cloud.columns_unnamed", "of unknown meaning", width=5):
        _read(tmp_path, "a.npy", _npy(five))
    cloud = _read(tmp_path, "a.npy", _npy(five), columns=("x", "y", "z", "intensity", "label"))
    assert (cloud.names, cloud.labels.tolist()) == (("intensity",), (np.arange(40) % 3).tolist())
    named = np.zeros(40, dtype=[("z", "f4"), ("y", "f4"), ("x", "f4"), ("intensity", "u2"), ("name", "S3")])
    for axis, column in zip("xyz", POINTS.T, strict=True):
        named[axis] = column
    np.testing.assert_array_equal(_read(tmp_path, "a.npy", _npy(named)).points, POINTS)


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("color.npy", _npy(POINTS), ("npz.one_of_several",)),
        ("a.npy", _npy(POINTS)[:-1], ("file.malformed", "its header declares 480 bytes, but 479 follow")),
        ("a.npy", _npy(POINTS) + b"\0", ("file.malformed", "its header declares 480 bytes, but 481 follow")),
        ("a.npy", b"not an array", ("file.malformed", "it lacks the file signature")),
        ("a.npy", _npy(np.array([{}], dtype=object)), ("file.malformed", "it contains object, not numbers")),
        ("a.npy", _npy(POINTS[:, 0]), ("npz.array_malformed", "a", "float32", "[40]", "[P, 3]")),
        ("a.npy", _npy(np.array([["a", "b", "c"]])), ("npz.array_malformed", "a", "<U1", "[1, 3]")),
        ("a.npz", _npz(points=POINTS, coord=-POINTS), ("npz.points_twice", "points", "coord")),
        ("a.npz", _npz(points=POINTS, label=np.arange(40), segment=np.zeros(40)), ("cloud.columns_conflict", "label")),
    ],
)
def test_broken_arrays_are_refused_in_one_line_that_names_them(
    tmp_path: Path, name: str, content: bytes, error: tuple[str, ...]
) -> None:
    with raises(*error) as caught:
        _read(tmp_path, name, content)
    assert str(caught.value).startswith(f"{tmp_path / name}: ")
    assert "\n" not in str(caught.value)


# --- LAS --------------------------------------------------------------------------------------------------------------


def _las(points: np.ndarray, *, packed: bool = False, kind: int = 3, **further: np.ndarray) -> bytes:
    header = laspy.LasHeader(point_format=kind, version="1.4" if kind > 5 else "1.2")
    header.scales, header.offsets = [0.001] * 3, np.floor(points.min(axis=0))
    las = laspy.LasData(header)
    las.xyz = points
    for name, column in further.items():
        las[name] = column
    buffer = io.BytesIO()
    las.write(buffer, do_compress=packed)
    return buffer.getvalue()


FAR = np.array([448_123.0, 5_428_456.0, 120.0]) + np.round(POINTS.astype(np.float64) * 50, 3)


@pytest.mark.parametrize(("name", "kind"), [("a.las", 3), ("a.laz", 7)])
def test_a_las_file_gives_back_classes_colours_and_exact_map_coordinates(tmp_path: Path, name: str, kind: int) -> None:
    classes, intensity = np.arange(40) % 7, np.arange(40) * 900
    further = dict(zip(COLOURS, (RGB * 257).T, strict=True)) | {"classification": classes, "intensity": intensity}
    content = _las(FAR, packed=name == "a.laz", kind=kind, **further)
    cloud = _read(tmp_path, name, content)
    assert cloud.points.dtype == np.float64
    np.testing.assert_allclose(cloud.points, FAR, rtol=0, atol=1e-8)
    assert cloud.labels.tolist() == classes.tolist()
    found = dict(zip(cloud.names, cloud.attributes.T, strict=True))
    np.testing.assert_array_equal(found["intensity"], intensity)
    np.testing.assert_allclose(np.column_stack([found[colour] for colour in COLOURS]), RGB, atol=1e-4)
    ignored = _read(tmp_path, name, content, ignore=(0, 1))
    assert ignored.num_unlabelled == (classes < 2).sum()
    mapped = _read(tmp_path, name, content, labels=((2, 0), (5, 1), (6, 1)), other_labels=True)
    assert mapped.labels.tolist() == [{2: 0, 5: 1, 6: 1}.get(label, -100) for label in classes.tolist()]
    for cut in (len(content) - 1, len(content) // 2, 300, 100, 5):
        with pytest.raises(InputError) as caught:
            _read(tmp_path, name, content[:cut])
        assert str(caught.value).startswith(f"{tmp_path / name}: ")
        assert "\n" not in str(caught.value)


def test_real_airborne_lidar(shared_data: Path) -> None:
    path = shared_data / "outside" / "clouds" / "data" / "las" / "4_6_crop.las"
    if not path.is_file():
        pytest.skip("no LAS files here")
    cloud = read(path)
    assert len(cloud) == 23875
    np.testing.assert_allclose(cloud.points.min(axis=0), [1639600, 1454500.02, 7077.92])
    assert np.bincount(cloud.labels).tolist() == [0, 14872, 9003]
    counts = {"return 1": 10780, "return 2": 7688, "return 3": 4108, "return 4": 1299}
    assert claimed_points(path) == {"all": 23875} | counts
    with raises("las.no_signature"):
        claimed_points(Path(__file__))


# --- claims -----------------------------------------------------------------------------------------------------------

PCD = "FIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 {}\nPOINTS {}\nDATA {}\n"
XYZ = "".join(f"property float {axis}\n" for axis in "xyz")


def _boasting_npy() -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 3)})
    return buffer.getvalue() + bytes(12)


def _zeros_npz() -> bytes:
    """400 MB of zeros in some 400 kB."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("points.npy", "w") as member:
        np.lib.format.write_array_header_1_0(
            member, {"descr": "<f4", "fortran_order": False, "shape": (100 * 2**18, 4)}
        )
        for _ in range(400):
            member.write(bytes(2**20))
    return buffer.getvalue()


def _hdf5(fill: Callable[[h5py.File], None]) -> bytes:
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        fill(file)
    return buffer.getvalue()


def _las_of(count: int, *, packed: bool) -> bytes:
    content = bytearray(_las(FAR, packed=packed))
    content[107:111] = struct.pack("<I", count)
    return bytes(content)


def _many_records() -> bytes:
    content = bytearray(_las(FAR))
    content[100:104] = struct.pack("<I", 2**32 - 1)
    return bytes(content)


BOASTS = {
    "count.pcd": lambda: PCD.format(10**12, 1, "ascii").encode() + b"0 0 0\n",
    "binary.pcd": lambda: PCD.format(10**12, 1, "binary").encode() + bytes(20),
    "compressed.pcd": lambda: (
        PCD.format(10**8, 1, "binary_compressed").encode() + struct.pack("<II", 9, 4 * (10**8 + 2))
    ),
    "rows.ply": lambda: (
        f"ply\nformat binary_little_endian 1.0\nelement vertex {10**12}\n{XYZ}end_header\n".encode() + bytes(99)
    ),
    "list.ply": lambda: (
        f"ply\nformat binary_little_endian 1.0\nelement vertex 1\n{XYZ}element face 1\n"
        "property list uint int vertex_indices\nend_header\n".encode()
        + bytes(12)
        + b"\xfe\xff\xff\xff" * 9
    ),
    "list2.ply": (
        f"ply\nformat ascii 1.0\nelement vertex 1\n{XYZ}element face 1\n"
        "property list uint int vertex_indices\nend_header\n0 0 0\n4000000000 1 2 3\n"
    ).encode,
    "rows.off": f"OFF\n{10**12} 1 0\n0 0 0\n3 0 1 2\n".encode,
    "corners.off": f"OFF\n1 1 0\n0 0 0\n{10**12} 0 1 2\n".encode,
    "boast.npy": _boasting_npy,
    "zeros.npz": _zeros_npz,
    "unwritten.h5": lambda: _hdf5(lambda file: file.create_dataset("data", (1, 10**9, 3), "f4")),
    "small.h5": lambda: _hdf5(lambda file: file.create_dataset("data", (1, 9, 3), "f4", chunks=(1, 9, 3))),
    "chunks.h5": lambda: _hdf5(
        lambda file: file.create_dataset("data", (1, 10**8, 3), "f4", chunks=(1, 10**6, 3), compression="gzip")
    ),
    "chunk.h5": lambda: _hdf5(
        lambda file: file.create_dataset("data", (1, 9, 3), "f4", chunks=(1, 10**8, 3), maxshape=(1, None, 3))
    ),
    "rows.las": lambda: _las_of(10**9, packed=False),
    "rows.laz": lambda: _las_of(10**9, packed=True),
    "records.las": _many_records,
}


@pytest.mark.parametrize("name", BOASTS)
def test_a_file_that_claims_more_than_it_holds_is_refused_in_bounded_memory(tmp_path: Path, name: str) -> None:
    """150 bytes of PCD, 1.4 kB of HDF5 and 4 MB of NPZ filled the memory, or were never done."""
    path = tmp_path / name
    path.write_bytes(BOASTS[name]())
    for module in READERS.values():  # libraries are imported before memory is looked at
        with pytest.raises(InputError):
            module(tmp_path / "missing", Reading())
    tracemalloc.start()
    with pytest.raises(InputError) as caught:
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * path.stat().st_size + 24 * 2**20
    assert str(caught.value).startswith(f"{path}:")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 400


def test_labels_of_one_class_may_be_packed_small(tmp_path: Path) -> None:
    points = random.normal(size=(200_000, 3)).astype(np.float32)
    cloud = _read(tmp_path, "a.npz", _npz(points=points, labels=np.zeros(200_000, dtype=np.int64)))
    assert len(cloud) == 200_000


@pytest.mark.parametrize("suffix", READERS)
def test_pipes_and_devices_are_refused(tmp_path: Path, suffix: str) -> None:
    """A pipe waited for ever, /dev/zero filled the memory."""
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"zero{suffix}").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        with raises("file.not_regular", name, suffix):
            read(tmp_path / f"{name}{suffix}")


def test_an_hdf5_file_reads_no_other_file(tmp_path: Path) -> None:
    """External storage and links made points of any file that the user can read."""
    secret, path = tmp_path / "secret.h5", tmp_path / "a.h5"
    with h5py.File(secret, "w") as file:
        file["data"] = np.ones((1, 9, 3))
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(range(108)))
    layout = h5py.VirtualLayout((1, 9, 3), "f8")
    layout[...] = h5py.VirtualSource(secret, "data", (1, 9, 3))
    fills: dict[str, Callable[[h5py.File], object]] = {
        ("hdf5.array_external",): lambda file: file.create_dataset(
            "data", (1, 9, 3), "f4", external=[(str(raw), 0, h5py.h5f.UNLIMITED)]
        ),
        ("hdf5.array_is_link",): lambda file: file.__setitem__("data", h5py.ExternalLink(str(secret), "/data")),
        ("hdf5.array_is_link", "data"): lambda file: file.__setitem__("data", h5py.SoftLink("/elsewhere")),
        ("hdf5.array_external", "data"): lambda file: file.create_virtual_dataset("data", layout),
    }
    for error, fill in fills.items():
        with h5py.File(path, "w") as file:
            fill(file)
        with raises(*error):
            read(path)
