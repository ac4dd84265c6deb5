"""The verbs about interference, run and measure: what intrudes, where and for how long, and what is measured."""

import argparse
from collections.abc import Callable, Mapping, Sequence

from ..engines import ENGINES
from ..errors import InputError, one_line
from ..monitoring.interference.intruding import KINDS, run_intruders
from ..monitoring.interference.measurements import Measurement
from ..runtime.config import DEVICES
from ..util.host.background_load import RUN_QUEUE_WAIT
from ..util.io.fields import MOST
from ..util.io.files import expanded
from ..util.io.settings import Number
from ..util.text.numbers import number_of
from .options import Parser, count, flags, number, positive, several, whole
from .output import Answer, Progress, cell, progress_line, table

_VICTIMS = ("minkvgg11bn-narrow", "minkresnet14-narrow")
_numbers = several(whole(0, 10**6))  # of processors or GPUs


def _run_options(verb: Parser) -> None:
    verb.add_argument("kind", choices=tuple(KINDS), metavar="KIND", help=f"co-located workload: {', '.join(KINDS)}")
    where = verb.add_mutually_exclusive_group(required=True)
    where.add_argument("--cores", type=_numbers, metavar="K[,K]", help="processors to load, such as 0,1")
    where.add_argument("--gpus", type=_numbers, metavar="K[,K]", help="NVIDIA GPUs to load, by torch index")
    after = number(Number(0, MOST))
    verb.add_argument(
        "--after", type=after, default=0.0, metavar="S", help="delay before the load, in seconds (default: 0)"
    )
    verb.add_argument(
        "--seconds", type=positive, default=60.0, metavar="S", help="duration of the load, in seconds (default: 60)"
    )
    share = "largest share of processor or GPU time, 0 to 1 (default: 1)"
    verb.add_argument("--share", type=positive, default=1.0, metavar="S", help=share)


def _measure_options(verb: Parser) -> None:
    verb.add_argument(
        *flags("--out"),
        type=expanded,
        required=True,
        metavar="ROWS.jsonl",
        help="file of measurements; those of an existing file are kept and completed",
    )
    verb.add_argument(
        "--predictor", type=expanded, metavar="FILE.json", help="file of the predictor, trained on all measurements"
    )
    verb.add_argument(
        "--victim", action="append", metavar="M", help=f"timed network; repeatable (default: {', '.join(_VICTIMS)})"
    )
    verb.add_argument(*flags("--data"), default="digits", metavar="D", help="training data (default: digits)")
    verb.add_argument(
        *flags("--batch-size"),
        type=count,
        action="append",
        metavar="N",
        help="samples per minibatch; repeatable (default: 8 and 32)",
    )
    verb.add_argument(
        *flags("--voxel-size"),
        type=positive,
        default=0.1,
        metavar="S",
        help="voxel edge, as a share of a cloud's longest side (default: 0.1)",
    )
    verb.add_argument(
        "--engine", choices=tuple(ENGINES), default="native", help="sparse-convolution backend (default: native)"
    )
    verb.add_argument(
        "--device", choices=DEVICES, help="measured devices (default: GPUs if torch sees any, else the CPU)"
    )
    verb.add_argument(
        "--intruder",
        action="append",
        choices=tuple(KINDS),
        metavar="KIND",
        help=f"co-located workload: {', '.join(KINDS)}; repeatable (default: all)",
    )
    verb.add_argument(
        "--together",
        type=whole(1, len(KINDS)),
        default=3,
        metavar="N",
        help="most co-located workloads at the same time (default: 3)",
    )
    verb.add_argument(
        "--seconds", type=positive, default=2.0, metavar="S", help="duration of a measurement, in seconds (default: 2)"
    )
    verb.add_argument(
        "--seed", type=whole(0, 2**32 - 1), default=0, metavar="N", help="seed of the measurements (default: 0)"
    )
    verb.set_defaults(victims=_VICTIMS, batch_sizes=(8, 32))


