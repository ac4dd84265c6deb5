"""Exported figures: vectors with text in them, the table and the provenance beside, the same bytes every time."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from sparsepipe import InputError, plots
from sparsepipe.plots.export import _server, fitted, normalised, provenance
from sparsepipe.plots.theme import finished, hatch
from sparsepipe.record import NOTEBOOK, Origin

needs_chromium = pytest.mark.skipif(plots.browser() is None, reason="no Chromium to draw with")


def figure():
    bars = go.Bar(
        x=["a", "b"], y=[1, 2], name="α simulated", marker={"color": "#0072B2", "pattern": hatch("simulated")}
    )
    return finished(go.Figure([bars, go.Scatter(x=["a", "b"], y=[2, 1])]), "Größe — α", note="synthetic")


TABLE = pd.DataFrame({"x": ["a", "b"], "y": [1, 2]})


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    stem = tmp_path_factory.mktemp("export") / "bars"
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
def test_the_same_figure_gives_the_same_bytes_in_two_processes(tmp_path):
    both = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent.parent)}
        subprocess.run([sys.executable, __file__], cwd=folder, env=environment, check=True, timeout=100)
        both.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert len(both[0]) == 5 and both[0] == both[1]


@needs_chromium
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pdfinfo") is None, reason="no poppler-utils to look into a PDF with")
@pytest.mark.parametrize("inches", [7.0, 3.33])
def test_a_pdf_is_as_wide_as_a_column(exported, tmp_path, inches):
    pdf = str(plots.export(figure(), tmp_path / "bars", table=TABLE, origin={}, inches=inches)[2])
    size = subprocess.run(["pdfinfo", pdf], capture_output=True, text=True, check=True).stdout
    assert float(re.search(r"Page size: +([0-9.]+)", size)[1]) == pytest.approx(72 * inches, abs=1.5)
    boxes = subprocess.run(["pdftotext", "-bbox", pdf, "-"], capture_output=True, text=True, check=True).stdout
    heights = [float(b) - float(a) for a, b in re.findall(r'yMin="([0-9.]+)".*?yMax="([0-9.]+)"', boxes)]
    assert len(heights) > 8 and min(heights) > 5, "words of less than 5 points"


def test_a_width_that_no_page_has_is_refused():
    with pytest.raises(InputError, match=r"0\.5 inches wide: expected 2 to 20 \(IEEE 3\.5 or 7\.16"):
        fitted(figure(), 0.5)


def test_without_chromium_table_and_origin_are_written_and_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("BROWSER_PATH", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"no Chromium.*apt install chromium") as caught:
        plots.export(figure(), tmp_path / "out" / "bars", table=TABLE, origin={})
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["bars.csv", "bars.json"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
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
    monkeypatch.setenv(NOTEBOOK, "notebooks/06_figures.ipynb")
    document = provenance(figure(), "bars", [{"a": 1}, Origin(command=("sparsepipe",)), Path("runs/x")])
    assert document["command"] == ["jupyter", "notebooks/06_figures.ipynb"]
    assert document["sources"][0] == {"a": 1}
    assert document["sources"][1]["command"] == ["sparsepipe"]
    assert document["sources"][2] == {"file": "runs/x"}
    with pytest.raises(InputError, match="origin 3"):
        provenance(figure(), "bars", 3)


def test_closing_a_browser_that_never_started_is_fine(monkeypatch):
    monkeypatch.setattr(_server, "process", None)
    plots.close_browser()


if __name__ == "__main__":  # test_the_same_figure_gives_the_same_bytes_in_two_processes
    plots.export(figure(), "bars", table=TABLE, origin={"data": "none"})
