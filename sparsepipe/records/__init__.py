"""Records of runs on disk: plans, settings, metrics and traces, checked as they are read; and which are comparable."""

from pathlib import Path

from ..errors import InputError
from ..util.io.files import expanded
from ..util.lazy_names import lazy_names
from ..values.trace import Trace
from .run_progress import FollowedPlan
from .run_record import NO_PICTURES, NOTEBOOK, PAPER, Origin, RunRecord, load_warnings
from .torch_jobs.activity import activity_of
from .torch_jobs.events import is_from_torch, is_packed, read_rank, trace_files, unpacked
from .torch_jobs.job import joined_trace

__all__ = ["FollowedPlan", "NOTEBOOK", "NO_PICTURES", "Origin", "PAPER", "RunRecord", "load_trace", "load_warnings"]


def load_trace(path: Path | str) -> Trace:
    """Read the trace of a run.

    Args:
        path: Run directory; Chrome trace written by sparsepipe; traces of torch.profiler (.json or .json.gz: a file,
            a folder with a file for each rank, or a pattern such as "traces/rank*"); or parquet file of operations.

    Returns:
        The trace.

    Raises:
        InputError: The path contains none of these.

    Example:
        >>> measured = sp.load_trace(run_dir)
        >>> measured.source, measured.ranks
        ('measured', (0, 1))

    See also:
        guides/traces_and_what_if, `replay`, `what_if`
    """
    path = expanded(path)
    if path.is_dir() and not any(path.glob("*.json*")) and any(path.glob("*/*.pt.trace.json*")):
        raise InputError(
            "trace.no_files", f"{path}: its traces lie in folders; give a pattern, '{path}/*/*.pt.trace.json*'"
        )
    if path.is_dir() and ((path / "plan.json").exists() or not any(path.glob("*.json*"))):
        return RunRecord.load(path).trace()
    files = trace_files(path)
    if len(files) == 1 and not is_from_torch(files[0]):
        return Trace.from_chrome(unpacked(files[0])) if is_packed(files[0]) else Trace.load(files[0])
    return joined_trace([activity_of(read_rank(file)) for file in files])


__getattr__, __dir__ = lazy_names(globals(), {}, folders=("formats", "provenance", "sinks"))
