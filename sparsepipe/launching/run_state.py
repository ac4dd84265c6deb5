"""How a run stands: what its status says, unless whoever wrote that is gone."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ..errors import DamagedRecord
from ..records import RunRecord
from .handle import AttachedProcess
from .supervisor import GOING_ON, read_status, tell_status


def is_alive(record: RunRecord) -> bool:
    """Return whether a run is alive, by its status where that can be read, and by its supervisor."""
    try:
        ended = record.status["state"] not in GOING_ON
    except DamagedRecord:
        ended = False
    return not ended and AttachedProcess(record).alive()


def state_of(record: RunRecord) -> str:
    """The state of a run; "killed" where its status says that it continues but its supervisor is gone.

    Raises DamagedRecord if its status cannot be read.
    """
    state = str(record.status["state"])
    return "killed" if state in GOING_ON and not is_alive(record) else state


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
