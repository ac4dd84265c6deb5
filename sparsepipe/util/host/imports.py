"""Imports of libraries: Python's path, names that Python removed, modules to leave out."""

import collections
import collections.abc
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...errors import InputError


def python_command(module: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command that runs `python -m module` without the current folder on its path.

    `options` are more of the interpreter's own, `arguments` the module's. Goes with `python_environment`.
    """
    return [sys.executable, "-P", *options, "-m", module, *arguments]


def this_python() -> str:
    """Return the path of this interpreter, for messages; the commands above and below start it."""
    return sys.executable


def python_on_host(interpreter: str, environment: Iterable[tuple[str, str]]) -> list[str]:
    """Return the first words of a command that starts Python on a host, with nothing of the folder that it starts in.

    `interpreter`: its path there; "" is this one's.
    """
    variables = (f"{key}={value}" for key, value in environment)
    return ["env", "PYTHONSAFEPATH=1", "PYTHONUTF8=1", *variables, interpreter or this_python()]


def python_environment(**more: str) -> dict[str, str]:
    """Return the environment for a child process, which imports this very package and nothing from its current folder.

    Names of files stay what they are whatever the locale: a child takes and writes them as UTF-8.
    """
    own = {"PYTHONPATH": python_path(), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1"}
    return {**os.environ, **own, **more}


def check_current_folder() -> None:
    """Raise InputError if the current folder was removed: torch's libraries abort a process that starts there."""
    try:
        Path.cwd()
    except FileNotFoundError:
        raise InputError(
            "current_folder.removed", "the current folder was deleted; change to an existing folder"
        ) from None


def python_path() -> str:
    """Return a PYTHONPATH with this very package first, then the entries of this process's PYTHONPATH.

    An empty entry, as in `PYTHONPATH=:/my/modules`, would be the current folder: it is left out.
    """
    own = str(Path(__file__).resolve().parents[3])
    return os.pathsep.join([own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])


def restore_removed_names() -> None:
    """Put back what MinkowskiEngine 0.5.4 imports of `collections`, which Python 3.10 took out."""
    for name in ("Sequence", "Mapping", "Iterable"):
        if not hasattr(collections, name):
            setattr(collections, name, getattr(collections.abc, name))


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
