"""Paths as users write them."""

from pathlib import Path


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
