"""Records of runs on disk: plans, settings, metrics and traces, checked as they are read; and which are comparable."""

from pathlib import Path

from ..util.io.files import expanded
from ..util.lazy_names import lazy_names
from ..values.trace import Trace
from .plans import FollowedPlan
from .run_record import NO_PICTURES, NOTEBOOK, PAPER, Origin, RunRecord, load_warnings

__all__ = ["FollowedPlan", "NOTEBOOK", "NO_PICTURES", "Origin", "PAPER", "RunRecord", "load_trace", "load_warnings"]


def load_trace(path: Path | str) -> Trace:
    """Read the trace of a run.

    Args:
        path: A run directory, a Chrome trace that this project wrote, or a .parquet table of a job's operations.

    Returns:
        The trace.

    Raises:
        InputError: The path holds none of these.

    Example:
        >>> measured = sp.load_trace(run_dir)
        >>> measured.source, measured.ranks
        ('measured', (0, 1))

    See also:
        guides/traces_and_what_if, `replay`, `what_if`
    """
    path = expanded(path)
    return RunRecord.load(path).trace() if path.is_dir() else Trace.load(path)


__getattr__, __dir__ = lazy_names(globals(), {}, folders=("formats", "provenance", "sinks"))
