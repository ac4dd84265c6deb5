"""One table, and how it looks as text, HTML and Markdown.

In HTML, words are aligned left in their column, and numbers right. A name, a time and a number stay in one
line, and a sentence continues in further ones: where the page is too narrow for that, the table scrolls sideways within
itself, by the pointer and by keys.

Best are all that are as good (`ties`): a sentence that names one of them would be drawn by lot.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from ..errors import one_line
from ..util.text.numbers import Form, as_given, duration, scaled_bytes
from .markup import Html, joined, markdown_text, unbroken

if TYPE_CHECKING:
    import pandas as pd

Cell = str | float | None
Unit = Literal["s", "B", "share"]  # seconds, bytes, and a part of 1
MOST_ROWS = 12

_FORMS: Mapping[str, Form] = {"s": duration, "B": scaled_bytes, "share": "{:.0%}".format, "": as_given}
# JupyterLab's own style puts all cells of a table to the right, so that each cell says where it stands.
_CELL = Html("<{0} style='text-align:{1}{2}'>{3}</{0}>")
_ONE_LINE, _LINES = Html(";white-space:nowrap"), Html(";min-width:20em")
_SENTENCE = 40  # letters: what is longer and has spaces is none of a name, a time or a plan's shape
_WHOLE = Html("<span style='white-space:nowrap'>{}</span>")
_NUMBER = re.compile(r"[<≈-]?[\d.,]+( ?[^\s\d]+)?")  # with one unit at most
_NONE = "–"
_TABLE = Html("<table>{}</table>")
SIDEWAYS = "overflow-x:auto"
_BOX = Html('<div {}="{}" tabindex="0" role="region" aria-label="{}">{}</div>')


@dataclass(frozen=True)
class Table:
    """Named columns of cells: texts, numbers in their column's unit, and None for what is not known or not done.

        Table(("layer", "forward"), [("conv1", 0.0053)], units={"forward": "s"})

    `marks` are drawn in HTML before the first cell of each row. `more` rows are left out below.
    """

    columns: Sequence[str]  # empty names: no head
    rows: Sequence[Sequence[Cell]]
    units: Mapping[str, Unit] = field(default_factory=dict)  # of columns, by name
    marks: Sequence[Html] = ()
    more: int = 0

    def first(self, most: int = MOST_ROWS) -> "Table":
        """Return the table of the first rows alone."""
        left = max(0, len(self.rows) - most)
        return replace(self, rows=self.rows[:most], marks=self.marks[:most], more=self.more + left) if left else self

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The rows as texts, numbers with their units."""
        units = [self.units.get(name, "") for name in self.columns]
        return [tuple(_cell(cell, unit) for cell, unit in zip(row, units, strict=True)) for row in self.rows]


def _cell(cell: Cell, unit: str) -> str:
    if cell is None:
        return _NONE
    return cell if isinstance(cell, str) else _FORMS[unit](cell)


def table_text(table: Table, *, all_in: str = "") -> str:
    """Return aligned columns, a line for each row; `all_in` says where rows that are left out are."""
    rows = [tuple(map(one_line, row)) for row in [*([table.columns] if any(table.columns) else []), *table.cells]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    more = f"and {table.more} more" + (f" ({all_in})" if all_in else "")
    return "\n".join([*lines, *([more] if table.more else [])])


def table_markdown(table: Table) -> str:
    """Return a table of Markdown that shows names as they are."""
    rows = [map(markdown_text, table.columns), ["---"] * len(table.columns)]
    rows += [map(markdown_text, row) for row in table.cells]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def table_html(table: Table, *, label: str = "table", style: str = SIDEWAYS) -> Html:
    """Return a table of HTML, which whoever cannot see it hears called `label`.

    A column of numbers, each with one unit at most, is set to the right; all others, and the first, to the left.
    """
    rows = table.cells
    columns = enumerate(zip(*rows, strict=True))
    sides = ["right" if k and of_numbers(column) else "left" for k, column in columns] or ["left"] * len(table.columns)
    lines = [_row("th", table.columns, sides)] if any(table.columns) else []
    for k, row in enumerate(rows):
        marked = [joined([table.marks[k], row[0]]), *row[1:]] if table.marks else row
        lines.append(_row("td", marked, sides))
    lines += [_row("td", [f"and {table.more} more"], ["left"])] if table.more else []
    return scrolling(_TABLE.format(joined(lines)), label=label, style=style)


def scrolling(content: Html, *, label: str, style: str = SIDEWAYS, kind: str = "") -> Html:
    """Return content in a box that scrolls within itself, by the pointer and by keys, if it is wider than its space.

    Whoever cannot see it hears it called `label`. `style` has it scroll; on a page with a stylesheet that does so for a
    class, `kind` is that class instead.
    """
    looks = (Html("class"), kind) if kind else (Html("style"), style)
    return _BOX.format(*looks, label, content)


def of_numbers(column: Sequence[str]) -> bool:
    """Return whether cells are numbers, each with one unit at most ("12 ms", "95.3%"), leaving out those that are
    empty.
    """
    filled = [cell for cell in column if cell not in ("", _NONE)]
    return bool(filled) and all(map(_NUMBER.fullmatch, filled))


def _row(tag: str, cells: Sequence[str], sides: Sequence[str]) -> Html:
    made = (_CELL.format(tag, side, *_in_lines(tag, cell)) for cell, side in zip(cells, sides, strict=True))
    return Html("<tr>{}</tr>").format(joined(made))


def _in_lines(tag: str, cell: str) -> tuple[Html, Html]:
    """Return a cell's line breaking and text. Names with hyphens stay on one line in sentences, too."""
    if tag == "th":  # the words of a column's name stand below each other where its values are narrow
        return Html(""), Html.escape(cell)
    text = cell.striptags() if isinstance(cell, Html) else cell
    if len(text) <= _SENTENCE or " " not in text:
        return _ONE_LINE, Html.escape(cell)
    if isinstance(cell, Html):
        return _LINES, cell
    return _LINES, unbroken(cell, _WHOLE)


TIE = 0.02  # of the best: simulations tell paces no finer than that
EXACT = 5e-4  # of the best: less than tables show of numbers that are told exactly


def ties(values: "Mapping[str, float] | pd.Series", *, least: bool = False, within: float = TIE) -> list[str]:
    """Return the names of the largest value, or of the `least`, and of all `within` that share of it, in their order.

    What is no number (NaN) is never best.
    """
    known = {name: value for name, value in values.items() if value == value}
    if not known:
        return []
    best = min(known.values()) if least else max(known.values())
    return [name for name, value in known.items() if abs(value - best) <= within * abs(best)]


def from_to(low: float, high: float, shown: str) -> str:
    """Return "0.3% to 0.5%", or one number if both are written the same; `shown` is their format, as ".1%"."""
    ends = dict.fromkeys((format(low, shown), format(high, shown)))
    return " to ".join(ends)


def in_bold(names: Iterable[str]) -> str:
    """ "**a**, **b** and **c**", as Markdown: names are shown as they are; "nobody" of none."""
    *others, last = [f"**{markdown_text(name)}**" for name in names] or ["nobody"]
    return f"{', '.join(others)} and {last}" if others else last
