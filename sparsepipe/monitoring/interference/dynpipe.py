"""DynPipe's published data set: 26 metrics of a GPU while intruders compute, a victim's facts, its slow-down.

`runtime_bert/profile/out.json` of Distributed-Learning-Networking-Group/dynpipe: `sparsepipe data fetch dynpipe-logs`.
A metric is the newest sample of Nsight Systems after the intruders have run for ten seconds.
"""

import math
from collections.abc import Mapping
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import shown, shown_key
from ...util.io.files import read_numbered_rows
from .rows import Row

FILE = "runtime_bert/profile/out.json"
_TARGET = "time"  # over the time alone
_ALONE = 1.0


def read_rows(path: Path | str, *, alone: bool = False) -> list[Row]:
    """Read the rows; those of victims that were alone (slow-down 1) only if asked.

    Raises InputError in one line, naming file and line, for what is no such row.
    """
    found = []
    for number, row in read_numbered_rows(path):
        where = f"{path}:{number}"
        profile, output = row.get("profile"), row.get("output")
        if not isinstance(profile, dict) or not isinstance(output, dict) or _TARGET not in output:
            raise InputError("dynpipe.sample_malformed", f"{where}: expected an object with profile, output and a time")
        metrics, facts = (
            {key: _number(value, key, where) for key, value in part.items()} for part in (profile, output)
        )
        slowdown = facts.pop(_TARGET)
        if slowdown <= 0:
            raise InputError("dynpipe.slowdown_zero", f"{where}: time is {slowdown:g}, expected a slowdown above 0")
        if alone or slowdown != _ALONE:
            found.append(Row(_joined(metrics, facts, where), slowdown))
    return found


def _number(value: object, key: str, where: str) -> float:
    """A metric is written as text, a fact of the victim as a number."""
    try:
        number = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            "dynpipe.not_a_number", f"{where}: {shown_key(key)} is {shown(value)}, expected a finite number"
        )
    return number


def _joined(metrics: Mapping[str, float], facts: Mapping[str, float], where: str) -> dict[str, float]:
    if twice := metrics.keys() & facts.keys():
        raise InputError(
            "dynpipe.key_twice",
            f"{where}: {shown(sorted(twice))} occurs in both profile and output, expected in only one",
        )
    return {**metrics, **facts}
