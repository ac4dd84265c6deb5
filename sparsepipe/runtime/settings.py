"""A group of settings: a frozen dataclass whose annotations say what each of its settings may be.

@dataclass(frozen=True, repr=False)
class Warmup(Settings):
    minibatches: Annotated[int, WholeNumber(0)] = 0
    scale: Annotated[float | None, Number(0, 1)] = None  # None only where the type has it
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Protocol, Self, get_args, get_type_hints

from ..errors import InputError
from ..functions import is_function
from ..io.fields import json_object, shown
from ..io.keywords import expected

MANY = 10**15  # of anything that is counted: no run gets there, and floats still tell such numbers apart


class Kind(Protocol):
    """What a setting may be."""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        """Raise InputError for a value of the wrong kind or size. Where a setting is `optional`, None never comes."""
        ...


@dataclass(frozen=True)
class Text:
    """A string that is not empty; `example` is what a message gives as one."""

    example: str

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if not isinstance(value, str) or not value or "\0" in value:
            raise InputError(f"{name} is {_written(value)}, expected text such as {self.example}")


@dataclass(frozen=True)
class JsonObject:
    """A string that is a JSON object, such as `example`."""

    example: str

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        Text(f"'{self.example}', a JSON object").check(name, value, optional=optional)
        json_object(value, name, example=self.example)


@dataclass(frozen=True)
class Named:
    """One of `names`; where `own` is an example, a function of the user's own, too, which is known once imported."""

    names: tuple[str, ...]
    own: str = ""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        Text(f"'{self.names[0]}'").check(name, value, optional=optional)
        if value not in self.names and not (self.own and is_function(value)):
            also = f", or one's own as {self.own}" if self.own else ""
            raise InputError(f"{name} is {_written(value)}: {expected(value, self.names)}{also}")


@dataclass(frozen=True)
class Names:
    """A tuple of strings, each one of `names`."""

    names: tuple[str, ...]
    example: str

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
            raise InputError(f"{name} are {_written(value)}, expected a tuple of names such as {self.example}")
        if unknown := [item for item in value if item not in self.names]:
            raise InputError(
                f"{name} are {', '.join(value)}: no {shown(unknown[0])}, {expected(unknown[0], self.names)}"
            )


@dataclass(frozen=True)
class Flag:
    """True or False."""

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if not isinstance(value, bool):
            raise InputError(f"{name} is {_written(value)}, expected true or false")


@dataclass(frozen=True)
class WholeNumber:
    """A whole number from `least` to `most`, or where there is one the `word`."""

    least: int
    most: int = MANY
    word: str | None = None

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if self.word is not None and value == self.word:
            return
        word = f", or {self.word!r}" if self.word else ""
        if isinstance(value, bool) or not isinstance(value, int) or value < self.least:
            raise InputError(f"{name} is {_written(value)}, expected a whole number of at least {self.least}{word}")
        if value > self.most:
            raise InputError(f"{name} is {_written(value)}, expected a whole number from {self.least} to {self.most}")


@dataclass(frozen=True)
class Number:
    """A number from `least` to `most`; `above`: `least` itself is none of them."""

    least: float
    most: float
    above: bool = False

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if is_number and self.above and value == self.least:
            raise InputError(f"{name} is {value:g}, expected a number above {self.least:g}, at most {self.most:g}")
        if not is_number or not self.least <= value <= self.most:
            raise InputError(f"{name} is {_written(value)}, expected a number from {self.least:g} to {self.most:g}")


@dataclass(frozen=True)
class Choice:
    names: tuple[str, ...]

    def check(self, name: str, value: Any, *, optional: bool) -> None:
        if value not in self.names:
            known = ", ".join([*(["None"] if optional else []), *self.names])
            raise InputError(f"{name} is {_written(value)}, expected one of {known}")


@dataclass(frozen=True, repr=False)
class Settings:
    """Base of groups of settings: checks them by their annotations, and writes those that are not as by default."""

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        cls.known(settings)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, (kind, optional) in _kinds(type(self)).items():
            value = getattr(self, name)
            if value is not None or not optional:
                kind.check(name, value, optional=optional)

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings that have no default, or another value than their default."""
        values = {item.name: (getattr(self, item.name), item.default) for item in fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    def diff(self, other: Self) -> dict[str, tuple[Any, Any]]:
        """Return the settings in which `other` differs, by name: (the value here, the value there)."""
        pairs = {item.name: (getattr(self, item.name), getattr(other, item.name)) for item in fields(self)}
        return {name: (here, there) for name, (here, there) in pairs.items() if here != there}

    def replace(self, *groups: "Settings", **changes: Any) -> Self:
        """Return these settings with all those of `groups`, and then with `changes`, in the place of their own.

        Raises InputError for a setting that is unknown here, or outside its range.
        """
        given = {name: value for group in groups for name, value in group.to_json().items()}
        return type(self)(**self.to_json() | self.known(given | changes))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def known(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return `settings`. Raises InputError where one of them is none of these."""
        names = {item.name for item in fields(cls)}
        if unknown := sorted(set(settings) - names):
            raise InputError(f"unknown setting {shown(unknown[0])} of a run: {expected(unknown[0], names)}")
        return dict(settings)

    def __repr__(self) -> str:
        """The call that makes these settings: what is as by default is left out."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.chosen.items())})"


def _kinds(group: type[Settings]) -> dict[str, tuple[Kind, bool]]:
    """The kind of each setting, and whether it may be None."""
    hints = get_type_hints(group, include_extras=True)
    annotated = {item.name: get_args(hints[item.name]) for item in fields(group)}
    return {name: (kind, type(None) in get_args(base)) for name, (base, kind) in annotated.items()}


def _written(value: Any) -> str:
    """Write a value in a line: those of Python's own simple types as they are, of others the type alone."""
    simple = value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))
    return " ".join(shown(value).split()) if simple else f"a {type(value).__name__}"
