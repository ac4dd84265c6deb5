"""The notebook to begin with: what is there, whatever is there, and links both ways between notebooks."""

import base64
import io
import json
import os
import re
from pathlib import Path

import pytest
from PIL import Image, ImageColor

from sparsepipe import CostSample, Layer, LayerCost, LayerGraph, Plan, Profile, Stage
from sparsepipe.data import make_shapes
from sparsepipe.display.colors import STAGE_COLORS, contrast, work_color
from sparsepipe.errors import InputError
from sparsepipe.plots.dark import GROUND, LIGHT_INK, LIT, LIT_POINTS
from sparsepipe.plots.theme import INK, POINT_SHADES
from sparsepipe.record import Origin, RunRecord
from sparsepipe.reproduce import NOTEBOOKS
from sparsepipe.reproduce.overview import Overview, on_black, thumbnail

FOLDER = Path(__file__).parent.parent / "notebooks"


def test_an_empty_folder_says_where_to_begin(tmp_path):
    here = Overview.open(tmp_path)
    assert not list(tmp_path.iterdir())
    told = [shown._repr_html_() for shown in (here.data, here.profiles, here.runs, here.thumbnails)]
    assert all("<i>no " in text for text in told)
    assert "begin with [01_data](01_data.ipynb)" in here.next_step


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
    assert ">batch size 16, voxel size 1/128, 2 threads, beside 1 other process<" in here.profiles._repr_html_(), (
        "not 0.007812"
    )
    os.utime(profiles / "other.json", (0, 0))
    assert "The newest 1 of 2 files;" in Overview.open(tmp_path, rows=1).profiles._repr_html_(), "not of 2 profiles"
    runs = here.runs._repr_html_()
    assert "good-001" in runs and "bad-001" in runs and "damaged" in runs
    pictures = here.thumbnails._repr_html_()
    assert pictures.count("<img") == 2 and "05_launch.ipynb" in pictures, "one of them on light pages, one on dark ones"
    light, dark = (thumbnail_of(pictures, own) for own in ("sp-on-white", "sp-on-black"))
    assert light.getpixel((9, 9)) != dark.getpixel((9, 9)) and light.size == dark.size == (360, 240)
    assert here.next_step.startswith("**2 profiles, 2 runs and 1 figure** are here: [05_launch]")


def thumbnail_of(markup, kind):
    """The picture of a kind that lies in HTML."""
    data = re.search(rf"<img class=.{kind}. src=['\"]data:image/webp;base64,([^'\"]+)", markup)[1]
    return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")


def test_on_a_dark_page_a_figures_ground_is_dark_its_ink_light_and_its_stages_as_they_are():
    drawn = {"white": GROUND, INK: LIGHT_INK, STAGE_COLORS[1]: STAGE_COLORS[1], "#004488": LIT["#004488"]}
    drawn |= {shade: shade for shade in (work_color(0, "forward"), work_color(1, "forward"))}  # they were the darker
    for color, expected in drawn.items():
        found = on_black(Image.new("RGB", (2, 2), color)).getpixel((0, 0))
        assert max(abs(a - b) for a, b in zip(found, ImageColor.getrgb(expected), strict=True)) <= 1, color
    half = on_black(Image.new("RGB", (1, 1), (144, 144, 144))).getpixel((0, 0))  # half white, half ink: an edge
    assert all(abs(value - (0x1A + 0xD8) / 2) <= 2 for value in half)
    scale = Image.new("RGB", (1, 1), "#FFEA46")  # a colour of a scale
    assert on_black(scale).getpixel((0, 0)) == scale.getpixel((0, 0))


def test_far_points_of_clouds_are_seen_on_a_dark_page(tmp_path):
    """They were as dark there as the ground; a layer graph's boxes, whose names are white, keep their colours."""
    figure = Image.new("RGB", (40, 40), "white")
    figure.paste(POINT_SHADES[0], (0, 0, 20, 40))
    figure.save(tmp_path / "clouds.png")
    found = []
    for style in (" ".join(LIT_POINTS.values()), "", None):
        if style is not None:
            (tmp_path / "clouds.svg").write_text(f"<svg><style>{style}</style></svg>")
        shown = thumbnail_of(thumbnail(tmp_path / "clouds.png", "clouds"), "sp-on-black").getpixel((9, 20))
        found.append(contrast("#" + bytes(shown).hex(), GROUND))
    assert found[0] >= 3 > found[1] == found[2]


def test_a_list_of_the_newest_says_of_how_many_and_where_all_are(tmp_path):
    """Ten of seventy runs stood there as if they were all."""
    for k in range(3):
        RunRecord.create(tmp_path / "runs" / f"r-{k}", Plan((Stage(("a",), (0,)),)), {"model": "m"}, Origin.here())
    told = Overview.open(tmp_path, rows=2).runs._repr_html_()
    assert told.count("<tr>") == 3 and "The newest 2 of 3;" in told and "sparsepipe runs list" in told
    for rows in (0, 3):
        told = Overview.open(tmp_path, rows=rows).runs._repr_html_()
        assert told.count("<tr>") == 4 and "newest" not in told
    with pytest.raises(InputError, match="rows"):
        Overview.open(tmp_path, rows=-1)


BROKEN = """() => [...document.querySelectorAll("td")].filter((cell) => {  // no sentences, in several lines
  const range = document.createRange();
  range.selectNodeContents(cell);
  const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
  return cell.textContent.length <= 40 && lines.size > 1;
}).map((cell) => cell.textContent)"""


@pytest.mark.browser
def test_a_list_breaks_no_name_or_time_and_scrolls_sideways_by_keys(chromium, tmp_path):
    """ "minkunet14a-segmentation-narrow-sweep-", "001" and "2026-11-27 19:59", "UTC" were in two lines each."""
    long = {"model": "minkunet14a-segmentation-narrow"}
    for name in ("minkunet14a-segmentation-narrow-sweep-001", "bad-001"):
        RunRecord.create(tmp_path / "runs" / name, Plan((Stage(("a",), (0,)),)), long, Origin.here())
    (tmp_path / "runs" / "bad-001" / "plan.json").write_text("{")
    page = chromium.new_page(viewport={"width": 560, "height": 400})
    page.set_content("<style>td,th{white-space:normal}</style>" + Overview.open(tmp_path).runs._repr_html_())
    assert page.locator("td").count() == 14 and page.evaluate(BROKEN) == []
    damaged = page.locator("td", has_text="bad-001/plan.json").bounding_box()
    assert damaged["height"] > 30, "a sentence goes on in further lines"
    assert page.evaluate("document.documentElement.scrollWidth") <= 560, "the page itself is no wider"
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => document.querySelector('table').parentElement.scrollLeft > 0")
    page.close()


def links(path):
    """The notebooks that the first cell of a notebook leads to."""
    text = "".join(json.loads(path.read_text())["cells"][0]["source"])
    return [(path.parent / target).resolve() for target in re.findall(r"\]\(([\w./]+\.ipynb)\)", text)]


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
