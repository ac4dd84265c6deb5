"""A process's tie to who started it: when the other end of a named pipe closes, for any reason, the process ends."""

import os
import select
import threading

VARIABLE = "SPARSEPIPE_LIFELINE"
_TERMINATED = 143  # what a shell says of a process ended by SIGTERM


class Lifeline:
    """The pipe that the environment names, opened. If it is gone, so is who held it: this process ends at once."""

    def __init__(self) -> None:
        self.descriptor = -1  # where the environment names none
        if path := os.environ.get(VARIABLE):
            try:
                # Not blocking: where the writer is gone already, a blocking open would wait for ever.
                self.descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            except FileNotFoundError:
                os._exit(_TERMINATED)

    def look(self, seconds: float) -> None:
        """Return after so many seconds, or end this process as soon as no one holds the writing end."""
        told = [self.descriptor] if self.descriptor >= 0 else []
        if select.select(told, [], [], seconds)[0]:
            os._exit(_TERMINATED)


def watch() -> None:
    """Have a thread end this process as soon as no one holds the writing end of the pipe that the environment names."""
    lifeline = Lifeline()
    if lifeline.descriptor >= 0:
        threading.Thread(target=_wait_for_end, args=(lifeline.descriptor,), name="lifeline", daemon=True).start()


def _wait_for_end(descriptor: int) -> None:
    try:
        if os.read(descriptor, 1) == b"":
            os._exit(_TERMINATED)
    except BlockingIOError:
        os.set_blocking(descriptor, True)
        os.read(descriptor, 1)
    os._exit(_TERMINATED)
