"""Exported figures: vectors with text in them, the table and the provenance beside, the same bytes every time."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
import pytest

from sparsepipe import InputError, plots
from sparsepipe.plots.export import _server, normalised, provenance
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
def test_the_same_figure_gives_the_same_bytes_in_another_browser(exported, tmp_path):
    stem, paths = exported
    plots.close_browser()
    again = plots.export(figure(), tmp_path / "bars", table=TABLE, origin={"data": "none"})
    for first, second in zip(paths, again, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.suffix


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
