"""How many samples each minibatch of an epoch has, and what becomes of a last one that is not whole."""

from ..errors import InputError

KEEP, MERGE, DROP = LAST_MINIBATCH = ("keep", "merge", "drop")  # what becomes of a last minibatch that is not whole


def sizes(num_samples: int, batch_size: int, *, last: str = KEEP) -> tuple[int, ...]:
    """Return the number of samples of each minibatch of an epoch.

    All minibatches have `batch_size` samples except the last one, which has the rest. `last` determines what happens to
    it: "keep"; "merge" it into the one before if it has a single sample; or "drop" it unless it is the only one. A
    minibatch of one sample may have a single voxel in a coarse layer, which batch norm cannot normalize; one of two
    samples has at least two.
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
