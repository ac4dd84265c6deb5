"""How a run stands: what its status says, unless whoever wrote that is gone."""

from ..errors import DamagedRecord
from ..records import RunRecord
from .handle import AttachedProcess
from .supervisor import GOING_ON


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
