"""What a benchmark says: a table, one JSON document, and meanwhile what it does."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from sparsepipe.util.io.files import write_json

REPOSITORY = Path(__file__).resolve().parents[2]
STDOUT = Path("-")


def add_json(parser: argparse.ArgumentParser, *, when: str = "") -> None:
    """Add `--json [FILE]`."""
    told = f"write one JSON document{when}; without FILE print it instead of the table"
    parser.add_argument("--json", type=Path, nargs="?", const=STDOUT, metavar="FILE", help=told)


def keep(document: Any, path: Path | None) -> None:
    """Write the document to the file that `--json` names, if it names one: all of it or, so far, a part."""
    if path not in (None, STDOUT):
        write_json(path, document)


def tell(document: Any, path: Path | None, table: str) -> None:
    """Write the document, and print the table; with `--json` alone print the document in its place."""
    keep(document, path)
    print(json.dumps(document, indent=2) if path == STDOUT else table)


def say(text: str) -> None:
    """Tell whoever waits, beside the table."""
    print(text, file=sys.stderr, flush=True)
