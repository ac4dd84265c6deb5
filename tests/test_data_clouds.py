"""PLY, text, NPZ, HDF5 and bare float32 readers: what was written comes back, and every way a file can be broken."""

import errno
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import trimesh
from coded import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sparsepipe.data.folder import open_folder
from sparsepipe.data.formats import Cloud, Mesh, hdf5, read
from sparsepipe.data.formats.arrays import read_scan
from sparsepipe.data.formats.hdf5 import hdf5_labels, read_hdf5
from sparsepipe.data.formats.text import read_text_cloud
from sparsepipe.errors import InputError

POINTS = np.array([[0.5, -1.25, 3.0], [1e-3, 2.0, -7.5], [4.0, 5.0, 6.0]], dtype=np.float32)
NORMALS = np.array([[0, 0, 1], [0, -1, 0], [0.6, 0.8, 0]], dtype=np.float32)
clouds = arrays(np.float32, st.tuples(st.integers(2, 20), st.just(3)), elements=st.floats(-1e3, 1e3, width=32))


def _write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _refused(path: Path, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


# --- PLY ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["ascii", "binary"])
@pytest.mark.parametrize("name", ["cube", "bunny", "cow"])
def test_a_ply_mesh_is_the_off_mesh_it_was_made_from(
    shared_data: Path, tmp_path: Path, name: str, encoding: str
) -> None:
    mesh = read(shared_data / "meshes" / f"{name}.off")
    exported = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False).export(file_type="ply", encoding=encoding)
    again = read(_write(tmp_path / "mesh.ply", exported))
    assert isinstance(again, Mesh)
    np.testing.assert_array_equal(again.faces, mesh.faces)
    np.testing.assert_allclose(again.vertices, mesh.vertices, rtol=1e-6, atol=1e-7)


HEADER = """ply
format {encoding} 1.0
comment made by hand
element vertex 3
property float x
property float y
property float z
property float nx
property float ny
property float nz
property uchar red
property uchar green
property uchar blue
property int label
end_header
"""
ROW = np.dtype(
    [*((name, "f4") for name in ("x", "y", "z", "nx", "ny", "nz")), *((c, "u1") for c in "rgb"), ("l", "i4")]
)


def _rows(order: str) -> bytes:
    rows = np.zeros(3, dtype=ROW.newbyteorder(order))
    for column, name in enumerate(("x", "y", "z")):
        rows[name], rows[f"n{name}"] = POINTS[:, column], NORMALS[:, column]
    rows["r"], rows["g"], rows["b"], rows["l"] = [1, 2, 3], [4, 5, 6], [255, 0, 9], [2, 0, 1]
    return rows.tobytes()


def _ascii_rows() -> bytes:
    further = ["1 4 255 2", "2 5 0 0", "3 6 9 1"]
    rows = zip(POINTS.tolist(), NORMALS.tolist(), further, strict=True)
    return "".join(f"{' '.join(map(repr, p))} {' '.join(map(repr, n))} {f}\n" for p, n, f in rows).encode()


@pytest.mark.parametrize(
    ("encoding", "body"),
    [("ascii", _ascii_rows()), ("binary_little_endian", _rows("<")), ("binary_big_endian", _rows(">"))],
)
def test_a_ply_cloud_keeps_normals_colours_and_labels(tmp_path: Path, encoding: str, body: bytes) -> None:
    cloud = read(_write(tmp_path / "cloud.ply", HEADER.format(encoding=encoding).encode() + body))
    assert isinstance(cloud, Cloud)
    np.testing.assert_allclose(cloud.points, POINTS)
    assert cloud.names == ("nx", "ny", "nz", "red", "green", "blue")
    np.testing.assert_allclose(cloud.attributes[:, :3], NORMALS)
    np.testing.assert_array_equal(cloud.attributes[:, 3:], [[1, 4, 255], [2, 5, 0], [3, 6, 9]])
    assert cloud.labels.tolist() == [2, 0, 1]


