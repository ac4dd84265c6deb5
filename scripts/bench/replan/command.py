"""The command: a table of changes, their medians below it."""

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

from scripts.bench import replan
from scripts.bench.document import add_json, say, tell
from scripts.bench.replan.job import Change, measure, plans, socket_rate
from scripts.bench.rounds import load
from scripts.bench.scratch import scratch
from sparsepipe.data import make_shapes
from sparsepipe.runtime import RunConfig
from sparsepipe.schedule_rules import SCHEDULE_RULES, WEIGHT_RULES

_PARTS = ("drain", "transfer", "reconnect", "fill")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=replan.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="minkvgg16bn")
    parser.add_argument("--schedule", choices=tuple(SCHEDULE_RULES), default="1f1b")
    parser.add_argument("--num-microbatches", type=int, default=4, help="of a step, with a schedule that flushes")
    parser.add_argument("--cuts", type=float, nargs="+", default=[0.4, 0.5], help="shares of the layers to cut at")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--voxel-size", type=float, default=0.05)
    parser.add_argument("--engine", default="native")
    parser.add_argument("--moves", type=int, default=6)
    parser.add_argument("--between", type=int, default=30, help="minibatches from one change to the next")
    add_json(parser)
    options = parser.parse_args(argv)
    by_step = WEIGHT_RULES[SCHEDULE_RULES[options.schedule].weights[0]].updates_by_step
    count = options.num_microbatches if by_step else 1
    found = plans(options.model, options.schedule, count, options.cuts)
    rate = socket_rate()
    with scratch("bench-replan") as folder:
        data = make_shapes(folder / "shapes", num_train=64, num_test=1)
        config = RunConfig(
            options.model,
            str(data),
            engine=options.engine,
            batch_size=options.batch_size,
            voxel_size=options.voxel_size,
            epochs=10_000,
            threads=1,
            checkpoint_every=0,
            validate=False,
        )
        say(f"a job of 2 processes, {options.moves} changes of its plan")
        changes = measure(found, config, folder / "run", moves=options.moves, between=options.between)
    document: dict[str, Any] = {
        "model": options.model,
        "schedule": options.schedule,
        "processes": 2,
        "socket_bytes_per_second": rate,
        "load": load(),
        "changes": [each.as_json(rate) for each in changes],
        "median_pause_seconds": statistics.median(each.pause_seconds for each in changes),
        "worst_pause_seconds": max(each.pause_seconds for each in changes),
        "median_steps": statistics.median(each.steps for each in changes),
        "worst_steps": max(each.steps for each in changes),
    }
    tell(document, options.json, table(changes, document))
    return 0


def table(changes: Sequence[Change], document: dict[str, Any]) -> str:
    """Write a line for each change, milliseconds throughout."""
    rate = document["socket_bytes_per_second"]
    heads = ("minibatch", "MB", "usual", "pause", "steps", *_PARTS, "limit", "prepared")
    lines = ["".join(f"{head:>10}" for head in heads)]
    for each in changes:
        parts = [1e3 * each.parts[name] for name in _PARTS]
        limit = 1e3 * each.as_json(rate)["limit_seconds"]
        times = (*parts, limit, 1e3 * each.prepared_seconds)
        lines.append(
            f"{each.minibatch:10d}{each.moved_bytes / 1e6:10.1f}{1e3 * each.usual_seconds:10.1f}"
            f"{1e3 * each.pause_seconds:10.1f}{each.steps:10.1f}" + "".join(f"{time:10.1f}" for time in times)
        )
    lines.append(
        f"pause: median {1e3 * document['median_pause_seconds']:.0f} ms ({document['median_steps']:.1f} steps), "
        f"worst {1e3 * document['worst_pause_seconds']:.0f} ms ({document['worst_steps']:.1f} steps); "
        f"a socket carries {rate / 1e9:.1f} GB/s; load {document['load']:.1f}"
    )
    return "\n".join(lines)
