"""`python -m sparsepipe.monitoring.interference SETTINGS`: one intruder on one processor or GPU, for its time.

It ends as soon as whoever started it is gone.
"""

import json
import os
import sys
import threading
import time
from contextlib import suppress

from ...util.host.background_load import exit_with_parent, report_started
from .intruding import BEGIN, KINDS
from .victims import CPU, device_at


def intrude(
    *,
    kind: str,
    device: str,
    number: int,
    after: float,
    seconds: float | None,
    share: float = 1.0,
    resting: bool = False,
) -> int:
    """Wait `after` seconds, then compute for so many `seconds` (None: until it is ended).

    `share`: of that time at most, as pauses between steps. `resting`: only while it was last told to begin, and not to
    rest, by a line on stdin.
    On processor `number` alone, or with device "cuda" on that GPU: what drives it may then use every processor.
    Returns how many steps it made.
    """
    at_work = threading.Event()
    exit_with_parent(lambda word: at_work.set() if word == BEGIN else at_work.clear())
    if not resting:
        at_work.set()
    if device == CPU:
        with suppress(AttributeError, OSError):  # a system that pins nobody, or a processor taken away meanwhile
            os.sched_setaffinity(0, {number})
    step, used = KINDS[kind](device_at(device, number)), time.process_time if device == CPU else time.monotonic
    step()
    report_started()
    time.sleep(after)
    end = None if seconds is None else time.monotonic() + seconds
    steps = 0
    while end is None or time.monotonic() < end:
        at_work.wait()
        began, before = time.monotonic(), used()
        step()
        steps += 1
        if share < 1:  # what a neighbour on the same processor took meanwhile counts as a pause
            pause = (used() - before) / share - (time.monotonic() - began)
            left = pause if end is None else end - time.monotonic()
            time.sleep(max(0.0, min(pause, left)))
    return steps


if __name__ == "__main__":
    print(intrude(**json.loads(sys.argv[1])), flush=True)
    os._exit(0)  # a thread waits for the parent's end
