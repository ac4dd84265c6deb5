"""A process tied to another by a pipe ends with it, whenever that happens."""

import os
import subprocess
import sys
import time
from pathlib import Path

from processes import ENOUGH

REPOSITORY = Path(__file__).resolve().parent.parent
CODE = """
import time
from sparsepipe.runtime.processes.signs_of_life import watch
watch()
print("watching", flush=True)
time.sleep(600)
"""


def _started(pipe: Path) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "SPARSEPIPE_LIFELINE": str(pipe)}
    return subprocess.Popen([sys.executable, "-c", CODE], env=environment, stdout=subprocess.PIPE, text=True)


def test_it_ends_when_the_other_end_closes(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = os.open(tmp_path / "pipe", os.O_RDWR)
    with _started(tmp_path / "pipe") as process:
        assert process.stdout.readline() == "watching\n"
        time.sleep(0.1)
        assert process.poll() is None
        os.close(writer)
        assert process.wait(timeout=ENOUGH) == 143


def test_it_ends_at_once_where_the_other_end_closed_before_it_looked(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with _started(tmp_path / "pipe") as process:
        assert process.wait(timeout=ENOUGH) == 143


def test_it_ends_at_once_where_the_pipe_is_gone(tmp_path) -> None:
    """Found by killing the kernel while the workers started: the guard had cleared up before they looked."""
    with _started(tmp_path / "pipe") as process:
        assert process.wait(timeout=ENOUGH) == 143
