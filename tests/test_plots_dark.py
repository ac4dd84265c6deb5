"""Exported SVGs on a dark page: every text is readable there and on white, and stages keep their colours."""

import json
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
from processes import ENOUGH

from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Link, Profile, partition, plots, simulate
from sparsepipe.views.plots.dark import LIT, LIT_SHADES, LIT_TONES, lab_style
from sparsepipe.views.plots.theme import bar_marker, doubted, finished

# Of each text that is seen: what it says, its colour, and that of what is drawn below its middle.
TEXTS = """() => [...document.querySelectorAll("text, tspan")].filter((one) => !one.querySelector("tspan"))
  .map((one) => {
    const box = one.getBoundingClientRect();
    const around = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    const below = around.map((part) => getComputedStyle(part)).find(
      (style) => /^(rgb[(]|url)/.test(style.fill) && style.fillOpacity !== "0" && style.whiteSpace !== "pre");
    return [one.textContent, getComputedStyle(one).fill, below ? below.fill : null];
  })"""
LABEL = "PipeDream"  # whose ink is a line's colour
FILLS = """() => [...document.querySelectorAll(".bars .point path, .shapelayer path")].map(
  (one) => [getComputedStyle(one).fill, one.getAttribute("style")])"""


def figures():
    layers = tuple(Layer(f"conv{k}", "Conv2d()", 4e6) for k in range(6))
    costs = tuple(LayerCost((CostSample(1000, 0.01 * (k + 1), 0.02, 1e6),)) for k in range(6))
    profile = Profile(LayerGraph.chain(layers), {"cpu": costs}, (1000.0,), {"batch_size": 4})
    cluster = Cluster.uniform(3, device_type="cpu", link=Link(1e9, 1e-5))
    plan = partition(profile, cluster, planner="model-parallel")
    yield "stages", plots.stages(plan, note="a note")
    trace = simulate(plan, profile, cluster, [1000.0] * 4)
    bars = go.Figure([go.Bar(x=["a", "b"], y=[2, 1], marker_color="#000000", name="pipedream")])
    bars.add_bar(x=["a", "b"], y=[1, 2], marker=bar_marker("simulated", "#000000"))
    bars.add_annotation(x=0.5, y=6, text=LABEL, font_color="#004488", showarrow=False)
    yield "runs", finished(bars, "Runs", note="in colours that are too dark for a dark page")
    yield "timeline", doubted(plots.timeline(trace), ["a noisy profile"])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    if plots.browser() is None:
        pytest.skip("no Chromium to draw with")
    folder = tmp_path_factory.mktemp("dark")
    for name, figure in figures():
        plots.export(figure, folder / name, table=pd.DataFrame({"a": [1]}), origin={"data": "none"})
    plots.close_browser()
    return sorted(folder.glob("*.svg"))


def luminance(color):
    """Relative luminance of "rgb(34, 34, 34)" by WCAG 2.1."""
    parts = [int(part) / 255 for part in color[4:-1].split(",")]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def rgb(color):
    return f"rgb({', '.join(str(int(color[k : k + 2], 16)) for k in (1, 3, 5))})"


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_jupyterlab_is_given_the_same_colours():
    kept = Path(__file__).parent.parent / "scripts" / "jupyterlab" / "custom.css"
    assert kept.read_text() == lab_style(), (
        "python -c 'from sparsepipe.views.plots.dark import *; print(lab_style(), end=\"\")'"
    )


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(400)
def test_every_text_is_readable_in_light_and_dark_and_stages_keep_their_colours(chromium, drawn):
    fills = {}
    for scheme, ground in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(26, 26, 26)")):
        context = chromium.new_context(color_scheme=scheme, viewport={"width": 1000, "height": 900})
        context.set_default_timeout(1000 * ENOUGH)
        try:
            page = context.new_page()
            for path in drawn:
                page.goto(Path(path).as_uri())
                assert page.evaluate("getComputedStyle(document.querySelector('.main-svg > rect')).fill") == ground
                told = [row for row in page.evaluate(TEXTS) if row[0].strip() and row[0] != LABEL]
                labels = page.locator(".annotation text", has_text=LABEL).all()
                for label in labels:
                    weak_ink = contrast(label.evaluate("(one) => getComputedStyle(one).fill"), ground) < 4.5
                    assert not weak_ink, scheme
                beside = [row for row in told if row[2] in (None, ground)]
                assert len(beside) > 5, path.name
                weak = [row for row in beside if contrast(row[1], ground) < 4.5]
                on_colours = [row for row in told if row not in beside and row[2].startswith("rgb(")]
                weak += [row for row in on_colours if contrast(row[1], row[2]) < 3]
                assert not weak, f"{path.name}, {scheme}: {json.dumps(weak, ensure_ascii=False)}"
                fills.setdefault(path.name, []).append(page.evaluate(FILLS))
        finally:
            context.close()
    light, dark = fills.pop("runs.svg")
    whole = [(one[0], other[0]) for one, other in zip(light, dark, strict=True) if one[0].startswith("rgb")]
    full, tone = ("rgb(0, 0, 0)", "rgb(242, 242, 242)"), ("rgb(153, 153, 153)", "rgb(112, 112, 112)")
    assert sorted(whole) == sorted([full, full, tone, tone])
    lit = {rgb(color): rgb(shade) for color, shade in (LIT | LIT_SHADES | LIT_TONES).items()}
    pairs = [(a[0], b[0]) for light, dark in fills.values() for a, b in zip(light, dark, strict=True)]
    assert pairs and all(after == lit.get(before, before) for before, after in pairs)
