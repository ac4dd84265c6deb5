"""Processes that this project starts never import what lies in the folder where somebody happens to stand."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from runtime_jobs import PLAIN, REPOSITORY, plan_of, shapes

from sparsepipe.util.host.imports import python_command, python_environment

HOSTILE = ("queue", "json", "torch", "numpy", "threading", "sparsepipe", "sitecustomize")


def _starts_python(path: Path) -> list[str]:
    """Where a file names the interpreter without keeping the current folder off the child's path."""
    tree = ast.parse(path.read_text())
    lists = [node.elts for node in ast.walk(tree) if isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) > 1]
    # "-P" or "-I", or a script, whose own folder Python puts first; never "-m" or "-c" alone.
    kept_off = [own[0] for own in lists if not isinstance(own[1], ast.Constant) or own[1].value in ("-P", "-I")]
    return [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "sys.executable" and node not in kept_off
    ]


# They tell of the interpreter and start none: a word of this path to others, and a probe's answer.
TELLS = ("sparsepipe/util/host/imports.py", "sparsepipe/launching/probes/probe.py")


def test_every_python_process_is_started_without_the_current_folder_on_its_path() -> None:
    files = [path for name in ("sparsepipe", "scripts") for path in (REPOSITORY / name).rglob("*.py")]
    assert [place for path in files for place in _starts_python(path) if not place.startswith(TELLS)] == []
    inside = (REPOSITORY / "sparsepipe").rglob("*.py")
    modules = [path for path in inside if re.search(r"executable.*\"-m\"", path.read_text())]
    assert [path.name for path in modules] == ["imports.py"], "the others ask python_command"


def _hostile(folder: Path) -> Path:
    """A folder with modules of well-known names, each of which leaves a note that it was run."""
    folder.mkdir()
    for name in HOSTILE:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write({name!r})\nraise SystemExit(7)\n")
    return folder


@pytest.mark.parametrize("given", ["", ":", "::/nowhere"])
def test_a_child_finds_this_package_and_nothing_where_it_stands(tmp_path, monkeypatch, given: str) -> None:
    """An empty entry of PYTHONPATH is the current folder too."""
    monkeypatch.setenv("PYTHONPATH", given)
    folder = _hostile(tmp_path / "hostile")
    code = "import json, queue, subprocess, sys, sparsepipe; print(sparsepipe.__file__); "
    code += "subprocess.run([sys.executable, '-c', 'import queue, json'], check=True)"
    command = [*python_command("timeit")[:-2], "-c", code]
    done = subprocess.run(command, cwd=folder, env=python_environment(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(done.stdout.strip()).parent == REPOSITORY / "sparsepipe"
    assert not (folder / "ran").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_from_a_folder_with_hostile_modules_runs_none_of_them(tmp_path) -> None:
    """A `queue.py` in a folder of data was executed by the launcher, the workers and what profiles run beside."""
    folder, data = _hostile(tmp_path / "hostile"), shapes(tmp_path)
    plan = plan_of(PLAIN, [[0], [1]], schedule="1f1b").save(tmp_path / "plan.json")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    options = ["--model", PLAIN, "--data", data, "--voxel-size", 0.12, "--batch-size", 4, "--num-points", 128]
    options += ["--engine", "native", "--threads", 1]
    run = ["run", plan, *options, "--epochs", 1, "--run-dir", folder / "run"]
    profile = ["profile", *options, "--repeats", 1, "--beside", 1, "--out", folder / "profile.json"]
    for words in (profile, run):
        command = [sys.executable, "-P", "-m", "sparsepipe", *map(str, words), "--json"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        json.loads(done.stdout)
    assert not (folder / "ran").exists()
