"""Names of files that are no UTF-8: data are checked, opened and trained on, and names are text wherever they go."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sparsepipe import RunConfig, data
from sparsepipe.util.derived import derived_seed, sample_seed
from sparsepipe.util.io.files import name_text, write_atomic

ODD = os.fsdecode(b"st\xfchle")  # Latin-1
TEXT = "st\\xfchle"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    root = tmp_path / ODD
    for split in ("train", "test"):
        for name in ("tables", ODD):
            (root / name / split).mkdir(parents=True)
            np.savetxt(root / name / split / f"{ODD}.txt", random.random((50, 3)))
    return root


def test_seeds_and_names() -> None:
    assert [name_text(name) for name in (ODD, "stühle", "plain", "\ud800x")] == [TEXT, "stühle", "plain", "\\x00x"]
    assert sample_seed(0, ODD) != sample_seed(0, "st\\xfchle") and derived_seed(0, ODD) != derived_seed(0, "x")
    # What earlier runs and caches have of other names.
    assert sample_seed(3, "chair/0.off") == 2620538729453187990


@pytest.mark.parametrize("settings", [{}, {"num_points": 20}, {"augmentation": "shapes"}, {"cached": True}])
def test_clouds_of_any_name_are_used(folder: Path, settings: dict) -> None:
    """`data check` and `profile` ended in a traceback."""
    settings = dict(settings)
    cache = folder / "cache" if settings.pop("cached", False) else "off"
    dataset = data.load(folder, split="train", voxel_size=0.1, cache=cache, **settings)
    assert sorted(dataset.classes) == [TEXT, "tables"]
    assert len(dataset.batch([0, 1])) == 2 and dataset.name(0).endswith(f"{TEXT}.txt")
    for text in (json.dumps(dataset.origin, ensure_ascii=False), *dataset.classes, dataset.name(1)):
        text.encode()


def test_reports_and_settings_have_text(folder: Path) -> None:
    assert not data.check(folder).faults
    for document in (data.check(folder).to_json(), data.info(folder)):
        json.dumps({**document, "path": ""}, ensure_ascii=False).encode()
    config = RunConfig("minkvgg11bn-narrow", str(folder))
    assert RunConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert write_atomic(folder / "x.txt", ODD).read_bytes() == rb"st\udcfchle"


def test_pictures_of_any_name_are_used(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("tables", ODD):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(tmp_path / split / name / f"{ODD}.png")
    assert set(data.info(tmp_path)["classes"]) == {TEXT, "tables"}
    assert not data.check(tmp_path).faults