def test_a_ply_with_quads_and_triangles_becomes_triangles(tmp_path: Path) -> None:
    head = "ply\nformat ascii 1.0\nelement vertex 5\nproperty float x\nproperty float y\nproperty float z\n"
    head += "element face 2\nproperty list uchar int vertex_indices\nend_header\n"
    mesh = read(_write(tmp_path / "m.ply", f"{head}0 0 0\n1 0 0\n1 1 0\n0 1 0\n2 0 0\n4 0 1 2 3\n3 1 4 2\n"))
    area = trimesh.Trimesh(mesh.vertices, mesh.faces, process=False).area
    assert mesh.faces.shape == (3, 3)
    assert area == pytest.approx(1.5)
    path = _write(tmp_path / "n.ply", f"{head}0 0 0\n1 0 0\n1 1 0\n0 1 0\n2 0 0\n4 0 1 2 3\n3 1 9 2\n")
    _refused(path, "a face refers to vertex 9, outside the range 0 to 4")


ASCII = HEADER.format(encoding="ascii").encode()
BINARY = HEADER.format(encoding="binary_little_endian").encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, expected a PLY file"),
        (b"OFF\n1 2 3\n", "does not start with a header from 'ply'"),
        (b"ply\nformat ascii 1.0\nelement vertex 3\n", "does not start with a header from 'ply' to 'end_header'"),
        (ASCII.replace(b"ascii", b"utf8") + _ascii_rows(), "format utf8, expected one of ascii"),
        (
            ASCII.replace(b"vertex 3", b"vertex three"),
            ":4: the line is 'element vertex three', expected 'element NAME COUNT'",
        ),
        (ASCII.replace(b"vertex 3", b"vertex 0"), "its header declares no vertices"),
        (ASCII + _ascii_rows().partition(b"\n")[2], "truncated: 2 rows, expected 3 vertex"),
        (ASCII + _ascii_rows() * 2, "longer than its header declares: 6 rows, expected 3 vertex"),
        (ASCII + _ascii_rows().replace(b"0.5", b"half"), ":16: the row is 'half -1.25 3.0"),
        (ASCII + _ascii_rows().replace(b"0.5", b"nan"), "point 0 is [nan"),
        (
            ASCII.replace(b"float x", b"float u") + _ascii_rows(),
            "vertices have u y z nx ny nz red green blue label, expected x, y and z",
        ),
        (BINARY + _rows("<")[:-1], "truncated: 92 bytes after the header, expected more for 3 vertex"),
        (BINARY + _rows("<") + b"\0" * 31, "longer than its header declares: 31 bytes are left after 3 vertex"),
    ],
)
def test_a_broken_ply_is_refused_in_one_line_that_names_it(tmp_path: Path, content: bytes, message: str) -> None:
    _refused(_write(tmp_path / "broken.ply", content), message)


# --- text -----------------------------------------------------------------------------------------------------------


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clouds, st.sampled_from([" ", ",", ", ", "\t", ";"]), st.sampled_from(["\n", "\r\n"]))
def test_text_gives_back_what_was_written(tmp_path: Path, points: np.ndarray, separator: str, end: str) -> None:
    text = "".join(separator.join(map(repr, row)) + end for row in points.tolist())
    np.testing.assert_array_equal(read(_write(tmp_path / "cloud.xyz", text)).points, points)


