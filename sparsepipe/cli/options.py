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
from ..util.io.paths import expanded
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
            raise ArgumentTypeError(f"{shown(value)}: expected {most} at most")
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
            f"{text}: expected a name that ends in .json (`sparsepipe trace export RUN --out FILE.html` writes "
            "a page of its own)"
        )
    return path


def cluster_file(text: str) -> Path:
    """Read the path of a cluster's file, or the name of one in data_manifests/clusters."""
    try:
        return shipped(text, "clusters", ".toml")
    except InputError:
        return expanded(text)  # refused by `known_cluster` where it is opened: other options' mistakes come first


def known_cluster(path: Path) -> Path:
    """Return the path that `cluster_file` read. Raises InputError, which lists the names there are, where there is no
    such file.
    """
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
                row.option,
                dest=row.name,
                default=None,
                help=f"{told} (default: {default})" if default else told,
                **_reading(row) | ({"action": "append"} if repeated else {}),
            )


def given(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return those of the named settings that the command line gives."""
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def of_run(*names: str) -> list[Setting]:
    """Return some of the settings of a run."""
    return [rows(RunConfig)[name] for name in names]


def _reading(row: Setting) -> dict[str, Any]:
    """How argparse reads the value of a setting."""
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
            return {"type": several(count if isinstance(item, WholeNumber) else str), **metavar}
    return metavar


def machine_options(verb: Parser) -> None:
    """The profiles, and the cluster: from a file, or as a number of like devices."""
    verb.add_argument(
        "--profile",
        action="append",
        metavar="[TYPE=]FILE",
        help="profile JSON, graph.txt or DynPipe's *_for_.txt, one per device type; or a graph of dnn-partitioning, "
        "which brings its devices; a name in data_manifests/profiles, too",
    )
    verb.add_argument(
        "--cluster",
        type=cluster_file,
        metavar="FILE",
        help="TOML, a hostfile, the yml of PipeDream, SparsePipe, SDPipe or Ray, slurm (the job at hand), or a name in "
        "data_manifests/clusters",
    )
    verb.add_argument("--server-file", type=expanded, metavar="FILE", help="SparsePipe's list of servers and profiles")
    verb.add_argument(
        "--devices",
        type=whole(-MANY, MOST_LIKE_DEVICES),
        action="append",
        metavar="N",
        help="like devices; twice: devices per node, nodes",
    )
    verb.add_argument(
        "--bandwidth", type=quantity(BANDWIDTH), action="append", metavar="B", help="such as 10GB/s, one per level"
    )
    verb.add_argument("--memory", type=quantity(SIZE), metavar="BYTES", help="memory of each device, such as 24GB")


def plan_argument(verb: Parser) -> None:
    verb.add_argument(
        "plan", type=expanded, metavar="PLAN", help="a plan, or a hybrid_conf.json with its gpus=N.txt beside it"
    )


def replication_option(verb: Parser) -> None:
    verb.add_argument(
        "--replication",
        metavar="RULE[:OPTION=VALUE,…]",
        help=f"how pipelines average: {', '.join(RULES)} (default: the plan's, which is partial-reduce)",
    )


def replan_option(verb: Parser) -> None:
    """How the plan follows devices that change while the run goes on."""
    listed = "; ".join(f"{name}: {kind.summary}" for name, kind in VARIANTS.items())
    told = f"{listed} (default: never; {LIVE.name} where no variant is named)"
    verb.add_argument("--replan", choices=tuple(VARIANTS), nargs="?", const=LIVE.name, metavar="VARIANT", help=told)


def stragglers_option(verb: Parser) -> None:
    verb.add_argument(
        "--straggler",
        action="append",
        metavar="KIND[:OPTION=VALUE,…]",
        help=f"make ranks slow, or end them: {', '.join(KINDS)}, such as slow:rank=1,factor=4; several add up",
    )


def log_option(verb: Parser) -> None:
    verb.add_argument(
        "--log",
        nargs=2,
        action="append",
        default=[],
        metavar=("KIND", "DIR"),
        help=f"send metrics on: {', '.join(SINKS)}, or path/file.py:function, which makes a sink of DIR; repeatable",
    )


def ray_address_option(verb: Parser) -> None:
    verb.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help="with --launcher ray: of a cluster that this machine is a node of, such as 10.0.0.1:6379 or auto "
        "(default: RAY_ADDRESS, else a Ray of this job's own on this machine)",
    )


def run_dir_option(verb: Parser) -> None:
    verb.add_argument(
        "--run-dir", type=expanded, metavar="DIR", help="where the record goes (default: a new one in runs/)"
    )
