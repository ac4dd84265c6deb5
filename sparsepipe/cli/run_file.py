"""The file run.toml: what a run is trained with, as `train` reads it, `init` writes it, and a run directory keeps it.

    plan = "work/plan.json"

    [data]                          # one section per part of RunConfig
    model = "minkvgg11bn-narrow"
    voxel_size = 0.05

    [launch]                        # options of `train` that are no settings
    replan = "live"

Paths are relative to the current folder, as on the command line. `--set data.voxel_size=0.1` changes one value.
"""

import argparse
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING
from pathlib import Path
from textwrap import fill

from ..errors import InputError, one_line
from ..runtime import RunConfig
from ..runtime.config import BUDGETS, PARTS
from ..util.io.fields import shown
from ..util.io.files import expanded, read_text, write_atomic
from ..util.io.quantities import expected
from ..util.io.settings import JsonObject, rows
from .options import Parser, flags, with_values
from .output import Answer
from .plan_file_verbs import PlanFacts

NAME = "run.toml"
LAUNCH = "launch"
# Options of `train` that a file may have, with the type of their values.
_LAUNCH: Mapping[str, type] = {
    "launcher": str,
    "cluster": str,
    "expect": list,
    "replan": str,
    "predictor": str,
    "replication": str,
    "ray_address": str,
    "port": int,
}
_HEAD = "Settings of a training run: sparsepipe train {name}. A commented line shows a default."
# Settings of which one takes the place of the others: a size of minibatches, and an end of the run.
_EXCLUSIVE = (("batch_size", *BUDGETS), ("epochs", "minibatches"))


def is_run_file(path: Path | None) -> bool:
    """Return True if a path given for a plan names a run.toml, by its ending."""
    return path is not None and path.suffix == ".toml"


def read_run_file(path: Path) -> dict[str, object]:
    """Return the values of a run.toml by option: `plan`, settings of a run, and those of [launch].

    Raises InputError that names the file if it cannot be read, is no TOML, or has an unknown section or name.
    """
    content = read_text(path, what=NAME)
    try:
        document = tomllib.loads(content)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise InputError("run_file.not_toml", f"{path}: not a TOML file ({one_line(error)})") from None
    values: dict[str, object] = {}
    try:
        for name, value in document.items():
            if name == "plan":
                values[name] = expanded(str(_of_type(name, value, str)))
            elif isinstance(value, dict):
                for key, item in value.items():
                    values |= _checked(f"{name}.{key}", item)
            elif name in (*PARTS, LAUNCH):
                raise InputError("run_file.wrong_type", f"{name} is {shown(value)}, expected a section, [{name}]")
            else:
                raise InputError(
                    "run_file.unknown",
                    f"{shown(name)}: {expected(name, ('plan', *PARTS, LAUNCH))}; settings are in "
                    "a section, such as [optimizer]",
                )
    except InputError as error:
        raise error.within(f"{path}: ") from None
    return values


def read_changes(texts: Iterable[str]) -> dict[str, object]:
    """Return the values of `--set PART.NAME=VALUE`, of which the part may be left out. Raises InputError."""
    values: dict[str, object] = {}
    for text in texts:
        name, equals, written = text.partition("=")
        if not equals:
            raise InputError("set.malformed", f"--set {text}: expected NAME=VALUE, such as optimizer.learning_rate=0.1")
        try:
            document = tomllib.loads(f"value = {written}")
        except (ValueError, RecursionError):
            document = {}
        # Text needs no quotes on a command line. Further lines are no further settings.
        value = document["value"] if list(document) == ["value"] else written
        try:
            values |= _checked(name.strip(), value)
        except InputError as error:
            raise error.within("--set ") from None
    return values


def _checked(name: str, value: object) -> dict[str, object]:
    """Return the value of `part.name`, or of `name`, by its option, as the option has it.

    Raises InputError for one that is unknown, or of another type.
    """
    section, _, key = name.rpartition(".")
    if section not in ("", LAUNCH, *PARTS):
        raise InputError("run_file.unknown", f"[{section}]: {expected(section, (*PARTS, LAUNCH))}")
    known = {**rows(PARTS.get(section, RunConfig))} if section != LAUNCH else {}
    if section in ("", LAUNCH) and key in _LAUNCH:
        taken = _of_type(name, value, _LAUNCH[key])
        return {key: expanded(str(taken)) if key in ("cluster", "predictor") else taken}
    if key not in known:
        names = _LAUNCH if section == LAUNCH else known
        raise InputError("run_file.unknown", f"{shown(name)}: {expected(key, names)}")
    if isinstance(value, dict) and isinstance(known[key].kind, JsonObject):
        with suppress(TypeError):  # a date is no JSON: the setting refuses it
            value = json.dumps(value)
    value = tuple(value) if isinstance(value, list) else value
    if fault := known[key].kind.fault(value):
        raise InputError(known[key].kind.code, f"{name} is {fault}", name=key)
    return {key: value}


