"""Widgets without a browser: what a move of a slider does, what is said when something cannot be, what a job leaves."""

import json
import threading
from dataclasses import replace

import ipywidgets
import plotly.graph_objects as go
import pytest
from coded import mentions, raises
from processes import ENOUGH, until

from sparsepipe import CostSample, InputError, Layer, LayerCost, LayerGraph, Plan, Profile, Stage
from sparsepipe.runtime.config import RunConfig
from sparsepipe.views.widgets import LaunchBoard, LayerGraphExplorer, PlotView, plot_view
from sparsepipe.views.widgets.html_view import Messages

NUM_LAYERS = 12


@pytest.fixture
def profile():
    layers = tuple(Layer(f"conv{k}", "", 1e6) for k in range(NUM_LAYERS))

    def costs(factor):
        few = [CostSample(1000, 0.01 * factor, 0.02 * factor, 1e6, 0, 1e6) for _ in range(NUM_LAYERS)]
        return tuple(LayerCost((sample, CostSample(2000, 0.02 * factor, 0.04 * factor, 2e6, 0, 2e6))) for sample in few)

    return Profile(LayerGraph.chain(layers), {"fast": costs(1), "slow": costs(2)}, (1000.0,), {"batch_size": 16})


def drawn(view):
    return json.loads(view.figure)


def test_a_clicked_layer_shows_its_numbers_on_every_device_type(profile):
    explorer = LayerGraphExplorer(profile)
    explorer.view.clicked = {"trace": 0, "point": 3, "data": "conv3"}
    text = explorer.details.value
    assert "conv3" in text and mentions(text, "conv2", "conv4") and "1.00 MB" in text
    assert all(number in text for number in ("10.0 ms", "20.0 ms", "40.0 ms", "80.0 ms", "2,000 voxels"))
    explorer.view.clicked = {"trace": 0, "point": 3, "data": None}
    assert explorer.details.value == text
    explorer.device_type.value = "slow"
    named = next(trace for trace in drawn(explorer.view)["data"] if trace.get("text"))
    assert len(named["text"]) == NUM_LAYERS and explorer.messages.value == ""
    named = LayerGraphExplorer(Profile(profile.graph, profile.costs, profile.sizes, {"model": "vgg-of-mine"}))
    assert drawn(named.view)["heading"]["notes"] == ["vgg-of-mine"], "the network below the title"


def test_a_layer_is_found_by_name_or_kind_and_brought_into_sight():
    layers = [Layer(f"node{k}", "ReLU()" if k % 2 else f"Conv2d(3, {k})") for k in range(400)]
    costs = (LayerCost((CostSample(1, 0.001, 0.002, 1e6),)),) * 400
    explorer = LayerGraphExplorer(Profile(LayerGraph.chain(layers), {"gpu": costs}))
    named = next(trace for trace in drawn(explorer.view)["data"] if trace.get("text"))
    assert named["text"][:2] == ["Conv2d 0", "ReLU 1"], "a number alone says nothing of a layer"
    whole = drawn(explorer.view)["layout"]["xaxis"]["range"]
    explorer.find.value = "conv2d 38)"
    assert explorer.found.value == "node38" and "node38" in explorer.details.value
    figure = drawn(explorer.view)["layout"]
    low, high = figure["xaxis"]["range"]
    assert high - low < (whole[1] - whole[0]) / 1.9 and len(figure["shapes"]) == 1
    assert figure["height"] < 600 and not figure["meta"]["keeps_ratio"], "what is found is not below an empty page"
    explorer.find.value = "relu"
    assert len(explorer.found.options) == 200 and explorer.found.value == "node1"
    explorer.find.value = "nothing-like-it"
    assert "nothing-like-it" in explorer.details.value and explorer.messages.value == ""
    explorer.find.value = ""
    assert drawn(explorer.view)["layout"]["xaxis"]["range"] == whole
    assert explorer.view.config["scrollZoom"] is False, "the wheel is the page's"


