"""OFF and PCD readers: real files with their quirks, and every way a file can be broken."""

import struct
from pathlib import Path

import numpy as np
import pytest
import trimesh
from coded import raises
from pypcd4 import Encoding, PointCloud

from sparsepipe.data.formats import Cloud, Mesh, read
from sparsepipe.data.recipe import sample_points
from sparsepipe.data.shapes import FAMILIES
from sparsepipe.errors import InputError

SQUARE = "0 0 0\n1 0 0\n1 1 0\n0 1 0\n"
TRIANGLES = [[0, 1, 2], [0, 2, 3]]
POINTS = np.array([[0.5, -1.25, 3.0], [1e-3, 2.0, -7.5], [4.0, 5.0, 6.0]], dtype=np.float32)


def _write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _triangle_areas(mesh: Mesh) -> np.ndarray:
    a, b, c = (mesh.vertices[mesh.faces[:, corner]] for corner in range(3))
    return np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2


@pytest.mark.parametrize(
    ("name", "num_vertices", "num_triangles"),
    [
        ("2triangles", 4, 2),  # an edge count that is not zero
        ("airplane_0001", 27817, 54303),  # CRLF
        ("airplane_0002", 23322, 64290),
        ("bunny", 3485, 6966),
        ("chair_0001", 2382, 2234),
        ("cow", 2762, 5520),
        ("cube", 8, 12),  # six quads
        ("fandisk", 7229, 14454),
        ("planexy", 25, 32),
    ],
)
def test_real_meshes(shared_data: Path, name: str, num_vertices: int, num_triangles: int) -> None:
    mesh = read(shared_data / "meshes" / f"{name}.off")
    assert mesh.vertices.shape == (num_vertices, 3)
    assert mesh.faces.shape == (num_triangles, 3)
    assert mesh.faces.min() >= 0
    assert mesh.faces.max() < num_vertices


def test_real_meshes_have_their_known_areas(shared_data: Path) -> None:
    cube = read(shared_data / "meshes" / "cube.off")  # turned about z: its top has corners (±1, 0) and (0, ±1)
    assert _triangle_areas(cube).sum() == pytest.approx(2 * 2 + 4 * 2 * 2**0.5)
    assert _triangle_areas(read(shared_data / "meshes" / "planexy.off")).sum() == pytest.approx(4)