@pytest.mark.parametrize(
    ("text", "names", "labels"),
    [
        ("0,0,0,0,0,1\n1,1,1,0.6,0.8,0\n", ("nx", "ny", "nz"), None),
        ("0 0 0 12 0 255\n1 1 1 4 5 6\n", ("red", "green", "blue"), None),
        ("0 0 0 0 0 1 7\n1 1 1 1 0 0 49.000000\n", ("nx", "ny", "nz"), [7, 49]),
        ("0 0 0 0.5\n1 1 1 12\n", ("intensity",), None),
        ("x y z Class r g b\n0 0 0 3 1 2 3\n1 1 1 4 5 6 7\n", ("red", "green", "blue"), [3, 4]),
        ("\ufeff# a comment\n\n0 0 0\n// another\n1 1 1\n", (), None),
        ("2\n0 0 0\n1 1 1\n", (), None),
        ("label,z,y,x\n0,0,0,0\n1,1,1,1\n", (), [0, 1]),
    ],
)
def test_the_columns_of_text_are_told_by_their_number_or_a_first_line(
    tmp_path: Path, text: str, names: tuple, labels: list | None
) -> None:
    cloud = read(_write(tmp_path / "cloud.txt", text))
    assert cloud.points.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert cloud.names == names
    assert (None if cloud.labels is None else cloud.labels.tolist()) == labels


