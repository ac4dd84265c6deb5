"""Open a trace wherever it lies: in the folder of a run, in a Chrome trace, or in a real job's table of operations."""

from pathlib import Path

from ..io.paths import expanded
from ..trace import Trace
from .run_record import RunRecord


def load_trace(path: Path | str) -> Trace:
    """Read the trace of a run by its folder, or of a file as `Trace.load` does. Raises InputError for others."""
    path = expanded(path)
    return RunRecord.load(path).trace() if path.is_dir() else Trace.load(path)