def run(options: argparse.Namespace) -> Answer:
    """Intrude to the end, or as long as who started it is there."""
    where, name = ("gpus", "GPU") if options.gpus else ("cores", "processor")
    numbers = options.gpus or options.cores
    steps = run_intruders(
        options.kind,
        cores=() if options.gpus else options.cores,
        gpus=options.gpus or (),
        after=options.after,
        seconds=options.seconds,
        share=options.share,
        say=progress_line,
    )
    told = ", ".join(f"{number_of(count, 'step')} on {name} {number}" for number, count in steps.items())
    times = {"after": options.after, "seconds": options.seconds, "share": options.share}
    document = {"kind": options.kind, where: list(numbers), **times, "steps": steps}
    return Answer(document, f"{options.kind}: {told}")


def measure(options: argparse.Namespace) -> Answer:
    """Measure what is not in the file yet; with --predictor learn from all of it."""
    from ..monitoring.interference.measuring import machine_name
    from ..monitoring.interference.measuring import measure as measure_all
    from ..monitoring.interference.predictor import learn
    from ..monitoring.interference.victims import CPU, Victim, device_here

    if options.predictor and options.predictor.is_dir():
        raise InputError("predictor.is_folder", f"{options.predictor}: is a folder, expected a file for the predictor")
    victims = [
        Victim(model, options.data, size, options.voxel_size, engine=options.engine)
        for model in options.victim or options.victims
        for size in options.batch_size or options.batch_sizes
    ]
    device = options.device or device_here()
    with Progress() as progress:
        found = measure_all(
            victims,
            options.out,
            device=device,
            kinds=options.intruder or tuple(KINDS),
            together=options.together,
            seconds=options.seconds,
            seed=options.seed,
            say=progress.tell,
        )
    rows = _slowdowns(found)
    document = {"out": str(options.out), "device": device, "measurements": len(found), "slowdowns": rows}
    lines = [
        ["intruders", f"on its {'processor' if device == CPU else 'GPU'}", "on another"],
        *([cell(value) for value in row.values()] for row in rows),
    ]
    text = (
        f"{one_line(options.out)}: {number_of(len(found), 'measurement')}; slowdown of whole steps vs "
        f"alone\n{table(lines)}"
    )
    busy = [one for one in found if not one.intruders and one.metrics.get("waited", 0.0) > RUN_QUEUE_WAIT]
    if busy:
        waited = max(one.metrics["waited"] for one in busy)
        told = (
            f"a network waited for a processor {waited:.0%} of the time without co-located workloads: the machine "
            "was not idle"
        )
        document["warnings"] = [told]
        text += f"\nwarning: {told}; remove the file, and measure again on an idle machine"
    if options.predictor:
        predictor, judged = learn(found, machine=machine_name(device))
        predictor.save(options.predictor)
        document |= {"predictor": str(options.predictor), **predictor.error}
        text += f"\n{one_line(options.predictor)}: {judged}"
    return Answer(document, text)


def _slowdowns(measurements: Sequence[Measurement]) -> list[dict[str, str | float | None]]:
    """Each set of intruders with the mean slow-down over victims, on the victim's processor or GPU and on another."""
    alone = {one.victim: one.step_seconds for one in measurements if not one.intruders}
    found: dict[tuple[str, ...], dict[bool, list[float]]] = {}
    for one in measurements:
        if one.intruders:
            by_place = found.setdefault(one.intruders, {True: [], False: []})
            by_place[one.place == one.intruder_place].append(one.step_seconds / alone[one.victim])
    return [
        {
            "intruders": " + ".join(kinds),
            "same_device": _mean(by_place[True]),
            "other_device": _mean(by_place[False]),
        }
        for kinds, by_place in found.items()
    ]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {
    "interference run": run,
    "interference measure": measure,
}
SUMMARY = "inject contention, and measure its cost"
OPTIONS: Mapping[str, tuple[str, Callable[[Parser], None]]] = {
    "interference run": ("load processors or GPUs on purpose", _run_options),
    "interference measure": ("time networks under contention, learn a predictor", _measure_options),
}
