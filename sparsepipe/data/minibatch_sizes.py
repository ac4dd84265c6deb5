"""How many samples each minibatch of an epoch has, and what becomes of a last one that is not whole."""

from ..errors import InputError

KEEP, MERGE, DROP = LAST_MINIBATCH = ("keep", "merge", "drop")  # what becomes of a last minibatch that is not whole


def sizes(num_samples: int, batch_size: int, *, last: str = KEEP) -> tuple[int, ...]:
    """Return how many samples each minibatch of an epoch has: known from these numbers alone.

    All have `batch_size` but the last, which has what is left. `last` says what becomes of it: it is kept; merged,
    if it has a single sample, into the one before; or dropped, unless it is the only one. A minibatch of one sample
    may have one voxel left in a coarse layer, over which batch norm cannot normalise; of two samples two are left.
    """
    if last not in LAST_MINIBATCH:
        raise InputError(
            "order.last_minibatch",
            f"last minibatch {last!r} given, expected one of {', '.join(LAST_MINIBATCH)}",
            last=last,
        )
    whole, rest = divmod(num_samples, batch_size)
    if not rest or (last == DROP and whole):
        return (batch_size,) * whole
    if last == MERGE and rest == 1 and whole:
        return (*(batch_size,) * (whole - 1), batch_size + 1)
    return (*(batch_size,) * whole, rest)
