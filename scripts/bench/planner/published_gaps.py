"""How far plans of published profiles can be from the best, and in how much time that is known: a row a case.

Seconds are those of the processor, of this process, whose planner has one thread: what else the machine does leaves
them as they are. The planner's own limits count the same seconds, so that gaps hardly depend on it either. Each row has
the seconds of fixed work (`study.machines.reference_seconds`), which say how fast the processor is.
"""

import json
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sparsepipe import partition
from sparsepipe.study.machines import reference_seconds

from ..document import say
from .published_cases import Case, cases

LIMITS = ((10.0, 0.01), (1.0, 0.05))  # within so many seconds a gap of so much
_SHOWN = 4  # digits


def published_gaps(folder: Path, kept: Path, only: str = "") -> list[dict[str, Any]]:
    """Plan the cases whose row is not in the file `kept` yet, of groups that begin with `only`; return all its rows."""
    import scipy.optimize  # noqa: F401  (the first bound that asks would be charged with it)

    rows = _read(kept)
    done = {row["case"] for row in rows}
    for case in cases(folder):
        if case.name in done or not case.group.startswith(only):
            continue
        row = measured(case)
        say(f"{case.name}: gap {row['gap']:.4f} in {row['seconds']:.1f} s")
        with kept.open("a") as file:
            file.write(json.dumps(row) + "\n")
        rows.append(row)
    return rows


def measured(case: Case) -> dict[str, Any]:
    """Plan a case twice: as it is by default, and `quick`."""
    row: dict[str, Any] = {"case": case.name, "group": case.group, "network": case.network, "devices": case.devices}
    for name, quick in (("", False), ("quick_", True)):
        profile, start = case.profile(), time.process_time()
        estimate = partition(profile, case.cluster, quick=quick).estimate
        spent = time.process_time() - start
        assert estimate is not None and estimate.gap is not None
        row |= {f"{name}period": estimate.period_seconds, f"{name}gap": estimate.gap, f"{name}seconds": spent}
    start = time.process_time()
    reference_seconds()
    return row | {"fixed_work_seconds": time.process_time() - start}


def gap_within(row: dict[str, Any], seconds: float) -> float:
    """The least gap known after so many seconds, of the plan by default and the quick one: 1 without either."""
    known = [row[f"{name}gap"] for name in ("", "quick_") if row[f"{name}seconds"] <= seconds]
    return min(known, default=1.0)


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return for each group how many cases reach what is asked, and those that do not."""
    lines = [f"fixed work: {statistics.median(row['fixed_work_seconds'] for row in rows):.3f} s"]
    for group in dict.fromkeys(row["group"] for row in rows):
        own = [row for row in rows if row["group"] == group]
        for seconds, asked in LIMITS:
            missed = [row for row in own if gap_within(row, seconds) > asked]
            lines.append(f"{group}: {len(own) - len(missed)} of {len(own)} within {asked:.0%} in {seconds:g} s")
            lines += [f"    {_told(row, seconds)}" for row in missed]
    return "\n".join(lines)


def _told(row: dict[str, Any], seconds: float) -> str:
    known = f"gap {gap_within(row, seconds):.{_SHOWN}f}" if gap_within(row, seconds) < 1 else "no plan"
    last = f"in the end {row['gap']:.{_SHOWN}f} in {row['seconds']:.1f} s"
    return f"{row['network']} on {row['devices']}: {known} then, {last}, period {row['period']:.5g} s"


def _read(kept: Path) -> list[dict[str, Any]]:
    lines: Iterable[str] = kept.read_text().splitlines() if kept.exists() else ()
    return [json.loads(line) for line in lines if line]
