"""Damaged manifests, archives, descriptions and lists: each is read as something that works, or refused in a line."""

import hashlib
import io
import json
import re
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_parsers_fuzzed import VALUES, damaged, damaged_tree, edits, read_or_refused, tree_edits

from sparsepipe import InputError
from sparsepipe.data import check, info
from sparsepipe.data.archives import MOST_ANYWAY_BYTES, MOST_TIMES, unpack_zip
from sparsepipe.data.downloads import fetch
from sparsepipe.data.manifests import Manifest, read_manifest

fuzzed = settings(max_examples=1_150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
fewer = settings(fuzzed, max_examples=300)
TRIANGLE = b"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"


def _manifest(source: Path) -> dict:
    content = source.read_bytes()
    return {
        "name": "x",
        "title": "t",
        "licence": "l",
        "citation": "c",
        "homepage": "https://example.org/",
        "folder": "X",
        "classes": 1,
        "notes": "n",
        "splits": {"train": 1},
        "files": [
            {
                "url": source.as_uri(),
                "path": "chair/train/a.off",
                "bytes": len(content),
                "sha256": hashlib.sha256(content).hexdigest(),
            },
            {"url": source.as_uri(), "path": "b.off", "bytes": None, "sha256": None},
        ],
    }


def _use(manifest: Manifest) -> None:
    for file in manifest.files:
        (Path("X") / file.path).relative_to("X")
        assert ".." not in Path(file.path).parts
    assert manifest.folder not in ("", ".", "..")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "tree"])
def test_manifests(tmp_path: Path, kind: str) -> None:
    """JSON is YAML: a tree that was damaged is written as it."""
    (tmp_path / "a.off").write_bytes(TRIANGLE)
    document = _manifest(tmp_path / "a.off")
    text = "".join(
        f"{key}: {value if isinstance(value, str) else json.dumps(value)}\n" for key, value in document.items()
    )
    path = tmp_path / "x.yaml"

    @fuzzed
    @given(edits if kind == "text" else tree_edits)
    def one(found: list) -> None:
        content = damaged(text, found) if kind == "text" else json.dumps(damaged_tree(document, found))
        path.write_bytes(content.encode("utf-8", "surrogatepass"))
        read_or_refused(path, lambda: read_manifest(path), _use)

    one()


@pytest.mark.slow
@fewer
@given(tree_edits)
def test_fetching_by_a_damaged_manifest_stays_in_its_folder(tmp_path: Path, found: list) -> None:
    """Without a URL of the web, for nobody is to be asked."""
    (tmp_path / "a.off").write_bytes(TRIANGLE)
    document = _manifest(tmp_path / "a.off")
    del document["files"][1]
    document["homepage"] = ""
    (tmp_path / "m").mkdir(exist_ok=True)
    (tmp_path / "m" / "x.yaml").write_text(json.dumps(damaged_tree(document, found)))
    try:
        folder = fetch("x", tmp_path / "data", manifests=tmp_path / "m")
        assert folder.parent == tmp_path / "data"
    except InputError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 1_000
    assert {path.name for path in tmp_path.iterdir()} <= {"a.off", "m", "data"}


def _archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("X/chair/train/a.off", "X/chair/test/b.off", "X/._a.off"):
            archive.writestr(name, TRIANGLE * 3)
    return buffer.getvalue()


ARCHIVE = _archive()


@pytest.mark.slow
@fuzzed
@given(
    st.lists(st.tuples(st.integers(0, len(ARCHIVE) - 1), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, 3),
    st.integers(0, len(ARCHIVE)),
)
def test_archives(tmp_path: Path, changes: list[tuple[int, int]], how: int, cut: int) -> None:
    content = bytearray(ARCHIVE)
    for place, value in changes:
        content[place] = value
    path = tmp_path / "x.zip"
    path.write_bytes(content[:cut] if how == 0 else content)
    inside = tmp_path / "inside"
    try:
        unpack_zip(path, inside / "content", source="x.zip")
    except (InputError, OSError) as error:  # of the disk: a name that is too long, a file where a folder would be
        assert "\n" not in str(error)
    written = [file for file in tmp_path.rglob("*") if file.is_file() and file != path]
    assert all(file.is_relative_to(inside / "content") and not file.is_symlink() for file in written)
    assert sum(file.stat().st_size for file in written) <= max(MOST_TIMES * len(content), MOST_ANYWAY_BYTES)
    for file in written:
        file.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["classes", "hdf5"])
