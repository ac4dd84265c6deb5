"""OBJ, STL and vertices of PLY meshes; and every format packed by gzip."""

import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import trimesh
from coded import raises

from sparsepipe import data
from sparsepipe.data.formats import Cloud, Mesh, Reading, read
from sparsepipe.data.recipe import sample_points
from sparsepipe.errors import InputError


def _write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _refused(path: Path, message: str, reading: Reading | None = None) -> None:
    with pytest.raises(InputError) as caught:
        read(path, reading or Reading())
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def _area(mesh: Mesh) -> float:
    a, b, c = (mesh.vertices[mesh.faces[:, corner]] for corner in range(3))
    return float(np.linalg.norm(np.cross(b - a, c - a), axis=1).sum() / 2)


def _exported(mesh: trimesh.Trimesh, kind: str) -> bytes:
    content = mesh.export(file_type=kind)
    return content if isinstance(content, bytes) else content.encode()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["obj", "stl", "stl_ascii", "ply", "off"])
def test_a_mesh_has_its_area_in_every_format_packed_or_not(tmp_path: Path, kind: str, packed: bool) -> None:
    shape = trimesh.creation.icosphere(subdivisions=2)
    content = _exported(shape, kind)
    suffix = f".{kind.removesuffix('_ascii')}{'.gz' if packed else ''}"
    mesh = read(_write(tmp_path / f"ball{suffix}", gzip.compress(content, mtime=0) if packed else content))
    assert isinstance(mesh, Mesh)
    assert len(mesh.faces) == len(shape.faces)
    assert _area(mesh) == pytest.approx(shape.area, rel=1e-5)
    np.testing.assert_allclose(
        mesh.vertices[mesh.faces].mean(axis=1), shape.triangles_center, atol=1e-5
    )  # faces stay in the order of the file, which lists of their labels follow


FACET = "facet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nvertex 1 1 0\nendloop\nendfacet\n"
CONCAVE = "v 0 0 0\nv 4 0 0\nv 4 4 0\nv 3 1 0\n"


def test_a_concave_polygon_of_an_obj_keeps_its_area_and_its_place(tmp_path: Path) -> None:
    text = f"mtllib stolen.mtl\n# a comment\no arrow\n{CONCAVE}usemtl red\nf 1/1/1 2/2 3//3 4\nf -4 -3 -2 # relative\n"
    mesh = read(_write(tmp_path / "arrow.obj", text))
    assert mesh.num_polygons == 2
    assert mesh.polygons.tolist() == [0, 0, 1]
    areas = [_area(Mesh(mesh.vertices, mesh.faces[mesh.polygons == k])) for k in range(2)]
    assert areas == pytest.approx([4, 8])  # a fan around the first corner has 4 + 4 at best
    continued = text.replace("f 1/1/1 2/2", "f 1/1/1 \\\n2/2")
    assert _area(read(_write(tmp_path / "continued.obj", continued))) == pytest.approx(12)


