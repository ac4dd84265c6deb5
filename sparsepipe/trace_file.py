"""The file of one rank's spans, as it is read back: JSON lines, checked row by row."""

from pathlib import Path

from .errors import DamagedRecord, InputError
from .files import read_numbered_rows
from .trace import Span, span_of


def read_spans(path: Path) -> list[Span]:
    """Return the spans of one rank. Raises DamagedRecord that names file and row where one of them is damaged."""
    try:
        rows = read_numbered_rows(path)
    except InputError as error:
        raise DamagedRecord(str(error)) from None
    spans = []
    for place, row in rows:
        try:
            spans.append(span_of(row))
        except InputError as error:
            raise DamagedRecord(f"{path}:{place}: {error}; take the line out") from None
    return spans
