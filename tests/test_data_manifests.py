"""Manifests and fetching: what is committed is sound, what is downloaded is verified, nothing half-done is left."""

import hashlib
import io
import stat
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from coded import raises

from sparsepipe import data
from sparsepipe.data.manifests import get_manifest, manifests_folder, read_manifest
from sparsepipe.errors import InputError
from sparsepipe.util.io.fields import shown

TRIANGLE = b"OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"
HEAD = "title: t\nlicence: l\ncitation: c\nhomepage: https://example.org/\nsplits: {train: 1}\n"


def _manifest(folder: Path, name: str, files: str, *, head: str = HEAD) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(f"name: {name}\n{head}{files}")
    return path


def _entry(path: Path, **change: object) -> str:
    content = path.read_bytes()
    fields = {
        "url": path.as_uri(),
        "bytes": len(content),
        "sha256": f'"{hashlib.sha256(content).hexdigest()}"',
    } | change
    return "files:\n  - {" + ", ".join(f"{key}: {value}" for key, value in fields.items()) + "}\n"


def _archive(path: Path, members: dict[str, bytes]) -> Path:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    path.write_bytes(buffer.getvalue())
    return path


def test_committed_manifests_are_sound() -> None:
    found = {manifest.name: manifest for manifest in data.list_datasets()}
    assert {"modelnet10", "modelnet10-sample", "modelnet40"} <= set(found)
    for manifest in found.values():
        assert manifest.licence
        assert manifest.citation
        assert manifest.homepage.startswith("https://")
        assert manifest.files or manifest.generator or "yourself" in manifest.notes
        assert len({file.path for file in manifest.files}) == len(manifest.files)
    assert dict(found["modelnet10"].splits) == {"train": 3991, "test": 908}
    assert dict(found["modelnet40"].splits) == {"train": 9843, "test": 2468}
    assert {name for name, manifest in found.items() if manifest.verifiable} == {
        "digits",
        "libreoffice-help-en-de",
        "mnist-5k",
        "modelnet10",
        "modelnet10-sample",
        "modelnet40",
        "modelnet40-hdf5",
        "modelnet40-resampled",
        "shapenetpart",
        "wikipedia-pages",
    }


def test_the_samples_manifest_describes_the_real_files(shared_data: Path) -> None:
    root = shared_data / "modelnet10-sample" / "ModelNet10"
    manifest = get_manifest("modelnet10-sample")
    assert {file.path for file in manifest.files} == {path.relative_to(root).as_posix() for path in root.rglob("*.pcd")}
    for file in manifest.files:
        content = (root / file.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.num_bytes, file.sha256)
        assert file.url.endswith(f"/ModelNet10/pcd/{file.path}")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("minibatch-times", "outside/minibatch-times"),
        ("colocation", "outside/colocation"),
        ("preemptions", "outside/preemptions"),
        ("airborne-scans", "outside/clouds"),
        ("dynpipe-logs", "dynpipe_logs"),
    ],
)
def test_manifests_of_measurements_describe_the_real_files(shared_data: Path, name: str, folder: str) -> None:
    root = shared_data / folder
    if not root.is_dir():
        pytest.skip(f"no {name} at {root}")
    for file in get_manifest(name).files:
        content = (root / file.path).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (file.num_bytes, file.sha256)


def test_named_data_folders_are_searched_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("SPARSEPIPE_DATA", f"{tmp_path / 'one'}:{tmp_path / 'two'}")
    with raises("dataset.not_fetched", "one", "two", "cache/sparsepipe/data", name="modelnet40"):
        data.find("modelnet40")
    (tmp_path / "cache" / "sparsepipe" / "data" / "ModelNet40").mkdir(parents=True)
    assert data.find("modelnet40") == tmp_path / "cache" / "sparsepipe" / "data" / "ModelNet40"
    (tmp_path / "two" / "modelnet40").mkdir(parents=True)
    assert data.find("modelnet40") == tmp_path / "two" / "modelnet40"
    assert data.find(tmp_path) == tmp_path


def test_an_archive_is_fetched_verified_and_unpacked(tmp_path: Path) -> None:
    members = {"Toys/chair/train/c.off": TRIANGLE, "__MACOSX/Toys/._c.off": b"", "Toys/.DS_Store": b""}
    archive = _archive(tmp_path / "toys.zip", members)
    _manifest(tmp_path / "m", "toys", _entry(archive), head=f"{HEAD}folder: Toys\n")
    seen: list[tuple] = []
    folder = data.fetch("toys", tmp_path / "data", manifests=tmp_path / "m", progress=lambda *now: seen.append(now))
    assert folder == tmp_path / "data" / "Toys"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["Toys"]
    assert sorted(path.name for path in folder.rglob("*")) == ["c.off", "chair", "train"]
    assert data.info(folder)["samples"] == 1
    assert seen[-1] == ("toys.zip", archive.stat().st_size, archive.stat().st_size)
    archive.unlink()
    assert data.fetch("toys", tmp_path / "data", manifests=tmp_path / "m") == folder  # there already: nothing is asked


