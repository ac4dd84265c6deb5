"""Exported figures: vectors with text in them, the table and the provenance beside, the same bytes every time."""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest
from coded import mentions, raises
from processes import ENOUGH, until

from sparsepipe import plots
from sparsepipe.records import NOTEBOOK, PAPER, Origin
from sparsepipe.records.provenance import Provenance
from sparsepipe.views.plots import chromium
from sparsepipe.views.plots.export import normalised, provenance, with_facts, without_repeats
from sparsepipe.views.plots.theme import bar_marker, doubted, finished, with_held_up

needs_chromium = pytest.mark.skipif(plots.browser() is None, reason="no Chromium to draw with")


TITLE = "Größe — α"


def figure():
    bars = go.Bar(
        x=["a", "b"],
        y=[1, 2],
        name="α simulated",
        marker=bar_marker("simulated", "#0072B2"),
    )
    return finished(go.Figure([bars, go.Scatter(x=["a", "b"], y=[2, 1])]), TITLE, note="synthetic")


TABLE = pd.DataFrame({"x": ["a", "b"], "y": [1, 2]})


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The figure as this file exports it when it is run as a command (its last line), but in this process."""
    stem = tmp_path_factory.mktemp("export") / "bars"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [__file__])
        paths = plots.export(figure(), stem, table=TABLE, origin={"data": "none"})
    yield stem, paths
    plots.close_browser()


@needs_chromium
@pytest.mark.slow
def test_all_formats_are_written(exported):
    stem, paths = exported
    assert [path.name for path in paths] == [f"bars.{suffix}" for suffix in ("csv", "json", "pdf", "svg", "png")]
    assert pd.read_csv(stem.with_suffix(".csv")).equals(TABLE)
    document = json.loads(stem.with_suffix(".json").read_text())
    assert document["title"] == "Größe — α · synthetic"
    assert document["sources"] == [{"data": "none"}]
    assert {"command", "commit", "versions"} <= document.keys()
    assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in stem.parent.iterdir()) == sorted(path.name for path in paths)


@needs_chromium
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdffonts") is None, reason="no poppler-utils to look into a PDF with")
def test_pdf_is_vector_with_embedded_fonts_and_text(exported):
    pdf = str(exported[0].with_suffix(".pdf"))
    images = subprocess.run(["pdfimages", "-list", pdf], capture_output=True, text=True, check=True).stdout
    assert len(images.splitlines()) == 2  # the head of an empty table
    fonts = subprocess.run(["pdffonts", pdf], capture_output=True, text=True, check=True).stdout.splitlines()[2:]
    assert fonts and all("TrueType" in line and " yes yes yes " in line for line in fonts)
    text = subprocess.run(["pdftotext", pdf, "-"], capture_output=True, text=True, check=True).stdout
    assert "Größe — α" in text


@needs_chromium
@pytest.mark.slow
def test_the_same_figure_gives_the_same_bytes_in_two_processes(exported, tmp_path):
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent.parent)}
    subprocess.run([sys.executable, __file__], cwd=tmp_path, env=environment, check=True, timeout=ENOUGH)
    here, there = (
        {path.name: path.read_bytes() for path in folder.iterdir()} for folder in (exported[0].parent, tmp_path)
    )
    assert len(here) == 5 and here == there


@needs_chromium
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdfinfo") is None, reason="no poppler-utils to look into a PDF with")
def test_a_pdf_is_as_wide_as_a_column(exported, tmp_path):
    inches = 3.33
    pdf = str(plots.export(figure(), tmp_path / "bars", table=TABLE, origin={}, inches=inches)[2])
    size = subprocess.run(["pdfinfo", pdf], capture_output=True, text=True, check=True).stdout
    assert float(re.search(r"Page size: +([0-9.]+)", size)[1]) == pytest.approx(72 * inches, abs=1.5)
    boxes = subprocess.run(["pdftotext", "-bbox", pdf, "-"], capture_output=True, text=True, check=True).stdout
    heights = [float(b) - float(a) for a, b in re.findall(r'yMin="([0-9.]+)".*?yMax="([0-9.]+)"', boxes)]
    assert len(heights) > 8 and min(heights) > 5, "words of less than 5 points"


def test_a_width_that_no_page_has_is_refused():
    with raises("paper.width", "0.5", "IEEE 3.5 or 7.16"):
        plots.Paper(inches=0.5)
    with raises("paper.height", "0"):
        plots.Paper(height=0.0)


def test_what_a_batch_asks_of_figures_reaches_them_all(monkeypatch):
    assert not plots.Paper(font="serif").doubt() and not plots.Paper().doubt()
    assert "No Such-Font" in plots.Paper(font="No Such-Font").doubt()
    asked = plots.Paper(3.5, height=2.0, title=False, font="DejaVu Serif")
    assert plots.Paper.asked() == plots.Paper()
    monkeypatch.setenv(PAPER, json.dumps(asked.to_json()))
    assert plots.Paper.asked() == asked
    for wrong in ("{", "[1]", '{"width": 3}', '{"inches": "a"}'):
        monkeypatch.setenv(PAPER, wrong)
        with raises("paper.malformed", PAPER):
            plots.Paper.asked()
    monkeypatch.setenv(PAPER, '{"inches": 1}')
    with raises("paper.width", "1"):
        plots.Paper.asked()


@needs_chromium
def test_a_pdf_says_what_it_is(exported):
    stem, _ = exported
    told = subprocess.run(["pdfinfo", f"{stem}.pdf"], capture_output=True, text=True, check=True)
    facts = json.loads(stem.with_suffix(".json").read_text())
    assert facts["title"] in told.stdout and not told.stderr
    rests_on = f"provenance {facts['provenance']['digest']}, table {facts['table_sha256'][:12]}"
    assert re.search(f"Subject: +{rests_on}", told.stdout)
    assert "Kaleido" not in told.stdout and re.search("Creator: +sparsepipe", told.stdout)


def test_facts_are_added_at_the_end_of_a_pdf_and_nothing_before_moves():
    end = b"trailer\n<</Size 2\n/Root 2 0 R\n/Info 1 0 R>>\nstartxref\n40\n%%EOF\n"
    whole = b"%PDF-1.4\n1 0 obj\n<</Title (x)>>\nendobj\n" + end
    told = with_facts(whole, {"Title": "Größe (1) → 2"})
    assert told.startswith(whole) and with_facts(whole, {"Title": "Größe (1) → 2"}) == told
    start, table = len(whole), told.rindex(b"xref\n1 1")
    assert told[start:].startswith(b"1 0 obj\n<</Title <feff0047") and b"%010d 00000 n" % start in told
    assert b"/Prev 40>>" in told and told.endswith(b"startxref\n%d\n%%%%EOF\n" % table)
    assert with_facts(b"%PDF-1.4 of another kind", {"Title": "a"}) == b"%PDF-1.4 of another kind"


def pdf_of(*objects):
    """A PDF as Chromium writes it: objects, a table of where they are, and what leads to it."""
    whole, rows = b"%PDF-1.4\n", [b"0000000000 65535 f \n"]
    for number, body in enumerate(objects, start=1):
        rows.append(b"%010d 00000 n \n" % len(whole))
        whole += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"xref\n0 %d\n%s" % (len(rows), b"".join(rows))
    return whole + table + b"trailer\n<</Size %d\n/Info 1 0 R>>\nstartxref\n%d\n%%%%EOF\n" % (len(rows), len(whole))


def test_a_pdf_has_each_tile_of_its_patterns_once():
    """A timeline of hatched bars was 1 MB, 0.7 MB of it the same few tiles."""
    tile, pattern = b"<</Type /XObject>> stream\n%d 0 R\nendstream", b"<</Type /Pattern /X %d 0 R>> stream\n\nendstream"
    page = b"<</Type /Page /P [%d 0 R %d 0 R]>>"
    data = pdf_of(b"<</Title (a)>>", tile % 3, tile % 3, pattern % 2, pattern % 3, page % (4, 5), page % (4, 5))
    small = without_repeats(data)
    info, free = b"<</Title (a)>>", b"0000000000 65535 f \n"
    kept = [info, tile % 3, pattern % 2, page % (4, 4), page % (4, 4)]  # two equal pages are two pages
    assert re.findall(rb"\d 0 obj\n(.*?)\nendobj", small, flags=re.DOTALL) == kept
    table = int(re.search(rb"startxref\n(\d+)", small)[1])
    rows = small[table:].splitlines(keepends=True)[2:10]
    assert [row == free for row in rows] == [True, False, False, True, False, True, False, False]
    for number, row in enumerate(rows):
        assert row == free or small[int(row[:10]) :].startswith(b"%d 0 obj\n" % number)
    assert without_repeats(small) == small
    for other in (b"%PDF-1.4 of another kind", data.replace(b"/Info 1", b"/Prev 9 /Info 1"), data[9:]):
        assert without_repeats(other) == other
    told = pdf_of(b"<</Title (a) /P 3 0 R>>", tile % 0, tile % 0)
    assert without_repeats(told) == told, "what stands in a text is not told from what refers"


def test_without_chromium_table_and_origin_are_written_and_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nowhere"))
    with raises("chromium.not_installed") as caught:
        plots.export(figure(), tmp_path / "out" / "bars", table=TABLE, origin={})
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bars.csv", "bars.json"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with raises("out.unwritable"):
        plots.export(figure(), tmp_path / "file" / "bars", table=TABLE, origin={})


def test_normalised_takes_dates_and_ids_out_and_keeps_a_pdfs_offsets():
    first = b"<< /CreationDate (D:20261121080000+00'00') /ModDate (D:20261121080000+00'00') >>"
    second = first.replace(b"20261121", b"20270101")
    assert normalised(first, "pdf") == normalised(second, "pdf")
    assert len(normalised(first, "pdf")) == len(first)
    one, other = ('<defs id="defs-1b67dd"/><clipPath id="clip1b67ddxy"/>' + extra for extra in ("", ""))
    assert normalised(one.encode(), "svg") == normalised(other.replace("1b67dd", "c0ffee").encode(), "svg")
    assert not re.search("1b67dd", normalised(one.encode(), "svg").decode())


def test_provenance_names_sources_and_the_notebook(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/x/ipykernel_launcher.py", "-f", "/tmp/kernel-1.json"])
    monkeypatch.setenv(NOTEBOOK, "notebooks/06_launch.ipynb")
    document = provenance(figure(), "bars", [{"a": 1}, Origin(command=("sparsepipe",)), Path("runs/x")])
    assert document["command"] == ["jupyter", "notebooks/06_launch.ipynb"]
    assert document["sources"][0] == {"a": 1}
    assert document["sources"][1]["command"] == ["sparsepipe"]
    assert document["sources"][2] == {"file": "runs/x"}
    with raises("provenance.malformed", "3"):
        provenance(figure(), "bars", 3)


def test_a_provenance_goes_whole_into_the_json_and_its_doubt_into_the_subtitle(tmp_path, monkeypatch):
    """The doubt "layers' sum is 0.506 x a whole step" stood in an executed notebook, not on the figure it spoilt."""
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nowhere"))
    known = Provenance(settings={"schedule": "1f1b"}).with_warnings(
        "the layers' sum is 0.506 x a whole step, expected 1"
    )
    with pytest.raises(plots.NoPicture):
        plots.export(figure(), tmp_path / "bars", table=TABLE, origin=[known, {"a": 1}])
    document = json.loads((tmp_path / "bars.json").read_text())
    assert Provenance.from_json(document["provenance"]) == known
    assert document["sources"] == [{"provenance": known.digest}, {"a": 1}]
    assert document["table_sha256"] == hashlib.sha256((tmp_path / "bars.csv").read_bytes()).hexdigest()


def test_what_was_slow_on_purpose_is_told_in_the_note_and_is_no_doubt():
    note, plain = "rank 0 is 4 times as slow", figure()
    doubtful = doubted(plain, ["layers' sum is 0.51 × a whole step"])
    for before in (plain, doubtful):
        after = with_held_up(before, [note])
        text = after.layout.title.text
        assert f"injected delay: {note}" in text and text.count("doubtful") == (before is doubtful)
        assert after.layout.margin.t - (before.layout.margin.t or 64) == after.layout.height - before.layout.height
        assert with_held_up(after, [note]) is after and with_held_up(before, []) is before
    assert doubted(with_held_up(plain, [note]), ["x"]) == with_held_up(doubted(plain, ["x"]), [note])
    noted = finished(go.Figure(), "Bars", note=f"{'a long note ' * 8}· {note}", width=400)
    assert with_held_up(noted, [note]) is noted  # whatever line it is broken into
    two_lines = finished(go.Figure(), "Bars", note="one\ninjected delay: two", width=400)
    one_line = with_held_up(finished(go.Figure(), "Bars", note="one", width=400), ["two"])
    assert one_line.layout.height == two_lines.layout.height and one_line.layout.margin == two_lines.layout.margin
    assert one_line.layout.title.y == two_lines.layout.title.y


def test_a_picture_is_not_left_beside_a_table_of_other_numbers(tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nowhere"))
    for table, stays in ((TABLE, True), (TABLE * 2, False)):
        (tmp_path / "bars.csv").write_text(TABLE.to_csv(index=False))
        (tmp_path / "bars.png").write_bytes(b"old")
        with pytest.raises(plots.NoPicture):
            plots.export(figure(), tmp_path / "bars", table=table, origin={})
        assert (tmp_path / "bars.png").exists() == stays


def script(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def alive(marker):
    """Processes whose command line or environment names `marker`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if str(marker).encode() in told and int(entry.name) != os.getpid():
            found.append(entry.name)
    return found


