"""`python -m sparsepipe.launchers.local`: the local launcher's own process (agent.py), begun and left at once."""

import gc
import os
import sys
from contextlib import suppress


def main() -> int:
    """Launch the workers of a run and return the launcher's exit code."""
    gc.disable()  # what torch's import makes stays: to search it for garbage takes a fifth of the start
    from .agent import main as launch
    from .workers import bring_in

    bring_in()
    gc.freeze()  # nor is it written to in the workers, which have the memory in common
    gc.enable()
    return launch()


if __name__ == "__main__":
    status = main()
    with suppress(OSError):  # a full disk
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # not sys.exit: to take torch's modules down takes a third of a second
