"""The gallery in the repository shows what the notebooks export, no more and no less, and stays small."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image

from sparsepipe.study import NOTEBOOKS, catalogue
from sparsepipe.views.plots.marks import nothing_to_draw

REPOSITORY = Path(__file__).resolve().parent.parent
GALLERY = REPOSITORY / "figures" / "gallery"
EXPORTS = {name: catalogue.exported(REPOSITORY / "notebooks" / f"{name}.ipynb") for name in NOTEBOOKS}
FIGURES = {figure for figures in EXPORTS.values() for figure in figures}


def test_every_figure_that_a_notebook_exports_has_its_picture_and_no_other_has():
    assert {path.stem for path in GALLERY.iterdir()} == FIGURES, "make them anew: scripts/gallery.py FIGURES"


def test_the_page_shows_them_by_notebook():
    text = (REPOSITORY / "figures" / "README.md").read_text()
    assert re.findall(r'src="gallery/(\w+)\.webp"', text) == [figure for own in EXPORTS.values() for figure in own]
    for name, figures in EXPORTS.items():
        title = catalogue.title(REPOSITORY / "notebooks" / f"{name}.ipynb")
        assert (f"### [{title}](../notebooks/{name}.ipynb)" in text) == bool(figures)
    shown = re.findall(r"figures/gallery/(\w+)\.webp", (REPOSITORY / "README.md").read_text())
    assert shown and set(shown) <= FIGURES


def test_pictures_are_small():
    kept = [*GALLERY.iterdir(), *(REPOSITORY / "figures").glob("readme_*")]
    assert sum(path.stat().st_size for path in kept) < 1_100_000
    for path in GALLERY.iterdir():
        with Image.open(path) as picture:
            assert picture.format == "WEBP" and 200 < picture.width <= 560


def test_the_command_says_what_is_missing(tmp_path):
    command = [sys.executable, str(REPOSITORY / "scripts" / "gallery.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (
        done.returncode == 2
        and "no pipeline_sequential, pipeline_gpipe" in done.stderr
        and done.stderr.count("\n") == 1
    )


def test_a_batch_without_the_data_of_a_figure_is_refused(tmp_path):
    """A gallery of a batch without SPARSEPIPE_DATA showed empty pictures."""
    for figure in FIGURES:
        (tmp_path / f"{figure}.png").touch()
    text = nothing_to_draw("Accuracy by hours").layout.annotations[0].text
    (tmp_path / "accuracy.svg").write_text(f'<svg xmlns="http://www.w3.org/2000/svg"><text>{text}</text></svg>')
    command = [sys.executable, str(REPOSITORY / "scripts" / "gallery.py"), str(tmp_path), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "accuracy" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "gallery").exists()


def test_some_notebooks_are_renewed_and_the_others_stay(tmp_path):
    (tmp_path / "gallery").mkdir()
    shutil.copy(GALLERY.parent / "README.md", tmp_path)
    for folder in (tmp_path, tmp_path / "gallery"):
        Image.new("RGB", (8, 8)).save(folder / ("gaps.png" if folder is tmp_path else "clouds.webp"))
    command = [sys.executable, str(REPOSITORY / "scripts" / "gallery.py"), str(tmp_path), "--out", str(tmp_path)]
    subprocess.run([*command, "--only", "figures/12_gaps"], check=True)
    assert {path.name for path in (tmp_path / "gallery").iterdir()} == {"clouds.webp", "gaps.webp"}
    before, after = ((folder / "README.md").read_text() for folder in (GALLERY.parent, tmp_path))
    first, second = (text.split("### [Figure 12")[0] for text in (before, after))
    assert first == second and "`gaps`" in after and len(after) < len(before), "no copy was executed: no result"
