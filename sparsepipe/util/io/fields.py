"""Check values read from files: numbers, names, lists and objects of the right type and size."""

import json
import math
import reprlib
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import yaml

from ...errors import DamagedRecord, InputError
from .files import read_text

MOST = 1e30  # seconds, bytes or voxels: sums and products of such numbers are still finite
MOST_DEVICES = 65_536  # a larger count is a slip of the hand, and would fill the memory
MOST_LIKE_DEVICES = 4096  # of --devices: what is planned, replicas one by one, in seconds
MOST_MINIBATCHES = 2 * MOST_DEVICES  # of one step, or simulated or replayed at once: likewise


def number(value: object, what: str) -> float:
    """Return `value` as a float, 0 or more and finite. Raises InputError that names `what`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MOST:
        return float(value)
    raise InputError("number.malformed", f"{what} is {shown(value)}, expected a finite number, 0 or more")


def integer(value: object, what: str, *, least: int = 0, most: int = 10**9) -> int:
    """Return `value` if it is a whole number from `least` to `most`. Raises InputError that names `what`."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InputError("number.not_whole", f"{what} is {shown(value)}, expected a whole number, {least} to {most}")
    return value


def given_number(value: object, what: str) -> None:
    """Raise InputError if a caller's `value` is no number: notebooks' tools pass what was typed as text."""
    if type(value) in (int, float):  # asked for every cost: abstract classes take a microsecond
        return
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError("number.not_a_number", f"{what} {shown(value)} given, expected a number")


def given_integer(value: object, what: str, *, least: int | None = None) -> None:
    """Raise InputError if a caller's `value` is no whole number, or below `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError("number.not_whole", f"{what} {shown(value)} given, expected a whole number")
    if least is not None and value < least:
        raise InputError("number.below_least", f"{what} {value} given, expected at least {least}")


def json_object(given: str | None, what: str, *, example: str = '{"width": 64}') -> dict[str, Any]:
    """Return the object that a user wrote as JSON, {} if nothing was. Raises InputError that names `what`."""
    try:
        found = json.loads(given) if given else {}
    except (ValueError, RecursionError) as error:
        raise InputError(
            "json.malformed", f"{what} {shown(given)}: not JSON ({error}), expected an object such as '{example}'"
        ) from None
    if not isinstance(found, dict):
        raise InputError("json.not_an_object", f"{what} {shown(given)}: expected a JSON object, such as '{example}'")
    return found


def text(value: object, what: str) -> str:
    """Return `value` if it is a string. Raises InputError that names `what`."""
    if not isinstance(value, str):
        raise InputError("value.not_text", f"{what} is {shown(value)}, expected a string")
    return value


def texts(value: object, what: str) -> tuple[str, ...]:
    """Return the strings of a list. Raises InputError that names `what`."""
    if not isinstance(value, list):
        raise InputError("value.not_texts", f"{what} is {shown(value)}, expected a list of strings")
    return tuple(text(item, what) for item in value)


def shown(value: object, most: int = 60) -> str:
    """Write a value from a file in so few characters that a message stays one line.

    What is nested, or refers to itself many times over, costs no more than what is shown.
    """
    written = _Shortened(most).repr(value)
    return written if len(written) <= most else f"{written[:most]}…"


class _Shortened(reprlib.Repr):
    """A `reprlib.Repr` that writes a limited number of parts of a nested value."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.maxlevel = self.maxdict = self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = most
        self.maxstring = self.maxlong = self.maxother = 4 * most
        self._left = 4 * most

    def repr1(self, x: object, level: int) -> str:
        self._left -= 1
        return super().repr1(x, level) if self._left > 0 else self.fillvalue

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python refuses to write a whole number of thousands of digits
            return "a number of thousands of digits"


Check = Callable[[Any, str], Any]  # (value, what it is called) → the value; raises InputError that names it


class Fields(dict[str, Any]):
    """A JSON object out of a file, whose fields are of the right types. One that is missing is reported when it is
    used.

    So files written before a field was invented, or by hand, are read for what they have.
    """

    __slots__ = ("what",)

    def __init__(self, values: Mapping[str, Any], what: str) -> None:
        super().__init__(values)
        self.what = what

    def __missing__(self, key: str) -> Any:
        raise DamagedRecord(
            "record.key_missing", f"{self.what}: has no {key!r}; it is damaged, or another version wrote it"
        )


