"""The notebook to begin with: what is there, whatever is there, and links both ways between notebooks."""

import base64
import io
import json
import os
import re
from pathlib import Path

import pytest
from coded import mentions, raises
from PIL import Image

from sparsepipe import CostSample, Layer, LayerCost, LayerGraph, Plan, Profile, Stage
from sparsepipe.data import make_shapes
from sparsepipe.records import Origin, RunRecord
from sparsepipe.study import NOTEBOOKS
from sparsepipe.study.overview import Overview

FOLDER = Path(__file__).parent.parent / "notebooks"


def test_an_empty_folder_says_where_to_begin(tmp_path):
    here = Overview.open(tmp_path)
    assert not list(tmp_path.iterdir())
    told = [shown._repr_html_() for shown in (here.data, here.profiles, here.runs, here.thumbnails)]
    assert all("<i>no " in text for text in told)
    assert "begin with [02_data](02_data.ipynb)" in here.next_step


def test_what_is_there_is_listed(tmp_path):
    make_shapes(tmp_path / "work" / "data" / "few", num_train=2, num_test=1)
    graph = LayerGraph.chain([Layer("a", "a", 4)])
    cost = LayerCost((CostSample(100, 0.01, 0.02, 4000),))
    profiles = tmp_path / "work" / "profiles"
    origin = {"model": "<b>mine", "threads": 2, "beside": 1, "batch_size": 16, "data": {"voxel_size": 1 / 128}}
    Profile(graph, {"tv": (cost,)}, (100.0,), origin).save(profiles / "mine.json")
    (profiles / "other.json").write_text("{}")
    RunRecord.create(tmp_path / "runs" / "good-001", Plan((Stage(("a",), (0,)),)), {"model": "m"}, Origin.here())
    (tmp_path / "runs" / "bad-001").mkdir()
    (tmp_path / "runs" / "bad-001" / "plan.json").write_text("{")
    (tmp_path / "figures").mkdir()
    Image.new("RGB", (900, 600)).save(tmp_path / "figures" / "timeline.png")
    (tmp_path / "figures" / "stages.png").write_text("no picture")
    (tmp_path / "figures" / "timeline.csv").write_text("")
    here = Overview.open(tmp_path)
    assert "few" in here.data._repr_html_() and "34" in here.data._repr_html_()
    assert ">started</th>" in here.runs._repr_html_(), "as the table of runs says"
    assert "&lt;b&gt;mine" in here.profiles._repr_html_() and ">30<" in here.profiles._repr_html_()
    assert mentions(here.profiles._repr_html_(), 16, "1/128", 2, 1), "not 0.007812"
    os.utime(profiles / "other.json", (0, 0))
    assert mentions(Overview.open(tmp_path, rows=1).profiles._repr_html_(), 1, "2 files"), "not of 2 profiles"
    runs = here.runs._repr_html_()
    assert "good-001" in runs and "bad-001" in runs and "damaged" in runs
    pictures = here.thumbnails._repr_html_()
    assert pictures.count("<img") == 2 and "06_launch.ipynb" in pictures, "one of them on light pages, one on dark ones"
    light, dark = (thumbnail_of(pictures, own) for own in ("sp-on-white", "sp-on-black"))
    assert light.getpixel((9, 9)) != dark.getpixel((9, 9)) and light.size == dark.size == (360, 240)
    assert mentions(here.next_step, 2, "2 runs", 1, "06_launch")


def thumbnail_of(markup, kind):
    """The picture of a kind that lies in HTML."""
    data = re.search(rf"<img class=.{kind}. src=['\"]data:image/webp;base64,([^'\"]+)", markup)[1]
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def test_a_list_of_the_newest_says_of_how_many_and_where_all_are(tmp_path):
    """Ten of seventy runs stood there as if they were all."""
    for k in range(3):
        RunRecord.create(tmp_path / "runs" / f"r-{k}", Plan((Stage(("a",), (0,)),)), {"model": "m"}, Origin.here())
    told = Overview.open(tmp_path, rows=2).runs._repr_html_()
    assert told.count("<tr>") == 3 and mentions(told, "newest 2", 3) and "sparsepipe runs list" in told
    for rows in (0, 3):
        told = Overview.open(tmp_path, rows=rows).runs._repr_html_()
        assert told.count("<tr>") == 4 and "newest" not in told
    with raises("number.not_whole", "rows"):
        Overview.open(tmp_path, rows=-1)


def links(path):
    """The notebooks that the line of neighbours in a notebook's first cell leads to."""
    lines = "".join(json.loads(path.read_text())["cells"][0]["source"]).splitlines()
    line = next(line for line in lines if "[start](" in line or path.stem == "00_start" and "](01_" in line)
    return [(path.parent / target).resolve() for target in re.findall(r"\]\(([\w./]+\.ipynb)\)", line)]


def test_every_step_of_the_loop_and_every_notebook_is_linked_from_the_start(tmp_path):
    here = Overview.open(tmp_path)
    found = re.findall(r"href='([\w/]+)\.ipynb'", here.notebooks._repr_html_())
    assert found == sorted(NOTEBOOKS, key=lambda name: ("/" in name, int(re.search(r"\d+", name)[0])))
    assert set(re.findall(r"href='([\w/]+)\.ipynb'", here.loop._repr_html_())) == set(list(NOTEBOOKS)[:6])


@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if name != "00_start"])
def test_a_notebook_leads_to_the_start_and_to_its_neighbours_and_they_back(name):
    path = (FOLDER / f"{name}.ipynb").resolve()
    to = links(path)
    assert FOLDER.resolve() / "00_start.ipynb" in to and all(target.exists() for target in to)
    neighbours = [target for target in to if target.name != "00_start.ipynb"]
    assert 1 <= len(neighbours) <= 2 and all(path in links(target) for target in neighbours)
