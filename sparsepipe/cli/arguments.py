"""The words of the `sparsepipe` command: its verbs and their options, checked as they are read."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .. import __version__
from ..errors import InputError
from ..fields import MOST_LIKE_DEVICES, MOST_MINIBATCHES, shown
from ..quantities import BANDWIDTH, SIZE, Quantity
from ..schedule_rules import WEIGHT_POLICIES

# As the library has them; it would bring torch, which planning does without. Tests hold them together.
OPTIMIZERS = ("sgd", "adam", "adamw", "lamb")
PRECISIONS = ("float32", "bfloat16", "float16")
COMPRESSIONS = ("none", "zeros", "lossless", "bfloat16", "float16", "int8")
BALANCES = ("voxels", "classes")
LAST_MINIBATCH = ("keep", "merge", "drop")
LEARNING_RATE_SCHEDULES = ("constant", "step", "exponential", "polynomial", "cosine")
TASKS = ("classification", "segmentation")
PLANNERS = ("optimal", "pipedream", "sparsepipe", "data-parallel", "model-parallel")
_MANY = 10**15  # of what is only counted; the library says what of it makes sense
_PORT = (
    "meet on this loopback port instead of through a file; what listens there asks for no secret: any user of this "
    "machine can reach it while the run is at work, so leave it out where others have accounts"
)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line instead of argparse's usage block; exit code 2 all the same."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    top = _Parser(prog="sparsepipe", description="Plan, simulate and run pipeline-parallel training.")
    top.add_argument("--version", action="version", version=f"sparsepipe {__version__}")
    verbs = top.add_subparsers(required=True, metavar="VERB", parser_class=_Parser)
    data = verbs.add_parser("data", help="list, fetch, make, inspect and check data sets")
    data_verbs = data.add_subparsers(required=True, metavar="VERB", parser_class=_Parser)
    _verb(data_verbs, "data list", "data sets with a manifest")
    one = _verb(data_verbs, "data fetch", "download a data set, verified by SHA-256")
    one.add_argument("name", metavar="NAME")
    one.add_argument("--out", type=Path, metavar="DIR", help="where to put its folder")
    one = _verb(data_verbs, "data make", "write seeded CAD-like shapes as OFF meshes in ModelNet layout")
    one.add_argument("what", choices=["shapes"])
    one.add_argument("--out", type=Path, required=True, metavar="DIR")
    one.add_argument("--train", type=_count, default=32, help="training shapes of each family (default: 32)")
    one.add_argument("--test", type=_count, default=8, help="test shapes of each family (default: 8)")
    one.add_argument("--seed", type=_whole(0, 2**64), default=0)
    one = _verb(data_verbs, "data info", "what a folder holds: classes, splits, counts, formats")
    one.add_argument("path", metavar="PATH", help="folder in ModelNet layout, or a manifest's name")

    one = _verb(data_verbs, "data check", "read every file of a data set once and list what would stop a run")
    one.add_argument("path", metavar="PATH", help="folder of a data set, or a manifest's name")
    one.add_argument(
        "--voxel-size", type=_positive, default=0.05, metavar="S", help="edge of the voxels counted (default: 0.05)"
    )
    one.add_argument("--num-points", type=_count, metavar="N", help="points sampled from each mesh (default: 1024)")
    one.add_argument("--task", choices=TASKS, help="what would be learned (default: all that can be)")
    one.add_argument("--features", type=_names, metavar="F,…", help="of each voxel, as in `run` (default: occupancy)")

    one = _verb(verbs, "profile", "measure every layer of a model")
    _model_options(one)
    one.add_argument("--device-type", default=None, metavar="NAME", help="name of the device type measured")
    one.add_argument(
        "--repeats",
        type=_whole(1, 1000),
        help="timed passes (default: 5; up to 30 of short steps, or until the layers add up to a step)",
    )
    one.add_argument(
        "--beside", type=_count, metavar="N", help="with N processes at the same work, as other workers will be"
    )
    one.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="profile JSON (.json), or a graph.txt under another name",
    )

    one = _verb(verbs, "plan", "choose stages, replicas and schedule")
    _machine_options(one)
    one.add_argument("--planner", action="append", choices=PLANNERS, help="repeat it to compare (default: optimal)")
    one.add_argument("--schedule", choices=tuple(WEIGHT_POLICIES), default="1f1b")
    one.add_argument(
        "--num-microbatches", type=_whole(1, 4 * MOST_LIKE_DEVICES), help="minibatches of one step of a flush schedule"
    )
    one.add_argument("--recompute", action="store_true", help="run forwards again before backwards, to save memory")
    one.add_argument("--rescore", type=_count, metavar="K", help="optimal: simulate the K best plans, take the fastest")
    one.add_argument("--cost-model", choices=["default", "published"], default="default")
    one.add_argument("--all-devices", action="store_true", help="leave no device unused")
    one.add_argument("--activation-compression-ratio", type=_positive, metavar="R")
    one.add_argument(
        "--stages-per-device", type=_count, metavar="V", help="model-parallel: interleave V stages on each device"
    )
    one.add_argument("--straight-pipeline", action="store_true", help="no replication")
    one.add_argument(
        "--use-memory-constraint", action="store_true", help="the published planners: each device's memory is a limit"
    )
    one.add_argument(
        "--factor", type=float, choices=[2.0, 4.0], help="pipedream: of gradient averaging, 2 in SparsePipe's copy"
    )
    one.add_argument("--use-fewer-machines", action="store_true", help="pipedream: machines may stay unused")
    one.add_argument("--out", type=Path, metavar="PLAN.json", help="where to write the (first) plan")

    one = _verb(verbs, "simulate", "predict the timeline of a plan")
    one.add_argument("plan", type=Path, metavar="PLAN")
    _machine_options(one)
    one.add_argument("--minibatches", type=_whole(1, MOST_MINIBATCHES), default=32)
    one.add_argument("--trace", type=Path, metavar="FILE.json", help="write a Chrome/Perfetto trace")

    one = _verb(verbs, "run", "train with a plan")
    one.add_argument(
        "plan",
        type=Path,
        nargs="?",
        metavar="PLAN",
        help="a plan, or a hybrid_conf.json with its gpus=N.txt beside it or a module for each layer of the model",
    )
    _model_options(one)
    one.add_argument("--launcher", choices=["local", "ray"], default="local")
    one.add_argument("--epochs", type=_count)
    one.add_argument("--minibatches", type=_count, help="stop after this many minibatches")
    one.add_argument("--learning-rate", type=_positive)
    one.add_argument("--momentum", type=float)
    one.add_argument("--weight-decay", type=float)
    one.add_argument("--no-validation", dest="validate", action="store_false", default=None)
    one.add_argument("--optimizer", choices=OPTIMIZERS)
    one.add_argument("--learning-rate-schedule", choices=LEARNING_RATE_SCHEDULES)
    one.add_argument("--warmup-minibatches", type=_whole(0), metavar="N", help="of the learning rate, linear")
    one.add_argument("--learning-rate-decay", type=float, metavar="F", help="factor of step and exponential, power")
    one.add_argument("--decay-epochs", type=_positive, metavar="N", help="from one such factor to the next")
    one.add_argument("--clip-norm", type=_positive, metavar="NORM", help="of all gradients; schedules that flush")
    one.add_argument(
        "--synchronised-batch-norm",
        action="store_true",
        default=None,
        help="replicas of a stage share the statistics of a round",
    )
    one.add_argument("--precision", choices=PRECISIONS)
    one.add_argument("--loss-scale", type=_positive, metavar="S", help="of float16: the first (default: 65536)")
    one.add_argument(
        "--compression",
        choices=COMPRESSIONS,
        help="of what crosses boundaries; zeros, lossless: exact (default: lossless through sockets)",
    )
    one.add_argument(
        "--no-shared-memory",
        action="store_false",
        dest="shared_memory",
        default=None,
        help="send payloads through sockets on one host too",
    )
    one.add_argument("--task", choices=TASKS, help="default: what the model's name and the data say")
    one.add_argument("--augmentation", metavar="NAME", help="of the training split")
    one.add_argument(
        "--last-minibatch",
        choices=LAST_MINIBATCH,
        help="of an epoch, with fewer samples than the others: keep it; merge it into the one before where it is a "
        "single sample, on which batch norm may fail; or drop it (default: merge)",
    )
    one.add_argument("--balance", choices=BALANCES, help="minibatches alike in voxels, or in how often classes come")
    one.add_argument("--features", type=_names, metavar="NAME[,NAME]", help="of each voxel (default: occupancy)")
    one.add_argument(
        "--cache", metavar="DIR", help="where prepared samples are kept (default: the user's cache; off: nowhere)"
    )
    one.add_argument("--validation-split", metavar="NAME", help="default: test")
    one.add_argument("--timeout-seconds", type=_positive, metavar="S", help="longest wait for another rank")
    one.add_argument("--keep-checkpoints", type=_count, metavar="N", help="the newest so many (default: 2)")
    one.add_argument("--checkpoint-every", type=_whole(0), metavar="EPOCHS", help="0: no checkpoints (default: 1)")
    one.add_argument(
        "--asynchronous-checkpoints", action="store_true", default=None, help="write them beside the next epoch"
    )
    one.add_argument("--max-restarts", type=_whole(0), metavar="N", help="from the last checkpoint, when a worker dies")
    one.add_argument("--port", type=int, help=_PORT)
    one.add_argument("--detach", action="store_true", help="return at once; the run outlives this terminal")
    one.add_argument("--run-dir", type=Path, metavar="DIR", help="where the record goes (default: a new one in runs/)")
    one.add_argument("--resume", type=Path, metavar="DIR", help="go on from the last checkpoint of this run")

    one = _verb(verbs, "replay", "sleep through a plan with the real runtime, on a cluster that need not be here")
    one.add_argument("plan", type=Path, metavar="PLAN")
    _machine_options(one)
    one.add_argument("--minibatches", type=_whole(1, MOST_MINIBATCHES), default=32)
    one.add_argument("--timeout-seconds", type=_positive, metavar="S", help="longest wait for another rank")
    one.add_argument("--run-dir", type=Path, metavar="DIR", help="where the record goes (default: a new one in runs/)")

    runs = verbs.add_parser("runs", help="list, show, compare, follow and end runs")
    runs_verbs = runs.add_subparsers(required=True, metavar="VERB", parser_class=_Parser)
    one = _verb(runs_verbs, "runs list", "the runs in a folder")
    one.add_argument("--folder", type=Path, default=Path("runs"), metavar="DIR")
    one = _verb(runs_verbs, "runs show", "one run")
    one.add_argument("run", type=Path, metavar="DIR")
    one = _verb(runs_verbs, "runs compare", "runs side by side")
    one.add_argument("runs", type=Path, nargs="+", metavar="DIR")

    one = _verb(runs_verbs, "runs attach", "follow a run of this machine to its end")
    one.add_argument("run", type=Path, metavar="RUN", help="its folder, or its name in runs/")
    one = _verb(runs_verbs, "runs cancel", "end a run of this machine")
    one.add_argument("run", type=Path, metavar="RUN", help="its folder, or its name in runs/")
    one = _verb(runs_verbs, "runs export", "write the trace of a run for Perfetto and Chrome")
    one.add_argument("run", type=Path, metavar="RUN", help="its folder, or its name in runs/")
    one.add_argument("--chrome", "--perfetto", type=Path, required=True, metavar="FILE.json")

    one = _verb(verbs, "export", "write a plan as PipeDream's files and as readable stage modules")
    one.add_argument("plan", type=Path, metavar="PLAN")
    one.add_argument("--profile", metavar="FILE", help="profile of the model: adds gpus=N.txt")
    one.add_argument("--model", metavar="M", help="adds the stages as Python modules")
    one.add_argument("--classes", type=_count, default=10, metavar="N", help="of that model (default: 10)")
    one.add_argument("--out", type=Path, required=True, metavar="DIR")

    one = _verb(verbs, "reproduce", "run the notebooks and export their figures")
    one.add_argument("figures", nargs="*", metavar="FIGURE", help="notebooks or figures by name (default: all)")
    one.add_argument("--jobs", type=_count, default=1, metavar="N")
    one.add_argument("--data", default=None, metavar="D", help="folder in ModelNet layout (default: synthetic shapes)")
    one.add_argument("--out", type=Path, default=Path("figures"), metavar="DIR")
    one.add_argument(
        "--only-changed", action="store_true", help="skip notebooks whose text, code and inputs are as before"
    )
    one.add_argument("--no-pictures", action="store_true", help="tables and their provenance alone: no browser needed")
    return top


def _verb(verbs: Any, name: str, summary: str) -> argparse.ArgumentParser:
    one = verbs.add_parser(name.split()[-1], help=summary, description=f"{summary[0].upper()}{summary[1:]}.")
    one.set_defaults(verb=name)
    one.add_argument("--json", action="store_true", help="print one JSON document and nothing else")
    return one


def _model_options(one: argparse.ArgumentParser) -> None:
    """What `profile` requires and `run` may take from the run it resumes: no defaults here, the library has them."""
    one.add_argument("--model", metavar="M", help="minkvgg16bn, minkvgg11bn-narrow, …")
    one.add_argument("--data", metavar="D", help="folder in ModelNet layout, or a manifest's name")
    one.add_argument(
        "--voxel-size", type=_positive, metavar="S", help="edge of a voxel; clouds are scaled to a unit cube"
    )
    one.add_argument("--batch-size", type=_count, metavar="N", help="samples of a minibatch")
    one.add_argument("--num-points", type=_count, metavar="N", help="points sampled from each mesh (default: 1024)")
    one.add_argument("--engine", choices=["auto", "native", "minkowski"], help="default: minkowski where it imports")
    one.add_argument("--device", choices=["cpu", "cuda"])
    one.add_argument("--threads", type=_count, metavar="N", help="cores of one device (profile: 1; run: shared evenly)")
    one.add_argument("--seed", type=_whole(0, 2**64))


def _machine_options(one: argparse.ArgumentParser) -> None:
    one.add_argument(
        "--profile", action="append", metavar="[TYPE=]FILE", help="profile JSON or graph.txt, one a device type"
    )
    one.add_argument("--cluster", type=Path, metavar="FILE.toml")
    one.add_argument("--server-file", type=Path, metavar="FILE", help="SparsePipe's list of servers and profiles")
    one.add_argument(
        "--devices",
        type=_whole(-_MANY, MOST_LIKE_DEVICES),
        action="append",
        metavar="N",
        help="like devices; twice: devices a node, nodes",
    )
    one.add_argument(
        "--bandwidth", type=_quantity(BANDWIDTH), action="append", metavar="B", help="such as 10GB/s, one a level"
    )
    one.add_argument("--memory", type=_quantity(SIZE), metavar="BYTES", help="memory of each device, such as 24GB")


def _whole(least: int, most: int = _MANY) -> Callable[[str], int]:
    """Return what reads a whole number from `least` to `most`, written 1000000 or 1e6."""

    def read(text: str) -> int:
        try:
            value = int(text) if len(text) < 100 else None
        except ValueError:
            value = _of_float(text)
        if value is None:
            raise argparse.ArgumentTypeError(f"{shown(text)} is not a whole number")
        if value < least:
            raise argparse.ArgumentTypeError(f"{value}: expected {least} or more")
        if value > most:
            raise argparse.ArgumentTypeError(f"{shown(value)}: expected {most} at most")
        return value

    return read


def _of_float(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() and abs(value) <= _MANY else None


_count = _whole(1)


def _quantity(quantity: Quantity) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            return quantity.read(text)
        except InputError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{shown(text)} is not a number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text[:60]}: expected more than 0 and finite")
    return value
