"""What is seen of a view without a kernel: its picture in an output or on paper, and the explorer's own page."""

import base64
import gzip
import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import nbformat
import pytest
from coded import raises
from test_widgets_labs import cluster_of
from test_widgets_words import profile_of

from sparsepipe import Cluster, Link, partition, plots
from sparsepipe.util.text.numbers import as_measured
from sparsepipe.values.schedule_rules import SCHEDULE_RULES
from sparsepipe.views.plots.layer_graph import layer_name, lines_of
from sparsepipe.views.plots.marks import nothing_to_draw, width_of
from sparsepipe.views.widgets import (
    LayerGraphExplorer,
    PartitionExplorer,
    RunsTable,
    WaitingExplorer,
    explorer_page,
)
from sparsepipe.views.widgets.explorer_page import PageGrid
from sparsepipe.views.widgets.plan_picture import plan_figure, plan_picture
from sparsepipe.views.widgets.plot_view import PlotView

SVG = "{http://www.w3.org/2000/svg}"
WIDGET = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def explorer():
    return PartitionExplorer(profile_of(), cluster_of(), minibatches=6)


def bundle(view):
    data = view._repr_mimebundle_()
    return data[0] if isinstance(data, tuple) else data


def scene(explorer):
    return json.loads(explorer.view.drawing.scene)


def test_an_output_has_a_picture_of_the_last_state(explorer):
    explorer.controls.devices.counts["fast"].value = 3
    shown = bundle(explorer)
    root = ElementTree.fromstring(shown["image/svg+xml"])
    words = [mark.text for mark in root.iter(f"{SVG}text")]
    assert WIDGET in shown and "text/html" not in shown
    assert len([text for text in words if re.fullmatch(r"\d · (fast|slow)", text or "")]) >= 4, "a row for each device"
    assert {value for _, value, _ in scene(explorer)["tiles"][:5]} <= {*words}
    explorer.controls.devices.memory.value = 1e3
    assert "Last plan" in bundle(explorer)["image/svg+xml"]


@pytest.mark.parametrize("inches", [3.5, 7.0])
def test_no_text_is_cut_at_any_width_and_every_device_is_named(explorer, inches):
    links = explorer.view.drawing.links
    drawn = plan_picture(scene(explorer), inches * 96, links=links)
    root = ElementTree.fromstring(drawn)
    words = " ".join(filter(None, words_of(drawn))).replace("\xa0", " ")
    hosts = {text for host in links["hosts"] for text in (host["name"], host["link"])}
    assert all(text in words for text in (*hosts, links["network"])), "the map of devices"
    for mark in root.iter(f"{SVG}text"):
        wide = width_of(mark.text or "") * float(mark.get("font-size"))
        begin = float(mark.get("x")) - {"start": 0, "middle": 0.5, "end": 1}[mark.get("text-anchor")] * wide
        assert begin > -2 and begin + wide < inches * 96 + 2, mark.text
    sizes = {mark.get("font-size") for mark in root.iter(f"{SVG}text")}
    assert sizes == {"10", "11", "15"}, "one type scale"
    figure = plan_figure(scene(explorer), title="a network", note="a note " * 20, inches=inches)
    assert plots.Paper(inches).printed(figure)[1] == pytest.approx(1.0), "it was laid out for this width"


