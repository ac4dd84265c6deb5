"""The trace of one epoch of a run."""

from ...errors import InputError
from ...records import RunRecord
from ...records.trace_file import MEGABYTES
from ...util.text.numbers import alike
from ...values.trace import WORK, Trace
from ..ties import TIE

_BETWEEN_EPOCHS = ("evaluate", "checkpoint")


def epoch_trace(record: RunRecord, epoch: int) -> Trace:
    """Extract the trace of one epoch of a run, with minibatches numbered from 0.

    Args:
        record: The run.
        epoch: Number of the epoch, from 0.

    Returns:
        The trace. Its fact "paces" contains the throughput of the epoch and of the run in samples/s, if known.

    Raises:
        InputError: No complete trace of this epoch. Long runs store only part of their trace.

    Example:
        >>> sp.plots.epoch_trace(sp.RunRecord.load(run_dir), 1).ranks
        (0, 1)

    See also:
        `plots.timeline`, `load_trace`
    """
    steps = {row["minibatch"] for row in record.metrics("step") if row["epoch"] == epoch}
    whole = record.trace()
    if missing := [one for one in whole.left_out.get("minibatches", ()) if any(one[0] <= m <= one[1] for m in steps)]:
        first, last = missing[0]
        raise InputError(
            "run.trace_left_out",
            f"{record.folder}: the trace lacks minibatches {first} to {last} and so at least part of epoch {epoch}; "
            f"choose another epoch, or raise the trace size limit ({MEGABYTES})",
        )
    spans = [s for s in whole.spans if s.minibatch in steps and s.kind not in _BETWEEN_EPOCHS]
    if not spans:
        raise InputError("run.epoch_unknown", f"{record.folder}: has no trace of epoch {epoch}; choose another epoch")
    facts = {key: value for key, value in whole.facts.items() if key != "left_out"}  # of this epoch nothing is
    facts |= {"paces": paces} if (paces := _paces(record, epoch)) else {}
    return Trace(tuple(s._replace(minibatch=s.minibatch - min(steps)) for s in spans), whole.source, facts)


def pace_told(trace: Trace) -> str:
    """Say how fast a run was in the epoch of a trace, compared with the median one; nothing if that is a tie."""
    own, whole = trace.facts.get("paces", (0.0, 0.0))
    if abs(own - whole) <= TIE * whole:
        return ""
    form = alike((own, whole), 3)
    return f"this epoch: {form(own)} samples/s, {own / whole:.2f} × as fast as the median one ({form(whole)} samples/s)"


def _paces(record: RunRecord, epoch: int) -> tuple[float, float] | None:
    rows, summaries = record.metrics("epoch"), record.metrics("summary")
    own = next((row.get("samples_per_second") for row in rows if row.get("epoch") == epoch), None)
    whole = summaries[-1].get("samples_per_second") if summaries else None
    one = len(record.pipelines) == 1
    return (float(own), float(whole)) if own and whole and len(rows) > 1 and one else None


def working_epoch(record: RunRecord, epoch: int) -> Trace:
    """One epoch of a run from its first to its last work: what the simulator plays through."""
    whole = epoch_trace(record, epoch)
    work = [span for span in whole.spans if span.kind in (*WORK, "average")]
    if not work:
        raise InputError(
            "run.epoch_empty", f"{record.folder}: the trace of epoch {epoch} contains no work; choose another epoch"
        )
    return whole.between(min(span.start for span in work), max(span.end for span in work))
