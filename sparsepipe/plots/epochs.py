"""The trace of one epoch of a run."""

from ..errors import InputError
from ..record import RunRecord
from ..record.trace_file import MEGABYTES
from ..trace import WORK, Trace

_BETWEEN_EPOCHS = ("evaluate", "checkpoint")


def epoch_trace(record: RunRecord, epoch: int) -> Trace:
    """What a run did in one epoch, its minibatches counted from 0.

    Raises InputError where it has no such trace, or not all of it: that of a long run is thinned, see trace_file.
    """
    steps = {row["minibatch"] for row in record.metrics("step") if row["epoch"] == epoch}
    whole = record.trace()
    if missing := [one for one in whole.left_out.get("minibatches", ()) if any(one[0] <= m <= one[1] for m in steps)]:
        first, last = missing[0]
        raise InputError(
            f"{record.folder}: the trace of minibatches {first} to {last} was left out, and with it epoch {epoch} or a "
            f"part of it; look at another epoch, or keep more of a run that is long ({MEGABYTES})"
        )
    spans = [s for s in whole.spans if s.minibatch in steps and s.kind not in _BETWEEN_EPOCHS]
    if not spans:
        raise InputError(f"{record.folder}: has no trace of epoch {epoch}")
    facts = {key: value for key, value in whole.facts.items() if key != "left_out"}  # of this epoch nothing is
    return Trace(tuple(s._replace(minibatch=s.minibatch - min(steps)) for s in spans), whole.source, facts)


def working_epoch(record: RunRecord, epoch: int) -> Trace:
    """One epoch of a run from its first to its last work: what the simulator plays through."""
    whole = epoch_trace(record, epoch)
    work = [span for span in whole.spans if span.kind in (*WORK, "average")]
    if not work:
        raise InputError(f"{record.folder}: nothing was worked on in the trace of epoch {epoch}")
    return whole.between(min(span.start for span in work), max(span.end for span in work))
