"""Tables of values in HTML: words begin where their column begins, numbers end where it ends."""

import re
from collections.abc import Iterable, Sequence

from .markup import Html, joined

# JupyterLab's own style puts all cells of a table to the right, so that each cell says where it stands.
_CELL = Html("<{0} style='text-align:{1}'>{2}</{0}>")
_NUMBER = re.compile(r"[<≈-]?[\d.,]+( ?[^\s\d]+)?")  # with one unit at most
_NONE = ("", "–")


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, rest: str = "") -> Html:
    """Return a table: `head` names its columns (empty names: no head), `rest` is a last row for what is left out.

    A column of numbers, each with one unit at most, is set to the right; all others, and the first, to the left.
    """
    rows = [tuple(row) for row in rows]
    columns = enumerate(zip(*rows, strict=True))
    sides = ["right" if k and of_numbers(column) else "left" for k, column in columns] or ["left"] * len(head)
    lines = [_row("th", head, sides)] if any(head) else []
    lines += [_row("td", row, sides) for row in rows]
    lines += [_row("td", [rest], ["left"])] if rest else []
    return Html("<table>{}</table>").format(joined(lines))


def of_numbers(column: Sequence[str]) -> bool:
    """Whether cells are numbers, each with one unit at most ("12 ms", "95.3%"), wherever they tell anything."""
    told = [cell for cell in column if cell not in _NONE]
    return bool(told) and all(map(_NUMBER.fullmatch, told))


def _row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> Html:
    made = (_CELL.format(tag, side, cell) for cell, side in zip(cells, sides, strict=True))
    return Html("<tr>{}</tr>").format(joined(made))
