"""The list of runs as a page shows it: a box to mark each run, headers that sort."""

import json
from pathlib import Path
from typing import Any

import anywidget
import pandas as pd
import traitlets

from ..plots.theme import tied
from . import looks


class RunsList(looks.Shares, anywidget.AnyWidget):
    """`options` are the runs listed, `value` those that are marked; `sort` is the column that a page's click chose."""

    _esm = Path(__file__).with_name("runs_list.js")
    document = traitlets.Unicode('{"columns": [], "numbers": [], "rows": []}').tag(sync=True)  # JSON
    value = traitlets.Tuple(()).tag(sync=True)
    sort = traitlets.Dict({"column": "started", "descending": True}).tag(sync=True)
    options: tuple[str, ...] = ()

    def show(self, table: pd.DataFrame) -> None:
        """List the runs of a table, whose first column is their names; marks of runs that are not there go."""
        rows = [[row[0], *map(_shown, row[1:])] for row in table.itertuples(index=False)]
        numbers = [any(_is_number(cell) for cell in table[column]) for column in table.columns]
        self.document = json.dumps({"columns": list(table.columns), "numbers": numbers, "rows": rows})
        self.options = tuple(table[table.columns[0]])
        self.value = tuple(name for name in self.value if name in self.options)

    @traitlets.validate("value")
    def _listed(self, proposal: dict[str, Any]) -> tuple[str, ...]:
        """Each once; a page may still know of runs that are gone."""
        return tuple(dict.fromkeys(name for name in proposal["value"] if name in self.options))


def _is_number(cell: Any) -> bool:
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _shown(cell: Any) -> str:
    """A number in four digits; of words no line ends between a name and its count, as in "data parallel × 2"."""
    return f"{cell:,.4g}" if isinstance(cell, float) else tied(str(cell))
