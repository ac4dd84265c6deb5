"""Files that lie in packages: fetched by pip from a folder of wheels that the test writes, verified, prepared."""

import gzip
import hashlib
import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
from coded import raises

from sparsepipe import data
from sparsepipe.data.examples import is_examples, open_examples
from sparsepipe.data.manifests import get_manifest, package_address
from sparsepipe.data.preparing import held_out
from sparsepipe.errors import InputError

HEAD = "title: t\nlicence: l\ncitation: c\nhomepage: https://example.org/\nsplits: {train: 1}\nkind: images\n"
TABLE = np.column_stack([np.random.default_rng(0).integers(0, 256, size=(20, 784)), np.repeat([0, 1], 10)])


def _table(rows: np.ndarray) -> bytes:
    text = "".join(",".join(map(str, row)) + "\n" for row in rows.tolist())
    return gzip.compress(text.encode(), mtime=0)


def _wheel(folder: Path, members: dict[str, bytes]) -> None:
    """Write the wheel of a package `toydigits` 1.0 that pip takes."""
    folder.mkdir(exist_ok=True)
    info = "toydigits-1.0.dist-info"
    facts = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: toydigits\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (members | facts).items():
            archive.writestr(name, content)
    (folder / "toydigits-1.0-py3-none-any.whl").write_bytes(buffer.getvalue())


def _manifest(
    folder: Path, content: bytes, *, url: str = "pip:toydigits==1.0#toydigits/t.csv.gz", **change: object
) -> Path:
    entry = {"url": f'"{url}"', "bytes": len(content), "sha256": f'"{hashlib.sha256(content).hexdigest()}"'} | change
    folder.mkdir(exist_ok=True)
    fields = ", ".join(f"{key}: {value}" for key, value in entry.items())
    (folder / "toy.yaml").write_text(f"name: toy\n{HEAD}prepared_by: digits-table\nfiles:\n  - {{{fields}}}\n")
    return folder


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let pip look into a folder alone: it asks nobody."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return tmp_path / "wheels"


def test_a_file_of_a_wheel_is_fetched_verified_and_prepared(tmp_path: Path, wheels: Path) -> None:
    content = _table(TABLE)
    _wheel(wheels, {"toydigits/t.csv.gz": content})
    folder = data.fetch("toy", tmp_path / "data", manifests=_manifest(tmp_path / "m", content))
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["toy"]
    assert is_examples(folder)
    train, test = (open_examples(folder, split=split) for split in ("train", "test"))
    assert (len(train), len(test)) == (16, 4)
    assert test.labels == (0, 0, 1, 1)
    pixels = test.batch([0]).inputs[0, 0] * 0.3081 + 0.1307
    np.testing.assert_allclose(pixels.numpy().reshape(-1) * 255, TABLE[4, :-1], atol=1e-3)  # the fifth of its class


def test_every_fifth_of_each_class_is_held_out() -> None:
    labels = np.random.default_rng(1).integers(0, 3, size=100)
    test = held_out(labels)
    for label in range(3):
        own = test[labels == label]
        assert own.tolist() == [place % 5 == 4 for place in range(len(own))]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"sha256": f'"{"0" * 64}"'}, ("download.digest_differs",)),
        ({"url": "pip:toydigits==1.0#toydigits/other"}, ("download.member_missing", "toydigits/other")),
        ({"url": "pip:toydigits==2.0#toydigits/t.csv.gz"}, ("download.installer_failed", "pip")),
        ({"sha256": "null"}, ("download.unverified", "no SHA-256 is known for pip:toydigits==1.0")),
    ],
)
def test_what_cannot_be_fetched_is_told_and_leaves_nothing(
    tmp_path: Path, wheels: Path, change: dict, error: tuple[str, ...]
) -> None:
    content = _table(TABLE)
    _wheel(wheels, {"toydigits/t.csv.gz": content})
    with raises(*error):
        data.fetch("toy", tmp_path / "data", manifests=_manifest(tmp_path / "m", content, **change))
    assert not (tmp_path / "data").exists() or list((tmp_path / "data").iterdir()) == []


@pytest.mark.parametrize("content", [b"no table", _table(TABLE[:, 5:])])
def test_a_table_that_is_none_is_named(tmp_path: Path, wheels: Path, content: bytes) -> None:
    _wheel(wheels, {"toydigits/t.csv.gz": content})
    with pytest.raises(InputError, match="t.csv.gz: .*again"):
        data.fetch("toy", tmp_path / "data", manifests=_manifest(tmp_path / "m", content))


@pytest.mark.parametrize(
    "url",
    [
        *("pip:toydigits#t", "pip:--help==1#t", "pip:toydigits==1.0", "pip:a==1.0#-x", "pip:a==1 --pre#t", "apt:a"),
        *("apt:-o=1", "apt:a=1 b", "npm:a==1#x"),
    ],
)
def test_a_package_that_is_not_pinned_is_no_address(tmp_path: Path, url: str) -> None:
    assert package_address(url) is None
    with raises("manifest.malformed", "file 1: url", "or pip:NAME==VERSION#FILE"):
        get_manifest("toy", _manifest(tmp_path / "m", b"", url=url))


def test_manifests_of_examples_are_told_by_their_kind() -> None:
    assert is_examples("mnist-5k") and not is_examples("digits")
    manifest = get_manifest("mnist-5k")
    assert (manifest.kind, dict(manifest.splits)) == ("images", {"train": 4000, "test": 1000})
    assert manifest.verifiable