def test_given_columns_come_before_guessed_ones(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.txt", "0 0 0 0 0 1\n")  # a black point, not a normal
    assert read_text_cloud(path, columns=("x", "y", "z", "red", "green", "blue")).names == ("red", "green", "blue")
    with raises("text.row_malformed", "a.txt", "0 0 0 0 0 1", "4", number=1):
        read_text_cloud(path, columns=("x", "y", "z", "label"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty, expected a point cloud as text"),
        ("# nothing\n", "only comments"),
        ("0 0 0\n1 1\n", ":2: the row is '1 1', expected 3 numbers"),
        ("# first\n0 0 0\n\n1 one 1\n", ":4: the row is '1 one 1', expected 3 numbers"),
        (
            "0 0 185\x1087\n1 1 1\n",
            ":1: the row is '0 0 185\\x1087', expected 3 numbers",
        ),  # as in S3DIS, Area 5, hallway 6
        ("0 0 0\n1 nan 1\n", "point 1 is [1.0, nan, 1.0] (1 of 2 are NaN"),
        ("0 0\n1 1\n", "rows of 2 numbers of unknown meaning; name them in dataset.json"),
        ("0 0 0 -5 0 1\n", "neither normals nor colours"),
        ("0 0 0 0 0 1 0.5\n", "label 0 is 0.5, expected a whole number from 0"),
        ("0 0 0 0 0 1 -1\n", "label 0 is -1.0"),
        ("3\n0 0 0\n1 1 1\n", "truncated: 2 rows, expected 3 points"),
        ("1\n0 0 0\n1 1 1\n", "longer than its first line declares: 2 rows, expected 1 points"),
        ("x y z\n", "contains column names but no rows"),
        (";;;\n", ":1: the row is '   ', expected 3 numbers"),
        (b"\x00\x01\x02", "holds binary data"),
    ],
)
def test_broken_text_is_refused_in_one_line_that_names_it(tmp_path: Path, text: str | bytes, message: str) -> None:
    _refused(_write(tmp_path / "broken.txt", text), message)


# --- NPZ ------------------------------------------------------------------------------------------------------------


def _npz(**arrays_: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays_)
    return buffer.getvalue()


def _plain_npz(**arrays_: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays_)
    return buffer.getvalue()


@pytest.mark.parametrize(("points", "normals", "labels"), [("points", "normals", "labels"), ("xyz", "normal", "label")])
def test_an_npz_gives_back_what_was_written(tmp_path: Path, points: str, normals: str, labels: str) -> None:
    content = {
        points: POINTS,
        normals: NORMALS,
        labels: np.array([1, 0, 2]),
        "intensity": np.ones(3),
        "else": np.eye(2),
    }
    cloud = read(_write(tmp_path / "cloud.npz", _npz(**content)))
    np.testing.assert_array_equal(cloud.points, POINTS)
    assert dict(zip(cloud.names, cloud.attributes.T.tolist(), strict=True)) == {
        **dict(zip(("nx", "ny", "nz"), NORMALS.T.tolist(), strict=True)),
        "intensity": [1, 1, 1],
    }
    assert cloud.labels.tolist() == [1, 0, 2]


def _flipped(content: bytes, name: str) -> bytes:
    """Change a byte inside a member, which its checksum then betrays."""
    at = content.index(name.encode()) + len(name) + 20
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


def _boasting() -> bytes:
    """An archive whose array says it is a trillion points long."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (10**12, 3)})
        archive.writestr("points.npy", head.getvalue() + bytes(100))
    return buffer.getvalue()


def _with_text() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("points.npy", "not an array")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, expected a NumPy archive"),
        (b"PK\x03\x04 and no more", "not a NumPy archive, or truncated"),
        (_npz(points=POINTS)[:-30], "not a NumPy archive, or truncated"),
        (_flipped(_npz(points=np.arange(300.0).reshape(100, 3)), "points.npy"), "cannot be read as a NumPy archive"),
        (_boasting(), "cannot be read as a NumPy archive"),
        (_with_text(), "member 'points' is not an array"),
        (_npz(points=np.array([{"a": 1}], dtype=object)), "cannot be read as a NumPy archive"),
        (_npz(a=POINTS, b=POINTS), "contains a, b, expected an array 'points' [P, 3]"),
        (_npz(points=POINTS[:, :2]), "array 'points' has type and shape float32 [3, 2], expected numbers [P, 3]"),
        (_npz(points=POINTS[:0]), "array 'points' has type and shape float32 [0, 3]"),
        (
            _npz(points=POINTS, labels=np.arange(4)),
            "array 'labels' has type and shape int64 [4, 1], expected numbers [3, 1]",
        ),
        (
            _npz(points=POINTS, normals=NORMALS[:2]),
            "array 'normals' has type and shape float32 [2, 3], expected numbers [3, 3]",
        ),
        (_npz(points=np.array([["a", "b", "c"]])), "array 'points' has type and shape <U1 [1, 3]"),
        (_npz(points=POINTS * np.nan), "point 0 is [nan, nan, nan]"),
    ],
)
def test_a_broken_npz_is_refused_in_one_line_that_names_it(tmp_path: Path, content: bytes, message: str) -> None:
    _refused(_write(tmp_path / "broken.npz", content), message)


def test_an_npz_with_a_byte_changed_gives_the_same_points_or_is_refused(tmp_path: Path) -> None:
    """Uncompressed and of more than 4 KB, which NumPy reads no farther than an array's header says."""
    random = np.random.default_rng(0)
    points = random.normal(size=(1200, 3)).astype(np.float32)
    whole, path = _plain_npz(points=points), tmp_path / "cloud.npz"
    refused = 0
    for place in (*range(200), *range(len(whole) - 200, len(whole))):
        for change in random.integers(1, 256, size=4):
            _write(path, whole[:place] + bytes([whole[place] ^ change]) + whole[place + 1 :])
            try:
                cloud = read(path)
            except InputError as error:
                refused += 1
                assert str(path) in str(error)  # noqa: PT017 - either outcome is right
                assert "\n" not in str(error)
            else:
                np.testing.assert_array_equal(cloud.points, points)
    assert refused > 800


# --- HDF5 -----------------------------------------------------------------------------------------------------------


def _hdf5(path: Path, **arrays_: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in arrays_.items():
            file.create_dataset(name, data=array, compression="gzip")
    return path


def test_an_hdf5_of_many_clouds_gives_each(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(4, 50, 3)).astype(np.float32)
    labels = np.array([[3], [0], [1], [3]], dtype=np.uint8)
    path = _hdf5(tmp_path / "many.h5", data=data, label=labels, normal=data / 2, pid=np.arange(200).reshape(4, 50))
    assert hdf5_labels(path).tolist() == [3, 0, 1, 3]
    for entry in range(4):
        cloud = read_hdf5(path, entry=entry)
        np.testing.assert_array_equal(cloud.points, data[entry])
        np.testing.assert_array_equal(cloud.attributes, data[entry] / 2)
        assert cloud.labels.tolist() == list(range(entry * 50, entry * 50 + 50))
    with raises("hdf5.cloud_unknown", "3", chosen=4, count=4):
        read_hdf5(path, entry=4)
    _refused(path, "contains 4 clouds, expected one")
    np.testing.assert_array_equal(read(_hdf5(tmp_path / "one.h5", data=data[:1])).points, data[0])


def test_an_hdf5_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    """Small files are kept in memory; what a reader does with what it got changes nothing there."""
    data = np.random.default_rng(0).random((3, 50, 3)).astype(np.float32)
    path = _hdf5(tmp_path / "many.h5", data=data, pid=np.zeros((3, 50), dtype=int))
    for _ in range(2):
        cloud = read_hdf5(path, entry=1)
        np.testing.assert_array_equal(cloud.points, data[1])
        cloud.points[:] = 0
    path.unlink()
    np.testing.assert_array_equal(read_hdf5(_hdf5(path, data=data[::-1]), entry=0).points, data[2])
    with raises("file.not_found"):
        path.unlink()
        read_hdf5(path, entry=1)


def test_a_large_hdf5_is_not_kept(tmp_path: Path, monkeypatch) -> None:
    data = np.random.default_rng(0).random((3, 50, 3))
    path = _hdf5(tmp_path / "many.h5", data=data)
    monkeypatch.setattr(hdf5, "_MAX_KEPT_BYTES", data.nbytes - 1)
    assert hdf5._read_whole(path) is None
    np.testing.assert_array_equal(read_hdf5(path, entry=2).points, data[2])


def test_a_broken_hdf5_is_refused_in_one_line_that_names_it(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(4, 500, 3))
    whole = _hdf5(tmp_path / "whole.h5", data=data).read_bytes()
    for content, message in (
        (b"", "empty, expected an HDF5 file"),
        (b"not HDF5 at all", "not an HDF5 file of point clouds"),
        (whole[: len(whole) // 2], "damaged or truncated"),
        (whole[:600], "damaged or truncated"),
    ):
        _refused(_write(tmp_path / "broken.h5", content), message)
    middle = len(whole) // 2  # inside the compressed points
    damaged = _write(tmp_path / "damaged.h5", whole[:middle] + bytes(64) + whole[middle + 64 :])
    with raises("hdf5.damaged", "damaged.h5"):
        for entry in range(4):
            read_hdf5(damaged, entry=entry)
    for arrays_, message in (
        ({"points": data}, "expected an array 'data'"),
        ({"data": data[0]}, "array 'data' has shape [500, 3], expected points [S, P, 3]"),
        ({"data": data, "label": np.zeros((3, 1))}, "array 'label' has shape [3, 1], expected [4, 1]"),
        ({"data": data, "pid": np.zeros((4, 499))}, "array 'pid' has shape [4, 499], expected [4, 500]"),
    ):
        _refused(_hdf5(tmp_path / "odd.h5", **arrays_), message)
    with raises("hdf5.no_labels"):
        hdf5_labels(_hdf5(tmp_path / "odd.h5", data=data))
    with raises("file.not_found"):
        read(tmp_path / "nowhere.h5")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data", None, "'data' is a group, expected an array of numbers"),
        ("label", None, "'label' is a group"),
        ("data", np.full((2, 5, 3), b"a"), "'data' is without numbers"),
        ("data", h5py.Empty("f"), "'data' is without numbers"),
        ("label", np.array([b"chair", b"table"]), "'label' is without numbers"),
        ("pid", np.full((2, 5), b"leg"), "'pid' is without numbers"),
        ("label", np.array([0, np.nan]), "label 1 is nan, expected a whole number from 0"),
        ("label", np.array([np.inf, 0]), "label 0 is inf"),
        ("label", np.array([[0.5], [0]]), "label 0 is 0.5"),
        ("label", np.array([0, -1]), "label 1 is -1"),
        ("label", np.array([0, 2**64 - 1], dtype=np.uint64), "label 1 is 18446744073709551615"),
        ("pid", np.full((2, 5), -3), "label 0 is -3"),
    ],
)
def test_an_hdf5_of_other_things_than_numbers_is_refused_in_one_line(
    tmp_path: Path, name: str, content: np.ndarray | None, message: str
) -> None:
    path = tmp_path / "a_train.h5"
    with h5py.File(path, "w") as file:
        for key, value in ({"data": np.ones((2, 5, 3)), "label": np.zeros(2)} | {name: content}).items():
            if value is None:
                file.create_group(key)
            else:
                file[key] = value
    with pytest.raises(InputError) as caught:
        folder = open_folder(tmp_path)
        folder.read(folder.files[0])
    assert str(caught.value).startswith(f"{path}: {message}")
    assert "\n" not in str(caught.value)


# --- damage of any kind -----------------------------------------------------------------------------------------------


def _valid(folder: Path, name: str) -> bytes:
    points = np.random.default_rng(0).normal(size=(40, 3)).astype("<f4")
    box = trimesh.creation.box()
    if name == "h5":
        return _hdf5(folder / "valid.h5", data=points[None], label=np.zeros(1)).read_bytes()
    return {
        "off": lambda: box.export(file_type="off").encode(),
        "pcd": lambda: ("\n".join(PCD) + "\n").encode() + points.tobytes(),
        "ascii.ply": lambda: box.export(file_type="ply", encoding="ascii"),
        "mesh.ply": lambda: box.export(file_type="ply"),
        "cloud.ply": lambda: trimesh.PointCloud(points).export(file_type="ply"),
        "txt": lambda: "".join(",".join(map(repr, row)) + "\n" for row in points.tolist()).encode(),
        "npz": lambda: _npz(points=points, labels=np.arange(40)),
        "plain.npz": lambda: _plain_npz(points=np.tile(points, (40, 1)), labels=np.arange(1600)),
        "bin": lambda: np.column_stack([points, np.linspace(0, 1, 40)]).astype("<f4").tobytes(),
    }[name]()


PCD = "VERSION 0.7|FIELDS x y z|SIZE 4 4 4|TYPE F F F|WIDTH 40|HEIGHT 1|POINTS 40|DATA binary".split("|")
edits = st.lists(
    st.tuples(
        st.sampled_from(["change", "insert", "remove", "cut"]), st.floats(0, 1), st.binary(min_size=1, max_size=9)
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize(
    "name", ["off", "pcd", "ascii.ply", "mesh.ply", "cloud.ply", "txt", "npz", "plain.npz", "h5", "bin"]
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=edits)
def test_whatever_is_damaged_either_reads_or_is_refused_in_one_line(tmp_path: Path, name: str, edits: list) -> None:
    content = bytearray(_valid(tmp_path, name))
    path = tmp_path / f"damaged.{name}"
    read(_write(path, bytes(content)))
    for edit, share, octets in edits:
        place = int(share * len(content))
        if edit == "change":
            content[place : place + len(octets)] = octets
        elif edit == "insert":
            content[place:place] = octets
        elif edit == "remove":
            del content[place : place + len(octets)]
        else:
            del content[place:]
    _write(path, bytes(content))
    try:
        found = read(path)
    except InputError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right
        assert "\n" not in str(error)
    else:
        rows = found.points if isinstance(found, Cloud) else found.vertices
        assert np.isfinite(rows).all()
        assert rows.shape[1] == 3


# --- scans ----------------------------------------------------------------------------------------------------------


def test_the_real_scans_are_told_apart(shared_data: Path) -> None:
    kitti = read(shared_data / "scans" / "kitti_000008.bin")
    assert kitti.points.shape == (17238, 3)
    assert kitti.names == ("intensity",)
    assert np.abs(kitti.points).max() < 120  # metres: a lidar's reach
    assert 0 <= kitti.attributes.min() <= kitti.attributes.max() <= 1
    room = read(shared_data / "scans" / "scannet_scene0000_00.bin")
    assert room.points.shape == (40684, 3)
    assert room.names == ("red", "green", "blue")
    assert np.ptp(room.points, axis=0).max() < 10  # metres: a room
    assert room.attributes.max() == 255


def test_bare_rows_give_back_what_was_written(tmp_path: Path) -> None:
    rows = np.column_stack([np.vstack([POINTS, POINTS[:1]]), [0.0, 0.25, 1.0, 0.5]]).astype("<f4")
    cloud = read(_write(tmp_path / "a.bin", rows.tobytes()))
    np.testing.assert_array_equal(np.column_stack([cloud.points, cloud.attributes]), rows)
    other = read_scan(tmp_path / "a.bin", columns=("x", "y", "z", "i", "a", "b", "c", "d"))
    np.testing.assert_array_equal(other.points, rows[::2, :3])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty, expected a scan"),
        (np.ones(7, dtype="<f4").tobytes(), "28 bytes fits neither of KITTI's rows"),
        (np.full(8, 300, dtype="<f4").tobytes(), "32 bytes fits neither"),
        (np.full(8, np.nan, dtype="<f4").tobytes(), "fits neither"),
        (np.zeros(12, dtype="<f4").tobytes(), "fits neither"),
    ],
)
def test_a_scan_that_is_neither_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    _refused(_write(tmp_path / "broken.bin", content), message)


def test_a_truncated_scan_of_known_columns_is_refused(shared_data: Path, tmp_path: Path) -> None:
    content = (shared_data / "scans" / "kitti_000008.bin").read_bytes()
    path = _write(tmp_path / "cut.bin", content[:-6])
    with raises("scan.size_odd", "275802", row_bytes=16):
        read_scan(path, columns=("x", "y", "z", "intensity"))
    assert "fits neither" in str(pytest.raises(InputError, read, path).value)


@pytest.mark.slow
def test_an_hdf5_file_that_another_process_has_open_is_read_or_named_so(tmp_path: Path) -> None:
    """It was called damaged, and to be fetched again."""
    data = np.random.default_rng(0).normal(size=(2, 8, 3))
    path = _hdf5(tmp_path / "a.h5", data=data)
    for mode, options, outcome in (
        ("r+", {}, None),
        ("w", {"libver": "latest"}, "another process is writing the file"),
    ):
        code = f"import h5py\nfile = h5py.File({str(path)!r}, {mode!r}, **{options})\nprint(flush=True)\ninput()"
        with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            try:
                assert other.stdout is not None and other.stdout.readline()
                if outcome is None:
                    np.testing.assert_array_equal(read_hdf5(path, entry=1).points, data[1])
                else:
                    with pytest.raises(InputError, match=f"a.h5: {outcome}.*; close it there"):
                        read_hdf5(path, entry=1)
            finally:
                other.communicate(b"\n")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_an_hdf5_file_on_a_disk_without_locks_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    data = np.random.default_rng(0).normal(size=(1, 8, 3))
    path = _hdf5(tmp_path / "a.h5", data=data)
    real = h5py.File

    def without_locks(name: Path, mode: str, *, locking: bool | None = None) -> h5py.File:
        if locking is not False:  # as HDF5 words it
            raise OSError(number, f"Unable to open file (unable to lock file, errno = {number}, error message = '…')")
        return real(name, mode, locking=False)

    monkeypatch.setattr(h5py, "File", without_locks)
    np.testing.assert_array_equal(read(path).points, data[0])


@pytest.mark.parametrize("name", ["a.off", "a.h5", "a.npz", "a.las", "a.ply.gz"])
def test_an_error_of_the_disk_is_named_and_nothing_is_to_be_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = _write(tmp_path / name, b"whole")

    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(h5py, "File", failing)
    monkeypatch.setattr("sparsepipe.data.formats.base.open_regular", failing)
    with raises("file.unreadable", name) as caught:
        read(path)
    assert "check its disk" in str(caught.value)
    assert "fetch" not in str(caught.value)
