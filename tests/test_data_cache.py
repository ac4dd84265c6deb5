"""The cache of prepared samples: the same samples with it as without, keyed by all that decides them, never half."""

import errno
import fcntl
import io
import json
import multiprocessing
import os
import shutil
import time
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from coded import raises
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from sparsepipe import data
from sparsepipe.data.cache import SampleCache, cache_key
from sparsepipe.data.dataset import VoxelDataset
from sparsepipe.util.io import files

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    families = ("box", "chair", "lamp")
    return data.make_shapes(tmp_path_factory.mktemp("cached") / "s", num_train=2, num_test=1, families=families)


def _load(folder: Path, cache: Path | None, **options: object) -> VoxelDataset:
    settings = {"split": "train", "voxel_size": 0.05, "num_points": 300} | options
    return data.load(folder, cache=cache, **settings)


def _same(a: data.PointBatch, b: data.PointBatch) -> bool:
    pairs = ((a.coordinates, b.coordinates), (a.features, b.features), (a.labels, b.labels))
    return all(torch.equal(x, y) and x.dtype == y.dtype for x, y in pairs)


def _entries(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"task": "segmentation"},
        {"features": ("occupancy", "normals")},
        {"augmentation": "shapes"},
        {"augmentation": "shapes", "task": "segmentation", "features": ("normals",)},
    ],
)
def test_samples_are_the_same_from_the_cache_and_without(shapes: Path, tmp_path: Path, options: dict) -> None:
    plain = _load(shapes, None, **options).batch(range(6), epoch=2)
    assert _same(_load(shapes, tmp_path, **options).batch(range(6), epoch=2), plain)
    assert len(_entries(tmp_path)) == 6
    before = [path.stat().st_ino for path in _entries(tmp_path)]
    assert _same(_load(shapes, tmp_path, **options).batch(range(6), epoch=2), plain)
    assert [path.stat().st_ino for path in _entries(tmp_path)] == before


