"""Processes beside one that is measured: at work while it is, gone afterwards, whatever becomes of it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from coded import raises
from processes import until

from sparsepipe.profiling import profile_model
from sparsepipe.runtime.config import RunConfig
from sparsepipe.util.host.background_load import contending_processes

CONFIG = RunConfig(
    "minkvgg11bn-narrow", "digits", voxel_size=0.1, batch_size=2, num_points=128, engine="native", threads=1
)
SETTINGS = CONFIG.to_json()


def _stat(pid: int) -> list[str]:
    """State, parent and so on of a process; nothing where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _beside(pid: int) -> list[int]:
    """The processes that keep another one company."""
    every = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [one for one in every if (stat := _stat(one)) and stat[0] != "Z" and int(stat[1]) == pid]


def _processor_ticks(pid: int) -> int:
    return sum(map(int, _stat(pid)[11:13]))


@pytest.mark.slow
def test_they_are_at_work_until_the_block_ends() -> None:
    known = set(_beside(os.getpid()))
    with contending_processes(2, "sparsepipe.profiling", SETTINGS):
        pids = set(_beside(os.getpid())) - known
        assert len(pids) == 2
        enough = {pid: _processor_ticks(pid) + 0.1 * os.sysconf("SC_CLK_TCK") for pid in pids}
        until(lambda: all(_processor_ticks(pid) > ticks for pid, ticks in enough.items()), "both are at work")
    assert not set(_beside(os.getpid())) & pids


def test_one_that_cannot_work_is_named() -> None:
    with (
        raises("contention.process_ended", "The Zen of Python, by Tim Peters"),
        contending_processes(1, "this", {}),
    ):
        pytest.fail("nobody is at work")


def test_they_end_with_who_is_measured() -> None:
    code = "import json, sys, time; from sparsepipe.util.host.background_load import contending_processes"
    code += "\nwith contending_processes(1, 'sparsepipe.profiling', json.loads(sys.argv[1])):"
    code += "\n    print(flush=True); time.sleep(600)"
    measured = subprocess.Popen([sys.executable, "-c", code, json.dumps(SETTINGS)], stdout=subprocess.PIPE)
    assert measured.stdout is not None and measured.stdout.readline() == b"\n"
    (pid,) = _beside(measured.pid)
    measured.send_signal(signal.SIGKILL)
    measured.wait()
    measured.stdout.close()
    until(lambda: _stat(pid)[:1] in ([], ["Z"]), "its end")


@pytest.mark.slow
def test_a_profile_says_in_what_company_it_was_measured() -> None:
    model, source = CONFIG.model, CONFIG.data
    names = ("voxel_size", "batch_size", "num_points", "engine", "device", "threads", "seed")
    settings = {name: getattr(CONFIG, name) for name in names}
    found = profile_model(model, source, **settings, repeats=1, beside=1)
    assert found.origin["beside"] == 1
    with raises("setting.not_whole", "beside", "-1"):
        profile_model(model, source, **settings, repeats=1, beside=-1)
