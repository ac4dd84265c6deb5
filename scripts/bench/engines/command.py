"""The command: its options, and one case after the other, each in a process of its own."""

import argparse
import json
import os
import platform
from collections.abc import Sequence
from typing import Any

import torch

from sparsepipe.engines import engine
from sparsepipe.errors import InputError
from sparsepipe.profiling import device_name

from ..document import add_json, keep, say, tell
from ..scratch import scratch
from . import __doc__ as about
from . import on_gpu
from .cases import CASES, Case
from .children import run_child
from .part import do_part
from .report import TARGETS, tables
from .rounds import measure_memory

PARTS = ("steps", "convolutions", "memory")
_NUM_QUICK = 5  # of CASES


def _cases(options: argparse.Namespace) -> Sequence[Case]:
    chosen = CASES[:_NUM_QUICK] if options.quick else CASES
    return [case for case in chosen if not options.cases or any(word in case.name for word in options.cases)]


def main() -> None:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_json(parser)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds: a few minutes")
    parser.add_argument("--threads", type=int, nargs="+", default=[2, 1], help="numbers of threads (default: 2 1)")
    parser.add_argument("--rounds", type=int, help="rounds of a case (default: 11, quick: 5)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure (default: all)")
    parser.add_argument("--cases", nargs="+", default=[], metavar="WORD", help="only cases whose name holds a word")
    parser.add_argument(
        "--device",
        default="cpu",
        help="cuda: steps and convolutions on a GPU, against spconv too where it is installed",
    )
    for name in ("child", "engine", "model", "clouds", "scratch"):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    parser.add_argument("--engines", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rounds = options.rounds or (5 if options.quick else 11)
    if options.child:
        print(json.dumps(do_part(options)))
        return
    if options.device != "cpu":
        _measure_on_gpu(options)
        return
    options.engines = _engines()
    document: dict[str, Any] = {
        "device": device_name(torch.device("cpu")),
        "processors": os.cpu_count(),
        "load_average_before": os.getloadavg(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "environment": {name: value for name, value in os.environ.items() if name.startswith(("OMP_", "MKL_", "THP_"))},
        "rounds": options.rounds,
        "targets": TARGETS,
        "threads": {},
        "memory": {},
    }
    with scratch("bench-engines") as folder:
        options.scratch = str(folder)
        if {"steps", "convolutions"} & set(options.parts):
            for count in options.threads:
                part = document["threads"][str(count)] = {"clouds": {}, "steps": {}, "convolutions": {}}
                for case in _cases(options):
                    say(f"bench_engines: {count} threads: {case.name}")
                    for key, found in run_child(options, count, "steps", case).items():
                        part[key] |= found
                    keep(document, options.json)  # what is there, should the rest be cut off
        if "memory" in options.parts:
            for case in _cases(options):
                say(f"bench_engines: memory: {case.name}")
                if found := measure_memory(options, case):
                    document["memory"][case.name] = found
                keep(document, options.json)
    document["load_average_after"] = os.getloadavg()
    tell(document, options.json, tables(document))


def _measure_on_gpu(options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    document: dict[str, Any] = {
        "device": device_name(device),
        "load_average_before": os.getloadavg(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda},
        "rounds": options.rounds,
        "cases": {},
    }
    with scratch("bench-engines") as folder:
        for case in _cases(options):
            say(f"bench_engines: {device}: {case.name}")
            try:
                document["cases"][case.name] = on_gpu.measure(case, folder, options.rounds, device)
            except (InputError, torch.OutOfMemoryError) as error:
                say(f"bench_engines: {case.name}: {error}")
            keep(document, options.json)  # what is there, should the rest be cut off
    document["load_average_after"] = os.getloadavg()
    tell(document, options.json, on_gpu.table(document))


def _engines() -> list[str]:
    try:
        return ["native", engine("minkowski").name]
    except InputError as error:
        say(f"bench_engines: {error}")
        return ["native"]
