"""A line for whoever runs a program or a cell, on stderr, in its place among what stdout was told."""

import sys


def tell(line: str) -> None:
    """Write a line on stderr, after all that was written to stdout before it and before all that comes after it.

    A notebook's kernel holds both back for a moment, each by itself: lines came in another order there.
    """
    sys.stdout.flush()
    print(line, file=sys.stderr, flush=True)