def test_single_files_keep_their_paths(tmp_path: Path) -> None:
    source = tmp_path / "there" / "chair" / "train" / "c.off"
    source.parent.mkdir(parents=True)
    source.write_bytes(TRIANGLE)
    digest = hashlib.sha256(TRIANGLE).hexdigest()
    entry = f'{{path: chair/train/c.off, bytes: null, sha256: "{digest}"}}'
    files = f"base: {(tmp_path / 'there').as_uri()}/\nfiles:\n  - {entry}\n"
    _manifest(tmp_path / "m", "single", files)
    folder = data.fetch("single", tmp_path / "data", manifests=tmp_path / "m")
    assert (folder / "chair" / "train" / "c.off").read_bytes() == TRIANGLE
    assert data.load(folder, split="train", voxel_size=0.5).batch([0]).labels.tolist() == [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sha256": "null"}, "bad: no SHA-256 is known for .*download the data from https://example.org/"),
        ({"sha256": f'"{"0" * 64}"'}, f"SHA-256 [0-9a-f]{{64}}, expected {'0' * 64}; the file was discarded"),
        ({"bytes": 10}, r"bytes or more instead of 10"),
        ({"bytes": 10**6}, r"bytes instead of 1000000"),
        ({"url": "file:///nowhere/bad.zip"}, "cannot be downloaded"),
    ],
)
def test_a_bad_download_is_refused_and_leaves_nothing(tmp_path: Path, change: dict, message: str) -> None:
    archive = _archive(tmp_path / "bad.zip", {"chair/train/c.off": TRIANGLE})
    _manifest(tmp_path / "m", "bad", _entry(archive, **change))
    with pytest.raises(InputError, match=message):
        data.fetch("bad", tmp_path / "data", manifests=tmp_path / "m")
    assert not (tmp_path / "data").exists() or list((tmp_path / "data").iterdir()) == []


def _zip(path: Path, *members: zipfile.ZipInfo | str, content: bytes = TRIANGLE, method: int = 0) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", method) as archive:
        warnings.simplefilter("ignore")  # that a name is there twice
        for member in members:
            archive.writestr(member, content, compress_type=method)
    return path


def _link(name: str) -> zipfile.ZipInfo:
    member = zipfile.ZipInfo(name)
    member.create_system, member.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
    return member


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (
            lambda path: _zip(path, "a.off", content=bytes(50_000_000), method=8),
            ("archive.too_large", "50 MB"),
        ),
        (lambda path: _zip(path, _link("a.off")), ("archive.member_is_link", "'a.off'")),
        (lambda path: _zip(path, "a.off", "a.off"), ("archive.member_twice", "'a.off'")),
        (lambda path: _zip(path, "a.off", method=zipfile.ZIP_LZMA), ("archive.method_unknown",)),
        (lambda path: _zip(path, "a/" * 3000 + "../x\n" * 200), ("archive.member_outside",)),
    ],
)
def test_an_archive_out_of_bounds_is_refused_unread(tmp_path: Path, make: Callable, error: tuple[str, ...]) -> None:
    """1.5 MB of zip became 1.5 GB on disk."""
    _manifest(tmp_path / "m", "bomb", _entry(make(tmp_path / "bomb.zip")))
    with raises(*error) as caught:
        data.fetch("bomb", tmp_path / "data", manifests=tmp_path / "m")
    assert len(str(caught.value)) < 400
    assert list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("member", ["../evil.off", "/evil.off", "a/../../evil.off"])
def test_an_archive_that_would_write_elsewhere_is_refused(tmp_path: Path, member: str) -> None:
    archive = _archive(tmp_path / "evil.zip", {member: TRIANGLE})
    _manifest(tmp_path / "m", "evil", _entry(archive))
    with raises("archive.member_outside"):
        data.fetch("evil", tmp_path / "data", manifests=tmp_path / "m")
    assert list((tmp_path / "data").iterdir()) == []
    assert not (tmp_path / "evil.off").exists()


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "odd.zip").write_bytes(b"not a zip")
    _manifest(tmp_path / "m", "odd", _entry(tmp_path / "odd.zip"))
    with raises("archive.damaged"):
        data.fetch("odd", tmp_path / "data", manifests=tmp_path / "m")


