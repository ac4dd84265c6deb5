"""What a run lost and continued without, such as a host, or a pipeline that came back: kept in its status, to be
reported when it finishes.

status.json   {"state": "finished", "went_on": ["host2: rank 1 …: the disk of … is full; …; going on … on host1"]}
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from .supervisor import read_status, tell_status


def went_on(folder: Path) -> Sequence[str]:
    """Return a line for each time that a run lost something and continued; none where its status cannot be read."""
    with suppress(OSError, ValueError):
        told = read_status(folder).get("went_on", [])
        return [text for text in told if isinstance(text, str)] if isinstance(told, list) else []
    return []


def tell_going_on(folder: Path, text: str) -> None:
    """Add a line to the status of a run that continues."""
    with suppress(OSError, ValueError):  # it cannot be read now: the launcher's log has the line too
        status = read_status(folder)
        tell_status(folder, **{**status, "went_on": [*went_on(folder), text]})
