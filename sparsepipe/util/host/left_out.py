"""Libraries that another library would bring if they exist, does without, and that cost more than all the rest."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

ADDRESSES = "rfc3987_syntax"  # jsonschema's check of addresses beyond ASCII: compiles a grammar for over a second
HADOOP = "pyarrow"  # papermill's way to notebooks on a Hadoop file system: a tenth of its import, with numpy


@contextmanager
def left_out(module: str) -> Iterator[None]:
    """Import within as if `module` were not installed, unless it is there by now."""
    if module in sys.modules:
        yield
        return
    sys.modules[module] = None  # type: ignore[assignment]  # makes an import of it an ImportError
    try:
        yield
    finally:
        del sys.modules[module]