def test_a_plan_of_another_network_is_refused_in_one_line(profile):
    with raises("plan.violations", "different graph: 1 of its layers (other") as caught:
        LayerGraphExplorer(profile, Plan((Stage(("other",), (0,)),)))
    assert caught.value._render_traceback_() == [f"InputError: {caught.value}"]


def test_a_notebook_shows_the_one_line_and_no_stack_trace(capsys):
    from IPython.core.interactiveshell import InteractiveShell

    InteractiveShell(colors="nocolor").run_cell("from sparsepipe import Profile; Profile.load('nowhere.json')")
    told = capsys.readouterr().out
    assert told.startswith("InputError: nowhere.json") and len(told.splitlines()) == 1


def test_a_view_holds_the_figure_and_sends_plotly_to_a_page_that_asks():
    view = PlotView(go.Figure(go.Scatter(y=[1, 2])))
    assert drawn(view)["data"][0]["type"] == "scatter"
    assert view.config["showSendToCloud"] is False
    sent = []
    view.send = sent.append
    view._answer(view, {"want": "plotly"}, [])
    view._answer(view, {"want": "else"}, [])
    assert len(sent) == 1 and "Plotly" in sent[0]["plotly"]
    clicks = []
    view.on_click(clicks.append)
    view.clicked = {"trace": 0, "point": 1, "data": "conv1"}
    assert clicks[0]["data"] == "conv1"


def test_plotly_is_served_where_the_environment_can_be_written_to_and_else_sent(tmp_path, monkeypatch):
    plot_view._served.cache_clear()
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    name = plot_view._served()
    assert (tmp_path / "share" / "jupyter" / "labextensions" / name).stat().st_size > 1e6
    plot_view._served.cache_clear()
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "file"))
    assert plot_view._served() == ""
    plot_view._served.cache_clear()