@pytest.mark.parametrize(
    "text",
    [
        f"OFF\n4 1 0\n{SQUARE}4 0 1 2 3\n",
        f"OFF4 1 0\n{SQUARE}4 0 1 2 3\n",  # counts glued on, as in hundreds of ModelNet40's files
        f"OFF 4 1 0\n{SQUARE}4 0 1 2 3\n",
        f"OFF\n4 1\n{SQUARE}4 0 1 2 3\n",
        f"off\n4 1 0\n{SQUARE}4 0 1 2 3",
        f"\ufeffOFF\n4 1 0\n{SQUARE}4 0 1 2 3\n",
        f"# a comment\n\nOFF # another\n#\n4 1 0\n\n{SQUARE}\n# faces\n4 0 1 2 3 # one\n\n\n",
        f"OFF\n4 1 0\n{SQUARE}4 0 1 2 3\n".replace("\n", "\r\n"),
        f"OFF\n4 1 0\n{SQUARE}4 0 1 2 3 255 0 0\n",  # a colour on the face
        f"OFF\n4 2 0\n{SQUARE}3 0 1 2\n3 0 2 3\n",
        f"OFF\n4 3 0\n{SQUARE}3 0 1 2 0.5 0.5 0.5\n2 0 1\n3 0 2 3\n",  # a face of two corners has no surface
        "COFF\n4 1 0\n0 0 0 255 0 0 255\n1 0 0 255 0 0 255\n1 1 0 9 9 9 9\n0 1 0 1 1 1 1\n4 0 1 2 3\n",
        "NOFF\n4 1 0\n0 0 0 0 0 1\n1 0 0 0 0 1\n1 1 0 0 0 1\n0 1 0 0 0 1\n4 0 1 2 3\n",
    ],
)
def test_off_quirks_all_give_the_same_square(tmp_path: Path, text: str) -> None:
    mesh = read(_write(tmp_path / "square.off", text))
    np.testing.assert_array_equal(mesh.vertices, [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
    assert sorted(sorted(face) for face in mesh.faces.tolist()) == TRIANGLES


def test_a_polygon_becomes_triangles_of_the_same_area(tmp_path: Path) -> None:
    angles = np.arange(7) * 2 * np.pi / 7
    corners = "".join(f"{np.cos(a):.9f} {np.sin(a):.9f} 0\n" for a in angles)
    mesh = read(_write(tmp_path / "heptagon.off", f"OFF\n7 1 0\n{corners}7 0 1 2 3 4 5 6\n"))
    assert mesh.faces.shape == (5, 3)
    assert _triangle_areas(mesh).sum() == pytest.approx(3.5 * np.sin(2 * np.pi / 7))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty, expected an OFF mesh"),
        ("  \n\n", "empty"),
        ("# nothing\n", "only comments"),
        ("ply\nformat ascii\n", ":1: starts with 'ply', expected OFF"),
        ("OFFICE 3 1 0\n", "expected OFF"),
        ("OFF\n", "truncated: ends after its first line"),
        ("OFF\n4 x 0\n", ":2: counts '4 x 0'"),
        ("OFF\n-4 1 0\n", ":2: counts '-4 1 0'"),
        (f"OFF\n4 0 0\n{SQUARE}", ":2: has 4 vertices and 0 faces"),
        ("OFF\n0 0 0\n", "0 vertices"),
        (f"OFF\n4 2 0\n{SQUARE}3 0 1 2\n", "truncated: 5 rows, expected 4 vertices + 2 faces"),
        (f"OFF\n4 1 0\n{SQUARE}3 0 1 2\n3 0 2 3\n", "longer than its header declares: 6 rows"),
        ("OFF\n3 1 0\n0 0 0\n1 0\n1 1 0\n3 0 1 2\n", ":4: vertex '1 0', expected 3 numbers"),
        ("OFF\n3 1 0\n0 0 0\n1 zero 0\n1 1 0\n3 0 1 2\n", "not an OFF mesh"),
        ("OFF\n3 1 0\n0 0 0\n1 nan 0\n1 1 0\n3 0 1 2\n", "vertex 1 is [1.0, nan, 0.0] (1 of 3 are NaN"),
        ("OFF\n3 1 0\n0 0 0\n1 inf 0\n1 1 0\n3 0 1 2\n", "infinite"),
        (f"OFF\n4 1 0\n{SQUARE}4 0 1 2\n", ":7: face '4 0 1 2', expected a count"),
        (f"OFF\n4 1 0\n{SQUARE}3 0 1 4\n", "outside the range"),
        (f"OFF\n4 1 0\n{SQUARE}3 0 1 -1\n", "outside the range"),
        (f"OFF\n4 1 0\n{SQUARE}3 0 1 b\n", "not an OFF mesh"),
        (f"OFF\n4 1 0\n{SQUARE}2 0 1\n", "no face has three corners"),
        (b"OFF BINARY\n\x00\x00\x00\x04", "binary data"),
    ],
)
def test_a_broken_off_is_refused_in_one_line_that_names_it(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = _write(tmp_path / "broken.off", text)
    with pytest.raises(InputError) as caught:
        read(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", list(Encoding)[:3])
def test_pcd_encodings_give_back_what_was_written(tmp_path: Path, encoding: Encoding) -> None:
    path = tmp_path / "cloud.pcd"
    PointCloud.from_xyz_points(POINTS).save(path, encoding=encoding)
    cloud = read(path)
    assert isinstance(cloud, Cloud)
    np.testing.assert_allclose(cloud.points, POINTS, rtol=1e-6)


def test_pcd_fields_are_told_by_name(tmp_path: Path) -> None:
    path = tmp_path / "cloud.pcd"
    fields = ("intensity", "z", "y", "x", "_", "normal_x", "label")
    given = np.arange(3, dtype=np.float32)
    columns = [given, POINTS[:, 2], POINTS[:, 1], POINTS[:, 0].astype(np.float64), given, given / 2, given]
    types = (np.float32, np.float32, np.float32, np.float64, np.float32, np.float32, np.uint32)
    PointCloud.from_points(columns, fields, types).save(path)
    cloud = read(path)
    np.testing.assert_array_equal(cloud.points, POINTS)
    assert cloud.names == ("intensity", "nx")
    np.testing.assert_array_equal(cloud.attributes, np.stack([given, given / 2], axis=1))
    assert cloud.labels.tolist() == [0, 1, 2]


ASCII = "VERSION .7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nWIDTH 2\nHEIGHT 1\nPOINTS 2\nDATA ascii\n"


def test_pcd_ascii_quirks(tmp_path: Path) -> None:
    """No COUNT, comments, CRLF, tabs and double spaces: common in the wild, refused by the library itself."""
    body = f"# .PCD\nCREATOR none VIEWER none\n{ASCII}0  1\t2\n\n 3 4 5 \n".replace("\n", "\r\n")
    assert read(_write(tmp_path / "cloud.pcd", body)).points.tolist() == [[0, 1, 2], [3, 4, 5]]
    one = ASCII.replace("2\n", "1\n")
    assert read(_write(tmp_path / "one.pcd", f"{one}7 8 9\n")).points.tolist() == [[7, 8, 9]]


def _binary(num_points: int, body: bytes, *, data: str = "binary") -> bytes:
    header = (
        ASCII.replace("ascii", data)
        .replace("POINTS 2", f"POINTS {num_points}")
        .replace("WIDTH 2", f"WIDTH {num_points}")
    )
    return header.encode() + body


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "empty, expected a PCD point cloud"),
        ("not a cloud at all", "header has no FIELDS"),
        (ASCII.replace("POINTS 2\n", ""), "header has no POINTS"),
        (ASCII.replace("x y z", "a b c"), "FIELDS are a b c, expected x, y and z"),
        (ASCII.replace("SIZE 4 4 4", "SIZE 4 4"), "SIZE has 2 entries, expected 3"),
        (ASCII.replace("POINTS 2", "POINTS two"), "not a whole number"),
        (ASCII.replace("POINTS 2", "POINTS 0"), "no points"),
        (ASCII.replace("HEIGHT 1", "HEIGHT 2"), "WIDTH 2 times HEIGHT 2 is 4, but POINTS is 2"),
        (ASCII.replace("WIDTH 2", "WIDTH 1"), "WIDTH 1 times HEIGHT 1 is 1, but POINTS is 2"),
        (ASCII.replace("WIDTH 2", "WIDTH wide"), "not a whole number"),
        (ASCII.replace("ascii", "zipped"), "DATA zipped, expected one of ascii"),
        (ASCII.replace("TYPE F F F", "TYPE Q F F") + "0 0 0\n0 0 0\n", "give a PCD point cloud"),
        (f"{ASCII}0 1 2\n", "truncated: 1 rows, expected 2 points"),
        (f"{ASCII}0 1 2\n0 1 2\n0 1 2\n", "longer than its header declares: 3 rows"),
        (f"{ASCII}0 1 2\n0 1\n", ":10: '0 1', expected 3 numbers: not a PCD point cloud"),
        (f"{ASCII}0 1 2\n0 1 zwei\n", ":10: the row is '0 1 zwei', expected only numbers"),
        (f"{ASCII}0 1 2\n0 nan 2\n", "point 1 is [0.0, nan, 2.0] (1 of 2 are NaN"),
        (_binary(3, POINTS.tobytes()[:-12]), "truncated: 24 bytes after the header, expected 36 for 3 points"),
        (_binary(3, POINTS.tobytes()[:-1]), "truncated: 35 bytes"),
        (_binary(2, POINTS.tobytes()), "longer than its header declares: 36 bytes, expected 24 for 2 points"),
        (_binary(3, b"\x00\x00\x80\x7f" * 9), "infinite"),
        (_binary(3, b"\x00", data="binary_compressed"), "truncated: 1 bytes"),
        (
            _binary(3, struct.pack("<II", 4, 2**31), data="binary_compressed"),
            "unpacks to 2147483648 bytes, expected 36",
        ),
        (_binary(3, struct.pack("<II", 9, 36) + b"\x1f" * 3, data="binary_compressed"), "truncated: 11 bytes"),
        (_binary(3, struct.pack("<II", 9, 36) + b"\xff" * 9, data="binary_compressed"), "not a PCD point cloud"),
    ],
)
def test_a_broken_pcd_is_refused_in_one_line_that_names_it(tmp_path: Path, content: str | bytes, message: str) -> None:
    path = _write(tmp_path / "broken.pcd", content)
    with pytest.raises(InputError) as caught:
        read(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_zeros_behind_a_binary_pcd_are_padding(tmp_path: Path) -> None:
    """PCL wrote files a page longer than their points: it sized them by the points, before the header was known."""
    for data in ("binary", "binary_compressed"):
        body = POINTS.tobytes()
        if data == "binary_compressed":
            planes = POINTS.T.tobytes()
            literal = b"".join(bytes([len(run) - 1]) + run for run in (planes[:32], planes[32:]))  # LZF, uncompressed
            body = struct.pack("<II", len(literal), 36) + literal
        cloud = read(_write(tmp_path / f"{data}.pcd", _binary(3, body + bytes(4000), data=data)))
        np.testing.assert_array_equal(cloud.points, POINTS)
        path = _write(tmp_path / "longer.pcd", _binary(3, body + bytes(20) + b"\1", data=data))
        with raises("file.too_long", len(body) + 21, len(body)):
            read(path)


def test_an_organized_pcd_is_a_cloud_of_all_its_rows(tmp_path: Path) -> None:
    text = ASCII.replace("WIDTH 2\nHEIGHT 1\nPOINTS 2", "WIDTH 2\nHEIGHT 2\nPOINTS 4") + "0 1 2\n3 4 5\n" * 2
    assert len(read(_write(tmp_path / "organized.pcd", text))) == 4
    for line in ("WIDTH 2\n", "HEIGHT 1\n"):
        path = _write(tmp_path / "older.pcd", ASCII.replace(line, "") + "0 1 2\n3 4 5\n")
        assert len(read(path)) == 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.off", "OFF\n{} 1 0\n0 0 0\n3 0 1 2\n", ":2: counts '999"),
        ("b.off", "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n{} 0 1 2\n", ":6: face '999"),
        ("a.ply", "ply\nformat ascii 1.0\nelement vertex {}\nend_header\n", ":3: the line is 'element vertex 999"),
        ("a.pcd", ASCII.replace("POINTS 2", "POINTS {}") + "0 1 2\n", "POINTS is not a whole number"),
        ("b.pcd", ASCII.replace("SIZE 4", "SIZE {}") + "0 1 2\n", "SIZE, COUNT, WIDTH, HEIGHT or POINTS is not"),
        ("a.txt", "{}\n0 1 2\n3 4 5\n", "truncated: 2 rows, expected 999"),
    ],
)
def test_a_count_of_thousands_of_digits_is_refused_in_one_short_line(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    """Python refuses to make a number of so many, with a line of its own that names no file."""
    path = _write(tmp_path / name, text.format("9" * 5000))
    with pytest.raises(InputError) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 150
    assert "\n" not in str(caught.value)


def test_missing_files_folders_and_unknown_formats_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.off").mkdir()
    for name, error in (
        ("no.off", ("file.not_found",)),
        ("folder.off", ("file.is_folder",)),
        ("a.fbx", ("cloud.format_unknown", ".fbx", ".off, .obj")),
    ):
        with raises(*error):
            read(tmp_path / name)


def test_surface_points_lie_on_the_mesh_by_area_and_by_seed() -> None:
    """Two squares, one of nine times the area: nine tenths of the points, binomially."""
    vertices = [[0, 0, 0], [3, 0, 0], [3, 3, 0], [0, 3, 0], [0, 0, 5], [1, 0, 5], [1, 1, 5], [0, 1, 5]]
    mesh = Mesh(np.array(vertices, dtype=float), np.array([[0, 1, 2], [0, 2, 3], [4, 5, 6], [4, 6, 7]]))
    points = sample_points(mesh, 4000, seed=1).points
    low, high = points[points[:, 2] == 0], points[points[:, 2] == 5]
    assert len(low) + len(high) == 4000
    assert abs(len(low) - 3600) < 5 * (4000 * 0.9 * 0.1) ** 0.5
    assert low.min() >= 0
    assert low.max() <= 3
    np.testing.assert_allclose(low[:, :2].mean(axis=0), 1.5, atol=0.1)
    np.testing.assert_array_equal(points, sample_points(mesh, 4000, seed=1).points)
    assert not np.array_equal(points, sample_points(mesh, 4000, seed=2).points)


@pytest.mark.parametrize("family", FAMILIES)
def test_surface_points_are_those_of_trimesh_to_the_bit(family: str) -> None:
    """Also of a mesh with a face without area, and of one point."""
    shape = FAMILIES[family](np.random.default_rng(0))
    vertices, faces = np.array(shape.vertices), np.vstack([shape.faces, [[0, 0, 1]]]).astype(np.int64)
    theirs = trimesh.Trimesh(vertices, faces, process=False)
    for num_points in (1, 777):
        drawn = sample_points(Mesh(vertices, faces, np.arange(len(faces))), num_points, seed=num_points)
        points, chosen = trimesh.sample.sample_surface(theirs, num_points, seed=num_points)
        np.testing.assert_array_equal(drawn.points, points)
        np.testing.assert_array_equal(drawn.labels, chosen)
        assert drawn.points.dtype == np.float64


def test_clouds_are_drawn_without_repetition() -> None:
    cloud = Cloud(np.arange(300.0).reshape(100, 3))
    chosen = sample_points(cloud, 40, seed=3).points
    assert len({tuple(point) for point in chosen}) == 40
    assert {tuple(point) for point in chosen} <= {tuple(point) for point in cloud.points}
    np.testing.assert_array_equal(chosen, sample_points(cloud, 40, seed=3).points)
    np.testing.assert_array_equal(sample_points(cloud, 101, seed=3).points, cloud.points)


def test_a_mesh_without_area_is_refused() -> None:
    line = Mesh(np.array([[0, 0, 0], [1, 0, 0], [2, 0, 0]], dtype=float), np.array([[0, 1, 2]]))
    with raises("mesh.no_area", "1", area="0.0"):
        sample_points(line, 10, seed=0)


SIGNALLING = bytes.fromhex("0100a07f")  # float32 NaN as damage makes it: to change its type alone raises a warning
THREE = np.zeros((3, 3), dtype="<f4").tobytes()[:-4] + SIGNALLING


@pytest.mark.parametrize(
    ("name", "content"),
    [
        (
            "mesh.ply",
            b"ply\nformat binary_little_endian 1.0\nelement vertex 3\nproperty float x\nproperty float y\n"
            b"property float z\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n"
            + THREE
            + struct.pack("<Biii", 3, 0, 1, 2),
        ),
        (
            "cloud.ply",
            b"ply\nformat binary_little_endian 1.0\nelement vertex 3\nproperty float x\nproperty float y\n"
            b"property float z\nend_header\n" + THREE,
        ),
        (
            "cloud.pcd",
            b"VERSION .7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH 3\nHEIGHT 1\nPOINTS 3\n"
            b"DATA binary\n" + THREE,
        ),
        ("scan.bin", THREE + THREE[:12]),
    ],
)
def test_a_number_that_is_none_is_told_of_once(tmp_path: Path, name: str, content: bytes) -> None:
    with pytest.raises(InputError, match=name):  # and no warning of NumPy's before it
        read(_write(tmp_path / name, content))