def test_descriptions_of_data_sets(tmp_path: Path, layout: str) -> None:
    """What `data info` and `data check` say of a folder whose dataset.json is damaged."""
    root = tmp_path / layout
    document = {"name": "toys", "synthetic": True, "parts": ["a"], "metric": False, "columns": ["x", "y", "z"]}
    if layout == "classes":
        (root / "chair" / "train").mkdir(parents=True)
        (root / "chair" / "train" / "a.xyz").write_text("0 0 0\n1 1 1\n")
    else:
        root.mkdir()
        with h5py.File(root / "train.h5", "w") as file:
            file["data"], file["label"] = np.eye(3, dtype=np.float32)[None], np.array([0])
        document |= {"files": {"train": ["train.h5"]}}

    @fewer
    @given(tree_edits | st.sampled_from(VALUES).map(lambda value: [(0, "put", value)]))
    def one(found: list) -> None:
        (root / "dataset.json").write_text(json.dumps(damaged_tree(document, found)))
        for use in (lambda: json.dumps(info(root)), lambda: str(check(root))):
            try:
                use()
            except InputError as error:
                assert "\n" not in str(error)
                assert str(root) in str(error)

    one()


LISTS = {
    "resampled": {
        "modelnet40_shape_names.txt": "chair\nnight_stand\n",
        "modelnet40_train.txt": "chair_0001\nnight_stand_0001\n",
        "modelnet40_test.txt": "chair_0002\n",
        "chair/chair_0001.txt": "0,0,0,0,0,1\n1,1,1,0,0,1\n",
        "chair/chair_0002.txt": "0,0,0,0,0,1\n1,1,2,0,0,1\n",
        "night_stand/night_stand_0001.txt": "0,0,0,0,0,1\n1,1,1,0,0,1\n",
    },
    "shapenetpart": {
        "synsetoffset2category.txt": "Airplane\t02691156\nBag\t02773838\n",
        "train_test_split/shuffled_train_file_list.json": '["shape_data/02691156/a", "shape_data/02773838/b"]',
        "02691156/a.txt": "0 0 0 0 0 1 0\n1 1 1 0 0 1 0\n",
        "02773838/b.txt": "0 0 0 0 0 1 4\n1 1 1 0 0 1 4\n",
    },
    "hdf5": {"train_files.txt": "data/a.h5\n", "test_files.txt": "data/b.h5\n", "shape_names.txt": "x\ny\n"},
}


@pytest.mark.slow
@pytest.mark.parametrize("layout", LISTS)
def test_lists_of_samples(tmp_path: Path, layout: str) -> None:
    root = tmp_path / layout
    for name, text in LISTS[layout].items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for number, name in enumerate(("a.h5", "b.h5") if layout == "hdf5" else ()):
        with h5py.File(root / name, "w") as file:
            file["data"], file["label"] = np.eye(3, dtype=np.float32)[None] * (1 + number), np.array([number])
    lists = [name for name in LISTS[layout] if not re.search(r"chair/|stand/|^\d", name)]

    @fewer
    @given(st.sampled_from(lists), edits)
    def one(name: str, found: list) -> None:
        whole = LISTS[layout][name]
        (root / name).write_bytes(damaged(whole, found).encode("utf-8", "surrogatepass"))
        try:
            json.dumps(info(root))
        except InputError as error:
            assert "\n" not in str(error)
            assert len(str(error)) < 1_500
        finally:
            (root / name).write_text(whole)

    one()