def fields(known: Mapping[str, Check], *, others: Check | None = None) -> Callable[[object, str], Fields]:
    """A check of JSON objects: those fields that are `known` and there by their own checks, the rest by `others`."""

    def check(value: object, what: str) -> Fields:
        if not isinstance(value, dict):
            raise InputError("value.not_an_object", f"{what} is {shown(value)}, expected an object")
        checked = dict(value)
        for key, item in value.items():
            if one := known.get(key, others):
                checked[key] = one(item, f"{what}: {shown_key(key)}")
        return Fields(checked, what)

    return check


def each(check: Check) -> Check:
    """A check of lists whose items all pass `check`."""

    def checked(value: object, what: str) -> list[Any]:
        if not isinstance(value, list):
            raise InputError("value.not_a_list", f"{what} is {shown(value)}, expected a list")
        return [check(item, f"{what}[{place}]") for place, item in enumerate(value)]

    return checked


def maybe(check: Check) -> Check:
    """A check that lets null pass."""
    return lambda value, what: None if value is None else check(value, what)


def one_of(*names: str) -> Check:
    """A check of strings that must be one of `names`."""

    def checked(value: object, what: str) -> str:
        if not isinstance(value, str) or value not in names:
            raise InputError("value.not_a_choice", f"{what} is {shown(value)}, expected one of {', '.join(names)}")
        return value

    return checked


def real(value: object, what: str) -> float:
    """Return `value` if it is a finite number, of either sign. Raises InputError that names `what`."""
    if isinstance(value, int | float) and not isinstance(value, bool) and -MOST <= value <= MOST:
        return value
    raise InputError("number.malformed", f"{what} is {shown(value)}, expected a finite number")


def measured(value: object, what: str) -> float:
    """Return `value` if it is a number, NaN and infinity included: a loss may be. Raises InputError for others."""
    if isinstance(value, float) and not math.isfinite(value):
        return value
    return real(value, what)


def flag(value: object, what: str) -> bool:
    """Return `value` if it is true or false. Raises InputError that names `what`."""
    if not isinstance(value, bool):
        raise InputError("value.not_a_boolean", f"{what} is {shown(value)}, expected true or false")
    return value


def shown_key(key: str) -> str:
    """Write a field's name so that a message stays one line."""
    return key if key.isidentifier() and len(key) <= 40 else shown(key, 40)


def complaint(error: object, most: int | None = 200) -> str:
    """Return the error message of a library in one line, of at most so many characters; its class if it is empty."""
    return " ".join(str(error).split())[:most] or type(error).__name__


_BASE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # as safe, and ten times faster on a file of many entries
_MOST_DEPTH = 20


class _Loader(_BASE):  # type: ignore[misc,valid-type]
    """Refuses a key that is there twice: YAML lets the last one win without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {shown(key.value)} occurs twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
        return dict(super().construct_mapping(node, deep=deep))


def read_yaml(path: Path, *, what: str) -> Any:
    """Read a YAML file a user named. Raises InputError in one line that names the file and, where known, the line."""
    text = read_text(path, what=what)
    try:
        _check_structure(path, text)
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None)
        raise InputError(
            "yaml.malformed", f"{path}{line}: not valid YAML ({complaint(ValueError(problem) if problem else error)})"
        ) from None
    except (ValueError, TypeError, OverflowError, AttributeError, LookupError) as error:  # a number or date of none
        raise InputError("yaml.malformed", f"{path}: cannot be read as YAML ({complaint(error)})") from None


def _check_structure(path: Path, text: str) -> None:
    """Raise InputError for aliases, with which a small file becomes any size, and for what is nested too deeply."""
    depth = 0
    for event in yaml.parse(text, Loader=_BASE):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise InputError(
                "yaml.alias",
                f"{path}:{line}: the alias *{shown(event.anchor)[1:-1]} is not supported; write its value out",
            )
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > _MOST_DEPTH:
            raise InputError(
                "yaml.too_deep", f"{path}:{line}: nested more than {_MOST_DEPTH} levels deep; use less nesting"
            )
