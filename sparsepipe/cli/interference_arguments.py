"""Options of the verbs about interference: what intrudes, where and for how long, and what is measured."""

import argparse
from collections.abc import Callable, Mapping

from ..dynamics.interference.kinds import KINDS
from ..engines import ENGINES
from ..io.paths import expanded
from ..runtime.config import DEVICES
from .argument_types import count, names, positive, whole

Parser = argparse.ArgumentParser
_VICTIMS = ("minkvgg11bn-narrow", "minkresnet14-narrow")


def numbers(text: str) -> tuple[int, ...]:
    """Read the numbers of processors or GPUs with commas between them."""
    return tuple(whole(0, 10**6)(part) for part in names(text))


def seconds(text: str) -> float:
    """Read seconds, 0 or more."""
    return 0.0 if text.strip() in ("0", "0.0") else positive(text)


def _run(verb: Parser) -> None:
    verb.add_argument("kind", choices=tuple(KINDS), metavar="KIND", help=", ".join(KINDS))
    where = verb.add_mutually_exclusive_group(required=True)
    where.add_argument("--cores", type=numbers, metavar="K[,K]", help="processors to disturb, such as 0,1")
    where.add_argument("--gpus", type=numbers, metavar="K[,K]", help="or NVIDIA GPUs, as torch counts them")
    verb.add_argument("--after", type=seconds, default=0.0, metavar="S", help="seconds to wait first (default: 0)")
    verb.add_argument("--seconds", type=positive, default=60.0, metavar="S", help="how long it computes (default: 60)")
    share = "of the processor's or GPU's time, at most (default: 1, all that it gets)"
    verb.add_argument("--share", type=positive, default=1.0, metavar="S", help=share)


def _measure(verb: Parser) -> None:
    verb.add_argument(
        "--out", type=expanded, required=True, metavar="ROWS.jsonl", help="one that is there is gone on with"
    )
    verb.add_argument(
        "--predictor", type=expanded, metavar="FILE.json", help="learn from all of it, and write that here"
    )
    verb.add_argument(
        "--victim", action="append", metavar="M", help=f"networks that are timed (default: {', '.join(_VICTIMS)})"
    )
    verb.add_argument("--data", default="digits", metavar="D", help="what they train on (default: digits)")
    verb.add_argument("--batch-size", type=count, action="append", metavar="N", help="repeat it (default: 8 and 32)")
    verb.add_argument("--voxel-size", type=positive, default=0.1, metavar="S", help="of a cloud (default: 0.1)")
    verb.add_argument("--engine", choices=tuple(ENGINES), default="native", help="of sparse layers (default: native)")
    verb.add_argument("--device", choices=DEVICES, help="of both (default: GPUs where torch sees any, else the CPU)")
    verb.add_argument(
        "--intruder", action="append", choices=tuple(KINDS), metavar="KIND", help=f"{', '.join(KINDS)} (default: all)"
    )
    verb.add_argument(
        "--together", type=whole(1, len(KINDS)), default=3, metavar="N", help="intruders at once, at most (default: 3)"
    )
    verb.add_argument("--seconds", type=positive, default=2.0, metavar="S", help="of each measurement (default: 2)")
    verb.add_argument("--seed", type=whole(0, 2**32 - 1), default=0, metavar="N", help="of all of it (default: 0)")
    verb.set_defaults(victims=_VICTIMS, batch_sizes=(8, 32))


SUMMARY = "disturb a machine on purpose, and learn what that costs"
OPTIONS: Mapping[str, tuple[str, Callable[[Parser], None]]] = {
    "interference run": ("compute on processors that others use, for demonstrations", _run),
    "interference measure": ("time networks beside intruders, and learn to predict the slow-down", _measure),
}
