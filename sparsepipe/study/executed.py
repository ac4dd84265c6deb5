"""An executed notebook as it is kept: its title, result and cells; and what it reports while it is executed."""

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..util.io.files import read_json, read_rows
from ..views.markup import unescaped

_LONGEST = 320  # characters of an answer in one line
_SENTENCE_ENDS = re.compile(r"(?<=[^A-Z\s][.!?])\s+(?=[A-Z0-9\"“(])")


@dataclass(frozen=True)
class Executed:
    """An executed copy: `cells` as nbformat 4 has them."""

    name: str
    cells: tuple[Mapping[str, Any], ...]

    @classmethod
    def read(cls, name: str, path: Path) -> "Executed | None":
        """Read the executed copy of notebook `name`; None if there is none that can be read."""
        try:
            cells = read_json(path, what="notebook").get("cells", [])
        except (InputError, AttributeError):
            return None
        return cls(name, tuple(cell for cell in cells if isinstance(cell, Mapping)))

    @property
    def title(self) -> str:
        """Its first line, which asks the question."""
        return source(self.cells[0]).partition("\n")[0].lstrip("# ").strip() if self.cells else self.name

    @property
    def answer(self) -> str:
        """The Markdown that the cells under its heading "Result" display; nothing if they did not run."""
        heads = [k for k, cell in enumerate(self.cells) if source(cell).rstrip().endswith("## Result")]
        below = self.cells[heads[-1] + 1 :] if heads else ()
        under = takewhile(lambda cell: not source(cell).startswith("## "), below)
        texts = [text for cell in under for output in outputs(cell) if (text := shown(output, "text/markdown"))]
        return "\n\n".join(texts)

    @property
    def sentence(self) -> str:
        """The answer's first sentence as plain text in one line; of a list that follows a colon, its items."""
        return first_sentence(self.answer)


def source(cell: Mapping[str, Any]) -> str:
    """The text of a cell."""
    return text_of(cell.get("source"))


def outputs(cell: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The outputs of a cell."""
    yield from (output for output in cell.get("outputs") or () if isinstance(output, Mapping))


def shown(output: Mapping[str, Any], kind: str) -> str:
    """Content of an output for a MIME type; empty if it has none."""
    data = output.get("data")
    return text_of(data.get(kind)) if isinstance(data, Mapping) else ""


def first_sentence(markdown: str) -> str:
    """Return the first sentence of Markdown as plain text; a paragraph that ends in a colon brings its list along.

    A table is none: what stands below it is looked at.
    """
    blocks = [block for block in re.split(r"\n\s*\n", markdown.strip()) if block and not block.startswith("|")]
    if not blocks:
        return ""
    paragraph = plain(blocks[0])
    sentence = _SENTENCE_ENDS.split(paragraph, maxsplit=1)[0]
    if sentence in ("Yes.", "No."):  # and what follows says why
        sentence = paragraph
    if sentence.endswith(":"):
        is_list = len(blocks) > 1 and re.match(r"\s*[-*] ", blocks[1])
        sentence = f"{sentence} {plain(blocks[1])}" if is_list else f"{sentence[:-1]}."
    return sentence if len(sentence) <= _LONGEST else f"{sentence[: _LONGEST - 1].rstrip()}…"


def plain(markdown: str) -> str:
    """Return a paragraph or a list of Markdown as text in one line: no emphasis, no links, items after semicolons."""
    items = re.sub(r"\n\s*[-*] ", "; ", re.sub(r"^\s*[-*] ", "", markdown.strip()))
    items = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", items)
    bare = re.sub(r"\*\*|(?<!\w)\*(?=\S)|(?<=\S)\*(?!\w)|`", "", items)
    return " ".join(unescaped(bare).split())


def text_of(value: object) -> str:
    """A text as nbformat keeps it: a string, or its lines."""
    return "".join(map(str, value)) if isinstance(value, list) else value if isinstance(value, str) else ""


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
