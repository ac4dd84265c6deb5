"""The command: its options, and the document as a table."""

import argparse

from ..document import add_json, keep, tell
from ..rounds import load
from . import __doc__ as about
from . import accuracy, pace

RULES = ["all-reduce", "partial-reduce", "ad-psgd", "wsp", "local-sgd:every=4", "diloco:every=8", "quorum"]


def main() -> int:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser, when=", anew after each part")
    parser.add_argument("--what", action="append", choices=("pace", "accuracy"), help="both unless given")
    parser.add_argument("--rule", action="append", help="all unless given")
    parser.add_argument("--pipelines", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.2, help="that a replayed pipeline takes for a minibatch")
    parser.add_argument("--each", type=int, default=60, help="replayed minibatches a pipeline on average")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", default="digits", help="what is learned (default: handwritten digits)")
    parser.add_argument("--epochs", type=int, default=30, help="at most")
    parser.add_argument("--voxel-size", type=float, default=accuracy.Setting.voxel_size)
    parser.add_argument("--num-points", type=int, default=accuracy.Setting.num_points, help="of a cloud")
    parser.add_argument("--learning-rate", type=float, default=accuracy.RATE, help="all-reduce's (see rate above)")
    parser.add_argument("--learning-rate-schedule", default=accuracy.CONSTANT, help="cosine: all --epochs, to rate 0")
    parser.add_argument("--straggler", action="append", help=f"'' for none; default: none, and {pace.SLOW}")
    options = parser.parse_args()
    rules, specs = options.rule or RULES, ["", pace.SLOW] if options.straggler is None else options.straggler
    found, lines = {"load": load()}, [f"load {load():.1f}"]
    if "pace" in (options.what or ["pace"]):
        setting = pace.Setting(options.pipelines, options.seconds, options.each, options.seeds)
        found["pace"] = pace.measure(setting, rules, specs)
        lines += pace.table(found["pace"])
        keep(found, options.json)
    if "accuracy" in (options.what or ["accuracy"]):
        given = accuracy.Setting(
            options.data,
            options.pipelines,
            options.epochs,
            options.seeds,
            voxel_size=options.voxel_size,
            num_points=options.num_points,
            rate=options.learning_rate,
            schedule=options.learning_rate_schedule,
        )
        found["accuracy"] = accuracy.measure(given, rules, specs)
        lines += accuracy.table(found["accuracy"])
    tell(found, options.json, "\n".join(lines))
    return 0
