"""What tests of jobs look at: processes of a run, and something that is about to be."""

import os
import time
from collections.abc import Callable
from pathlib import Path

# Seconds for whatever takes some seconds at most on an idle machine: tests share few cores, and how long they take says
# nothing about the code. Short ones are for what is to pass in vain.
ENOUGH = 200.0


def until(condition: Callable[[], object], what: str | Callable[[], object]) -> None:
    """Wait for a condition, ENOUGH seconds at most. Fails where it does not come in time, with what was waited for.

    What a page, a kernel or another process is to show is waited for itself, and not looked at once something else is
    there: that came by another message. `what` may be a function that is asked when time is up: how it is instead.
    """
    deadline, pause = time.monotonic() + ENOUGH, 0.01
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what() if callable(what) else what}: not within {ENOUGH:g} s")
        time.sleep(pause)
        pause = min(1.3 * pause, 0.2)  # to look costs time that others need


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
