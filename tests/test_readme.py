"""What the README promises is run as a newcomer would run it: copied and pasted."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sparsepipe import SCHEDULES

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```\w*\n(.*?)```", README.read_text(), flags=re.DOTALL)
EXAMPLE = next(block for block in BLOCKS if block.startswith("import sparsepipe"))
POINTS = next(block for block in BLOCKS if "sp.data.to_points(" in block)
SHELL = next(block for block in BLOCKS if block.startswith("sparsepipe data make"))


def test_the_table_of_schedules_is_that_of_the_rows():
    rows = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", README.read_text(), flags=re.MULTILINE)
    assert dict(rows) == SCHEDULES


@pytest.mark.slow
def test_the_example_runs(tmp_path):
    quick = EXAMPLE.replace("profile_model(model, data, **sizes)", "profile_model(model, data, **sizes, repeats=2)")
    assert quick != EXAMPLE  # fewer passes, as below
    done = subprocess.run([sys.executable, "-c", quick], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 stages" in done.stdout
    assert float(done.stdout.splitlines()[-1].removesuffix(" samples/s")) > 0
    assert "plotly" in (tmp_path / "timeline.html").read_text()
    assert (tmp_path / "runs/first/status.json").exists()


@pytest.mark.slow
def test_classes_come_back_to_points(tmp_path):
    done = subprocess.run([sys.executable, "-c", POINTS], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "(5000,)"


# Added to the commands that begin so: with fewer shapes and passes they say the same, sooner.
FEWER = {"sparsepipe data make": "--train 4 --test 2", "sparsepipe profile": "--repeats 2"}


@pytest.mark.slow
def test_the_commands_run(tmp_path):
    for line in SHELL.strip().splitlines():
        fewer = next((words for start, words in FEWER.items() if line.startswith(start)), "")
        command = [sys.executable, "-m", *line.split(), *fewer.split()]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
    assert "finished" in done.stdout
