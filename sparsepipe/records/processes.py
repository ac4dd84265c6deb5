"""How many processes the job of a run has, whose plan may leave out some of them.

processes.json   {"count": 4}     written with the first plan that uses fewer; without it there is one for each rank

A run that starts again after a crash, or is resumed under the plan that it has, has as many as before: those that are
left out can be taken back. One that is resumed under a plan it is given has one for each of its ranks.
"""

from pathlib import Path

from ..errors import DamagedRecord
from ..util.io.fields import MOST_DEVICES, fields, integer
from ..util.io.files import write_json
from ..values.plan import Plan
from .plans import newest_plan
from .record_files import read_fields

PROCESSES = "processes.json"
_FILE = fields({"count": lambda value, what: integer(value, what, least=1, most=MOST_DEVICES)})


def num_processes(folder: Path, plan: Plan) -> int:
    """Return how many processes a job that follows `plan` in the folder has. Raises DamagedRecord that names a file."""
    path = folder / PROCESSES
    if not path.exists() or not _follows(folder, plan):
        return len(plan.ranks)
    return max(int(read_fields(path, _FILE, what="number of processes")["count"]), len(plan.ranks))


def keep_processes(folder: Path, count: int) -> None:
    """Note how many processes a job has, before it follows a plan that leaves out some."""
    write_json(folder / PROCESSES, {"count": count})


def forget_processes(folder: Path) -> None:
    """Have one process for each rank from now on, as a run that is resumed under another plan."""
    (folder / PROCESSES).unlink(missing_ok=True)


def _follows(folder: Path, plan: Plan) -> bool:
    try:
        return newest_plan(folder) == plan
    except DamagedRecord:
        return False
