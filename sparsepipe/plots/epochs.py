"""One epoch of a run: what its ranks did between two evaluations."""

from ..errors import InputError
from ..record import RunRecord
from ..trace import WORK, Trace

_BETWEEN_EPOCHS = ("evaluate", "checkpoint")


def epoch_trace(record: RunRecord, epoch: int) -> Trace:
    """What a run did in one epoch, its minibatches counted from 0. Raises InputError where it has no such trace."""
    steps = [row["minibatch"] for row in record.metrics("step") if row["epoch"] == epoch]
    whole = record.trace()
    spans = [s for s in whole.spans if s.minibatch in set(steps) and s.kind not in _BETWEEN_EPOCHS]
    if not spans:
        raise InputError(f"{record.folder}: has no trace of epoch {epoch}")
    return Trace(tuple(s._replace(minibatch=s.minibatch - min(steps)) for s in spans), whole.source, whole.facts)


def working_epoch(record: RunRecord, epoch: int) -> Trace:
    """One epoch of a run from its first to its last work: what the simulator plays through."""
    whole = epoch_trace(record, epoch)
    work = [span for span in whole.spans if span.kind in (*WORK, "average")]
    return whole.between(min(span.start for span in work), max(span.end for span in work))
