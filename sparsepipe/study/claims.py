"""Claims of a paper or a README as a file, `claims.toml`, and the verdict on each from its number on this machine.

    [[claim]]
    name = "eight-devices"
    sentence = "On eight devices, the optimal plan has 6.43 x the throughput of one."
    figure = "figure 1"
    notebook = "figures/1_devices"                 # or: command = ["plan", "-p", "minkvgg16bn", "-n", "4"]
    table = "throughput_by_devices"                # of the notebook: figures/TABLE.csv
    rows = {strategy = "optimal", devices = 8, source = "simulated"}
    number = "/samples_per_second"                 # JSON pointer into a row, or into the command's JSON document
    per = {number = "/samples_per_second", rows = {strategy = "one device", devices = 8}}
    expected = 6.43
    tolerance = 0.01
    hardware = "any: simulated"
    minutes = 1

A claims file may come from a stranger, and is checked before anything runs: a claim names a notebook of this repository
or a verb that only reads, with arguments that name neither code nor files outside the claims' folder.
"""

import csv
import io
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..util.derived import digest
from ..util.io.fields import shown
from ..util.io.files import expanded, read_text
from ..util.io.functions import is_function
from ..util.io.quantities import meant
from . import catalogue

# Verbs that write nothing without --out and --trace, and reach no other host.
VERBS = (
    *("models", "plan", "simulate", "sweep", "plan show", "plan diff", "profile show"),
    *("runs show", "runs compare", "trace show", "trace simulate", "trace whatif"),
)
_WRITING = ("-o", "--out", "--trace")
_PLACES = ("root", "figures", "headless")  # parameters that `study` itself sets
PICKS = ("only", "last", "min", "max", "mean")
REPRODUCED, OTHER_PACE = "reproduced", "within another machine's pace"
NOT_REPRODUCED, NOT_RUN = "not reproduced", "not run"
_NEEDED = ("name", "sentence", "figure", "number", "hardware")
_NUMBERS = ("expected", "tolerance", "minutes")
_OPTIONAL = ("notebook", "command", "parameters", "table", "rows", "per", "pick", "elsewhere")
_MOST = 1000  # claims of a file


@dataclass(frozen=True)
class NumberPlace:
    """Where a number stands: a JSON pointer into a document, or into the rows of a table (CSV) that `rows` selects.

    `per` has the divisor: a pointer `number` into the same row, or into the row that its `rows` select.
    """

    number: str
    table: str = ""
    rows: Mapping[str, Any] = field(default_factory=dict)
    per: Mapping[str, Any] = field(default_factory=dict)
    pick: str = "only"

    def read_number(self, content: str, name: str) -> float:
        """Return the number of claim `name` in what its command wrote. Raises InputError if it is not there."""
        if self.table:
            rows = csv.DictReader(io.StringIO(content))
            value = self._of_rows([{key: _typed(text) for key, text in row.items() if key} for row in rows], name)
        else:
            try:
                document = json.loads(content)
            except (ValueError, RecursionError):
                raise _missing(name, "its command printed no JSON document") from None
            value = _at(document, self.number, name)
        if not math.isfinite(value):
            raise _missing(name, f"its number is {value}, expected a finite one")
        return value

    def _of_rows(self, table: Sequence[Mapping[str, Any]], name: str) -> float:
        values = []
        for row in self._matching(table, self.rows, name):
            value = _at(row, self.number, name)
            if self.per:
                others = self._matching(table, self.per["rows"], name) if "rows" in self.per else [row]
                if len(others) != 1:
                    raise _missing(name, f"{len(others)} rows of {self.table} match the divisor, expected 1")
                value /= _at(others[0], self.per["number"], name) or math.nan
            values.append(value)
        if self.pick == "only" and len(values) != 1:
            raise _missing(name, f"{len(values)} rows of {self.table} match {shown(dict(self.rows))}, expected 1")
        mean = sum(values) / len(values)
        return {"min": min(values), "max": max(values), "mean": mean}.get(self.pick, values[-1])

    def _matching(self, table: Sequence[Mapping[str, Any]], wanted: Mapping[str, Any], name: str) -> list[Any]:
        rows = [row for row in table if all(row.get(column) == value for column, value in wanted.items())]
        if not rows:
            raise _missing(name, f"no row of {self.table} has {shown(dict(wanted))}")
        return rows


