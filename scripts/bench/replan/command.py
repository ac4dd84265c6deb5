"""The command: a table of changes with their medians, one of variants, and one of alarms."""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scripts.bench import replan
from scripts.bench.document import add_json, keep, say, tell
from scripts.bench.replan import alarms, replayed, variants
from scripts.bench.replan.job import Change, measure, plans, socket_rate
from scripts.bench.rounds import load
from scripts.bench.scratch import scratch
from sparsepipe.data import make_shapes
from sparsepipe.errors import InputError
from sparsepipe.monitoring.interference import KINDS
from sparsepipe.runtime import RunConfig
from sparsepipe.study.contention import Contention
from sparsepipe.values.schedule_rules import SCHEDULE_RULES, WEIGHT_RULES

_PARTS = ("drain", "transfer", "reconnect", "fill")
_VISITS = ((0.25, 0.75),)  # half of the run
_REPLAYED, _REPLAYED_ROUNDS = 600, 3  # minibatches at most; each way takes some 20 s


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=replan.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("pause", "variants", "replayed", "all", "alarms"), default="all")
    pause = parser.add_argument_group("pause")
    pause.add_argument("--model", default="minkvgg16bn")
    pause.add_argument("--schedule", choices=tuple(SCHEDULE_RULES), default="1f1b")
    pause.add_argument("--num-microbatches", type=int, default=4, help="of a step, with a schedule that flushes")
    pause.add_argument("--cuts", type=float, nargs="+", default=[0.4, 0.5], help="shares of the layers to cut at")
    pause.add_argument("--batch-size", type=int, default=8)
    pause.add_argument("--voxel-size", type=float, default=0.05)
    pause.add_argument("--engine", default="native")
    pause.add_argument("--moves", type=int, default=6)
    pause.add_argument("--between", type=int, default=30, help="minibatches from one change to the next")
    ways = parser.add_argument_group("variants, and alarms")
    ways.add_argument("--small-model", default="minkvgg11bn-narrow")
    ways.add_argument("--data", default="digits")
    ways.add_argument("--minibatches", type=int, help="of a run (default: 600; of that watched for alarms 10,000)")
    ways.add_argument("--intruder", choices=tuple(KINDS), default="matrix-products")
    ways.add_argument("--ways", nargs="+", choices=variants.NAMES, default=variants.NAMES, help="never and live always")
    ways.add_argument("--rounds", type=int, default=4, help="at most (default: 4)")
    ways.add_argument(
        "--seconds",
        type=float,
        help="no round begins that would end after so many (default: 720); of training that is watched (default: 190)",
    )
    add_json(parser)
    options = parser.parse_args(argv)
    began, tables, code = time.monotonic(), [], 0
    document: dict[str, Any] = {"load": load()}
    with scratch("bench-replan") as folder:
        if options.what in ("pause", "all"):
            changes, told = pauses(options, folder)
            document |= told
            tables.append(table(changes, document))
            keep(document, options.json)
        count = options.minibatches or _REPLAYED
        try:
            if options.what in ("replayed", "all"):
                document["replayed"] = replayed.ways_replayed(
                    folder, minibatches=min(count, _REPLAYED), rounds=_REPLAYED_ROUNDS
                )
                tables.append(replayed.table(document["replayed"]))
                keep(document, options.json)
            if options.what in ("variants", "all"):
                document |= ways_to_answer(options, folder, deadline=began + (options.seconds or 720.0))
                tables.append(variants.table(document))
            if options.what == "alarms":
                document |= false_alarms(options, folder)
                tables.append(alarms.table(document))
        except InputError as error:  # what was measured before is told all the same
            say(f"bench_replan: {error}")
            code = 2
    document["seconds"] = time.monotonic() - began
    tables.append(f"{document['seconds']:.0f} s in all; load {document['load']:.1f} when it began")
    tell(document, options.json, "\n\n".join(tables))
    return code


def pauses(options: argparse.Namespace, folder: Path) -> tuple[list[Change], dict[str, Any]]:
    """What each change costs."""
    by_step = WEIGHT_RULES[SCHEDULE_RULES[options.schedule].weights[0]].updates_by_step
    count = options.num_microbatches if by_step else 1
    found = plans(options.model, options.schedule, count, options.cuts)
    rate = socket_rate()
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
    return changes, {
        "model": options.model,
        "schedule": options.schedule,
        "processes": 2,
        "socket_bytes_per_second": rate,
        "changes": [each.as_json(rate) for each in changes],
        "median_pause_seconds": statistics.median(each.pause_seconds for each in changes),
        "worst_pause_seconds": max(each.pause_seconds for each in changes),
        "median_steps": statistics.median(each.steps for each in changes),
        "worst_steps": max(each.steps for each in changes),
    }


def ways_to_answer(options: argparse.Namespace, folder: Path, *, deadline: float) -> dict[str, Any]:
    """What each variant gives."""
    config = _small(options, minibatches=600, batch_size=32)
    intrusion = Contention(options.intruder, _VISITS)
    given = {"names": options.ways, "rounds": options.rounds, "deadline": deadline}
    found = variants.variants_of(config, intrusion, folder, **given)
    return {"small_model": options.small_model, "minibatches": config.minibatches, **found.as_json()}


def false_alarms(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """What a watch finds where nobody intrudes."""
    config = _small(options, minibatches=10_000, batch_size=16)
    found = alarms.alarms_of(config, folder, seconds=options.seconds or 190.0)
    return {"small_model": options.small_model, "batch_size": config.batch_size, **found.as_json()}


def _small(options: argparse.Namespace, *, minibatches: int, batch_size: int) -> RunConfig:
    config = RunConfig(options.small_model, options.data, engine=options.engine, batch_size=batch_size, voxel_size=0.1)
    count = minibatches if options.minibatches is None else options.minibatches
    return config.replace(minibatches=count, threads=1, checkpoint_every=0, validate=False)


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
        f"a socket carries {rate / 1e9:.1f} GB/s"
    )
    return "\n".join(lines)
