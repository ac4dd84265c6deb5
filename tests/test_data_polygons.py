"""PLY and OFF meshes of any polygons, in any encoding and order: triangles of the same area, which keep the labels."""

import struct
from pathlib import Path

import numpy as np
import pytest
from coded import raises
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparsepipe.data.folder import open_folder
from sparsepipe.data.formats import Cloud, Mesh, Reading, read

ENCODINGS = ("ascii", "binary_little_endian", "binary_big_endian")
FORMATS = {"uchar": "B", "int": "i", "float": "f", "double": "d", "char": "b", "short": "h"}


def _ply(encoding: str, *elements: tuple[str, list[str], list[tuple]], comments: str = "") -> bytes:
    """Write a PLY file of elements (name, properties, rows); a list's value is a tuple."""
    head = f"ply\nformat {encoding} 1.0\n{comments}"
    body = b""
    for name, properties, rows in elements:
        head += f"element {name} {len(rows)}\n" + "".join(f"property {each}\n" for each in properties)
        for row in rows:
            words: list[str] = []
            for each, value in zip(properties, row, strict=True):
                kinds = each.split()
                values = value if isinstance(value, tuple) else (value,)
                kind = kinds[2] if kinds[0] == "list" else kinds[0]
                if kinds[0] == "list":
                    words.append(str(len(values)))
                    body += b"" if encoding == "ascii" else _packed(encoding, kinds[1], len(values))
                words += map(repr, values)
                body += b"" if encoding == "ascii" else b"".join(_packed(encoding, kind, item) for item in values)
            body += (" ".join(words) + "\n").encode() if encoding == "ascii" else b""
    return (head + "end_header\n").encode() + body


def _packed(encoding: str, kind: str, value: float) -> bytes:
    return struct.pack((">" if "big" in encoding else "<") + FORMATS[kind], value)


def _read(folder: Path, content: bytes | str, name: str = "a.ply", **declared: object) -> Mesh | Cloud:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read(path, Reading(**declared))


def _areas(mesh: Mesh) -> np.ndarray:
    a, b, c = (mesh.vertices[mesh.faces[:, corner]] for corner in range(3))
    return np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2


XYZ = ["float x", "float y", "float z"]
VERTICES = [(0.0, 0.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, 0.0), (0.0, 1.0, 0.0), (2.0, 0.0, 0.0), (3.0, 1.0, 0.0)]
POLYGONS = {
    "quads": ([(0, 1, 2, 3), (1, 4, 5, 2)], [1, 1.5]),
    "quads and a triangle": ([(0, 1, 2, 3), (1, 4, 5), (1, 5, 2)], [1, 0.5, 1]),
    "a pentagon": ([(0, 1, 5, 2, 3), (1, 4, 5)], [2, 0.5]),
    "triangles": ([(0, 1, 2), (1, 4, 5)], [0.5, 0.5]),
    "an edge and a quad": ([(0, 1), (0, 1, 2, 3)], [0, 1]),
}
FACE = "list uchar int vertex_indices"


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kind", POLYGONS)
@pytest.mark.parametrize("extras", ["nothing", "colours", "texture", "before and behind"])
def test_polygons_become_triangles_of_the_same_area(tmp_path: Path, encoding: str, kind: str, extras: str) -> None:
    """Pure quads were scrambled without a word: trimesh took rows of four for rows of three in some encodings."""
    polygons, areas = POLYGONS[kind]
    before, behind = [], []
    if extras == "colours":
        behind = [(f"uchar {name}", 7) for name in ("red", "green", "blue", "alpha")]
    elif extras == "texture":  # as many numbers as corners, twice
        behind = [("list uchar float texcoord", None), ("int texnumber", 0)]
    elif extras == "before and behind":
        before, behind = [("double quality", 0.5), ("list int short more", (1, 2))], [("short flags", -3)]

    def value(given: object, polygon: tuple) -> object:
        return tuple(0.25 for _ in range(2 * len(polygon))) if given is None else given

    faces = [(*(value(v, p) for _, v in before), p, *(value(v, p) for _, v in behind)) for p in polygons]
    face = ("face", [*(n for n, _ in before), FACE, *(n for n, _ in behind)], faces)
    mesh = _read(tmp_path, _ply(encoding, ("vertex", XYZ, VERTICES), face))
    found = np.bincount(mesh.polygons, weights=_areas(mesh), minlength=len(polygons))
    np.testing.assert_allclose(found, areas)
    assert mesh.num_polygons == len(polygons)
    assert (np.diff(mesh.polygons) >= 0).all()