@dataclass(frozen=True)
class Claim:
    """Number that others can check, with the command that produces it.

    `tolerance` is the largest absolute difference of a reproduced number, `elsewhere` the largest one that another
    machine explains. `minutes` is the duration of the command on two cores. See also: notebooks/guides/claims.md.
    """

    name: str
    sentence: str
    figure: str
    place: NumberPlace
    expected: float
    tolerance: float
    hardware: str
    minutes: float
    notebook: str = ""
    command: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    elsewhere: float | None = None

    @property
    def job(self) -> str:
        """Name of the job. Claims about one notebook with the same parameters share a job."""
        return digest([self.notebook, self.command, self.parameters])

    @property
    def command_line(self) -> str:
        """Command that a user would type."""
        if self.command:
            return " ".join(["sparsepipe", *self.command, "--json"])
        given = [f"-p {name} {value}" for name, value in self.parameters.items()]
        return " ".join(["sparsepipe reproduce", self.notebook, *given, "--no-pictures"])

    def verdict(self, value: float) -> str:
        """Return the verdict on a number.

        >>> from sparsepipe.study.claims import Claim, NumberPlace
        >>> claim = Claim("a", "A.", "1", NumberPlace("/gap"), 2.0, 0.1, "any", 1, elsewhere=0.5)
        >>> [claim.verdict(value) for value in (2.05, 2.4, 3.0)]
        ['reproduced', "within another machine's pace", 'not reproduced']
        """
        apart = abs(value - self.expected)
        if apart <= self.tolerance * (1 + 1e-12):
            return REPRODUCED
        return OTHER_PACE if self.elsewhere is not None and apart <= self.elsewhere else NOT_REPRODUCED


def read_claims(path: Path | str) -> tuple[list[Claim], list[InputError]]:
    """Read a claims file: its claims, and an error for each that cannot be checked; the others stay usable.

    Raises InputError for a file that is no TOML, or has no claims.
    """
    path = expanded(path)
    try:
        document = tomllib.loads(read_text(path, what="claims file"))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError("claims.malformed", f"{path}: is not TOML ({error}); correct that line") from None
    entries = document.get("claim")
    if not isinstance(entries, list) or not entries or len(entries) > _MOST:
        raise InputError("claims.malformed", f"{path}: expected 1 to {_MOST} tables [[claim]]")
    claims: dict[str, Claim] = {}
    faults = []
    for number, entry in enumerate(entries, start=1):
        try:
            claim = _claim(entry, f"{path}: claim {number}")
            if claim.name in claims:
                raise _malformed(f"{path}: claim {number}", f"the name {claim.name!r} occurs twice, expected another")
            claims[claim.name] = claim
        except InputError as error:
            faults.append(error)
    return list(claims.values()), faults


def _claim(entry: object, where: str) -> Claim:
    if not isinstance(entry, dict):
        raise _malformed(where, f"is {shown(entry)}, expected a table")
    known = [*_NEEDED, *_NUMBERS, *_OPTIONAL]
    for key in entry:
        if key not in known:
            near = f"; did you mean {suggestion!r}?" if (suggestion := meant(key, known)) else ""
            raise _malformed(where, f"unknown key {shown(key)}, expected one of {', '.join(known)}{near}")
    for key in _NEEDED:
        if not isinstance(entry.get(key), str) or not entry[key] or not entry[key].isprintable():
            raise _malformed(where, f"{key} is {shown(entry.get(key))}, expected a line of text")
    for key in (*_NUMBERS, *(["elsewhere"] if "elsewhere" in entry else [])):
        value = entry.get(key)
        least = -math.inf if key == "expected" else 0
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1e15:
            raise _malformed(where, f"{key} is {shown(value)}, expected a number{' of 0 or more' * (least == 0)}")
    if not all(letter.isalnum() and letter.isascii() or letter == "-" for letter in entry["name"][:99]):
        raise _malformed(where, f"name is {shown(entry['name'])}, expected letters, digits and -")
    _check_number(entry, where)
    if ("notebook" in entry) == ("command" in entry):
        raise _malformed(where, "has a notebook and a command, or neither, expected one of both")
    if "command" in entry:
        _check_command(entry, where)
    else:
        _check_notebook(entry, where)
    place = NumberPlace(
        entry["number"],
        entry.get("table", ""),
        entry.get("rows", {}),
        entry.get("per", {}),
        entry.get("pick", "only"),
    )
    return Claim(
        name=entry["name"],
        sentence=entry["sentence"],
        figure=entry["figure"],
        place=place,
        expected=float(entry["expected"]),
        tolerance=float(entry["tolerance"]),
        hardware=entry["hardware"],
        minutes=float(entry["minutes"]),
        notebook=entry.get("notebook", ""),
        command=tuple(entry.get("command", ())),
        parameters=entry.get("parameters", {}),
        elsewhere=entry.get("elsewhere"),
    )


