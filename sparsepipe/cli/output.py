"""Output of the command line: a verb's answer as JSON and as text, progress on stderr, tables."""

import io
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from ..errors import one_line
from ..util.text.numbers import alike
from ..views import Table, table_text

_EVERY_TERMINAL = 0.1  # seconds between two lines of progress
_EVERY_LOG = 5.0


class Answer(NamedTuple):
    document: Any  # what --json prints
    text: str  # what people read
    fault: str = ""  # what was found to be wrong: a line on stderr, and exit code 2


class OutputLost(Exception):
    """The answer could not be written to standard output: it is closed, or its disk is full."""


def standard_streams() -> bool:
    r"""Make the three standard streams usable whatever the shell gave; return whether standard output was open.

    In the place of a closed one comes /dev/null: else the next file that is opened would get what is printed. Letters
    that the terminal's encoding lacks, or bytes of a file's name that are no letters, are written as \xNN.
    """
    is_open = []
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
            is_open.append(True)
        except OSError:
            is_open.append(False)
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: PTH123, SIM115 - a number, for all the run
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    return is_open[1]


def print_answer(text: str, *, end: str = "\n") -> None:
    """Print the answer; a reader that has closed the pipe, as `head` does, is no error. Raises OutputLost."""
    try:
        print(text, end=end)
        sys.stdout.flush()
    except BrokenPipeError:
        silence()
    except OSError as error:
        silence()
        raise OutputLost(error.strerror or str(error)) from None


def silence() -> None:
    """Redirect stdout to /dev/null, so that Python does not try to flush it, and complain, at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def progress_line(line: str) -> None:
    """Print a line on stderr; errors in doing so are ignored."""
    with suppress(OSError):
        print(one_line(line), file=sys.stderr, flush=True)


def warn(texts: Iterable[str]) -> None:
    """Print a line on stderr for each warning."""
    for text in texts:
        progress_line(f"warning: {text}")


class Progress:
    """Progress on stderr: on a terminal one line that changes, else a line every few seconds.

    As a context manager it erases the line at the end.
    """

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._told = time.monotonic()
        self._width = 0

    def tell(self, line: str) -> None:
        """Show the progress, unless a line was shown a moment ago."""
        now = time.monotonic()
        if now - self._told < (_EVERY_TERMINAL if self._terminal else _EVERY_LOG):
            return
        self._told = now
        line = one_line(line)
        if self._terminal:
            print(f"\r{line.ljust(self._width)}", end="", file=sys.stderr, flush=True)
            self._width = len(line)
        else:
            progress_line(line)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Erase the progress line."""
        if self._width:
            print(f"\r{' ' * self._width}\r", end="", file=sys.stderr, flush=True)
            self._width = 0


def cell(value: Any) -> str:
    """Format a value as a cell of a table, in one line."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else one_line(value)


def column_cells(values: Sequence[Any]) -> list[str]:
    """Format the cells of a column, its fractions with as many decimals each: four digits of the largest."""
    form = alike((value for value in values if isinstance(value, float)), 4)
    return [form(value) if isinstance(value, float) else cell(value) for value in values]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table in aligned columns; the first row holds the column names."""
    return table_text(Table(rows[0], rows[1:]))
