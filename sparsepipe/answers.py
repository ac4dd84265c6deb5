"""What a verb of the command line answers: one document for programs, and the same as text for people."""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from .display.markup import one_line


class Answer(NamedTuple):
    document: Any  # what --json prints
    text: str  # what people read


def progress_line(line: str) -> None:
    """Tell people something meanwhile: never where the answer goes."""
    print(one_line(line), file=sys.stderr, flush=True)


def cell(value: Any) -> str:
    """A value as a table shows it, in one line."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else one_line(value)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, the first of them their names. A cell is one line, whatever names are in it."""
    rows = [[one_line(cell) for cell in row] for row in rows]
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