def _check_number(entry: Mapping[str, Any], where: str) -> None:
    pointers = [entry["number"]]
    per = entry.get("per", {})
    if not isinstance(per, dict) or per and (not isinstance(per.get("number"), str) or set(per) - {"number", "rows"}):
        raise _malformed(where, f"per is {shown(per)}, expected a table of number and rows")
    pointers += [per["number"]] if per else []
    if wrong := [text for text in pointers if not text.startswith("/")]:
        raise _malformed(where, f"number is {shown(wrong[0])}, expected a JSON pointer such as /gap")
    for rows in (entry.get("rows", {}), per.get("rows", {})):
        if not isinstance(rows, dict) or not all(isinstance(value, str | int | float) for value in rows.values()):
            raise _malformed(where, f"rows is {shown(rows)}, expected a table of columns and values")
    if entry.get("pick", "only") not in PICKS:
        raise _malformed(where, f"pick is {shown(entry['pick'])}, expected one of {', '.join(PICKS)}")


def _check_command(entry: Mapping[str, Any], where: str) -> None:
    """Refuse all but a verb that reads, with arguments that name neither code nor files elsewhere."""
    words = entry["command"]
    if not isinstance(words, list) or not words or not all(isinstance(word, str) and word for word in words):
        raise _malformed(where, f"command is {shown(words)}, expected a list of words")
    if unused := [key for key in ("parameters", "table", "rows", "per", "pick") if key in entry]:
        raise _malformed(where, f"{unused[0]} applies to notebooks: omit it, or name a notebook")
    nested = {verb for verb in VERBS if " " in verb}
    verb = " ".join(words[:2]) if " ".join(words[:2]) in nested else words[0]
    further = words[1] if len(words) > 1 and verb == "plan" else ""
    if verb not in VERBS or further == "export":
        raise _refused(where, f"the verb {shown(' '.join(words[:2]))} is not one of {', '.join(VERBS)}")
    for word in words:
        if word.partition("=")[0] in _WRITING:
            raise _refused(where, f"{shown(word)} writes a file")
        if word.startswith("-") and not word.startswith("--") and len(word) > 2:
            raise _refused(where, f"{shown(word)} joins an option and its value; give them as two words")
        _check_text(word, where)


def _check_notebook(entry: Mapping[str, Any], where: str) -> None:
    name, parameters = entry["notebook"], entry.get("parameters", {})
    if not isinstance(name, str) or name not in catalogue.NOTEBOOKS:
        raise _refused(where, f"the notebook {shown(name)} is not one of this repository")
    if not isinstance(parameters, dict):
        raise _malformed(where, f"parameters is {shown(parameters)}, expected a table")
    path = catalogue.notebooks_folder() / f"{name}.ipynb"
    known = [parameter for parameter in catalogue.parameter_names(path) if parameter not in _PLACES]
    for parameter, value in parameters.items():
        if parameter not in known:
            raise _refused(where, f"{shown(parameter)} is not one of the parameters {', '.join(known)} of {name}")
        for part in value if isinstance(value, list) else [value]:
            if not isinstance(part, str | int | float):
                raise _malformed(where, f"{parameter} is {shown(value)}, expected text, a number or a list of them")
            _check_text(str(part), where)
    if entry.get("table") not in catalogue.exported(path):
        raise _malformed(where, f"table is {shown(entry.get('table'))}, expected one of the figures of {name}")


def _check_text(word: str, where: str) -> None:
    """Refuse an argument that names code, an absolute path or a folder above, wherever in it."""
    if not word.isprintable() or len(word) > 1000:
        raise _refused(where, f"{shown(word)} is not a printable argument")
    parts = word.replace("=", "/").replace(",", "/").replace(":", "/").split("/")
    outside = word.startswith(("/", "~")) or any(f"{mark}{first}" in word for mark in "=:," for first in "/~")
    if outside or ".." in parts or "://" in word or (word.startswith("-") and "/" in word.partition("=")[0]):
        raise _refused(where, f"{shown(word)} names a file outside the claims' folder")
    if is_function(word) or is_function(word.partition("=")[2]):
        raise _refused(where, f"{shown(word)} names code, which would run")


def _malformed(where: str, text: str) -> InputError:
    return InputError("claims.entry_malformed", f"{where}: {text}")


def _refused(where: str, text: str) -> InputError:
    return InputError("claims.command_refused", f"{where}: {text}; the claim is not run")


def _at(document: object, pointer: str, name: str) -> float:
    """Follow a JSON pointer (RFC 6901) to a number."""
    value = document
    for part in pointer.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, Mapping) and key in value:
            value = value[key]
        elif isinstance(value, list) and key.isascii() and key.isdigit() and int(key[:9]) < len(value):
            value = value[int(key[:9])]
        else:
            raise _missing(name, f"nothing at {shown(pointer)} ({shown(key)} is missing)")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _missing(name, f"at {shown(pointer)} is {shown(value)}, expected a number")
    return float(value)


def _missing(name: str, text: str) -> InputError:
    return InputError("claims.number_missing", f"claim {name}: {text}", claim=name)


def _typed(text: str | None) -> str | float:
    try:
        return float(text or "")
    except ValueError:
        return text or ""