def words_of(drawn):
    return [mark.text for mark in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def test_an_output_has_the_layers_with_their_stages_and_cuts(explorer):
    profile, plan = explorer.profile, explorer.plan
    graph = LayerGraphExplorer(profile, plan, note="a <note>")
    words = words_of(bundle(graph)["image/svg+xml"])
    assert {lines_of(layer_name(layer))[0] for layer in profile.graph.layers} <= {*words}
    assert {f"stage {k}" for k in range(len(plan.stages))} <= {*words} and any("a <note>" in text for text in words)
    assert sum("after stage" in text for text in words) == len(plan.stages) - 1
    drawn = len(bundle(graph)["image/svg+xml"])
    graph.find.value = profile.graph.layers[1].id
    assert len(bundle(graph)["image/svg+xml"]) > drawn, "the layer that was found has a frame"
    assert "after stage" not in "".join(words_of(bundle(LayerGraphExplorer(profile))["image/svg+xml"]))


def test_an_output_has_the_throughput_and_lost_time_of_each_scheme(explorer):
    rules = ("all-reduce", "partial-reduce")
    waiting = WaitingExplorer(explorer.profile, Link(1e9), rules=rules, rule="all-reduce", minibatches=6)
    words = words_of(bundle(waiting)["image/svg+xml"])
    for outcome in waiting.compared.outcomes:
        assert f"{as_measured(outcome.samples_per_second)} {outcome.counted}/s" in words
    lost = [as_measured(sum(outcome.lost_seconds.values())) for outcome in waiting.compared.held]
    assert {f"{seconds} s" for seconds in lost} <= {*words} and words.count("all-reduce") >= 2


def test_views_without_a_drawing_keep_their_words(tmp_path):
    table = bundle(RunsTable(tmp_path / "runs"))
    assert WIDGET in table and "<" in table.get("text/html", "<")
    figure = bundle(PlotView(nothing_to_draw("a title")))
    assert "a title" in figure["text/html"] and "keep_pictures" in figure["text/html"]


@pytest.mark.slow
def test_a_converted_notebook_shows_the_picture(tmp_path):
    """Executed, and read where no kernel is; in a process of its own, as it brings an event loop."""
    cell = nbformat.v4.new_code_cell("import sparsepipe as sp\nsp.widgets.PartitionExplorer()")
    path = tmp_path / "a.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    command = [sys.executable, "-m", "nbconvert", "--execute", "--to", "html", str(path)]
    states = "--ExecutePreprocessor.store_widget_state=False"
    subprocess.run([*command, states], check=True, capture_output=True)
    page = path.with_suffix(".html").read_text()
    pictures = re.findall('<img[^>]*src="data:image/svg\\+xml;base64,([^"]*)', page)
    assert ["TITAN V</text>" in base64.b64decode(picture).decode() for picture in pictures] == [True]
    assert WIDGET not in page


def plans_of(page):
    packed = re.search("id='sp-plans'>([^<]*)<", page)[1]
    return json.loads(gzip.decompress(base64.b64decode(packed)))


def test_each_plan_of_a_page_is_what_the_planner_makes(explorer, tmp_path):
    path = explorer.export_html(tmp_path / "page.html", counts={"fast": [1], "slow": [0]}, bandwidths=[1e8])
    plans = plans_of(path.read_text())
    stops = [control["stops"] for control in plans["controls"]]
    assert stops[:2] == [["1", "2"], ["0", "1"]] and len(stops[2]) == 2
    assert stops[3] == [name for name, rules in SCHEDULE_RULES.items() if not rules.check_stages_per_rank(1)]
    assert len(plans["cells"]) == 2 * 2 * 2 * len(stops[3])
    given = 0
    for control in plans["controls"]:
        given = given * len(control["stops"]) + control["given"]
    here = json.loads(plans["scenes"][plans["cells"][given][0]])
    assert here["tiles"] == scene(explorer)["tiles"] and here["spans"] == scene(explorer)["spans"]
    first = json.loads(plans["scenes"][plans["cells"][stops[3].index("1f1b")][0]])  # one device, the slower link
    period = partition(explorer.profile, Cluster.uniform(1, device_type="fast")).estimate.period_seconds
    assert first["period"] == pytest.approx(period) and first["devices"] == 1


def test_a_page_that_cannot_be_is_refused(explorer, tmp_path, monkeypatch):
    small = {"counts": {"fast": [1]}, "bandwidths": [1e9], "schedules": ["1f1b"]}
    with raises("explorer.page_type"):
        explorer.export_html(tmp_path / "a.html", counts={"none": [1]})
    with raises("explorer.page_schedule"):
        explorer.export_html(tmp_path / "a.html", schedules=["none"])
    (tmp_path / "file").touch()
    with raises("out.unwritable"):
        explorer.export_html(tmp_path / "file" / "a.html", **small)
    monkeypatch.setattr(explorer_page, "MOST_BYTES", 1000)
    with raises("explorer.page_too_large"):
        explorer.export_html(tmp_path / "a.html", **small)
    assert not (tmp_path / "a.html").exists()


def test_a_grid_of_usual_labs_is_of_some_hundred_plans(explorer):
    for shown in (explorer, PartitionExplorer()):
        settings = shown.controls.settings()
        assert 100 < PageGrid.around(settings, shown.planning.cluster).size <= 40 * 3 * len(SCHEDULE_RULES)


BELOW_MAP = """() => {
  const box = (name) => document.querySelector(name).getBoundingClientRect();
  return box("#sp-controls").top - box(".sp-map").bottom;
}"""
BARS = "() => document.querySelectorAll('.sp-stages .sp-bar').length"


@pytest.mark.browser
@pytest.mark.slow
def test_a_page_moves_from_disk_without_network(chromium, tmp_path):
    from scripts.lab_driver import open_page

    explorer = PartitionExplorer()
    path = explorer.export_html(
        tmp_path / "page.html", counts={"RTX": [1], "TITAN V": [0]}, bandwidths=[1e9], schedules=["gpipe"]
    )
    page = open_page(chromium, width=1200, height=1000)
    page.context.set_offline(True)
    page.goto(path.as_uri())
    page.wait_for_selector(".sp-view[data-drawn='1'], .sp-view[data-drawn='2']", state="attached")
    assert page.evaluate(BARS) == len(scene(explorer)["stages"]) > 1
    for name in ("RTX", "TITAN V"):
        page.get_by_label(name, exact=True).focus()
        page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"() => ({BARS})() === 1")
    assert page.locator(".sp-chip").count() == 1
    page.get_by_label("schedule").select_option(label="gpipe")
    page.wait_for_selector(".sp-old", state="attached")
    assert "11 GB" in page.locator("#sp-refusal").inner_text(), "its steps keep more than one device has"
    page.get_by_label("schedule").select_option(label="1f1b")
    page.wait_for_selector(".sp-old", state="detached")
    page.locator(".sp-copy").click()
    assert "partition(" in page.locator(".sp-code pre").text_content()
    page.set_viewport_size({"width": 800, "height": 1000})
    assert 0 <= page.evaluate(BELOW_MAP) < 20, "controls stand right below the map"
    assert not page.problems and all(url.startswith(("file:", "blob:", "data:")) for url in page.requests)
    page.context.close()
