"""`python -m sparsepipe.launching.local`: the local launcher's own process (agent.py), begun and left at once."""

import os
import sys
from contextlib import suppress

from ...util.host.forked import show_command
from ...util.host.imports import python_command
from ..supervisor import ROOM


def main() -> int:
    """Launch the workers of a run and return the launcher's exit code."""
    from .workers import bring_in

    bring_in()
    from .agent import main as launch
    from .template import fork_template

    options = [word for word in sys.argv[1:] if word != ROOM]
    fork_template(launch)
    show_command(python_command("sparsepipe.launching.local", *options))  # without its room for those of what is forked
    return launch(options)


if __name__ == "__main__":
    status = main()
    with suppress(OSError):  # a full disk
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)  # not sys.exit: to take torch's modules down takes a third of a second
