"""Titles, colours and hatches of figures: they fit, can be read and are told apart, on light and dark pages."""

import re
from types import SimpleNamespace

import numpy as np
import plotly.graph_objects as go
import plotly.io
import pytest

from sparsepipe import plots
from sparsepipe.display.colors import STAGE_COLORS
from sparsepipe.plots import dark, theme
from sparsepipe.plots.outcomes import rule_color
from sparsepipe.plots.points import Point
from sparsepipe.plots.text_room import in_room, width_of
from sparsepipe.replication import RULES

# A candidate of a sweep, but for its planner and whether it fits.
SWEPT = {
    "variant": "",
    "schedule": "1f1b",
    "compression": "none",
    "samples_per_second": 1.0,
    "memory_bytes": 2.0,
    "counted": "samples",
}


def test_a_long_line_below_the_title_goes_on_in_the_next_line():
    figure = theme.finished(
        go.Figure(), "Costs", note="synthetic shapes · " + "one thread of a processor · " * 12, width=900
    )
    lines = figure.layout.title.text.split("<br>")[1:]
    widest = max(len(re.sub("<[^>]*>", "", line)) for line in lines)
    assert len(lines) == 3 and widest * 6.4 < 900 - 20
    short = theme.finished(go.Figure(), "Costs", note="synthetic shapes", width=900)
    further = figure.layout.margin.t - theme.TEMPLATE.layout.margin.t
    assert further == figure.layout.height - short.layout.height == 40


def test_a_cell_shows_a_figure_as_wide_as_the_page_and_its_own_size_stays():
    """A note in lines for a figure of 900 pixels was cut off by a page that had 848."""
    note, doubt = "one thread of a processor · " * 12, "other processes used 90% of the cores, " * 5
    figure = theme.doubted(theme.finished(go.Figure(), "Costs", note=f"shapes\n{note}", width=900), [doubt])
    before = figure.to_json()
    shown = plotly.io.renderers["plotly_mimetype"].to_mimebundle(figure.to_dict())["application/vnd.plotly.v1+json"]
    layout = shown["layout"]
    assert figure.to_json() == before and "width" not in layout and layout["autosize"]
    lines = [re.sub("<[^>]*>", "", line) for line in layout["title"]["text"].split("<br>")]
    assert max(map(len, lines)) * 6.4 < theme.WIDTH
    fact = "one thread of a processor"
    told = [["shapes"], [*[fact] * 3, f"{fact} ·"], [*[fact] * 3, f"{fact} ·"], [fact] * 4]
    assert [line.split(" · ") for line in lines[1:5]] == told
    assert " ".join(lines[1:]) == f"shapes {note.strip(' ·')} doubtful: {doubt}".strip()
    narrow = theme.doubted(theme.finished(go.Figure(), "Costs", note=f"shapes\n{note}"), [doubt]).layout
    assert layout["title"]["text"] == narrow.title.text, "as if it had been drawn for that width"
    assert (layout["height"], layout["margin"]["t"]) == (narrow.height, narrow.margin.t)
    heading = theme.heading_of(figure)
    assert heading.title == "Costs" and heading.notes == ("shapes", note) and heading.doubt == f"doubtful: {doubt}"
    assert figure.layout.height - heading.height == figure.layout.margin.t - heading.margin > 0
    strange = go.Figure(layout={"width": 900}).to_dict()
    assert plots.as_wide_as_the_page(strange) == strange and theme.heading_of(go.Figure(strange)) is None


def test_lines_of_a_note_are_filled_end_between_facts_and_keep_names_whole():
    """ "intruder: matrix-" ended half a line, "products; …" began the next one; so did the dot behind a fact."""
    facts = ["digits", "minkvgg11bn-narrow, two processes, intruder: matrix-products; lines from the fastest run to"]
    facts[1] += " the slowest of them, one run of each beside the light one, which came and went"
    note = " · ".join([*facts, "measured here"])
    text = theme.finished(go.Figure(), "Costs", note=note).layout.title.text
    lines = [re.sub("<[^>]*>", "", line) for line in text.split("<br>")[1:]]
    most = theme.WIDTH / 6.4 - 4
    assert " ".join(lines).split() == note.split() and len(lines) == 2 and len(lines[0]) > 0.9 * most
    together = [f"{fact} of twenty-four letters" for fact in ("one", "two", "three", "four")]
    text = theme.finished(go.Figure(), "Costs", note=" · ".join(together)).layout.title.text
    told = [re.sub("<[^>]*>", "", line) for line in text.split("<br>")[1:]]
    assert told == [f"{' · '.join(together[:3])} ·", together[3]], "the dot ends the line of the fact before it"
    for width in range(200, 1200):
        for line in theme._wrapped(note, width):
            assert not line.startswith("·") and line.split(" · ") != [""]


def test_a_name_and_its_count_are_in_one_line():
    """A tick said "data parallel ×", "2"."""
    for room in range(60, 200):
        for name, kept in (("data parallel × 2", "parallel × 2"), ("pipeline × 1-2-1", "pipeline × 1-2-1")):
            lines = in_room(name, room, theme.FONT_SIZE).split("<br>")
            assert all(len(line) <= 1 or theme.FONT_SIZE * width_of(line) <= room for line in lines)
            if theme.FONT_SIZE * width_of(kept) <= room:
                assert lines[-1].endswith(kept) and " ".join(lines) == name
    assert in_room("narrow-data-parallel-002", 110, 13) == "narrow-data-<br>parallel-002"
    for fact in ("9 more", "4 times", "12 pipelines"):
        told = (theme.finished(go.Figure(), "x", note="a " * k + fact).layout.title.text for k in range(48, 60))
        assert all(fact in text for text in told), "a line ended between them"
    assert "parallel × 2" in theme.finished(go.Figure(), "x", note="a " * 54 + "data parallel × 2").layout.title.text


