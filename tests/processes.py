"""What tests of jobs look at: processes of a run, and something that is about to be."""

import os
import time
from collections.abc import Callable
from pathlib import Path


def until(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Wait for a condition. Fails after so many seconds, with what was waited for."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} s"
        time.sleep(0.02)


def processes_of(folder: Path) -> dict[int, str]:
    """Command lines of all other living processes that name the folder of a run, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = (path / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if str(folder) in command and state != "Z" and int(path.name) != os.getpid():
            found[int(path.name)] = command
    return found
