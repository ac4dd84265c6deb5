"""Make a data set of the files that a manifest fetches, if they are not one as they are: a file for each way."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from ...errors import InputError

Preparer = Callable[[Path, Path], None]  # (folder of the files fetched, the empty folder that becomes the data set)

_HOMES = {
    "digits-table": ("digits_table", "digits_from_table"),
    "help-paragraphs": ("help_paragraphs", "help_texts"),
    "wiki-pages": ("wiki_pages", "wiki_pages"),
}


def preparer(name: str) -> Preparer:
    """Return the way that a manifest names. Raises InputError that lists the names there are."""
    if name not in _HOMES:
        raise InputError(
            "preparing.unknown", f"unknown preparation {name!r} of a data set, expected one of {', '.join(_HOMES)}"
        )
    home, function = _HOMES[name]
    found: Preparer = getattr(import_module(f".{home}", __name__), function)
    return found