def test_views_take_figures_from_several_threads():
    view, problems = PlotView(), []

    def draw(number):
        try:
            for k in range(50):
                view.show(go.Figure(go.Bar(y=[number, k])))
        except BaseException as error:
            problems.append(error)

    threads = [threading.Thread(target=draw, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems and drawn(view)["data"][0]["y"][1] == 49


def test_messages_show_a_sentence_for_input_and_a_traceback_for_the_rest():
    messages = Messages()

    def act(error=None):
        if error:
            raise error

    guarded = messages.shown(act)
    guarded(InputError("a.b", "a <b> is wrong"))
    assert "A &lt;b&gt; is wrong" in messages.value and "Traceback" not in messages.value
    guarded(KeyError("x"))
    assert "Traceback" in messages.value
    guarded()
    assert messages.value == ""
    assert isinstance(messages, ipywidgets.Widget)


@pytest.fixture
def board(tmp_path):
    from sparsepipe.data.shapes import make_shapes
    from sparsepipe.networks import network

    data = make_shapes(tmp_path / "shapes", num_train=3, num_test=1, families=["box", "cone"])
    ids = [layer.id for layer in network("minkvgg11bn-narrow", num_classes=2).graph().layers]
    plan = Plan((Stage(tuple(ids[:8]), (0,)), Stage(tuple(ids[8:]), (1,))))
    config = RunConfig("minkvgg11bn-narrow", str(data), voxel_size=0.05, batch_size=2, engine="native", epochs=2)
    return LaunchBoard({"pipeline": plan}, config, runs=tmp_path / "runs")


@pytest.mark.slow
def test_board_launches_follows_and_refuses_a_second_launch(board, tmp_path):
    line = board.offered.lines["pipeline"]
    line.start.click()
    assert board.messages.value == "" and line.start.disabled and not line.stop.disabled
    with pytest.raises(InputError, match="already running"):
        board.launch("pipeline")
    line.start.click()  # refused as well: the job that runs can still be cancelled
    assert "already running" in board.messages.value and line.start.disabled and not line.stop.disabled
    board.jobs["pipeline"].wait(timeout=ENOUGH)
    board.watch.thread.join(timeout=ENOUGH)
    assert "finished:" in line.state.value and not line.start.disabled and line.stop.disabled
    assert line.progress.value == line.progress.max == 6
    assert len(drawn(board.curves.plot)["data"]) == 3
    details = board.details
    assert mentions(details.ranks.value, "rank 0", "stage 0") and mentions(details.ranks.value, "rank 1", "stage 1")
    assert details.rank.options == (0, 1) and details.end.widget.layout.display == ""
    assert {trace["name"] for trace in drawn(details.end.anatomy)["data"]} >= {"work", "other"}
    assert "measured" in drawn(details.end.timeline)["layout"]["title"]["text"]
    spans = drawn(details.end.timeline)["timeline"]
    assert spans["labels"] == ["rank 0 · measured", "rank 1 · measured"] and spans["groups"] == [0, 0]
    assert {span[5] for span in spans["spans"]} >= set(range(3)) and 0 <= spans["sight"][0] < spans["sight"][1] <= 1
    assert details.end.culprit.value.startswith(("Delayed by: ", "Delays: "))  # as its times fall
    assert [row["label"] for row in json.loads(line.live.view.lanes)["rows"]] == [
        "rank 0 · stage 0",
        "rank 1 · stage 1",
    ]
    assert line.live.why.layout.display == "" and line.buttons.resume.disabled, "it has trained all"
    line.buttons.compare.click()
    assert board.messages.value == "" and drawn(board.compared.figures.timelines)["data"]
    line.buttons.trace.click()
    assert board.compared.trace.link.page and mentions(board.messages.value, "trace.html")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["minkvgg11bn-narrow-pipeline-001"]
    disturbed = board.jobs["pipeline"].record
    path = disturbed.folder / "metrics.jsonl"
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    rows[-1]["load"] |= {"other_cpu_share": 0.9}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    details.end.compare("pipeline", disturbed)
    for view in (details.end.timeline, details.end.anatomy):
        assert mentions(drawn(view)["heading"]["doubt"], "90%")


@pytest.mark.slow
def test_a_new_board_finds_a_job_that_runs_and_cancels_it(board):
    board.config = replace(board.config, epochs=10_000, validate=False)
    board.detach.value = True
    board.offered.lines["pipeline"].start.click()
    assert board.messages.value == ""
    until(lambda: any(row["event"] == "step" for row in board.jobs["pipeline"].rows), "a minibatch")
    ids = board.plans["pipeline"].layers
    changed = Plan((Stage(ids[:4], (0,)), Stage(ids[4:], (1,))))  # planned anew under the same name
    again = LaunchBoard({"pipeline": changed}, board.config, runs=board.runs)
    again.update()
    assert "earlier plan" in again.offered.lines["pipeline"].state.value
    other = LaunchBoard(board.plans, board.config, runs=board.runs)
    other.update()
    line = other.offered.lines["pipeline"]
    assert "earlier plan" not in line.state.value
    assert other.jobs["pipeline"].running and line.start.disabled and not line.stop.disabled
    line.stop.click()
    assert line.stop.description == "cancel", "a second click ends it at once"
    other.cancel("pipeline")
    for shown in (other, again, board):
        shown.watch.thread.join(timeout=ENOUGH)
    record, ended = other.jobs["pipeline"].record, other.jobs["pipeline"].state
    rows = (record.folder / "metrics.jsonl").read_text()
    assert other.messages.value == "" and ended in ("cancelled", "stopped") and not line.buttons.resume.disabled
    begun = not any((record.folder / "checkpoints").glob("minibatch-*"))
    line.buttons.resume.click()
    assert ("starting over" in line.other) == begun
    if begun:
        assert (record.folder / "metrics-before-1.jsonl").read_text() == rows
    other.cancel("pipeline")
    other.watch.thread.join(timeout=ENOUGH)
    assert other.jobs["pipeline"].record.folder == record.folder


@pytest.mark.slow
def test_board_shows_why_a_run_failed(board):
    (board.runs.parent / "shapes" / "box" / "train" / "box_0001.off").write_text("OFF\n1 1 1\n")
    line = board.offered.lines["pipeline"]
    line.start.click()  # data is read before anything begins
    assert board.watch.thread is None and not line.start.disabled
    assert "box_0001.off" in board.messages.value and "Traceback" not in board.messages.value
