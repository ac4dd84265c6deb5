"""When a run began, on a clock that its ranks share and that continues where a run that resumes left off."""

import json
import time
from pathlib import Path

from ...records.record_files import CLOCK, read_fields
from ...util.io.files import open_regular, write_json

_TAIL_BYTES = 2**16  # of a file that grows by rows: the latest are in it


def began(run_dir: Path) -> float:
    """Return the wall-clock second at which the run in `run_dir` began. One rank calls it, after `forget_rows`.

    A run that resumes keeps its beginning. If the machine's clock was set back meanwhile, so that new rows would be
    older than those there are, the beginning moves back as far: times continue after the last that was recorded.
    """
    path, now = run_dir / "logs" / "clock.json", time.time()
    if not path.exists():
        write_json(path, {"started": now}, make_folder=False)
    started = float(read_fields(path, CLOCK, what="run's clock")["started"])
    last = last_recorded(run_dir)
    if now - started < last:
        started = now - last
        write_json(path, {"started": started}, make_folder=False)
    return started


def last_recorded(run_dir: Path) -> float:
    """Return the latest time in a run's metrics and traces, in seconds since it began; 0 if there is none."""
    paths = [run_dir / "metrics.jsonl", *run_dir.glob("trace-rank*.jsonl")]
    return max((_last_time(path) for path in paths if path.is_file()), default=0.0)


def _last_time(path: Path) -> float:
    with open_regular(path) as file:
        file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
        lines = file.read().splitlines()
    return max(map(_time, lines), default=0.0)


def _time(line: bytes) -> float:
    try:
        row = json.loads(line)
        return float(row.get("end", row.get("seconds", 0.0)))
    except (ValueError, TypeError, AttributeError):  # cut at its beginning, or damaged: others tell the time
        return 0.0
