"""The command: its options, one workload after the other, or one role of one process."""

import argparse
from typing import Any

from sparsepipe import data

from ..document import add_json, keep, tell
from ..scratch import scratch
from . import __doc__ as about
from .cases import CASES
from .report import table
from .rounds import COMPETITORS, bench, of_the_runtime

RUNTIME = "runtime"  # channel and overhead: no workload's


def main() -> int:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser, when=", anew after each workload")
    parser.add_argument("--workload", action="append", choices=[*CASES, RUNTIME], help="all unless given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--only", action="append", choices=COMPETITORS, help="competitors: all unless given")
    for option in ("--role", "--folder", "--output"):
        parser.add_argument(option, help=argparse.SUPPRESS)
    parser.add_argument("--cut", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--sockets", action="store_true", help=argparse.SUPPRESS)  # of a pipeline, as between hosts
    parser.add_argument("--batch-size", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--microbatches", type=int, default=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        from .roles import work  # here: what a role needs, who starts it need not wait for

        return work(options)
    only = set(options.only or COMPETITORS)
    only |= {"limit"} if "predicted" in only else set()
    document: dict[str, Any] = {}
    with scratch("bench-runtime") as folder:
        data.make_shapes(folder / "shapes", num_train=6, num_test=1)
        for name in options.workload or [*CASES, RUNTIME]:
            if name == RUNTIME:
                document |= of_the_runtime(folder, options.repeats)
            else:
                own = folder / name
                own.mkdir()
                (own / "shapes").symlink_to(folder / "shapes")
                document[name] = bench(name, own, repeats=options.repeats, seconds=options.seconds, only=only)
            keep(document, options.json)
    tell(document, options.json, table(document))
    return 0
