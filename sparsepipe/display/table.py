"""Tables of values in HTML: words begin where their column begins, numbers end where it ends.

A name, a time and a number stay in one line, and a sentence goes on in further ones: where the page is too narrow for
that, the table scrolls sideways within itself, by the pointer and by keys.
"""

import re
from collections.abc import Iterable, Sequence

from .markup import Html, joined
from .names import unbroken
from .scrolling import scrolling

# JupyterLab's own style puts all cells of a table to the right, so that each cell says where it stands.
_CELL = Html("<{0} style='text-align:{1}{2}'>{3}</{0}>")
_ONE_LINE, _LINES = Html(";white-space:nowrap"), Html(";min-width:20em")
_SENTENCE = 40  # letters: what is longer and has spaces is none of a name, a time or a plan's shape
_WHOLE = Html("<span style='white-space:nowrap'>{}</span>")
_NUMBER = re.compile(r"[<≈-]?[\d.,]+( ?[^\s\d]+)?")  # with one unit at most
_NONE = ("", "–")
_TABLE = Html("<table>{}</table>")


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
    return scrolling(_TABLE.format(joined(lines)), label="table")


def of_numbers(column: Sequence[str]) -> bool:
    """Whether cells are numbers, each with one unit at most ("12 ms", "95.3%"), wherever they tell anything."""
    told = [cell for cell in column if cell not in _NONE]
    return bool(told) and all(map(_NUMBER.fullmatch, told))


def _row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> Html:
    made = (_CELL.format(tag, side, *_in_lines(tag, cell)) for cell, side in zip(cells, sides, strict=True))
    return Html("<tr>{}</tr>").format(joined(made))


def _in_lines(tag: str, cell: str) -> tuple[Html, Html]:
    """How a cell is broken into lines, and what it says: names with hyphens are in one line in sentences, too."""
    if tag == "th":  # the words of a column's name stand below each other where its values are narrow
        return Html(""), Html.escape(cell)
    text = cell.striptags() if isinstance(cell, Html) else cell
    if len(text) <= _SENTENCE or " " not in text:
        return _ONE_LINE, Html.escape(cell)
    if isinstance(cell, Html):
        return _LINES, cell
    return _LINES, unbroken(cell, _WHOLE)