def test_an_axis_of_names_has_no_line_at_its_zero():
    """It was bright in the dark, as if it were data."""
    figure = go.Figure([go.Bar(x=[0, 1], y=[1, 2])]).update_xaxes(tickvals=[0, 1], ticktext=["a", "b"])
    layout = theme.finished(figure, "x").layout
    assert layout.xaxis.zeroline is False and layout.yaxis.zeroline is None
    assert ".zl {" in dark.dark_style()


def test_no_button_uploads_the_data():
    for name in ("plotly_mimetype", "notebook"):
        assert plotly.io.renderers[name].config["showSendToCloud"] is False


def test_stage_colours_are_told_apart_by_colour_blind_eyes():
    """Machado et al. 2009: how the palette looks without red, green or blue cones; neighbours still differ."""
    views = {
        "normal": np.eye(3),
        "protanopia": np.array(
            [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
        ),
        "deuteranopia": np.array(
            [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
        ),
        "tritanopia": np.array(
            [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
        ),
    }
    colors = np.array([[int(c[k : k + 2], 16) / 255 for k in (1, 3, 5)] for c in STAGE_COLORS])
    for name, view in views.items():
        seen = np.clip(np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4) @ view.T, 0, 1)
        for a, b in zip(seen, seen[1:], strict=False):
            assert np.linalg.norm(a - b) > 0.15, name
    apart = [np.linalg.norm(a - b) for k, a in enumerate(colors) for b in colors[:k]]
    assert len(colors) == 14 and min(apart) > 0.15, "no two of fourteen stages look alike, with all cones at least"


def test_parts_of_the_time_have_no_stages_colour():
    from sparsepipe.plots.anatomy import _COLORS

    assert not {*_COLORS.values()} & {theme.stage_color(k, kind) for k in range(14) for kind in ("forward", "backward")}
    assert len({theme.stage_color(0, kind) for kind in ("forward", "backward", "weights", "update", "average")}) == 5


@pytest.mark.parametrize("stage", range(14))
def test_text_on_a_stages_colour_can_be_read(stage):
    """White on orange was 2 : 1; WCAG 2.1 asks for 4.5 of small text, and 3 of graphics."""
    for kind in ("forward", "backward", "weights", "update", "average"):
        color = theme.stage_color(stage, kind)
        ink = theme.INK_ON if theme.ink_on(color) == theme.INK_ON else "#FFFFFF"
        line, opacity = theme.hatch_lines(color, worded=True)
        hatched = theme.mixed(color, opacity if line == "#FFFFFF" else -opacity)
        assert min(_contrast(color, ink), _contrast(hatched, ink)) >= 4.5
        assert _contrast(hatched, color) >= 1.6, "and the lines are seen"


def test_a_hatch_is_seen_on_every_series_in_both_themes():
    """White lines of what was predicted were lost on the series that is white on a dark page, and weak on yellow."""
    colors = {*theme.RUN_COLORS, *map(rule_color, RULES), *STAGE_COLORS, theme.INK, theme.GREY}
    for color in colors:
        line, opacity = theme.hatch_lines(color)
        assert _contrast(color, theme.mixed(color, opacity if line == "#FFFFFF" else -opacity)) >= 2.4
        if lit := dark.LIT.get(color):
            share = opacity if dark.LIT_LINES[lit] == "#FFFFFF" else -opacity
            assert _contrast(lit, theme.mixed(lit, share)) >= 2.4


def test_outlined_markers_are_thick_opaque_and_seen_in_both_themes():
    """Thin, half-transparent circles were dim on a dark page, and yellow ones on a white one."""
    many = [plots.HeldAgainst("step", f"s{k}", 1.0 + k, 1.1, doubt="" if k else "no") for k in range(200)]
    points = [
        Point(name, "net", 4, 100.0, source=source) for name in ("a", "b", "c") for source in ("simulated", "replayed")
    ]
    swept = [SimpleNamespace(**SWEPT, planner=f"p{k}", fits=k % 2 == 1) for k in range(6)]
    one = plots.HeldAgainst("step", "s", 1.0, 1.1, others=1.2, doubt="no")
    drawn = [
        plots.held_against([one]),
        plots.held_against(many),
        plots.scaling(points, points),
        plots.speedups([*points, Point("one device", "net", 1, 50.0)]),
        plots.trade_off(swept),
    ]
    for figure in drawn:
        found = 0
        for marker in (trace.marker for trace in figure.data if trace.type == "scatter"):
            one_by_one = {"color": marker.color, "opacity": marker.opacity, "line": marker.line.width}
            symbols = [marker.symbol] if not isinstance(marker.symbol, tuple) else marker.symbol
            for k, symbol in enumerate(symbols):
                if not str(symbol).endswith("-open"):
                    continue
                own = {name: part[k] if isinstance(part, tuple) else part for name, part in one_by_one.items()}
                lit = dark.LIT.get(own["color"], own["color"])
                assert own["opacity"] in (None, 1) and own["line"] >= 2
                assert min(_contrast(own["color"], "#FFFFFF"), _contrast(lit, dark.GROUND)) >= 3, own
                found += 1
        assert found, figure.layout.title.text


def _contrast(one, other):
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(color):
    parts = np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
