"""Options as they are typed: NAME:option=value,option=value, and how they become the fields of a dataclass."""

import dataclasses
import sys
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar, get_type_hints

from ...errors import InputError
from .fields import shown

_WORDS = {"true": True, "false": False, "none": None}


class Options(Protocol):
    """A frozen dataclass whose fields are options. It checks their values itself when it is made.

    An option that is called as a word of Python's is a field with an underscore after it: `from` is `from_`.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]


_Options = TypeVar("_Options", bound=Options)


def split_options(given: str, what: str, *, first: Mapping[str, str] | None = None) -> tuple[str, dict[str, str]]:
    """Split "NAME:option=value,…" into the name and its options. Raises InputError that names `what`.

    `first` says, by name, which option may come first without being named.
    """
    name, _, rest = given.partition(":")
    unnamed = (first or {}).get(name.strip())
    options: dict[str, str] = {}
    for place, part in enumerate(filter(None, map(str.strip, rest.split(",")))):
        option, separator, value = part.partition("=")
        if unnamed and place == 0 and option.strip() != unnamed:
            option, separator, value = unnamed, "=", part
        if not separator or not option.strip() or not value.strip():
            raise InputError(
                "option.malformed",
                f"{what} {shown(given)}: {shown(part)} is not an option; expected NAME:option=value,…",
            )
        if option.strip() in options:
            raise InputError("option.twice", f"{what} {shown(given)}: {option.strip()} is given twice")
        options[option.strip()] = value.strip()
    return name.strip(), options


def typed(value: str) -> Any:
    """Return what a typed word means: true, false, none, a whole number, a number, else the word itself."""
    if value.lower() in _WORDS:
        return _WORDS[value.lower()]
    for number in (int, float):
        try:
            return number(value)
        except ValueError:
            pass
    return value


def with_options(cls: type[_Options], options: Mapping[str, Any], what: str) -> _Options:
    """Make a dataclass of the options that are given, by its own defaults elsewhere.

    Raises InputError in one line for one that it does not know, or needs and was not given; the dataclass checks the
    values.
    """
    known = {_name(field): field for field in dataclasses.fields(cls)}
    unknown = [key for key in options if key not in known]
    if unknown:
        expected = f"expected one of {', '.join(known)}" if known else "it has none"
        raise InputError("option.unknown", f"{what}: unknown option {shown(unknown[0])}; {expected}")
    missing = [
        name
        for name, field in known.items()
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING and name not in options
    ]
    if missing:
        raise InputError("option.missing", f"{what}: {missing[0]} is missing; expected {', '.join(missing)}")
    hints = get_type_hints(cls)
    given = {known[option].name: value for option, value in options.items()}
    return cls(**{name: _as_field(value, hints[name]) for name, value in given.items()})


def _as_field(value: Any, hint: Any) -> Any:
    """A whole number where a field is a float: 1 and 1.0 are one value then, in comparisons and in files."""
    whole = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53
    return float(value) if whole and hint in (float, float | None) else value


def option_values(options: Options) -> dict[str, Any]:
    """Return every option of a value, by name."""
    return {_name(field): getattr(options, field.name) for field in dataclasses.fields(options)}


def written_options(name: str, options: Options, *, first: str | None = None) -> str:
    """Write a value as it is typed: its name, and the options that are not by default; `first` without its name."""
    given = [
        written_value(value) if _name(field) == first else f"{_name(field)}={written_value(value)}"
        for field in dataclasses.fields(options)
        if (value := getattr(options, field.name)) != field.default
    ]
    return f"{name}:{','.join(given)}" if given else name


def _name(field: dataclasses.Field[Any]) -> str:
    return field.name.removesuffix("_")


def written_value(value: object) -> str:
    """Write the value of an option as `typed` reads it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def tell(line: str) -> None:
    """Write a line after all that was written to stdout before it and before all that comes after it.

    A notebook's kernel holds both back for a moment, each by itself: lines came in another order there.
    """
    sys.stdout.flush()
    print(line, file=sys.stdout if _in_a_cell() else sys.stderr, flush=True)


def _in_a_cell() -> bool:
    ipython = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None
