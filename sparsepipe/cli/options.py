"""What options are made of: the types that read their text, the settings' tables, and options that several verbs have.

An option of a setting comes from the setting's row (util/io/settings.py): name, choices, unit, help and default.
"""

import argparse
import json
from argparse import ArgumentTypeError
from ast import literal_eval
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..data.manifests import shipped
from ..errors import InputError
from ..monitoring.variants import LIVE, VARIANTS
from ..records.formats.clusters import IN_SLURM
from ..records.sinks import SINKS
from ..runtime.config import RunConfig
from ..util.io.fields import MOST, MOST_LIKE_DEVICES, shown
from ..util.io.files import expanded
from ..util.io.quantities import BANDWIDTH, SIZE, Quantity
from ..util.io.settings import (
    MANY,
    Amount,
    Choice,
    Flag,
    JsonObject,
    Number,
    Setting,
    Several,
    Text,
    WholeNumber,
    rows,
)
from ..values.replication import RULES
from ..values.stragglers import KINDS

Parser = argparse.ArgumentParser | argparse._ArgumentGroup
# The letter of an option that is typed often; the same in every verb that has the option.
SHORT: Mapping[str, str] = {
    "--batch-size": "-b",
    "--cluster": "-c",
    "--data": "-d",
    "--devices": "-n",
    "--epochs": "-e",
    "--model": "-m",
    "--out": "-o",
    "--voxel-size": "-v",
}


def flags(name: str, *old: str) -> tuple[str, ...]:
    """Return the names of an option as `add_argument` takes them: its letter, its name, and names of before.

    Help shows the first two alone.
    """
    return (*filter(None, [SHORT.get(name)]), name, *old)


def whole(least: int, most: int = MANY) -> Callable[[str], int]:
    """Return what reads a whole number from `least` to `most`, written 1000000 or 1e6."""

    def read(text: str) -> int:
        try:
            value = int(text) if len(text) < 100 else None
        except ValueError:
            value = _of_float(text)
        if value is None:
            raise ArgumentTypeError(f"{shown(text)} is not a whole number")
        if value < least:
            raise ArgumentTypeError(f"{value}: expected {least} or more")
        if value > most:
            raise ArgumentTypeError(f"{shown(value)}: expected at most {most}")
        return value

    return read


def _of_float(text: str) -> int | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return int(value) if value.is_integer() and abs(value) <= MANY else None


count = whole(1)


def quantity(unit: Quantity) -> Callable[[str], float]:
    """Return what reads a number with a unit, such as 10GB/s."""

    def read(text: str) -> float:
        try:
            return unit.read(text)
        except InputError as error:
            raise ArgumentTypeError(str(error)) from None

    return read


def chrome_file(text: str) -> Path:
    """Read the path of a trace to write for Chrome and Perfetto, which open names that end in .json."""
    path = expanded(text)
    if path.suffix.lower() != ".json":
        raise ArgumentTypeError(
            f"{text}: expected a name that ends in .json (`sparsepipe trace export RUN --out FILE.html` writes a web "
            "page)"
        )
    return path


def cluster_file(text: str) -> Path:
    """Read the path of a cluster's file, or the name of one in data_manifests/clusters."""
    try:
        return shipped(text, "clusters", ".toml")
    except InputError:
        return expanded(text)  # refused by `known_cluster` where it is opened: other options' mistakes come first


def known_cluster(path: Path) -> Path:
    """Return the path that `cluster_file` read. Raises InputError with the known names if there is no such file."""
    return path if str(path) == IN_SLURM else shipped(str(path), "clusters", ".toml")


