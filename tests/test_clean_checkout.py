"""Opening and running notebooks leaves a checkout as it was: for git, by set-up's filter, and for provenance."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from sparsepipe.record.code_version import commit
from sparsepipe.reproduce.saved_notebook import after_save, look_again

REPOSITORY = Path(__file__).resolve().parent.parent
NAME = "notebooks/01_data.ipynb"


@pytest.fixture
def clone(tmp_path):
    if shutil.which("git") is None:
        pytest.skip("no git")
    (tmp_path / "notebooks").mkdir()
    for name in (NAME, ".gitattributes"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "code.py").write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all")
    return tmp_path


def git(folder, *words):
    return subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=True).stdout.strip()


def run_in_lab(path):
    """As JupyterLab leaves a notebook that was run: outputs, counts, times, state of widgets, the kernel's language."""
    notebook = nbformat.read(path, as_version=4)
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = number
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=f"{number}\n")]
        cell.metadata["execution"] = {"iopub.execute_input": "2026-01-01T00:00:00Z"}
    notebook.metadata["language_info"] = {"name": "python", "version": "3.11.7"}
    notebook.metadata["widgets"] = {"application/vnd.jupyter.widget-state+json": {"state": {}}}
    path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def change_a_cell(path):
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[-1].source += "\n# another word"
    nbformat.write(notebook, path)


@pytest.mark.slow
def test_a_notebook_that_was_run_and_saved_is_clean_for_git(clone):
    pytest.importorskip("nbstripout")
    line = re.search(r"git config filter\.notebooks\.clean '(.+)' \|\|", (REPOSITORY / "scripts/setup.sh").read_text())
    git(clone, "config", "filter.notebooks.clean", line[1].replace(".venv/bin/python", sys.executable))
    path = clone / NAME
    run_in_lab(path)
    after_save({"type": "notebook"}, str(path), None).join()
    assert git(clone, "status", "--porcelain") == "" and "outputs" in path.read_text()
    change_a_cell(path)
    assert not look_again(path) and git(clone, "status", "--porcelain") == f"M {NAME}"
    assert git(clone, "diff", "--cached", "--name-only") == ""  # nothing is staged


def test_what_is_no_notebook_of_a_checkout_is_left_alone(clone):
    assert after_save({"type": "file"}, str(clone / "code.py"), None) is None
    shutil.copy(clone / NAME, clone / "new.ipynb")
    assert not look_again(clone / "new.ipynb") and git(clone, "status", "--porcelain") == "?? new.ipynb"
    assert not look_again(clone.parent / "nowhere" / "a.ipynb")
    hook = re.search(r"post_save_hook=([\w.]+)", (REPOSITORY / "scripts" / "lab.sh").read_text())[1]
    assert hook == f"{after_save.__module__}.{after_save.__name__}"


def test_provenance_takes_a_notebook_that_was_run_for_unchanged_without_the_filter_too(clone):
    head = git(clone, "rev-parse", "HEAD")
    assert commit(clone) == head
    run_in_lab(clone / NAME)
    assert git(clone, "status", "--porcelain") == f"M {NAME}" and commit(clone) == head
    change_a_cell(clone / NAME)
    assert commit(clone) == f"{head}+"
    git(clone, "checkout", "-q", NAME)
    (clone / NAME).write_text("{")
    assert commit(clone) == f"{head}+"
    (clone / NAME).unlink()
    assert commit(clone) == f"{head}+"
    git(clone, "checkout", "-q", NAME)
    (clone / "code.py").write_text("2\n")
    assert commit(clone) == f"{head}+"
    assert commit(clone / "notebooks") is None
