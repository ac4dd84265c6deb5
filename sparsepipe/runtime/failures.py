"""How a worker fails: what it was doing, with whom, and whether another rank's failure is the likely cause."""

import json
import math
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError
from ..files import write_atomic


class PeerLost(RuntimeError):
    """A connection to another rank broke: that rank ended first, and its own failure is the one to report."""


def lost(peer: int, why: str, message: str) -> PeerLost:
    """Say what was going on, in the words of the `message` for a deadline, when a wait for `peer` (-1: any) broke."""
    whom = "another rank" if peer < 0 else f"rank {peer}"
    return PeerLost(f"lost {whom}: {why} ({message.split(' waited')[0]})")


class DeadlinePassed(RuntimeError):
    """Another rank did not deliver in time. `peer` is the rank waited for; -1: several; None: the disk."""

    def __init__(self, message: str, *, peer: int | None) -> None:
        super().__init__(message)
        self.peer = peer


def seconds_left(deadline: float) -> float:
    """Return the seconds until `deadline` (time.monotonic) as any wait takes them: a moment at least."""
    return min(max(deadline - time.monotonic(), 0.001), threading.TIMEOUT_MAX)


@contextmanager
def translated(message: str, *, peer: int, deadline: float = math.inf) -> Iterator[None]:
    """Say in the runtime's words what torch, in plain RuntimeErrors, or the system says of a connection to `peer`.

    -1: to several.

    Raises DeadlinePassed (`message`) once `deadline` (time.monotonic) has passed, else PeerLost.
    """
    try:
        yield
    except (DeadlinePassed, PeerLost, PacketMismatch):
        raise
    except (RuntimeError, OSError) as error:
        if time.monotonic() >= deadline - 0.01:
            raise DeadlinePassed(message, peer=peer) from error
        raise lost(peer, _first_line(error), message) from error


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class PacketMismatch(RuntimeError):
    """What arrived is not what the schedule says comes next. The message has both sides' numbers."""


class LossNotFinite(RuntimeError):
    """The loss is NaN or infinite: training on would destroy the weights."""


def error_path(run_dir: Path, rank: int) -> Path:
    return run_dir / "logs" / f"rank{rank}.error.json"


def write_error(run_dir: Path, error: BaseException, *, rank: int, stage: int | None) -> None:
    """Leave the exception and its traceback where the launcher looks for it."""
    document = {
        "rank": rank,
        "stage": stage,
        "kind": type(error).__name__,
        "message": " ".join(str(error).split()) or type(error).__name__,
        "secondary": isinstance(error, PeerLost),
        "peer": getattr(error, "peer", None),
        # A restart would meet the same again: the input, the code or the numbers are at fault, not the machine.
        "lasting": not isinstance(error, (PeerLost, DeadlinePassed)),
        "input_error": isinstance(error, InputError),
        "time": time.time(),
        "traceback": "".join(traceback.format_exception(error)),
    }
    write_atomic(error_path(run_dir, rank), json.dumps(document, indent=2) + "\n")
