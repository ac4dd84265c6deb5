"""Figures of disturbed runs: what marks say, and numbers over bars, cover neither curves, whiskers nor each other."""

import random

import pytest

from sparsepipe import plots


@pytest.mark.parametrize("seed", range(5))
def test_words_of_marks_cover_nothing(seed):
    """They lay over the curves, and over each other's lines. A character is 4 pixels of an axis of 600 here."""
    draw = random.Random(seed)
    series = {name: [(at, draw.expovariate(10)) for at in range(500)] for name in ("never", "live")}
    marks = {"live": [(draw.randrange(500), draw.choice(["intruder", "gone", "12-9 (2:1)"])) for _ in range(12)]}
    figure = plots.iteration_times(series, marks)
    highest = max(max(line.y) for line in figure.data)
    words = [note for note in figure.layout.annotations if note.yanchor == "bottom"]
    assert len({note.y for note in words}) <= 3
    if sum(int(note.text.partition(" × ")[2] or 1) for note in words) < 12:
        assert "some lines have no room for words: the table has them" in figure.layout.meta["notes"][0]
        assert sum(shape.yref == "y2" for shape in figure.layout.shapes) == len({at for at, _ in marks["live"]})
    assert {note.yref for note in words} == {"y2"}
    assert all(note.y >= highest for note in words) and max(note.y for note in words) < figure.layout.yaxis2.range[1]
    axes = (figure.layout.yaxis, figure.layout.yaxis2)
    first, second = ((axis.domain[1] - axis.domain[0]) / axis.range[1] for axis in axes)
    assert first == pytest.approx(second), "a second is as high in both"
    assert axes[0].range == axes[1].range, "and so are the panels"
    assert axes[0].tickvals == axes[1].tickvals and max(axes[0].tickvals) <= highest
    spans = [(note.y, note.x, note.x + 4 / 600 * 500 * len(note.text)) for note in words]
    for lane, begin, end in spans:
        assert not any(other == lane and begin < first < end for other, first, _ in spans)
        lines = [line for line in figure.layout.shapes if begin < line.x0 < end]
        assert all(line.y1 <= lane for line in lines), "through these words"


def test_iterations_that_are_cut_off_are_told_in_full():
    figure = plots.iteration_times({"never": [(at, 0.1) for at in range(200)] + [(200, 9.0)]})
    (line,) = figure.data
    assert max(line.y) == pytest.approx(150) and line.customdata[-1] == 9000.0
    assert figure.layout.yaxis.title.text == "time per<br>minibatch (ms)"
    assert figure.layout.xaxis.title.text == "minibatch"
    slow = plots.iteration_times({"never": [(at, 2.0) for at in range(9)]})
    assert slow.layout.yaxis.title.text == "time per<br>minibatch (s)" and set(slow.data[0].y) == {2.0}
    assert plots.iteration_times_table({"never": [(200, 9.0)]}).seconds.tolist() == [9.0]


def test_many_changes_of_plan_take_three_rows_of_words_and_leave_who_comes_and_goes():
    """A panel with 15 of them was three times as high as the others, its words a staircase above an empty curve."""
    series = {name: [(at, 0.03) for at in range(450)] for name in ("never", "measured")}
    plans = [(at, f"{at % 29}, 14") for at in range(30, 450, 20)]
    marks = {"measured": [*plans, (47, "intruder"), (183, "gone"), (251, "intruder"), (385, "gone")]}
    figure = plots.iteration_times(series, marks)
    words = [note.text for note in figure.layout.annotations if note.yanchor == "bottom"]
    assert words.count("intruder") == words.count("gone") == 2 and 6 < len(words) < len(marks["measured"])
    assert sum(shape.yref == "y2" for shape in figure.layout.shapes) == len(marks["measured"]), "lines stay"
    heights = {round(axis.domain[1] - axis.domain[0], 9) for axis in (figure.layout.yaxis, figure.layout.yaxis2)}
    assert len(heights) == 1 and figure.layout.height < 450


def test_lines_are_explained():
    """A subtitle told of layers alone, where lines were marked as restarts or had no words."""
    series = {"live": [(at, 0.1) for at in range(500)]}
    (note,) = plots.iteration_times(series, {"live": [(50, "5, 33"), (300, "restart")]}).layout.meta["notes"]
    assert note == "vertical lines: what happened · numbers at them: a new plan's layers of each stage"
    (note,) = plots.iteration_times(series, {"live": [(300, "restart"), (310, "restart")]}).layout.meta["notes"]
    assert note == "vertical lines: what happened · × N: said once for N lines"
    for ends, told in (((0.9, 1.2), "measured here · thin lines: least to most of the runs"), ((), "measured here")):
        bar = plots.SystemBar("light", "live", 1.0, "ours", *ends)
        (note,) = plots.system_bars([bar], unit="s", title="t", means_of="runs").layout.meta["notes"]
        assert note == told


def test_curves_have_the_axis_of_their_points():
    panels = {"light (validation accuracy, %)": {"live": [(0.0, 10.0), (9.0, 90.0)]}}
    figure = plots.learning_curves(panels, clock="seconds")
    assert figure.layout.xaxis.title.text == "time (s)" and "x:,.3r} s:" in figure.data[0].hovertemplate
    assert figure.layout.yaxis.title.text == "validation accuracy (%)"
    assert list(plots.learning_curves_table(panels, clock="seconds").columns) == ["task", "system", "seconds", "value"]
    assert plots.learning_curves(panels).layout.xaxis.title.text == "time (h)"
    with pytest.raises(ValueError, match="clock 'days', expected one of hours, seconds"):
        plots.learning_curves(panels, clock="days")


@pytest.mark.parametrize("count", [2, 5, 7])
def test_numbers_stand_over_whiskers_and_beside_each_other(count):
    """Of five systems in three cases one number ran into the next."""
    bars = [
        plots.SystemBar(case, f"system {k}", 0.0351, "ours", 0.03, 0.05 + k)
        for case in ("before", "beside", "whole")
        for k in range(count)
    ]
    figure = plots.system_bars(bars, unit="s", title="t")
    numbers = [trace for trace in figure.data if trace.text]
    assert [list(trace.y) for trace in numbers] == [[0.05 + k] * 3 for k in range(count)]
    assert {text for trace in numbers for text in trace.text} == {"0.0351" if count < 7 else "0.035"}
    apart = (numbers[1].x[0] - numbers[0].x[0]) / 3 * (760 - 70 - 24)  # pixels
    assert all(0.6 * len(trace.text[0]) * trace.textfont.size < apart for trace in numbers)


def test_bars_of_seconds_have_the_unit_and_the_name_of_the_curves_beside_them():
    """Curves were in "time (ms)", bars of the same runs in "s per minibatch"; tables keep seconds."""
    bars = [plots.SystemBar("beside", name, value, "ours") for name, value in (("never", 0.0418), ("live", 0.0305))]
    figure = plots.system_bars(bars, unit="s", what="time per minibatch", title="t")
    assert figure.layout.yaxis.title.text == "time per minibatch (ms)"
    assert [list(bar.y) for bar in figure.data if bar.hovertemplate] == [[41.8], [30.5]]
    assert all(" ms<br>" in bar.hovertemplate for bar in figure.data if bar.hovertemplate)
    assert plots.system_bars_table(bars).value.tolist() == [0.0418, 0.0305]
    slow = plots.system_bars([plots.SystemBar("beside", "never", 2.0)], unit="s", what="time per minibatch", title="t")
    assert slow.layout.yaxis.title.text == "time per minibatch (s)" and list(slow.data[0].y) == [2.0]
