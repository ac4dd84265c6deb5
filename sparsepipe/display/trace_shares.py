"""What each rank of a trace did, in shares of its time: the same table on a page and in a terminal."""

from collections.abc import Sequence
from typing import Any

SHARES_HEAD = ("rank", "work", "idle", "averaging", "waiting", "sending")


def rank_shares(trace: Any, ranks: Sequence[int]) -> list[tuple[str, ...]]:
    """Return a row of `SHARES_HEAD` for each of `ranks`, of a trace that has spans.

    A rank is idle while it does no work: it waits, averages, or has nothing yet. Waits for other ranks are told apart
    where they were measured ("–" where simulated); sends go on beside the work.
    """
    length, waits = trace.shown_seconds, trace.source != "simulated"
    rows = []
    for rank in ranks:
        work = trace.busy(rank)
        average, wait, send = (trace.seconds(rank, (kind,)) for kind in ("average", "wait", "send"))
        shares = [f"{seconds / length:.0%}" for seconds in (work, length - work, average, wait, send)]
        rows.append((str(rank), *shares[:3], shares[3] if waits else "–", shares[4]))
    return rows
