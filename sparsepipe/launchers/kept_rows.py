"""Rows of metrics in bounded memory: of a long run a selection that spans all of it."""

from collections.abc import Iterable
from typing import Any

MOST = 20_000  # rows, of some 1.3 KB each


class KeptRows:
    """The newest rows and, of older ones, evenly fewer: never more than `most`.

    When there are more, every other one of the older half is let go. The first of each event stays, as "start" says
    what the run is. The file has all of them.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._rows: list[dict[str, Any]] = []

    def add(self, rows: Iterable[dict[str, Any]]) -> None:
        for row in rows:
            self._rows.append(row)
            if len(self._rows) > self._most:
                self._thin()

    def all(self) -> tuple[dict[str, Any], ...]:
        return tuple(self._rows)

    def last(self, event: str) -> dict[str, Any] | None:
        return next((row for row in reversed(self._rows) if row["event"] == event), None)

    def _thin(self) -> None:
        half = len(self._rows) // 2
        older, known = [], set()
        for place, row in enumerate(self._rows[:half]):
            if row["event"] not in known or place % 2:
                older.append(row)
            known.add(row["event"])
        self._rows[:half] = older