def several(read: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return what reads values with commas between them."""
    return lambda text: tuple(read(part.strip()) for part in text.split(","))


def number(kind: Number) -> Callable[[str], float]:
    """Return what reads a number that a setting of this kind may be."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ArgumentTypeError(f"{shown(text)} is not a number") from None
        if fault := kind.fault(value):
            raise ArgumentTypeError(fault)
        return value

    return read


positive = number(Number(0, MOST, above=True))


def value(text: str) -> Any:
    """Read a value as JSON or Python writes it: a number, true, None, a list; any other text is itself."""
    for read in (json.loads, literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text


def setting_options(
    parser: Parser, found: Iterable[Setting], *, defaults: Mapping[str, str] = {}, repeated: bool = False
) -> None:
    """Add the option of each setting that has one. Its value is None unless it is given: defaults are the library's.

    `defaults`: what the verb takes in place of a setting's own default, in words. `repeated`: each may come repeatedly.
    """
    for row in found:
        default = defaults.get(row.name, "" if row.default is True else row.default_text)
        told = f"{'no ' if row.default is True else ''}{row.help}{'; repeatable' if repeated else ''}"
        if isinstance(row.kind, JsonObject) or (isinstance(row.kind, Choice) and row.kind.example):
            told += f": {row.kind}"  # of others they stand beside the option
        if row.option:
            parser.add_argument(
                *flags(row.option),
                dest=row.name,
                default=None,
                help=f"{told} (default: {default})" if default else told,
                **_reading(row) | ({"action": "append"} if repeated else {}),
            )


def with_values(options: argparse.Namespace, values: Mapping[str, object]) -> argparse.Namespace:
    """Return a copy of the options in which `values` stand for those of their names."""
    return argparse.Namespace(**{**vars(options), **values})


def given(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return those of the named settings that the command line gives."""
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def of_run(*names: str) -> list[Setting]:
    """Return some of the settings of a run."""
    return [rows(RunConfig)[name] for name in names]


def _reading(row: Setting) -> dict[str, Any]:
    """Return the type by which argparse parses the value of a setting."""
    kind, metavar = row.kind, {"metavar": row.unit}
    match kind:
        case Flag():
            return {"action": "store_false" if row.default is True else "store_true"}
        case Choice(names, "") if kind.renamed:
            return {"choices": names, "type": kind.today}
        case Choice(names, "") | Text(_, names) if names:
            return {"choices": names, "type": type(names[0])}
        case WholeNumber(least, most, word):
            read = whole(least, most)
            return {"type": read if word is None else lambda text: text if text == word else read(text), **metavar}
        case Number():
            return {"type": number(kind), **metavar}
        case Amount(of):
            return {"type": quantity(of), **metavar}
        case Several(item):
            if isinstance(item, Number):
                return {"type": several(number(item)), **metavar}
            return {"type": several(count if isinstance(item, WholeNumber) else str), **metavar}
    return metavar


def profile_option(verb: Parser) -> None:
    verb.add_argument(
        "-p",
        "--profile",
        action="append",
        metavar="[TYPE=]FILE",
        help="measured profile, one per device type; repeatable. Formats: profile JSON (also by its name in "
        "data_manifests/profiles), graph.txt, DynPipe's *_for_.txt, a graph of dnn-partitioning",
    )


def machine_options(verb: Parser) -> None:
    """The profiles, and the cluster: from a file, or as a number of identical devices."""
    profile_option(verb)
    verb.add_argument(
        *flags("--cluster"),
        type=cluster_file,
        metavar="FILE",
        help="hosts and devices. Formats: TOML (also by its name in data_manifests/clusters), hostfile, yml of "
        "PipeDream, SparsePipe, SDPipe or Ray, or slurm: the current job",
    )
    verb.add_argument(
        "--server-file", type=expanded, metavar="FILE", help="server file of SparsePipe, with servers and profiles"
    )
    verb.add_argument(
        *flags("--devices"),
        type=whole(-MANY, MOST_LIKE_DEVICES),
        action="append",
        metavar="N",
        help="number of identical devices; given twice: devices per node, and nodes",
    )
    verb.add_argument(
        "--bandwidth",
        type=quantity(BANDWIDTH),
        action="append",
        metavar="B",
        help="link bandwidth, such as 10GB/s (default: unlimited). Repeatable, one per --devices",
    )
    verb.add_argument(
        "--memory",
        type=quantity(SIZE),
        metavar="BYTES",
        help="memory of each device, such as 24GB (default: unlimited)",
    )


def plan_argument(verb: Parser, *, optional: bool = False) -> None:
    verb.add_argument(
        "plan",
        type=expanded,
        metavar="PLAN",
        help="plan, or a hybrid_conf.json with its gpus=N.txt",
        nargs="?" if optional else None,
    )


def layout_option(verb: Parser) -> None:
    verb.add_argument(
        "--layout",
        metavar="LAYOUT",
        help="stages as another runtime has them, compared with the optimal plan; text or a file. Forms: Megatron's "
        "layout, torchtitan's names, split points of torch, a _pp_plan, DeepSpeed's parts, FlagScale's settings",
    )


def replication_option(verb: Parser) -> None:
    verb.add_argument(
        "--replication",
        metavar="RULE[:OPTION=VALUE,…]",
        help=f"synchronization scheme of pipeline replicas (default: the plan's, else partial-reduce). "
        f"Schemes: {', '.join(RULES)}",
    )


def replan_option(verb: Parser) -> None:
    """Add --replan: online repartitioning during the run."""
    listed = "; ".join(f"{name}: {kind.summary}" for name, kind in VARIANTS.items())
    summary = f"online repartitioning. {listed} (default: never; {LIVE.name} without a name)"
    verb.add_argument("--replan", choices=tuple(VARIANTS), nargs="?", const=LIVE.name, metavar="VARIANT", help=summary)


def inject_option(verb: Parser) -> None:
    verb.add_argument(
        *flags("--inject", "--straggler"),
        dest="straggler",
        action="append",
        metavar="KIND[:OPTION=VALUE,…]",
        help=f"injected straggler, such as slow:rank=1,factor=4. Kinds: {', '.join(KINDS)}; repeatable, delays add up",
    )


def log_option(verb: Parser) -> None:
    verb.add_argument(
        "--log",
        nargs=2,
        action="append",
        default=[],
        metavar=("KIND", "DIR"),
        help=f"tracker of metrics: {', '.join(SINKS)}, or path/file.py:function, called with DIR. DIR of otlp is an "
        "address, such as http://127.0.0.1:4318; repeatable",
    )


def ray_address_option(verb: Parser) -> None:
    verb.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="Ray cluster of --launcher ray, such as 10.0.0.1:6379 or auto; this machine must be one of its nodes "
        "(default: RAY_ADDRESS, else a new Ray on this machine)",
    )


def run_dir_option(verb: Parser) -> None:
    verb.add_argument(
        *flags("--out", "--run-dir"),
        dest="run_dir",
        type=expanded,
        metavar="DIR",
        help="run directory (default: a new one in runs/)",
    )


def dry_run_option(verb: Parser) -> None:
    verb.add_argument(
        "--dry-run", action="store_true", help="checks and resolved settings only; nothing is written or run"
    )
