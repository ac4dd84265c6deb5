"""A line for whoever runs a program or a cell, in its place among the lines of stdout: on stderr, of a cell on
stdout.

A program's stdout is its answer. A notebook shows what comes on stderr in red, as if something were wrong.
"""

import sys


def tell(line: str) -> None:
    """Write a line after all that was written to stdout before it and before all that comes after it.

    A notebook's kernel holds both back for a moment, each by itself: lines came in another order there.
    """
    sys.stdout.flush()
    print(line, file=sys.stdout if _in_a_cell() else sys.stderr, flush=True)


def _in_a_cell() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
