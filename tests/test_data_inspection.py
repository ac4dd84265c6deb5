"""A data set checked before anything is trained on it: every file once, every fault, what is there twice."""

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from coded import mentions

from sparsepipe.cli import main
from sparsepipe.data import check

TRIANGLE = "OFF\n3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n"


def _write(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def _triangle(height: float) -> str:
    return TRIANGLE.replace("0 1 0", f"0 {height:g} 0")


def _toys(root: Path) -> Path:
    for split, heights in (("train", (1, 2, 3)), ("test", (4, 5))):
        for height in heights:
            _write(root / "chair" / split / f"{height}.off", _triangle(height))
    return root


def test_a_sound_data_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = _toys(tmp_path)
    assert main(["data", "check", str(root), "--json", "--voxel-size", "0.5"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert document["splits"]["train"]["samples"] == document["splits"]["train"]["faces"] == 3
    assert document["splits"]["test"]["voxels"] > 0
    assert main(["data", "check", str(root)]) == 0


def test_all_faults_are_listed_and_the_exit_code_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A zero-byte file in the test split was found after a whole trained epoch, and the next one after another."""
    root = _toys(tmp_path)
    bad = [
        _write(root / "chair" / "test" / "empty.off", ""),
        _write(root / "chair" / "test" / "odd.off", "OFF\n3 1 0\n0 0 0\n"),
        _write(root / "chair" / "train" / "flat.xyz", "1 1 1\n"),
        _write(root / "chair" / "train" / "far.xyz", "1 1 1\n1e400 0 0\n"),
    ]
    _write(root / "chair" / "train" / "1.fbx", "")
    _write(root / "logs" / "a.log", "")
    assert main(["data", "check", str(root)]) == 2
    out, err = capsys.readouterr()
    for path in bad:
        (line,) = [line for line in out.splitlines() if line.startswith(f"{path}: ")]
        assert len(line) < 500
    assert "left out: logs/" in out
    assert "left out: chair/train/1.fbx" in out
    assert mentions(err, root, "4 faults")
    assert main(["data", "check", str(root), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert {fault["file"] for fault in document["faults"]} == {str(path) for path in bad}
    assert all(fault["problem"] for fault in document["faults"])
    assert document["splits"]["test"]["faulty"] == 2


def test_a_fault_names_its_file_whatever_it_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "odd: a\nb"
    bad = _write(root / "chair" / "train" / "x: y.txt", "0 0 0\n1 2\n")
    _write(root / "sofa" / "train" / "z.off", _triangle(1))
    (fault,) = check(root).faults
    assert fault.file == str(bad)
    assert fault.problem.startswith("line 2: ")
    assert main(["data", "check", str(root)]) == 2
    out, err = capsys.readouterr()
    assert sum("x: y.txt" in line for line in out.splitlines()) == 1
    assert err.count("\n") == 1


def test_faults_of_the_folder_itself_are_all_listed(tmp_path: Path) -> None:
    for number in range(3):
        _write(tmp_path / "sequences" / "00" / "velodyne" / f"{number}.bin", "")
    (tmp_path / "sequences" / "00" / "velodyne" / "0.bin").write_bytes(np.zeros((5, 4), "<f4").tobytes())
    labels = tmp_path / "sequences" / "00" / "labels"
    labels.mkdir()
    (labels / "0.label").write_bytes(np.full(5, 40, "<u4").tobytes())
    report = check(tmp_path)
    assert [fault.file for fault in report.faults] == [str(labels / f"{number}.label") for number in (1, 2)]


def test_labels_are_checked_whole_not_only_where_points_are_drawn(tmp_path: Path) -> None:
    rows = "".join(f"{k} {k % 7} {k % 5} 0\n" for k in range(5000))
    _write(tmp_path / "a" / "train" / "x.txt", f"x y z label\n{rows}1 2 3 9\n")
    _write(tmp_path / "dataset.json", '{"parts": ["low", "high"], "metric": true}')
    report = check(tmp_path, num_points=4)
    assert [mentions(fault.problem, "label 9", "2 classes") for fault in report.faults] == [True]
    assert check(tmp_path, task="classification", voxel_size=0.5).faults == ()  # smaller voxels are too many in a row


def test_samples_that_are_in_two_splits_are_told(tmp_path: Path) -> None:
    """Copies under other names, in another format, and the same cloud in two HDF5 files."""
    root = _toys(tmp_path / "toys")
    _write(root / "chair" / "test" / "again.off", _triangle(2))
    _write(root / "chair" / "train" / "twice.off", _triangle(2))
    report = check(root)
    assert [(twins.first, twins.second) for twins in report.across_splits] == [
        ("chair/train/2.off", "chair/test/again.off")
    ]
    assert [twins.second for twins in report.within_split] == ["chair/train/twice.off"]
    assert report.faults == ()
    assert mentions(str(report), "chair/test/again.off", "chair/train/2.off")
    clouds = np.random.default_rng(0).normal(size=(4, 8, 3)).astype(np.float32)
    (tmp_path / "h").mkdir()
    for name, chosen in (("train.h5", clouds[:3]), ("test.h5", clouds[2:])):
        with h5py.File(tmp_path / "h" / name, "w") as file:
            file["data"], file["label"] = chosen, np.zeros(len(chosen), dtype=np.int64)
    assert [(twins.first, twins.second) for twins in check(tmp_path / "h").across_splits] == [
        ("train.h5/2", "test.h5/0")
    ]


def test_what_a_run_would_miss_is_told(tmp_path: Path) -> None:
    _write(tmp_path / "a" / "test" / "x.off", _triangle(1))
    _write(tmp_path / "b" / "val" / "x.off", _triangle(2))
    told = [fault.problem for fault in check(tmp_path).faults]
    assert told == [
        "no sample of class a in split validation",
        "no sample of class b in split test",
        "no split train, only validation, test",
    ]


def test_an_interruption_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from sparsepipe.data import inspection

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(inspection, "_digest", interrupted)
    assert main(["data", "check", str(_toys(tmp_path))]) == 130
    assert capsys.readouterr().err == "sparsepipe: interrupted\n"
