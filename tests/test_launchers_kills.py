"""Whatever part of a running job is killed, at whatever moment: nothing is lost and nothing is left."""

import subprocess
import sys

import pytest
from coded import mentions
from runtime_jobs import REPOSITORY


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_with_a_rank_killed_goes_on_by_itself_and_loses_nothing() -> None:
    """One of the runs that scripts/kill_runs.py makes by the dozen: stashed weights, sockets, checkpoints beside it."""
    words = [sys.executable, REPOSITORY / "scripts" / "kill_runs.py", "--runs", "1", "--epochs", "8", "--seed", "26"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert mentions(done.stdout.splitlines()[-1], 1, "1 runs")
