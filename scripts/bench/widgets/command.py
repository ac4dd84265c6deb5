"""The command: its options, a browser and JupyterLab for it, the document as a table."""

import argparse
from itertools import product
from typing import Any

from scripts.lab_driver import Lab, chromium

from ..document import add_json, tell
from ..scratch import scratch
from . import __doc__ as about
from .cases import Case, chain, nasnet, notebook
from .parts import NAMES
from .rounds import measure

NETWORKS = ("05_partition", "nasnetalarge", "chain")
SERVERS = {"lab.sh": "as scripts/lab.sh starts it", "plain": "without what lab.sh has it read"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    add_json(parser)
    told = "05_partition: what it opens on; nasnetalarge: its layers; chain: of --layers; default: the first two"
    parser.add_argument("--network", choices=NETWORKS, nargs="+", default=NETWORKS[:2], help=told)
    parser.add_argument("--layers", type=int, default=60, help="of the chain")
    parser.add_argument("--devices", type=int, default=8, help="of nasnetalarge and the chain")
    parser.add_argument("--moves", type=int, default=24, help="key presses on each slider")
    told = "seconds of rest before each press (default: 0); from .3 on the explorer simulates orders meanwhile"
    parser.add_argument("--rest", type=float, default=0.0, metavar="S", help=told)
    told = "JupyterLab " + ", ".join(f"{name}: {how}" for name, how in SERVERS.items()) + "; several in turn"
    parser.add_argument("--server", choices=list(SERVERS), nargs="+", default=["lab.sh"], help=told)
    options = parser.parse_args()
    found = []
    with chromium() as browser:
        for name, server in product(options.network, options.server):
            with scratch("bench-widgets") as folder:
                lab = Lab(folder, plain=server == "plain")
                try:
                    case = case_of(name, options)
                    found.append(measure(browser, lab, case, options) | {"server": server})
                finally:
                    lab.close()
    tell({"cases": found}, options.json, "\n\n".join(map(table, found)))
    return 0


def case_of(name: str, options: argparse.Namespace) -> Case:
    """Return the case of that name."""
    if name == "05_partition":
        return notebook()
    return nasnet(options.devices) if name == "nasnetalarge" else chain(options.layers, options.devices)


def table(found: dict[str, Any]) -> str:
    """Return a line for each slider, and one for each part of a move."""
    aims = "aims: 60 on the default network, 200 on 1,250 layers"
    lines = [f"{found['case']}, JupyterLab {SERVERS[found['server']]}: load {found['load']:.1f}"]
    lines[0] += f"; {found['moves']} moves, median {found['median_ms']}, p95 {found['p95_ms']} ms ({aims})"
    lines[0] += f"; first answer of the page: median {found['first_median_ms']}, p95 {found['first_p95_ms']} ms"
    for name, part in found["sliders"].items():
        lines.append(f"{name:14s} " + "  ".join(f"{key} {value}" for key, value in part.items()))
    lines += [f"{name:14s} {took:7.1f} ms on average: {NAMES[name]}" for name, took in found["mean_ms"].items()]
    told = found["mean_messages"]
    came, went = (
        f"{told[f'{way}messages']} messages of {told[f'{way}bytes'] / 1e3:.1f} kB together" for way in ("", "sent_")
    )
    return "\n".join([*lines, f"{'messages':14s} {came} to the page, {went} from it, a move"])
