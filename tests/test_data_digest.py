"""The hash of a data set's files: names, sizes and contents, hashed as they ever were; other bytes, another hash."""

import hashlib

from coded import raises

from sparsepipe.data import folder
from sparsepipe.data.folder import named_digest
from sparsepipe.util.derived import sample_seed


def test_names_come_first_and_contents_once(tmp_path):
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "b").write_bytes(b"two")
    paths = [tmp_path / "a", tmp_path / "b", tmp_path / "a"]
    found = folder.files_digest(paths, [("first", 3), ("second", 3)])
    assert found["sha256"] == hashlib.sha256(b"first\x003\x00second\x003\x00onetwo").hexdigest()
    assert found["sha256_of"] == "names, sizes and contents"
    below = named_digest(paths, tmp_path)
    assert below["sha256"] == hashlib.sha256(b"a\x003\x00b\x003\x00onetwo").hexdigest()
    (tmp_path / "a").write_bytes(b"ONE")
    assert named_digest(paths, tmp_path) != below


def test_of_a_large_data_set_names_and_sizes_are_hashed(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"one")
    monkeypatch.setattr(folder, "_MOST_HASHED_BYTES", 2)
    found = folder.files_digest([tmp_path / "a"], [("a", 3)])
    assert found == {"sha256": hashlib.sha256(b"a\x003\x00").hexdigest(), "sha256_of": "names and sizes"}


def test_a_file_that_is_gone_is_named(tmp_path):
    for find in (lambda path: folder.files_digest([path], []), lambda path: named_digest([path], tmp_path)):
        with raises("file.unreadable"):
            find(tmp_path / "gone")


def test_samples_have_the_seeds_that_they_always_had():
    assert sample_seed(3, "chair/chair_0001.off") == int(
        hashlib.sha256(b"3:chair/chair_0001.off").hexdigest()[:16], base=16
    )