def test_colours_of_an_objs_vertices_are_interpolated(tmp_path: Path) -> None:
    text = "v 0 0 0 1 0 0\nv 1 0 0 0 0 0\nv 0 1 0 0 0 0\nf 1 2 3\n"
    mesh = read(_write(tmp_path / "red.obj", text))
    assert mesh.names == ("red", "green", "blue")
    assert mesh.attributes.tolist() == [[255, 0, 0], [0, 0, 0], [0, 0, 0]]
    cloud = sample_points(mesh, 500, seed=1)
    red = cloud.attributes[:, cloud.names.index("red")]
    np.testing.assert_allclose(red, 255 * (1 - cloud.points[:, 0] - cloud.points[:, 1]), atol=1e-3)
    cloud = read(_write(tmp_path / "points.obj", text.partition("f")[0]))
    assert isinstance(cloud, Cloud)
    assert cloud.attributes[0].tolist() == [255, 0, 0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.obj", "o nothing\n", "no line that begins with v"),
        ("a.obj", "v 0 0\n", ":1: vertex 'v 0 0', expected 3 numbers, or 6 with a colour"),
        ("a.obj", "v 0 0 0\nv 0 0 0 1 1 1\n", ":2: vertex 'v 0 0 0 1 1 1', expected 3 numbers as the first has"),
        ("a.obj", "v 0 0 0\nv 0 zero 0\n", ":2: "),
        ("a.obj", f"{CONCAVE}f 1 2 0\n", ":5: face 'f 1 2 0', expected at least 3 vertex numbers from 1"),
        ("a.obj", f"{CONCAVE}f 1 2\n", ":5: face 'f 1 2'"),
        ("a.obj", f"{CONCAVE}f 1 2 -9\n", ":5: face 'f 1 2 -9'"),
        ("a.obj", f"{CONCAVE}f 1 2 99\n", "a face refers to vertex 99"),
        ("a.obj", f"{CONCAVE}f 1 2 {'9' * 5000}\n", ":5: face 'f 1 2 999"),
        ("a.obj", "v 0 0 nan\nv 1 0 0\nv 0 1 0\nf 1 2 3\n", "vertex 0 is [0.0, 0.0, nan]"),
        ("a.stl", b"\0" * 84, "no triangles"),
        ("a.stl", b"\0" * 80 + struct.pack("<I", 2**32 - 1) + b"\0" * 50, "truncated: 50 bytes after its head"),
        ("a.stl", b"\0" * 80 + struct.pack("<I", 1) + b"\0" * 60, "longer than its header declares: 60 bytes"),
        ("a.stl", "solid\nfacet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\nendloop\nendfacet\n", ":7: "),
        (
            "a.stl",
            "solid\nfacet normal 0 0 1\nouter loop\nvertex 0 0 0\nvertex 1 0 0\n",
            "the last solid has no endsolid",
        ),
        ("a.stl", f"solid a\n{FACET}endsolid a\nsolid b\n{FACET}", "truncated: the last solid has no endsolid"),
        ("a.stl", "solid\nfacet\nvertex 0 0 0\nvertex 1 x 0\nvertex 1 1 1\nendfacet\nendsolid\n", ":4: "),
        ("a.stl", "hello", "5 bytes, expected 'solid' or a header of 84 bytes: not an STL mesh"),
        ("a.ply.gz", b"ply\n", "named .gz but not compressed by gzip; rename it to a.ply"),
        ("a.ply.gz", gzip.compress(b"ply\n" * 999, mtime=0)[:-20], "damaged or truncated"),
        ("a.ply", gzip.compress(b"ply\n", mtime=0), "is compressed by gzip, expected a PLY file; name it a.ply.gz"),
        ("a.fbx.gz", gzip.compress(b"x", mtime=0), "unknown format .fbx"),
        ("a.gz", gzip.compress(b"x", mtime=0), "unknown format (no suffix before .gz)"),
    ],
)
def test_a_broken_mesh_is_refused_in_one_line_that_names_it(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    _refused(_write(tmp_path / name, content), message)


def test_a_small_gzip_of_much_content_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    path = _write(tmp_path / "zeros.xyz.gz", gzip.compress(b"0 0 0\n" * 20_000_000, compresslevel=1, mtime=0))
    tracemalloc.start()
    _refused(path, "its gzip content claims")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 * 2**20


HEADER = "ply\nformat ascii 1.0\nelement vertex 4\n" + "".join(f"property float {axis}\n" for axis in "xyz")
COLOURS = "".join(f"property uchar {name}\n" for name in ("red", "green", "blue", "alpha"))
FACE = "element face {}\nproperty list uchar int vertex_indices\n{}end_header\n"
CORNERS = ((0, 0, 0), (1, 0, 0), (1, 1, 0), (0, 1, 0))


def _scannet(path: Path) -> Path:
    """As `_vh_clean_2.labels.ply`: colours with alpha, a label a vertex, and faces."""
    rows = "".join(f"{x} {y} {z} {10 * k} 20 30 255 {k % 3}\n" for k, (x, y, z) in enumerate(CORNERS))
    return _write(path, HEADER + COLOURS + "property ushort label\n" + FACE.format(2, "") + rows + "3 0 1 2\n3 0 2 3\n")


def test_a_mesh_of_labelled_vertices_is_the_cloud_of_these(tmp_path: Path) -> None:
    cloud = read(_scannet(tmp_path / "scene.ply"))
    assert isinstance(cloud, Cloud)
    assert cloud.points.tolist() == [list(map(float, corner)) for corner in CORNERS]
    assert cloud.labels.tolist() == [0, 1, 2, 0]
    assert cloud.attributes[:, cloud.names.index("red")].tolist() == [0, 10, 20, 30]
    mapped = read(tmp_path / "scene.ply", Reading(labels=((0, None), (1, 4)), other_labels=True))
    assert mapped.labels.tolist() == [data.IGNORED, 4, data.IGNORED, data.IGNORED]
    renamed = _write(
        tmp_path / "other.ply", (tmp_path / "scene.ply").read_text().replace("ushort label", "ushort nyu40")
    )
    assert isinstance(read(renamed), Mesh)
    assert read(renamed, Reading(renamed=(("nyu40", "label"),))).labels.tolist() == [0, 1, 2, 0]


def test_a_mesh_of_coloured_vertices_has_colours_where_it_is_drawn(tmp_path: Path) -> None:
    rows = "".join(f"{x} {y} {z} {200 * x} 0 0 255\n" for x, y, z in CORNERS)
    path = _write(tmp_path / "square.ply", HEADER + COLOURS + FACE.format(2, "") + rows + "3 0 1 2\n3 0 2 3\n")
    mesh = read(path)
    assert (mesh.names, mesh.attributes[:, 0].tolist()) == (("red", "green", "blue"), [0, 200, 200, 0])
    cloud = sample_points(mesh, 300, seed=0)
    np.testing.assert_allclose(cloud.attributes[:, cloud.names.index("red")], 200 * cloud.points[:, 0], atol=1e-3)
    plain = sample_points(Mesh(mesh.vertices, mesh.faces), 300, seed=0)
    np.testing.assert_array_equal(plain.points, cloud.points)
    np.testing.assert_array_equal(plain.attributes, cloud.attributes[:, :3])
    labelled = path.read_text().replace(FACE.format(2, ""), FACE.format(2, "property int label\n"))
    labelled = labelled.replace("3 0 1 2", "3 0 1 2 5").replace("3 0 2 3", "3 0 2 3 6")
    assert read(_write(path, labelled)).labels.tolist() == [5, 6]


def test_scannets_meshes_train_voxels_with_their_labels_and_colours(tmp_path: Path) -> None:
    _scannet(tmp_path / "scan" / "train" / "a.ply")
    _write(tmp_path / "dataset.json", '{"parts": ["wall", "floor", "chair"], "metric": true}')
    dataset = data.load(
        tmp_path, split="train", voxel_size=0.5, num_points=None, task="segmentation", features=("occupancy", "colours")
    )
    sample = dataset.sample(0)
    found = {tuple(at): (label, red) for at, label, red in zip(*_columns(sample), strict=True)}
    assert found == {(0, 0, 0): (0, 0.0), (2, 0, 0): (1, 10.0), (2, 2, 0): (2, 20.0), (0, 2, 0): (0, 30.0)}


def _columns(sample: data.Sample) -> tuple[list, list, list]:
    red = np.round(sample.features[:, 1].numpy() * 255, 3)
    return sample.coordinates.tolist(), sample.label.tolist(), red.tolist()


def test_packed_and_plain_files_are_one_sample_and_have_their_labels_beside(tmp_path: Path) -> None:
    content = b"OFF\n4 2 0\n0 0 0\n1 0 0\n1 1 0\n0 1 0\n3 0 1 2\n3 0 2 3\n"
    _write(tmp_path / "a" / "train" / "x.off.gz", gzip.compress(content, mtime=0))
    _write(tmp_path / "a" / "train" / "x.seg", "1\n0\n")
    _write(tmp_path / "dataset.json", '{"parts": ["upper", "lower"]}')
    folder = data.open_folder(tmp_path)
    assert folder.read(folder.files[0]).labels.tolist() == [1, 0]
    assert data.info(tmp_path)["formats"] == {"off.gz": 1}
    _write(tmp_path / "a" / "train" / "x.off", content)
    with raises("dataset.folder_fault", "duplicates the sample"):
        data.open_folder(tmp_path)


def test_colours_of_a_coffs_vertices_are_kept(tmp_path: Path) -> None:
    rows = "0 0 0 255 0 0 255\n1 0 0 0 9 0 255\n0 1 0 0 0 7 255\n"
    mesh = read(_write(tmp_path / "a.off", f"COFF\n3 1 0\n{rows}3 0 1 2\n"))
    assert mesh.names == ("red", "green", "blue")
    assert mesh.attributes.tolist() == [[255, 0, 0], [0, 9, 0], [0, 0, 7]]
    _refused(
        _write(tmp_path / "b.off", "COFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"), ":3: vertex '0 0 0', expected 6"
    )
