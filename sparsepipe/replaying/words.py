"""The first rows of a table of text, and how many were left out."""

from collections.abc import Sequence

from ..display.plan_text import aligned

MOST_ROWS = 12
IN_PYTHON = "to_json() has all"


def first_rows(head: Sequence[str], rows: Sequence[Sequence[str]], *, all_in: str = IN_PYTHON) -> list[str]:
    """Return the lines of the table's first rows; `all_in` says where those left out are."""
    more = [f"and {len(rows) - MOST_ROWS} more ({all_in})"] if len(rows) > MOST_ROWS else []
    return [*aligned([head, *rows[:MOST_ROWS]]), *more]
