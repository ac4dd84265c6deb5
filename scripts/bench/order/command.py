"""The command: its options, and the document as a table."""

import argparse
from typing import Any

from scripts.bench import order as about
from scripts.bench.document import add_json, keep, tell
from scripts.bench.order import learning, processes, simulated
from scripts.bench.rounds import load

PARTS = ("simulated", "nearness", "emulated", "processes", "learning")


def main() -> int:
    parser = argparse.ArgumentParser(description=about.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser, when=", again after each part")
    parser.add_argument("--what", action="append", choices=PARTS, help="repeatable (default: simulated and nearness)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=1024, help="of an epoch that is simulated (default: 1024)")
    options = parser.parse_args()
    document: dict[str, Any] = {"load": load()}
    lines: list[str] = []
    asked = options.what or PARTS[:2]
    if "simulated" in asked:
        document["simulated"] = simulated.measure(seeds=options.seeds, samples=options.samples)
        lines += simulated.table(document["simulated"])
        document["held_to"] = simulated.held(document["simulated"])
        keep(document, options.json)
    if "nearness" in asked:
        document["nearness"] = simulated.nearness(seeds=options.seeds, samples=options.samples)
        lines += simulated.nearness_table(document["nearness"])
        keep(document, options.json)
    if "emulated" in asked:
        document["emulated"] = processes.emulated(rounds=options.seeds)
        document["emulated_ratios"] = processes.ratios(document["emulated"])
        lines += processes.table(document["emulated"])
        keep(document, options.json)
    if "processes" in asked:
        document["processes"] = processes.measure(rounds=options.seeds)
        document["ratios"] = processes.ratios(document["processes"])
        lines += processes.table(document["processes"])
        keep(document, options.json)
    if "learning" in asked:
        document["learning"] = []
        for row in learning.measure(seeds=range(options.seeds)):
            document["learning"].append(row)
            keep(document, options.json)
        lines += learning.table(document["learning"])
        document["differences"] = learning.differences(document["learning"])
    tell(document, options.json, "\n".join(lines))
    return 0
