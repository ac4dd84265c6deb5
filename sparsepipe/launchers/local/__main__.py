"""`python -m sparsepipe.launchers.local`: the local launcher's own process (agent.py), begun and left at once."""

import gc
import os
import sys
from contextlib import suppress

from ...host.python_path import python_command
from ..supervisor import ROOM


def main() -> int:
    """Launch the workers of a run and return the launcher's exit code."""
    gc.disable()  # what torch's import makes stays: to search it for garbage takes a fifth of the start
    from .agent import main as launch
    from .template import fork_template
    from .workers import bring_in

    bring_in()
    gc.freeze()  # nor is it written to in the workers, which have the memory in common
    gc.enable()
    options = [word for word in sys.argv[1:] if word != ROOM]
    fork_template(launch, python_command("sparsepipe.launchers.local", *options))
    return launch(options)


if __name__ == "__main__":
    status = main()
    with suppress(OSError):  # a full disk
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # not sys.exit: to take torch's modules down takes a third of a second
