"""What tests of jobs look at: processes of a run, and something that is about to be."""

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
    """Command lines of all living processes of the run in `folder`, by process id; who launched it is none of them."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            state = (path / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if f"--run-dir {folder}" in command and state != "Z":
            found[int(path.name)] = command
    return found
