"""What a run would refuse is refused before it begins, with file and point: far away points first of all."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from coded import raises
from runtime_jobs import plan_of

from sparsepipe import Cluster, InputError, RunConfig, data, launch, profile_model
from sparsepipe.data import PointBatch, describing
from sparsepipe.data.describing import check_split
from sparsepipe.data.folder import open_folder
from sparsepipe.data.reach import can_be_held, reach, within_reach
from sparsepipe.data.recipe import Recipe

SEGMENTED = "minkunet14a-segmentation-narrow"
FAR = (1.0, 2e6, 3.0)


def scans(root: Path, *, far: tuple[float, ...] | None = FAR, label: int = 1, gap: bool = False) -> Path:
    """Two scans a split, of which point 123 of the last test scan may lie `far` away or have another label."""
    random = np.random.default_rng(0)
    for split in ("train", "test"):
        for k in range(2):
            rows = np.column_stack([random.uniform(0, 5, (300, 3)), random.integers(0, 2, 300)])
            if gap:
                rows[7, 0] = np.nan
            if (split, k) == ("test", 1):
                rows[123] = (*(far or rows[123, :3]), label)
            (root / "tile" / split).mkdir(parents=True, exist_ok=True)
            np.savetxt(root / "tile" / split / f"{k}.txt", rows, fmt="%.6f", header="x y z label", comments="")
    (root / "dataset.json").write_text(
        json.dumps({"metric": True, "parts": ["low", "high"], "unmeasured": "drop" if gap else "refuse"})
    )
    return root


def checked(root: Path, split: str, *, cache: str = "off", engine: str = "auto", voxel_size: float = 0.05) -> list[str]:
    lines: list[str] = []
    settings = {"engine": engine, "steps": (16, 16, 16), "cache": cache, "tell": lines.append}
    check_split(open_folder(root), split, recipe=Recipe(voxel_size), task="segmentation", **settings)
    return lines


@pytest.mark.parametrize("gap", [False, True])
def test_a_point_far_away_is_named_before_a_run_and_when_it_is_read(tmp_path: Path, gap: bool) -> None:
    """It passed every check and stopped the run in its first validation, which named no file."""
    scans(tmp_path, gap=gap)
    checked(tmp_path, "train")
    with pytest.raises(InputError) as caught:
        checked(tmp_path, "test")
    assert str(caught.value).startswith(f"{tmp_path}/tile/test/1.txt: point 123 at [1.0, 2000000.0, 3.0] lies ")
    split = data.load(tmp_path, split="test", voxel_size=0.05, task="segmentation", cache="off")
    placed = split.near_origin((16, 16, 16), reach=reach("native", 3))
    placed.batch([0])
    with pytest.raises(InputError) as again:
        placed.batch([0, 1])
    assert str(again.value) == str(caught.value)
    (fault,) = data.check(tmp_path).faults
    assert fault.file == f"{tmp_path}/tile/test/1.txt" and fault.problem.startswith(
        "point 123 at [1.0, 2000000.0, 3.0]"
    )


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [({"far": (0.0, 1e14, 0.0)}, "point 123 at"), ({"far": None, "label": 5}, "label 5 is out of range for 2 classes")],
)
def test_profile_and_run_refuse_what_check_finds(tmp_path: Path, settings: dict, wrong: str) -> None:
    scans(tmp_path / "scans", **settings)
    (fault,) = data.check(tmp_path / "scans", task="segmentation").faults
    assert fault.file.endswith("test/1.txt") and wrong in str(fault) and "point 123" in str(fault)
    config = RunConfig(SEGMENTED, str(tmp_path / "scans"), voxel_size=0.05, batch_size=1, cache="off")
    plan = plan_of(SEGMENTED, [[0]])
    for start in (
        lambda: profile_model(SEGMENTED, tmp_path / "scans", voxel_size=0.05, batch_size=1, engine="native"),
        lambda: launch(plan, config, run_dir=tmp_path / "run", cluster=Cluster.uniform(1)),
        lambda: launch(plan, config.replace(features=("occupancy",), task="segmentation"), run_dir=tmp_path / "run"),
    ):
        with pytest.raises(InputError) as caught:
            start()
        assert "test/1.txt" in str(caught.value) and wrong in str(caught.value)
        assert not (tmp_path / "run").exists()
    assert checked(tmp_path / "scans", "train") == [], "splits that a run does not read do not matter"


def test_how_far_depends_on_the_engine_and_the_voxels(tmp_path: Path) -> None:
    scans(tmp_path, far=(1.0, 4000.0, 3.0))  # 80,000 voxels
    checked(tmp_path, "test", voxel_size=0.5)
    checked(tmp_path, "test", engine="minkowski")
    with raises("voxels.out_of_reach", point=123):
        checked(tmp_path, "test")
    assert not data.check(tmp_path, engine="minkowski").faults and not data.check(tmp_path, voxel_size=0.5).faults
    assert len(data.check(tmp_path, engine="native").faults) == 1


def test_a_sound_split_is_read_once_and_a_large_one_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scans(tmp_path / "scans", far=None)
    store = str(tmp_path / "cache")
    checked(tmp_path / "scans", "test", cache=store)
    with monkeypatch.context() as patched:
        patched.setattr(data.VoxelDataset, "sample", lambda *words, **named: pytest.fail("read again"))
        assert checked(tmp_path / "scans", "test", cache=store) == []
    scans(tmp_path / "scans")
    with raises("voxels.out_of_reach", point=123):
        checked(tmp_path / "scans", "test", cache=store)
    monkeypatch.setattr(describing, "_MOST_BYTES", 1000)
    (line,) = checked(tmp_path / "scans", "test", cache=store)
    assert "not checked" in line
    (tmp_path / "scans/tile/test/0.txt").write_text("")
    with raises("dataset.files_faulty", "is empty"):
        checked(tmp_path / "scans", "test")


@pytest.mark.parametrize("name", ["native", "minkowski"])
def test_the_bound_of_the_check_is_that_of_the_engine(request: pytest.FixtureRequest, name: str) -> None:
    """MinkowskiEngine took clouds for which its strides are no longer exact."""
    if name == "minkowski":
        request.getfixturevalue("minkowski")
    from sparsepipe.engines import engine

    chosen, limit = engine(name), reach(name, 3)
    for last, fits in ((2 * limit - 2 * 5760 - 2, True), (2 * limit, False)):
        rows = torch.tensor([[0, 0, 0, 0], [0, last, 0, 0]], dtype=torch.int32)
        sample = data.Sample(rows[:, 1:], torch.ones(2, 1), 0)
        assert can_be_held(sample, limit) == fits
        batch = PointBatch(rows, torch.ones(2, 1), torch.zeros(1, dtype=torch.int64))
        if fits:
            places = chosen.split({"x": chosen.tensor(batch)}).coordinate_sets[0].coordinates
            assert sorted(places.tolist()) == sorted(within_reach(rows, limit).tolist())
        else:
            with raises("coordinates.out_of_range"):
                chosen.tensor(batch)


def test_own_clouds_are_checked_too(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        """
import torch
from sparsepipe.data import Sample

def clouds(split):
    far = 10**6 if split == "test" else 10
    rows = torch.tensor([[0, 0, 0], [far, 0, 0]], dtype=torch.int32)
    return [Sample(rows, torch.ones(2, 1), 0)] * 3
"""
    )
    report = data.check(f"{tmp_path}/own.py:clouds")
    assert [fault.file for fault in report.faults] == ["test/0", "test/1", "test/2"]
