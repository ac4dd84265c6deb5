"""Reports from an executed notebook to the process that executes it: rows of JSON in a file."""

import json
import os
from pathlib import Path
from typing import Any

from ..util.io.files import read_rows

REPORT = "SPARSEPIPE_REPORT"  # names the file that a kernel adds its rows to; without it nothing is written


def report(**row: Any) -> None:
    """Add a row: `warning="…"`, `not_drawn="figure", why="…"`, or `run={…}`, a row of metrics of a run it waits for."""
    if path := os.environ.get(REPORT):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def warnings_of(path: Path) -> list[str]:
    """The warnings that a notebook left, each once."""
    return list(dict.fromkeys(str(row["warning"]) for row in _rows(path) if "warning" in row))


def not_drawn(path: Path) -> dict[str, str]:
    """The figures that a notebook could not draw, and why."""
    return {str(row["not_drawn"]): str(row.get("why", "")) for row in _rows(path) if "not_drawn" in row}


def run_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of metrics of the runs that a notebook waited for, in their order."""
    return [row["run"] for row in _rows(path) if isinstance(row.get("run"), dict)]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [row for row in read_rows(path) if isinstance(row, dict)] if path.exists() else []