BROKEN = {
    "cannot find its libraries": "echo 'error while loading shared libraries' >&2; exit 127",
    "starts others and sleeps": "sleep 1000 & sleep 1000 & wait",
    "talks rubbish": "while :; do echo rubbish >&4; sleep 0.1; done",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", BROKEN)
def test_a_chromium_that_cannot_draw_costs_a_line_and_a_bounded_time(tmp_path, monkeypatch, how):
    """One that was there but hung held `plots.export`, and a batch of notebooks, for ever."""
    monkeypatch.setenv("BROWSER_PATH", str(script(tmp_path / "browser", BROKEN[how])))
    monkeypatch.setattr(chromium, "SECONDS_TO_START", 2.0)
    monkeypatch.setattr(chromium, "_state", chromium._State())
    monkeypatch.setenv("OF_TEST", str(tmp_path))
    with raises(
        "chromium.unusable", "only the table and its provenance were written: the Chromium", "cannot be"
    ) as first:
        plots.export(figure(), tmp_path / "out" / "bars", table=TABLE, origin={})
    assert "\n" not in str(first.value) and mentions(str(first.value), "BROWSER_PATH")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bars.csv", "bars.json"]
    until(lambda: not alive(tmp_path), "the end of all that was started")
    monkeypatch.setattr(chromium._Drawer, "start", None)  # the next figure does not wait for it again
    with raises("chromium.unusable", "cannot be used"):
        plots.export(figure(), tmp_path / "out" / "others", table=TABLE, origin={})


@needs_chromium
@pytest.mark.slow
def test_a_browser_killed_between_two_figures_is_started_again(exported, tmp_path, monkeypatch):
    monkeypatch.setenv("OF_TEST", str(tmp_path))  # of those that are started again
    first = chromium.drawn(figure(), "png", 1)
    os.killpg(chromium._state.drawer.process.pid, signal.SIGKILL)
    assert chromium.drawn(figure(), "png", 1) == first
    children = Path(f"/proc/{chromium._state.drawer.process.pid}/task/{chromium._state.drawer.process.pid}/children")
    for child in children.read_text().split():  # the browser alone
        os.kill(int(child), signal.SIGKILL)
    assert chromium.drawn(figure(), "png", 1) == first
    folder = chromium._state.drawer.folder
    plots.close_browser()
    assert not folder.exists()
    until(lambda: not alive(tmp_path), "the end of the browser")


@needs_chromium
@pytest.mark.slow
def test_the_browser_ends_with_the_process_that_draws(tmp_path):
    """However that one ends."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1]); from test_export import figure; "
        "from sparsepipe.views.plots import chromium; chromium.drawn(figure(), 'png', 1); os.kill(os.getpid(), 9)"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "OF_TEST": str(tmp_path)}
    command = [sys.executable, "-c", code, str(Path(__file__).parent)]
    assert subprocess.run(command, env=environment, check=False, timeout=ENOUGH).returncode == -signal.SIGKILL
    until(lambda: not alive(tmp_path), "the end of the browser")


if __name__ == "__main__":  # test_the_same_figure_gives_the_same_bytes_in_two_processes
    plots.export(figure(), "bars", table=TABLE, origin={"data": "none"})
