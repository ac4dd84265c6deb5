"""The wheel has all that the verbs need: installed alone, in an empty folder, it lists data and reproduces a figure."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sparsepipe.study import NOTEBOOKS

REPOSITORY = Path(__file__).resolve().parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built of what git tracks, or would: what else lies about here is not in anybody's clone."""
    if not (REPOSITORY / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout")
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, check=True).stdout.split(b"\0")
    folder = tmp_path_factory.mktemp("source")
    for name in map(os.fsdecode, filter(None, names)):
        if (REPOSITORY / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(REPOSITORY / name, folder / name)
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "-w", str(out), str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (found,) = out.glob("sparsepipe-*.whl")
    return found


def test_all_is_in_it_and_the_verbs_work_in_an_empty_folder(wheel, tmp_path):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"sparsepipe/notebooks/{name}.ipynb" for name in NOTEBOOKS} <= names
    beside = [path for path in (REPOSITORY / "data_manifests").rglob("*") if path.is_file()]
    assert {f"sparsepipe/{path.relative_to(REPOSITORY).as_posix()}" for path in beside} <= names
    for suffix in (".html", ".css", ".js"):
        files = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "sparsepipe").rglob(f"*{suffix}")}
        assert files and files <= names
    assert any(name.endswith(".data/data/etc/jupyter/jupyter_server_config.d/sparsepipe.json") for name in names)
    site, here = tmp_path / "site", tmp_path / "here"
    here.mkdir()
    zipfile.ZipFile(wheel).extractall(site)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}

    def run(*words):
        command = [sys.executable, "-P", "-m", "sparsepipe", *words]
        done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    shipped = len(list(site.glob("sparsepipe/data_manifests/datasets/*.yaml")))
    listed = run("data", "list", "--json")
    assert len(listed) > shipped > 10
    made = run("reproduce", "00_start", "--json")
    assert made["page"] == str(here / "figures" / "index.html")
    assert "1 of" in (here / "figures" / "index.html").read_text()
    executed = json.loads((here / "runs" / "notebooks" / "00_start.ipynb").read_text())
    assert executed["metadata"]["papermill"]["input_path"].startswith(str(site)), "the wheel's own"