def test_what_is_cached_is_not_read_again(shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = _load(shapes, tmp_path).batch(range(6))
    monkeypatch.setattr("sparsepipe.data.dataset.sample_points", None)  # drawing again would now fail
    assert _same(_load(shapes, tmp_path).batch(range(6)), plain)


@pytest.mark.parametrize(
    "change",
    [
        {"voxel_size": 0.1},
        {"num_points": 301},
        {"seed": 1},
        {"features": ("normals",)},
        {"task": "segmentation"},
        {"augmentation": "shapes"},
    ],
)
def test_every_setting_is_part_of_the_key(shapes: Path, tmp_path: Path, change: dict) -> None:
    _load(shapes, tmp_path).batch([0])
    changed = _load(shapes, tmp_path, **change).batch([0])
    assert len(_entries(tmp_path)) == 2
    assert _same(changed, _load(shapes, None, **change).batch([0]))


def _marked(folder: Path, **further: object) -> Path:
    """Add to what a data set's own dataset.json says."""
    marker = folder / "dataset.json"
    marker.write_text(json.dumps(json.loads(marker.read_text()) | further))
    return folder


def test_that_clouds_are_metric_is_part_of_the_key(shapes: Path, tmp_path: Path) -> None:
    folder, cache = Path(shutil.copytree(shapes, tmp_path / "shapes")), tmp_path / "cache"
    in_unit_cube = _load(folder, cache).batch(range(6))
    _marked(folder, metric=True)
    plain = _load(folder, None).batch(range(6))
    assert not _same(plain, in_unit_cube)
    assert _same(_load(folder, cache).batch(range(6)), plain)


def test_labels_that_no_part_bears_are_refused_from_the_cache_too(shapes: Path, tmp_path: Path) -> None:
    folder, cache = Path(shutil.copytree(shapes, tmp_path / "shapes")), tmp_path / "cache"
    _load(folder, cache, task="segmentation").batch(range(6))
    _marked(folder, parts=["leg"])
    with raises("dataset.label_out_of_range", "1 class"):
        _load(folder, cache, task="segmentation").batch(range(6))


def test_names_that_tell_the_classes_of_points_are_part_of_the_key(tmp_path: Path) -> None:
    """In S3DIS the same points are a chair or a table by their file's name alone."""
    folder = tmp_path / "s3dis" / "Area_1" / "office_1" / "Annotations"
    folder.mkdir(parents=True)
    (folder / "chair_1.txt").write_text("0 0 0 1 2 3\n1 1 1 4 5 6\n")
    options = {"num_points": None, "task": "segmentation"}
    before = _load(tmp_path / "s3dis", tmp_path / "cache", **options)
    assert {before.classes[label] for label in before.batch([0]).labels} == {"chair"}
    (folder / "chair_1.txt").rename(folder / "table_1.txt")
    after = _load(tmp_path / "s3dis", tmp_path / "cache", **options)
    assert {after.classes[label] for label in after.batch([0]).labels} == {"table"}


def test_contents_are_part_of_the_key_and_places_are_not(shapes: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    _load(shapes, cache).batch([0])
    moved = Path(shutil.copytree(shapes, tmp_path / "moved"))
    _load(moved, cache).batch([0])
    assert len(_entries(cache)) == 1
    victim = moved / "box" / "train" / "box_0001.off"
    victim.write_text(victim.read_text().replace("0.", "0.1", 1))
    _load(moved, cache).batch([0])
    assert len(_entries(cache)) == 2


def test_many_clouds_of_one_file_have_entries_of_their_own(tmp_path: Path) -> None:
    import h5py

    (tmp_path / "d").mkdir()
    with h5py.File(tmp_path / "d" / "x_train.h5", "w") as file:
        file["data"] = np.random.default_rng(0).normal(size=(5, 100, 3))
        file["label"] = np.zeros(5)
    plain = _load(tmp_path / "d", None).batch(range(5))
    for _ in range(2):
        assert _same(_load(tmp_path / "d", tmp_path / "cache").batch(range(5)), plain)
    assert len(_entries(tmp_path / "cache")) == 5


@pytest.mark.parametrize("damage", [b"", b"a few bytes", b"cut", b"flipped", b"other"])
def test_a_damaged_entry_counts_as_absent_and_is_mended(shapes: Path, tmp_path: Path, damage: bytes) -> None:
    plain = _load(shapes, tmp_path).batch([0])
    (entry,) = _entries(tmp_path)
    whole = entry.read_bytes()
    broken = {
        b"cut": whole[:-40],
        b"flipped": whole[:300] + bytes([whole[300] ^ 255]) + whole[301:],
    }.get(damage, damage)
    if damage == b"other":
        broken = files.sealed(safetensors.save({"something": np.arange(3)}))
    entry.write_bytes(broken)
    assert _same(_load(shapes, tmp_path).batch([0]), plain)
    assert entry.read_bytes() == whole


def test_an_entry_with_any_byte_changed_counts_as_absent(tmp_path: Path) -> None:
    """A header that says fewer rows, a number that is another: nothing in the format betrays them."""
    cache, random = SampleCache(tmp_path), np.random.default_rng(0)
    cache.save("abcd", {"coordinates": random.integers(0, 9, (700, 3)), "labels": random.integers(0, 9, 700)})
    (entry,) = _entries(tmp_path)
    whole = entry.read_bytes()
    assert cache.load("abcd").keys() == {"coordinates", "labels"}
    for place in (*range(300), *range(len(whole) - 500, len(whole))):
        entry.write_bytes(whole[:place] + bytes([whole[place] ^ random.integers(1, 256)]) + whole[place + 1 :])
        assert cache.load("abcd") is None, place


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    cache = SampleCache(tmp_path)
    path = tmp_path / "ab" / "abcd.safetensors"
    path.parent.mkdir()
    np.savez(path.with_suffix(".npz"), coordinates=np.array([{"a": 1}], dtype=object))
    path.with_suffix(".npz").rename(path)
    assert cache.load("abcd") is None
    path.write_bytes(files.sealed(path.read_bytes()))
    assert cache.load("abcd") is None, "damaged before it was sealed"
    with pytest.raises(SafetensorError, match='Unknown dtype "object"'):
        cache.save("abcd", {"coordinates": np.array([{"a": 1}], dtype=object)})


@pytest.mark.parametrize("stage", ["fdopen", "open"])
def test_a_full_disk_is_said_once_and_work_goes_on(
    shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    class Full(io.FileIO):
        def write(self, content: object) -> int:
            raise FULL

    really_open = os.open

    def full(path: str, flags: int, *mode: int, **options: int) -> int:
        if flags & os.O_EXCL:  # a new file, as an entry of the cache is
            raise FULL
        return really_open(path, flags, *mode, **options)

    plain = _load(shapes, None).batch(range(6))
    if stage == "fdopen":
        monkeypatch.setattr(files.os, stage, Full)
    else:
        monkeypatch.setattr(files.os, stage, full)
    dataset = _load(shapes, tmp_path)
    with pytest.warns(UserWarning) as caught:
        assert _same(dataset.batch(range(6)), plain)
    (warning,) = caught
    assert os.strerror(errno.ENOSPC) in str(warning.message)
    assert "\n" not in str(warning.message)
    assert _entries(tmp_path) == []


def _fill(folder: Path, cache: Path, results: multiprocessing.Queue) -> None:
    batch = _load(folder, cache).batch(range(6))
    results.put((batch.coordinates.sum().item(), batch.num_voxels))


@pytest.mark.slow
def test_several_processes_fill_one_cache(shapes: Path, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_fill, args=(shapes, tmp_path, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = {results.get(timeout=120) for _ in processes}
    for process in processes:
        process.join()
    plain = _load(shapes, None).batch(range(6))
    assert found == {(plain.coordinates.sum().item(), plain.num_voxels)}
    assert len(_entries(tmp_path)) == 6
    assert all(path.suffix == ".safetensors" for path in _entries(tmp_path))  # no temporary file is left
    assert _same(_load(shapes, tmp_path).batch(range(6)), plain)


def test_where_samples_are_kept(shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's own cache, unless a folder is given or SPARSEPIPE_CACHE names one or says `off`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    monkeypatch.delenv("SPARSEPIPE_CACHE")
    _load(shapes, "off").batch([0])
    assert _entries(tmp_path) == []
    _load(shapes, None).batch([0])
    assert len(_entries(tmp_path / "own" / "sparsepipe" / "samples")) == len(_entries(tmp_path)) == 1
    monkeypatch.setenv("SPARSEPIPE_CACHE", str(tmp_path / "named"))
    _load(shapes, None).batch([0])
    assert len(_entries(tmp_path / "named")) == 1
    _load(shapes, tmp_path / "given").batch([0])
    assert len(_entries(tmp_path / "given")) == 1
    monkeypatch.setenv("SPARSEPIPE_CACHE", "off")
    _load(shapes, None).batch([0])
    assert len(_entries(tmp_path)) == 3


def test_a_user_without_a_home_has_no_cache(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    plain = _load(shapes, "off").batch([0])
    for variable in ("SPARSEPIPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", home)
    assert _same(_load(shapes, None).batch([0]), plain)


def test_entries_not_used_for_longest_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"rows": np.zeros(1000)}  # 8 KB and the archive's own
    for key in ("a1", "b2", "c3", "d4"):
        SampleCache(tmp_path).save(key, rows)
    days = {"a1": 3, "b2": 5, "c3": 2, "d4": 0}
    for entry in _entries(tmp_path):
        used = entry.stat().st_mtime - 24 * 3600 * days[entry.stem]
        os.utime(entry, (used, used))
    whole = sum(entry.stat().st_size for entry in _entries(tmp_path))
    cache = SampleCache(tmp_path, limit=whole)
    assert cache.load("a1") is not None, "which uses it"
    cache.save("e5", rows)
    assert [entry.stem for entry in _entries(tmp_path)] == ["a1", "c3", "d4", "e5"]
    cache.save("f6", rows)
    assert [entry.stem for entry in _entries(tmp_path)] == ["a1", "d4", "e5", "f6"]
    with pytest.warns(UserWarning, match="GiB") as caught:
        for key in ("g7", "h8"):
            cache.save(key, rows)
    assert len(caught) == 1
    assert [entry.stem for entry in _entries(tmp_path)] == ["a1", "d4", "e5", "f6"], "what is in use stays"


def test_an_entry_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = SampleCache(tmp_path, limit=4000)
    with pytest.warns(UserWarning, match="cannot be cached"):
        cache.save("a1", {"rows": np.zeros(1000)})
    assert _entries(tmp_path) == []


def test_code_that_changed_prepares_anew(shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _load(shapes, tmp_path).batch([0])
    monkeypatch.setattr("sparsepipe.data.cache._code_digest", lambda: "other code")
    _load(shapes, tmp_path).batch([0])
    assert len(_entries(tmp_path)) == 2


def test_a_key_follows_a_file_that_changes_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    os.utime(path, ns=(1, 1))
    before = cache_key((path,), {"x": 1})
    assert before == cache_key((path,), {"x": 1}) != cache_key((path,), {"x": 2})
    path.write_text("two")
    assert cache_key((path,), {"x": 1}) != before


def test_memory_has_a_limit_beyond_which_samples_are_read_again(shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = _load(shapes, None).batch(range(6))
    monkeypatch.setattr("sparsepipe.data.dataset._MAX_KEPT_BYTES", 10_000)
    dataset = _load(shapes, None)
    for _ in range(2):
        assert _same(dataset.batch(range(6)), plain)
    assert 0 < len(dataset._kept) < 6
    assert dataset.voxel_counts().sum() == plain.num_voxels


def test_what_is_dear_is_made_by_one_while_others_wait(tmp_path: Path) -> None:
    made: list[int] = []

    def make(number: int) -> None:
        own = SampleCache(tmp_path)
        with own.alone("ab12"):
            if own.load("ab12") is None:
                time.sleep(0.05)
                made.append(number)
                own.save("ab12", {"x": np.zeros(1)})

    threads = [Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert [path.suffix for path in (tmp_path / "ab").iterdir()] == [".safetensors"]
    read_only = SampleCache(Path("/proc/nowhere"))
    with read_only.alone("ab12"):
        made.append(9)
    assert made[-1] == 9


@pytest.mark.parametrize("what", ["a link", "a pipe", "another user's file"])
def test_what_others_put_into_a_cache_is_neither_read_nor_written_to(tmp_path: Path, what: str) -> None:
    """A lock that was a link emptied the file it led to, a pipe was read for ever."""
    if what == "another user's file" and os.geteuid() != 0:
        pytest.skip("needs root to make one")
    cache, victim = SampleCache(tmp_path / "cache"), tmp_path / "victim"
    SampleCache(tmp_path / "others").save("abcd", {"x": np.ones(1)})
    shutil.copy(tmp_path / "others" / "ab" / "abcd.safetensors", victim)
    whole = victim.read_bytes()
    folder = tmp_path / "cache" / "ab"
    folder.mkdir(parents=True)
    for name in ("abcd.lock", "abcd.safetensors"):
        if what == "a link":
            (folder / name).symlink_to(victim)
        elif what == "a pipe":
            os.mkfifo(folder / name)
        else:
            shutil.copy(victim, folder / name)
            os.chown(folder / name, 12345, 12345)
    with cache.alone("abcd"):
        assert cache.load("abcd") is None
        cache.save("abcd", {"x": np.zeros(1)})
    assert victim.read_bytes() == whole
    assert not cache.load("abcd")["x"].any() and not (folder / "abcd.safetensors").is_symlink()


def test_a_lock_that_is_held_is_waited_for_once_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsepipe.data.cache._TO_MAKE_SECONDS", 0.1)
    cache = SampleCache(tmp_path)
    path = tmp_path / "ab" / "abcd.lock"
    path.parent.mkdir()
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with cache.alone("abcd"), cache.alone("abcd"):
            cache.save("abcd", {"x": np.zeros(1)})
        assert path.exists(), "it is another's"
    assert cache._patience == 0.0


def test_room_is_made_among_own_entries_alone(tmp_path: Path) -> None:
    """A folder of the cache that is a link leads to files which are not the cache's to remove."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_bytes(bytes(1000))
    os.utime(tmp_path / "precious" / "file", (0, 0))
    cache = SampleCache(tmp_path / "cache", limit=10_000)
    cache.folder.mkdir()
    (cache.folder / "ab").symlink_to(tmp_path / "precious")
    cache.save("cdef", {"x": np.zeros(1000)})
    assert (tmp_path / "precious" / "file").exists() and cache.load("cdef") is not None
