"""Names that Python has removed and that a library we run still imports."""

import collections
import collections.abc


def restore_removed_names() -> None:
    """Put back what MinkowskiEngine 0.5.4 imports of `collections`, which Python 3.10 took out."""
    for name in ("Sequence", "Mapping", "Iterable"):
        if not hasattr(collections, name):
            setattr(collections, name, getattr(collections.abc, name))