INSIDE_B = '  - {url: "https://example.org/c", path: b/c, bytes: 1, sha256: null}\n'
FILES = 'files:\n  - {url: "https://example.org/a.zip", bytes: 1, sha256: null}\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a list\n", "expected a mapping"),
        ("name: [\n", "x.yaml:2: not valid YAML"),
        (f"name: x\n{HEAD}", "no files; add what is missing"),
        (f"name: y\n{HEAD}{FILES}", "name 'y', expected 'x'"),
        (f"name: x\nmirror: z\n{HEAD}{FILES}", "unknown key mirror"),
        (f"name: x\n{HEAD}{FILES}".replace("{train: 1}", "{train: many}"), "expected NAME: NUMBER OF SAMPLES"),
        (f"name: x\nfolder: ../x\n{HEAD}{FILES}", "expected one folder's name"),
        (f"name: x\n{HEAD}{FILES}".replace("title: t", "title: 3"), "title is 3, expected text"),
        (f"name: x\n{HEAD}{FILES}".replace("https://example.org/a", "ftp://example.org/a"), "file 1: url 'ftp:"),
        (f"name: x\n{HEAD}{FILES}".replace("bytes: 1", "bytes: -1"), "file 1: bytes -1"),
        (f"name: x\n{HEAD}{FILES}".replace("sha256: null", "sha256: abc"), "file 1: sha256 'abc'"),
        (f"name: x\n{HEAD}{FILES}".replace("bytes: 1", "path: ../a, bytes: 1"), "file 1: path '../a'"),
        (f"name: x\nbase: https://example.org\n{HEAD}{FILES}", "expected a URL ending in /"),
        (f"name: x\n{HEAD}files: a.zip\n", "files: expected a list"),
        (f"name: x\nfolder: '..'\n{HEAD}{FILES}", "folder '..', expected one folder's name"),
        (f'name: x\nfolder: "a\\0b"\n{HEAD}{FILES}', "expected one folder's name"),
        (f'name: x\nfolder: "\\ud800"\n{HEAD}{FILES}', "x.yaml"),
        (f"name: x\nfolder: {'a' * 300}\n{HEAD}{FILES}", "expected one folder's name"),
        (f"name: x\n{HEAD}{FILES}".replace("bytes: 1", 'path: "a\\0b", bytes: 1'), "file 1: path 'a\\x00b'"),
        (f"name: x\n{HEAD}{FILES}".replace("a.zip", "%00.zip"), "file 1: path '\\x00.zip'"),
        (f"name: x\n{HEAD}{FILES}".replace("example.org/a.zip", "[::1/x"), "file 1: url 'https://[::1/x'"),
        (
            f"name: x\n{HEAD}{FILES}".replace("example.org", "example.org:x"),
            "file 1: url 'https://example.org:x/a.zip'",
        ),
        (f"name: x\n{HEAD}{FILES}".replace("example.org/a", "exämple.org/a"), "expected an address in ASCII"),
        (f"name: x\n{HEAD}{FILES}".replace("example.org/a", "example.org/a b"), "expected an address in ASCII"),
        (f"name: x\n{HEAD}{FILES}".replace("example.org/", "/"), "file 1: url 'https:///a.zip'"),
        (f"name: x\n{HEAD}{FILES}".replace("bytes: 1", f"bytes: {'9' * 5000}"), "cannot be read as YAML"),
        (
            f"name: x\n{HEAD}{FILES}".replace("bytes: 1", f"bytes: 0x{'f' * 5000}"),
            "bytes a number of thousands of digits",
        ),
        (f"name: x\n{HEAD}{FILES}".replace("title: t", "title: 2001-99-99"), "cannot be read as YAML"),
        (f"name: x\n{HEAD}{FILES}licence: m\n", "x.yaml:9: not valid YAML (key 'licence' occurs twice)"),
        (f"name: x\n{HEAD}{FILES}{FILES[7:]}", "path ['a.zip'] is there twice"),
        (f"name: x\n{HEAD}{FILES.replace('a.zip', 'b')}{INSIDE_B}", "is a file, and a folder of others"),
        (f"name: x\n{HEAD}{FILES}title: {'[' * 100}{']' * 100}\n", "nested more than 20 levels deep"),
        (f"name: &n x\nfolder: *n\n{HEAD}{FILES}", "x.yaml:2: the alias *n is not supported"),
    ],
)
def test_a_malformed_manifest_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_manifest(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_nested_aliases_cost_neither_memory_nor_a_long_message(tmp_path: Path) -> None:
    """441 bytes of YAML made a message of 254 MB, 488 bytes ended the process."""
    levels = "".join(f"n{k}: &n{k} [{', '.join([f'*n{k - 1}'] * 10)}]\n" for k in range(1, 12))
    (tmp_path / "x.yaml").write_text(f"n0: &n0 [a]\n{levels}")
    with raises("yaml.malformed", "x.yaml:2: the alias *n0") as caught:
        read_manifest(tmp_path / "x.yaml")
    assert len(str(caught.value)) < 300
    nested: list = ["a"]
    for _ in range(12):
        nested = [nested] * 10
    assert len(shown(nested)) < 100  # and so elsewhere
    assert shown({"b": 1, "a": [None, 2.5]}) == "{'a': [None, 2.5], 'b': 1}"


def test_a_malformed_manifest_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("[")
    (tmp_path / "good.yaml").write_text(f"name: good\n{HEAD}{FILES}")
    damaged: list[str] = []
    assert [manifest.name for manifest in data.list_datasets(tmp_path, damaged=damaged)] == ["good"]
    assert "bad.yaml" in damaged[0]


def test_unknown_names_list_the_known_ones() -> None:
    with raises("dataset.unknown", "modelnet10, modelnet10-sample, modelnet40", name="imagenet"):
        get_manifest("imagenet")
    assert manifests_folder().is_dir()
