"""Figures of disturbed runs: what marks say, and numbers over bars, cover neither curves, whiskers nor each other."""

import pytest

from sparsepipe import plots


def test_curves_have_the_axis_of_their_points():
    panels = {"light (validation accuracy, %)": {"live": [(0.0, 10.0), (9.0, 90.0)]}}
    figure = plots.learning_curves(panels, clock="seconds")
    assert figure.layout.xaxis.title.text == "time (s)" and "x:,.3r} s:" in figure.data[0].hovertemplate
    assert figure.layout.yaxis.title.text == "validation accuracy (%)"
    assert list(plots.learning_curves_table(panels, clock="seconds").columns) == ["task", "system", "seconds", "value"]
    assert plots.learning_curves(panels).layout.xaxis.title.text == "time (h)"
    with pytest.raises(ValueError, match="'days'"):
        plots.learning_curves(panels, clock="days")


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
