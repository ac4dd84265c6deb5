"""A worker's tie to who started it: when the other end of a named pipe closes, for any reason, the worker ends."""

import os
import threading

VARIABLE = "SPARSEPIPE_LIFELINE"
_TERMINATED = 143  # what a shell says of a process ended by SIGTERM


def watch() -> None:
    """End this process as soon as nobody holds the writing end of the pipe that the environment names.

    Where the pipe is gone, so is who held it: they ended while this process started, and it ends now.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        return
    try:
        # Not blocking: where the writer is gone already, a blocking open would wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        os._exit(_TERMINATED)
    threading.Thread(target=_wait_for_end, args=(descriptor,), name="lifeline", daemon=True).start()


def _wait_for_end(descriptor: int) -> None:
    try:
        if os.read(descriptor, 1) == b"":
            os._exit(_TERMINATED)
    except BlockingIOError:
        os.set_blocking(descriptor, True)
        os.read(descriptor, 1)
    os._exit(_TERMINATED)
