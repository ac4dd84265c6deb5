"""The command: its options, a browser and JupyterLab for it, the document as a table."""

import argparse
from typing import Any

from scripts.lab_driver import Lab, chromium

from ..document import add_json, tell
from ..scratch import scratch
from . import __doc__ as about
from .rounds import measure


def main() -> int:
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    add_json(parser)
    parser.add_argument("--layers", type=int, default=60)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--moves", type=int, default=24, help="key presses on each slider")
    options = parser.parse_args()
    with scratch("bench-widgets") as folder:
        lab = Lab(folder)
        try:
            with chromium() as browser:
                found = measure(browser, lab, options)
        finally:
            lab.close()
    tell(found, options.json, table(found))
    return 0


def table(found: dict[str, Any]) -> str:
    """Return a line for each slider."""
    aims = "aims: 60 on the default network, 200 on 1,250 layers"
    lines = [f"load {found['load']:.1f}; {found['moves']} moves, p95 {found['p95_ms']} ms ({aims})"]
    for name, part in found["sliders"].items():
        lines.append(f"{name:14s} " + "  ".join(f"{key} {value}" for key, value in part.items()))
    return "\n".join(lines)
