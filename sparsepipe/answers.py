"""What a verb of the command line answers: one document for programs, and the same as text for people."""

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple


class Answer(NamedTuple):
    document: Any  # what --json prints
    text: str  # what people read


def progress_line(line: str) -> None:
    """Tell people something meanwhile: never where the answer goes."""
    print(line, file=sys.stderr, flush=True)


def cell(value: Any) -> str:
    """A value as a table shows it."""
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in columns, the first of them their names."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
