"""The command: its options, the measurements, the document as a table."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..document import add_json, tell
from . import __doc__ as about
from .cases import reference
from .published_gaps import published_gaps, summary
from .rounds import bounds, growth, planning, simulation


def main() -> None:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--largest",
        action="store_true",
        help="also plan for 512 devices, and simulate 1,024 devices × 10,000 minibatches (minutes)",
    )
    parser.add_argument(
        "--published",
        type=Path,
        metavar="FILE",
        help="instead tell the gaps of published profiles, a line of FILE each; what FILE has is not planned again",
    )
    parser.add_argument("--only", default="", metavar="GROUP", help="of them, the groups that begin so")
    options = parser.parse_args()
    if options.published:
        folder = reference()
        if folder is None:
            parser.error("no published profiles: SPARSEPIPE_REFERENCE names their folder")
        print(summary(published_gaps(folder, options.published, options.only)))
        return
    document = {
        "planning": planning(reference(), options.repeats),
        "growth": growth(options.repeats, options.largest),
        "gaps": bounds(options.largest),
        "simulation": simulation(options.repeats, options.largest),
    }
    tell(document, options.json, table(document))


def table(document: Mapping[str, Any]) -> str:
    """Return a block of lines for each part of the document."""
    lines = []
    for part, rows in document.items():
        lines.append(f"\n{part}")
        for name, row in rows.items():
            cells = ", ".join(f"{key}: {_cell(value)}" for key, value in row.items())
            lines.append(f"  {name:60} {cells}")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_cell(inner)}" for key, inner in value.items()) + ")"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
