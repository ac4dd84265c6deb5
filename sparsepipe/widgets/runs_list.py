"""The list of runs as a page shows it: a box to mark each run, headers that sort."""

import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import anywidget
import pandas as pd
import traitlets

from ..display.numbers import Form, alike, as_given, as_measured
from ..display.table import of_numbers
from ..plots.theme import tied
from . import looks
from .runs_rows import PACES, head, meaning

_PARTS = ("columns", "heads", "meanings", "numbers", "rows")  # of the document, which is JSON
_DIGITS = 4  # of the largest number of a column


class RunsList(looks.Control, anywidget.AnyWidget):
    """`options` are the runs listed, `value` those that are marked; `sort` is the column that a page's click chose."""

    _esm = Path(__file__).with_name("runs_list.js")
    document = traitlets.Unicode(json.dumps(dict.fromkeys(_PARTS, []))).tag(sync=True)
    value = traitlets.Tuple(()).tag(sync=True)
    sort = traitlets.Dict({"column": "started", "descending": True}).tag(sync=True)
    options: tuple[str, ...] = ()

    def show(self, table: pd.DataFrame, *, settings: Collection[str] = ()) -> None:
        """List the runs of a table, whose first column is their names; marks of runs that are not there go.

        Numbers of `settings` are written as they were given, paces with three digits, those of another column with as
        many decimals each.
        """
        columns = {name: list(table[name]) for name in table.columns}
        self.options = tuple(next(iter(columns.values())))
        told = [*columns.items()][1:]
        forms = [as_given if name in settings else as_measured if name in PACES else None for name, _ in told]
        cells = [_shown(own, form) for (_, own), form in zip(told, forms, strict=True)]
        rows = [list(row) for row in zip(self.options, *cells, strict=True)]
        numbers = [any(map(_is_number, own)) or of_numbers(cells[k]) for k, (_, own) in enumerate(told)]
        names = {"columns": list(columns), "heads": [*map(head, columns)], "meanings": [*map(meaning, columns)]}
        self.document = json.dumps({**names, "numbers": [False, *numbers], "rows": rows})
        self.value = tuple(name for name in self.value if name in self.options)

    @traitlets.validate("value")
    def _listed(self, proposal: dict[str, Any]) -> tuple[str, ...]:
        """Each once; a page may still know of runs that are gone."""
        return tuple(dict.fromkeys(name for name in proposal["value"] if name in self.options))


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _shown(cells: Sequence[Any], form: Form | None) -> list[str]:
    """A column as text: four digits of its largest number; of words no line ends between a name and its count."""
    fractions = [cell for cell in cells if isinstance(cell, float)]
    form = form or alike(fractions, _DIGITS)
    return [form(cell) if _is_number(cell) and fractions else tied(str(cell)) for cell in cells]
