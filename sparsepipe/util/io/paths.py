"""Paths as users write them."""

import re
from pathlib import Path


def name_text(name: str) -> str:
    r"""Return a file's name as text for tables and records: a byte that is no UTF-8 is written out, as \xe9."""
    return re.sub("[\ud800-\udfff]", lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", name)


def expanded(path: Path | str) -> Path:
    """Return a path with the home folder for a leading ~, or ~user, as a shell has it.

    One that begins with the name of no user is left as it is: a file may be called ~draft. "./~" is the folder called ~
    here, by its whole path, since a Path forgets the "./".
    """
    if str(path).startswith("./~"):
        return Path(path).absolute()
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user
        return Path(path)
