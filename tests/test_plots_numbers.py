"""Numbers over bars: none lies over another one or a line, however many there are, as a browser draws them."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import ENOUGH
from test_plots import plan

from sparsepipe import plots
from sparsepipe.records import Origin, RunRecord
from sparsepipe.util.io.files import write_json, write_rows
from sparsepipe.util.text.numbers import (
    as_given,
    as_measured,
    duration,
    scaled_bytes,
)
from sparsepipe.views.plots.chromium import drawn
from sparsepipe.views.plots.layer_graph import overlap
from sparsepipe.views.plots.marks import LEAST, SHORTER, fewer_digits, fitted, width_of
from sparsepipe.views.plots.table import STRATEGIES, Point

# Boxes of texts in the plot: (what is said, left, top, right, bottom); and points of the lines that texts name.
SEEN = """() => {
  const level = (one) => /rotate[(](0|-?90),/.test(one.getAttribute("transform") || "rotate(0,");
  const seen = document.querySelectorAll(".bartext, .textpoint text, .annotation-text-g text, .xtick text");
  const texts = [...seen].filter((one) => !one.closest(".xtick") || level(one));  // slanted: too large a box
  const points = [...document.querySelectorAll(".scatterlayer path.js-line")].flatMap((line) => {
    const at = line.getScreenCTM(), step = 3, count = Math.floor(line.getTotalLength() / step);
    return [...Array(count).keys()].map((k) => line.getPointAtLength(k * step).matrixTransform(at));
  });
  return [
    texts.filter((one) => one.textContent.trim()).map((one) => {
      const box = one.getBoundingClientRect();
      return [one.textContent, box.left, box.top, box.right, box.bottom];
    }),
    points.map((point) => [point.x, point.y]),
  ];
}"""


def systems(count, cases=3):
    return [
        plots.SystemBar(f"case {case}", f"system {k}", 0.0351, "ours", *((0.03, 0.04) if k % 2 else ()))
        for case in range(cases)
        for k in range(count)
    ]


def strategies(unit):
    return [
        Point(name, cluster, 4, unit + k, bound_samples_per_second=unit + 9.0, memory_bytes=3.68e9, gradient_bytes=2e6)
        for cluster in ("2 a", "4 a", "2 a + 2 b", "4 b")
        for k, name in enumerate(STRATEGIES)
    ]


@pytest.fixture
def trained(tmp_path):
    """Runs of five strategies, and one of them again, as fast as each other: their numbers stand side by side."""
    made = []
    cuts = ((6,), (3, 3), (2, 4), (2, 2, 2), (1, 2, 3), (3, 3))
    schedules = ("1f1b", "1f1b", "2bw", "1f1b-flush", "gpipe", "1f1b")
    for k, (sizes, schedule) in enumerate(zip(cuts, schedules, strict=True)):
        whole = plan(sizes, schedule=schedule)
        config = {"model": "m", "batch_size": int(2600 * whole.estimate.period_seconds)}
        record = RunRecord.create(tmp_path / f"minkvgg11bn-narrow-pipeline-00{k}", whole, config, Origin())
        learned = {"train": {"loss": 1.0, "accuracy": 0.5}, "validation": {"loss": 1.1, "accuracy": 0.4}}
        pace = {"samples_per_second": 2630.0 + k}
        rows = ({"event": "epoch", "epoch": 0, **learned}, {"event": "summary"})
        write_rows(record.folder / "metrics.jsonl", [row | {"seconds": 1.0} | pace for row in rows])
        write_json(record.folder / "status.json", {"state": "finished"})
        made.append(record)
    return made


def figures(records):
    yield plots.tasks(dict.fromkeys(("images", "translation", "masked words"), records[:5]))
    yield plots.throughput(*records)  # two have the same strategy, and the names of their folders
    yield plots.stages(*(plan(sizes, f"planner {k}") for k, sizes in enumerate([(6,), (2, 4), (3, 3), (1, 2, 3)])))
    here = [Point(name, "here", 2, 12178.0, how) for name in STRATEGIES[:3] for how in ("simulated", "measured")]
    yield plots.scaling(strategies(1500.0)[:6], here)
    for count in (14, 40):
        yield plots.system_bars(systems(count), unit="s", title=f"{count} systems")


def test_what_was_measured_has_three_digits():
    """ "5.3 ms" and "23 ms" stood beside "7.22 ms", and 999.9 was "1e+03"."""
    values = (5.3, 7.22, 23.0, 230.0, 999.9, 1234.4, 0.05, 0.0, -5.3, 4.2e-5, 1e15, float("nan"))
    told = "5.30 7.22 23.0 230 1,000 1,234 0.0500 0 -5.30".split()
    assert [as_measured(value) for value in values] == [*told, "4.20 × 10⁻⁵", "1.00 × 10¹⁵", "nan"]
    times = (0.0053, 0.023, 1.034, 9.9999, 12.0, 0.0)
    assert [*map(duration, times)] == ["5.30 ms", "23.0 ms", "1,034 ms", "10,000 ms", "12.0 s", "0 ms"]
    assert duration(12.0, "ms") == "12,000 ms" and duration(0.5, "s") == "0.500 s"
    assert [*map(scaled_bytes, (6e9, 2.5e6, 999.0))] == ["6.00 GB", "2.50 MB", "999 B"]
    assert scaled_bytes(2e8, "GB") == "0.200 GB" and scaled_bytes(8e9, form=as_given) == "8 GB"


@given(st.floats(1e-3, 9e14), st.floats(1e-3, 9e14))
def test_what_was_measured_is_read_as_it_was_to_three_digits(value, other):
    text = as_measured(value)
    read, others = (float(as_measured(one).replace(",", "")) for one in (value, other))
    assert f"{read:.2e}" == f"{value:.2e}" and "e" not in text and "×" not in text
    assert len(text.replace(",", "").replace(".", "").lstrip("0")) >= 3, "zeros are kept"
    assert (read <= others) if value <= other else (read >= others)
    assert as_measured(-value) == f"-{text}"


@given(st.lists(st.floats(1e-4, 1e6), min_size=1, max_size=9), st.floats(4, 200))
def test_numbers_have_room_or_are_left_out(values, room):
    for forms in (fewer_digits(values), SHORTER):
        found = fitted(values, room, forms)
        texts = found.texts(values)
        across = [found.size * (1.25 if found.angle else width_of(text)) for text in texts]
        assert found.size >= LEAST
        assert max(across) <= room - 2 + 1e-6 if found.form else room < LEAST * 1.25 + 2


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.timeout(400)
def test_no_number_lies_over_another_or_a_line(chromium, trained, tmp_path):
    """Numbers of figure 10's bars ran into their neighbours, and the periods of plans stood on their lines."""
    context = chromium.new_context(viewport={"width": 1100, "height": 900})
    context.set_default_timeout(1000 * ENOUGH)
    try:
        page, counts = context.new_page(), []
        for k, figure in enumerate(figures(trained)):
            path = tmp_path / f"{k}.svg"
            path.write_bytes(drawn(figure, "svg", 1))
            page.goto(path.as_uri())
            texts, points = page.evaluate(SEEN)
            title = figure.layout.title.text
            for (one, *box), (other, *beside) in combinations(texts, 2):
                assert overlap(tuple(box), tuple(beside)) == 0, f"{title}: {one} lies over {other}"
            for text, left, top, right, bottom in texts:
                crossed = [(x, y) for x, y in points if left < x < right and top < y < bottom]
                assert not crossed, f"{title}: a line crosses {text}"
            counts.append(len(texts))
        assert min(counts[:-1]) > 3, "texts were found"
    finally:
        context.close()
        plots.close_browser()
