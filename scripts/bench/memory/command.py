"""The command: a row for each way of training each case."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scripts.bench import memory
from scripts.bench.document import REPOSITORY, add_json, keep, say, tell
from scripts.bench.memory.training import Case, profiled
from scripts.bench.scratch import scratch
from sparsepipe.data import make_shapes

WAYS = ("unlimited", "unprotected", "limit", "always", "controller")
CASES = ("minkunet14a-narrow", "minkunet14a", "pictures")
HELD_TO = "held to: no minibatch fails, weights to the bit as without a limit, at most 1.15 × the unlimited time"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=memory.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of {', '.join(CASES)}; left out: all")
    parser.add_argument("--minibatches", type=int, default=500, help="of each way (default: 500)")
    parser.add_argument("--limit", type=float, default=0.8, help="as a share of the largest one's need (default: 0.8)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--seed", type=int, default=0)
    add_json(parser)
    options = parser.parse_args(argv)
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"there is no case {min(unknown)!r}, expected {', '.join(CASES)}")
    rows: list[dict[str, Any]] = []
    with scratch("bench-memory") as folder:
        for name in options.cases or CASES:
            case = _case(name, folder)
            path = folder / f"{name}.json"
            profiled(case, path)
            for way in options.ways:
                asked = {"case": asdict(case), "way": way, "profile": str(path), "count": options.minibatches}
                rows.append({**_trained({**asked, "seed": options.seed, "share": options.limit}), "case": name})
                say(_line(rows[-1], rows))
                keep({"rows": rows, "held_to": HELD_TO}, options.json)
    tell({"rows": rows, "held_to": HELD_TO}, options.json, "\n".join([*(_line(row, rows) for row in rows), HELD_TO]))
    return 0


def _case(name: str, folder: Path) -> Case:
    if name == "pictures":
        here = Path(__file__).with_name("training.py")
        return Case(f"{here}:deep", f"{here}:wide_pictures", 1)
    shapes = folder / "shapes"
    return Case(name, str(shapes if shapes.exists() else make_shapes(shapes, num_train=8, num_test=1)), 20)


def _trained(asked: dict[str, Any]) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "scripts.bench.memory.training", json.dumps(asked)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment, cwd=REPOSITORY)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _line(row: dict[str, Any], rows: Sequence[dict[str, Any]]) -> str:
    alone = next((one for one in rows if one["case"] == row["case"] and one["way"] == "unlimited"), None)
    times = f"{row['seconds'] / alone['seconds']:.3f} × unlimited" if alone else ""
    bits = "same bits" if alone and row["weights"] == alone["weights"] else "other weights"
    limited = f"limit {row['limit_bytes'] / 1e6:.0f} of {row['whole_bytes'] / 1e6:.0f} MB"
    return (
        f"{row['case']:<20} {row['way']:<11} {row['minibatches']} minibatches of {row['sizes'][0]:,} to "
        f"{row['sizes'][1]:,}, {limited}: {len(row['failed'])} failed, {times}, peak {row['peak_bytes'] / 1e6:.0f} MB, "
        f"{bits}"
    )