@pytest.mark.parametrize("name", ["a.ply", "a.off"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    radii=st.lists(st.floats(0.05, 1), min_size=3, max_size=12),
    first=st.integers(0, 11),
    normal=st.tuples(*[st.floats(-1, 1)] * 3).filter(lambda n: np.linalg.norm(n) > 0.1),
    shift=st.sampled_from([0.0, 448_000.0]),
)
def test_a_polygon_with_dents_keeps_its_area(
    tmp_path: Path, name: str, radii: list, first: int, normal: tuple, shift: float
) -> None:
    """A star around its centre, in any plane: a fan around one corner would fold over itself."""
    count = len(radii)
    angles = np.roll(np.arange(count), first) * 2 * np.pi / count
    flat = np.array([radii[int(round(a * count / 2 / np.pi)) % count] * np.exp(1j * a) for a in angles])
    axis = np.array(normal) / np.linalg.norm(normal)
    u = np.linalg.svd(axis[None])[2][1]
    points = flat.real[:, None] * u + flat.imag[:, None] * np.cross(axis, u) + shift
    expected = sum((a.conjugate() * b).imag for a, b in zip(flat, np.roll(flat, -1), strict=True)) / 2
    if name == "a.ply":
        rows = [tuple(map(float, point)) for point in points]
        face = ("face", [FACE], [(tuple(range(count)),)])
        content = _ply("binary_little_endian", ("vertex", ["double x", "double y", "double z"], rows), face)
    else:
        rows = "".join(f"{x!r} {y!r} {z!r}\n" for x, y, z in points.tolist())
        content = f"OFF\n{count} 1 0\n{rows}{count} {' '.join(map(str, range(count)))}\n"
    mesh = _read(tmp_path, content, name)
    assert _areas(mesh).sum() == pytest.approx(expected, rel=1e-4 if shift else 1e-6)
    a, b, c = (mesh.vertices[mesh.faces[:, corner]] for corner in range(3))
    assert (np.cross(b - a, c - a) @ axis > -1e-6).all()  # all face as the polygon does


@pytest.mark.parametrize("name", ["a.ply", "a.off"])
def test_labels_of_polygons_follow_them(tmp_path: Path, name: str) -> None:
    """One label for each face of the file: a quad's two triangles both get it, and an edge takes its own away."""
    polygons = [(0, 1), (0, 1, 2, 3), (1, 4, 5), (0, 1, 5, 2, 3)]
    if name == "a.ply":
        content = _ply("ascii", ("vertex", XYZ, VERTICES), ("face", [FACE], [(p,) for p in polygons])).decode()
    else:
        content = f"OFF\n6 4 0\n{''.join(f'{x} {y} {z}' + chr(10) for x, y, z in VERTICES)}"
        content += "".join(f"{len(p)} {' '.join(map(str, p))} 255 0 0\n" for p in polygons)
    path = tmp_path / "scene" / "train" / name
    path.parent.mkdir(parents=True)
    path.write_text(content)
    path.with_suffix(".seg").write_text("9\n1\n2\n3\n")
    folder = open_folder(tmp_path)
    assert folder.read(folder.files[0]).labels.tolist() == [1, 1, 2, 3, 3, 3]
    path.with_suffix(".seg").write_text("1\n1\n2\n3\n3\n3\n")
    with raises("cloud.label_count", "a.seg: 6", "4", "faces"):
        folder.read(folder.files[0])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_label_among_a_faces_properties_is_its_triangles(tmp_path: Path, encoding: str) -> None:
    face = ("face", ["uchar label", FACE], [(4, (0, 1, 2, 3)), (5, (1, 4, 5))])
    assert _read(tmp_path, _ply(encoding, face, ("vertex", XYZ, VERTICES))).labels.tolist() == [4, 4, 5]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("lengths", [(2, 1, 0), (2, 2, 2)])
@pytest.mark.parametrize("place", [0, 1, 3])
def test_lists_among_vertices_and_elements_before_them(
    tmp_path: Path, encoding: str, lengths: tuple, place: int
) -> None:
    """A list among the vertices ended in a traceback, an element before them in 'vertices of nothing'."""
    properties = ["float z", "float y", "float x", "uchar intensity"]
    properties.insert(place, "list uchar int ids")
    rows = []
    for number, length in enumerate(lengths):
        row: list = [float(number), 2.0, 3.0, number]
        row.insert(place, tuple(range(length)))
        rows.append(tuple(row))
    camera = ("camera", ["float view", "list int float names"], [(0.5, (1.0, 2.0, 3.0))])
    edges = ("edge", ["int a", "int b"], [(0, 1), (1, 2)])
    comments = "comment end_header is near\nobj_info end_header\ncomment element face 3\n"
    cloud = _read(tmp_path, _ply(encoding, camera, ("vertex", properties, rows), edges, comments=comments))
    assert isinstance(cloud, Cloud)
    assert cloud.points.tolist() == [[3, 2, number] for number in range(3)]
    assert cloud.names == ("intensity",)
    assert cloud.attributes.tolist() == [[0], [1], [2]]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_strips_of_triangles_become_triangles(tmp_path: Path, encoding: str) -> None:
    """They became a cloud of their vertices without a word. Every other triangle of a strip is turned round."""
    strip = ("tristrips", ["list int int vertex_indices"], [((0, 1, 3, 2, -1, 1, 4, 5, 5),)])
    mesh = _read(tmp_path, _ply(encoding, ("vertex", XYZ, VERTICES), strip))
    assert _areas(mesh).tolist() == [0.5, 0.5, 0.5]
    a, b, c = (mesh.vertices[mesh.faces[:, corner]] for corner in range(3))
    assert (np.cross(b - a, c - a)[:, 2] > 0).all()


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_any_end_of_line(tmp_path: Path, end: str) -> None:
    face = ("face", [FACE], [((0, 1, 2, 3),)])
    text = _ply("ascii", ("vertex", XYZ, VERTICES), face).replace(b"\n", end.encode())
    assert _areas(_read(tmp_path, text)).sum() == 1
    head, mark, body = _ply("binary_big_endian", ("vertex", XYZ, VERTICES), face).partition(b"end_header\n")
    assert _areas(_read(tmp_path, (head + mark).replace(b"\n", end.encode()) + body)).sum() == 1


def test_a_vertex_that_no_face_uses_need_not_be_measured(tmp_path: Path) -> None:
    vertices = [VERTICES[0], (float("nan"), 0.0, 0.0), *VERTICES[1:4]]
    content = _ply("binary_little_endian", ("vertex", XYZ, vertices), ("face", [FACE], [((0, 2, 3, 4),)]))
    mesh = _read(tmp_path, content)
    assert mesh.vertices.tolist() == [list(vertex) for vertex in VERTICES[:4]]
    assert _areas(mesh).sum() == 1
    used = _ply("binary_little_endian", ("vertex", XYZ, vertices), ("face", [FACE], [((0, 2, 3, 4),), ((0, 1, 2),)]))
    with raises("cloud.not_finite", "vertex", "1", "[nan, 0.0, 0.0]"):
        _read(tmp_path, used)
    mesh = _read(tmp_path, used, unmeasured="drop")
    assert (_areas(mesh).sum(), mesh.num_unmeasured, mesh.num_polygons) == (1, 1, 2)


GOOD = _ply("ascii", ("vertex", XYZ, VERTICES), ("face", [FACE], [((0, 1, 2, 3),)])).decode()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (GOOD.replace("1.0 1.0 0.0\n", "1.0 1.0\n", 1), ("ply.row_malformed", "12", "1.0 1.0", "vertex", "x y z")),
        (GOOD.replace("4 0 1 2 3", "4 0 1 2"), ("ply.row_malformed", "16", "4 0 1 2", "face", "list vertex_ind")),
        (GOOD.replace("4 0 1 2 3", "4 0 1 2 3 9"), ("ply.row_malformed", "16", "4 0 1 2 3 9", "face")),
        (GOOD.replace("4 0 1 2 3", "-4 0 1 2 3"), ("ply.row_malformed", "16", "-4 0 1 2 3", "face")),
        (GOOD.replace("4 0 1 2 3", "4 0 1 2 b"), ("text.not_numbers", "16", "4 0 1 2 b")),
        (GOOD.replace("4 0 1 2 3", "4 0 1 2 0.5"), ("mesh.vertex_unknown", "0.5")),
        (GOOD.replace("4 0 1 2 3", "2 0 1"), ("mesh.no_surface",)),
        (GOOD.replace("vertex_indices", "corners"), ("ply.no_vertex_indices", "corners")),
        (GOOD.replace("float z", "float x"), ("ply.name_twice", "x")),
        (GOOD.replace("element face", "element vertex"), ("ply.name_twice", "vertex")),
        (GOOD.replace("float z", "real z"), ("ply.property_malformed", "6", "property real z")),
        (
            GOOD.replace("list uchar int", "list float int"),
            ("ply.property_malformed", "8", "property list float int vertex_indices"),
        ),
        (GOOD.replace("element vertex 6\n", ""), ("ply.property_malformed", "3", "property float x")),
        (
            GOOD.replace("vertex 6", "vertex 999999999999"),
            ("file.truncated", "7 rows, expected 999999999999 vertex + 1 face"),
        ),
        (
            b"ply\nformat binary_little_endian 1.0\nelement vertex 999999999999\nproperty float x\nproperty float y\n"
            b"property float z\nend_header\n" + bytes(36),
            ("file.truncated", "36 bytes after the header"),
        ),
        (
            b"ply\nformat binary_little_endian 1.0\nelement vertex 1\nproperty float x\nproperty float y\n"
            b"property float z\nelement face 2\nproperty list uint int vertex_indices\nend_header\n"
            + bytes(12)
            + b"\xff\xff\xff\xff" * 3,
            ("file.truncated", "24 bytes after the header"),
        ),
    ],
)
def test_a_broken_mesh_is_refused_in_one_line_that_names_it(
    tmp_path: Path, content: bytes | str, error: tuple[str, ...]
) -> None:
    with raises(*error) as caught:
        _read(tmp_path, content)
    assert str(caught.value).startswith(str(tmp_path / "a.ply"))
    assert "\n" not in str(caught.value)