def _of_type(name: str, value: object, kind: type) -> object:
    if kind is list and isinstance(value, str):
        value = [value]
    items = value if isinstance(value, list) else []
    if type(value) is not kind or not all(isinstance(item, str) for item in items):
        raise InputError("run_file.wrong_type", f"{name} is {shown(value)}, expected {_TYPES[kind]}")
    return value


_TYPES = {str: "a text", int: "a whole number", list: "a list of texts"}


def completed(options: argparse.Namespace, values: Mapping[str, object]) -> argparse.Namespace:
    """Return the options with `values` for those that are not given.

    A setting stays out if the options give another one that takes its place, such as a budget instead of a size.
    """
    given = {name for name, value in vars(options).items() if value is not None}
    taken = {name for group in _EXCLUSIVE if given & set(group) for name in group}
    added = {name: value for name, value in values.items() if name not in given | taken}
    return with_values(options, added)


def run_file_text(values: Mapping[str, object], *, name: str = NAME) -> str:
    """Return a run.toml with these values: a comment says what each sets, and those that are not given are comments."""
    lines = [f"# {_HEAD.format(name=name)}", "# Paths are relative to the current folder.", ""]
    lines += [f"plan = {_toml(str(values['plan']))}" if "plan" in values else '# plan = "work/plan.json"']
    for part, group in PARTS.items():
        lines += ["", f"[{part}]"]
        for key, row in rows(group).items():
            if key in ("composition", "fitting_sizes"):  # decided at launch
                continue
            by_default = f" (default: {row.default_text})" if row.default_text else ""
            meaning = f"{row.help}; {row.kind}{by_default}"
            lines += fill(meaning, 98, initial_indent="# ", subsequent_indent="#   ").split("\n")
            default = None if row.default is MISSING else row.default
            lines.append(f"{key} = {_toml(values[key])}" if key in values else f"# {key} = {_toml(default)}".rstrip())
    lines += ["", f"[{LAUNCH}]"]
    for key, kind in _LAUNCH.items():
        if key in values:
            lines.append(f"{key} = {_toml(values[key])}")
        else:
            lines.append(f"# {key} =  # {_TYPES[kind]}; see sparsepipe train --help-all")
    return "\n".join(lines) + "\n"


def _toml(value: object) -> str:
    """Write a value of a setting as TOML has it; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e16:
        return f"{value:.1f}"
    return (
        repr(value) if isinstance(value, float) else json.dumps(value if isinstance(value, bool | int) else str(value))
    )


def _init_options(verb: Parser) -> None:
    verb.add_argument(
        "plan", type=expanded, nargs="?", metavar="PLAN", help="plan whose network, data and sizes are filled in"
    )
    verb.add_argument(
        *flags("--out"), type=expanded, default=Path(NAME), metavar="FILE.toml", help=f"file (default: {NAME})"
    )
    set_option(verb)


def set_option(verb: Parser) -> None:
    verb.add_argument(
        "-s",
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="setting, such as optimizer.learning_rate=0.1. Repeatable",
    )


def init(options: argparse.Namespace) -> Answer:
    """Write a commented run.toml, filled in by a plan where one is given. A file that exists is kept."""
    if not is_run_file(options.out):
        raise InputError("run_file.suffix", f"-o {options.out}: expected a name that ends in .toml")
    if options.out.exists():
        raise InputError("run_file.exists", f"{options.out}: the file exists; choose another name, -o FILE.toml")
    known: dict[str, object] = {}
    if options.plan:
        known = {**PlanFacts.load(options.plan).settings, "plan": options.plan}
    changes = read_changes(options.set)
    values = vars(completed(argparse.Namespace(**changes), known))
    write_atomic(options.out, run_file_text(values, name=str(options.out)))
    missing = [name for name in ("plan", "model", "data") if name not in values]
    todo = f"fill in {', '.join(missing)}, then " if missing else ""
    text = f"{one_line(options.out)}: written; {todo}sparsepipe train {one_line(options.out)}"
    return Answer({"file": str(options.out), "values": {name: _json(value) for name, value in values.items()}}, text)


def _json(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


VERBS: Mapping[str, Callable[[argparse.Namespace], Answer]] = {"init": init}
OPTIONS: Mapping[str, tuple[str, Callable[[Parser], None]]] = {
    "init": ("write a commented run.toml for train", _init_options)
}
