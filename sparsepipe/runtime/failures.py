"""How a worker fails: what it was doing, with whom, and whether another rank's failure is the likely cause."""

import json
import math
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..errors import CodedError, InputError
from ..util.host.limits import limit_met
from ..util.io.files import write_atomic

SMALLER_LIMIT = "resume the run with a smaller memory limit, or with less on this device"
_MOST_LETTERS = 500  # of a message


class PeerLost(RuntimeError):
    """A connection to another rank broke: that rank ended first, and its own failure is the one to report."""


def lost(peer: int, why: str, message: str) -> PeerLost:
    """Say what was under way, in the words of the `message` for a deadline, when a wait for `peer` (-1: any) broke."""
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

    Raises DeadlinePassed (`message`) once `deadline` (time.monotonic) has passed, else PeerLost; what comes from a
    limit of this process, such as its memory, is raised as it is.
    """
    try:
        yield
    except (DeadlinePassed, PeerLost, PacketMismatch):
        raise
    except (RuntimeError, OSError) as error:
        if time.monotonic() < deadline - 0.01 and limit_met(error):
            raise
        if time.monotonic() >= deadline - 0.01:
            raise DeadlinePassed(message, peer=peer) from error
        raise lost(peer, _first_line(error), message) from error


def wait_for(work: Any, deadline: float, message: str, *, peer: int) -> None:
    """Wait for one communication until `deadline` (time.monotonic). Raises DeadlinePassed (`message`) or PeerLost."""
    with translated(message, peer=peer, deadline=deadline):
        work.wait(timedelta(seconds=seconds_left(deadline)))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


class PacketMismatch(CodedError, RuntimeError):
    """A packet is not the next one of the schedule. The message has both sides' numbers."""


class LossNotFinite(RuntimeError):
    """The loss is NaN or infinite: training on would destroy the weights."""


class OutOfMemory(RuntimeError):
    """Memory does not hold a minibatch. The message names its samples and its size."""


def work_path(run_dir: Path, rank: int) -> Path:
    """Return the file in which a rank notes what it is at: a killed process says no more."""
    return run_dir / "logs" / f".rank{rank}.work"


def error_path(run_dir: Path, rank: int) -> Path:
    return run_dir / "logs" / f"rank{rank}.error.json"


def described(error: BaseException, *, run_dir: Path | None, rank: int, stage: int | None) -> dict[str, Any]:
    """Return the exception as a launcher reads it: its message is one line, a limit of the machine by its name."""
    limit = None
    if not isinstance(error, (InputError, PeerLost, DeadlinePassed)):
        limit = _message(error) if isinstance(error, OutOfMemory) else limit_met(error, where=run_dir)
    return {
        "rank": rank,
        "stage": stage,
        "kind": type(error).__name__,
        "message": limit or _message(error),
        "limit": limit is not None,
        "secondary": isinstance(error, PeerLost),
        "peer": getattr(error, "peer", None),
        # A restart would meet the same again: the input, the code or the numbers are at fault, not the machine.
        "lasting": not isinstance(error, (PeerLost, DeadlinePassed)),
        "input_error": isinstance(error, InputError),
        "code": error.code if isinstance(error, CodedError) else None,
        "time": time.time(),
        "traceback": "".join(traceback.format_exception(error)),
    }


def write_error(run_dir: Path, document: Mapping[str, Any]) -> None:
    """Leave the exception and its traceback where the launcher looks for it."""
    rank = int(document["rank"])
    write_atomic(error_path(run_dir, rank), json.dumps(document, indent=2) + "\n", make_folder=False)


def _message(error: BaseException) -> str:
    """The message in one line: our own as they are, of others the first line, which their stack traces follow."""
    if isinstance(error, InputError):
        return " ".join(str(error).split())
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    return lines[0][:_MOST_LETTERS] if lines else type(error).__name__
