"""Settings as tables: a frozen dataclass each, whose rows say what a setting may be and what it is for.

@dataclass(frozen=True, repr=False)
class Warmup(Settings):
    minibatches: int = setting(0, WholeNumber(0), "minibatches of the warm-up")
    scale: float | None = setting(None, Number(0, 1), "first factor", unit="F")  # None only where it is the default

Checks, the command line's options, the widgets' controls and the page of settings are made from these rows alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from textwrap import fill
from typing import Any, ClassVar, Protocol, Self

from ...errors import InputError
from .fields import MOST, json_object, shown
from .quantities import Quantity, expected, meant

MANY = 10**15  # of anything that is counted: no run gets there, and floats still tell such numbers apart


class Kind(Protocol):
    """Allowed values of a setting, described by `str`. `code`: error code for other values."""

    code: ClassVar[str]

    def fault(self, value: object) -> str:
        """Return what is wrong with a value, such as "0, expected …"; empty where nothing is."""
        ...


@dataclass(frozen=True)
class Text:
    """A string that is not empty; `example` is what a message gives as one. `offered`: those that users choose from."""

    code: ClassVar[str] = "setting.not_text"
    example: str
    offered: tuple[str, ...] = ()

    def fault(self, value: object) -> str:
        is_text = isinstance(value, str) and value and "\0" not in value
        return "" if is_text else f"{_written(value)}, expected text such as {self.example}"

    def __str__(self) -> str:
        return _listed(self.offered) or f"text such as {self.example}"


@dataclass(frozen=True)
class JsonObject:
    """A string that is a JSON object, such as `example`."""

    code: ClassVar[str] = "setting.not_json"
    example: str

    def fault(self, value: object) -> str:
        if not isinstance(value, str) or not value:
            return f"{_written(value)}, expected {self}"
        try:
            json_object(value, "", example=self.example)
        except InputError as error:
            return str(error).strip()
        return ""

    def __str__(self) -> str:
        return f"a JSON object such as '{self.example}'"


@dataclass(frozen=True)
class Choice:
    """One of `names`, or a function of the user's own: a text that `is_own` takes, such as `example`.

    `renamed`: names of earlier versions, which are taken too, with the names of today.
    """

    code: ClassVar[str] = "setting.not_a_choice"
    names: tuple[object, ...]
    example: str = ""
    is_own: Callable[[str], bool] = lambda _: False
    renamed: Mapping[str, str] = field(default_factory=dict)

    def today(self, name: str) -> str:
        """Return the name of today."""
        return self.renamed.get(name, name)

    def fault(self, value: object) -> str:
        if value in self.names or (isinstance(value, str) and (value in self.renamed or self.is_own(value))):
            return ""
        near = meant(value, map(str, self.names)) if isinstance(value, str) else None
        told = f": did you mean {near!r}?" if near else f", expected one of {', '.join(map(str, self.names))}"
        return _written(value) + told + (f", or your own as {self.example}" if self.example else "")

    def __str__(self) -> str:
        return _listed((*self.names, *filter(None, [self.example])))


@dataclass(frozen=True)
class Flag:
    """True or False."""

    code: ClassVar[str] = "setting.not_a_boolean"

    def fault(self, value: object) -> str:
        return "" if isinstance(value, bool) else f"{_written(value)}, expected true or false"

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class WholeNumber:
    """A whole number from `least` to `most`, or where there is one the `word`."""

    code: ClassVar[str] = "setting.not_whole"
    least: int
    most: int = MANY
    word: str | None = None

    def fault(self, value: object) -> str:
        if self.word is not None and value == self.word:
            return ""
        word = f", or {self.word!r}" if self.word else ""
        if isinstance(value, bool) or not isinstance(value, int) or value < self.least:
            return f"{_written(value)}, expected a whole number of at least {self.least}{word}"
        if value > self.most:
            return f"{_written(value)}, expected a whole number from {self.least} to {self.most}"
        return ""

    def __str__(self) -> str:
        most = f"at least {self.least}" if self.most == MANY else f"from {self.least:,} to {self.most:,}"
        return f"a whole number, {most}{f', or {self.word}' if self.word else ''}"


@dataclass(frozen=True)
class Number:
    """A number from `least` to `most`; `above`: `least` itself is none of them."""

    code: ClassVar[str] = "setting.out_of_range"
    least: float
    most: float
    above: bool = False

    def fault(self, value: object) -> str:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and self.least <= value <= self.most:
            if not (self.above and value == self.least):
                return ""
        bounds = f"above {self.least:g}, at most" if self.above else f"from {self.least:g} to"
        return f"{_written(value)}, expected a number {bounds} {self.most:g}"

    def __str__(self) -> str:
        least = f"above {self.least:g}" if self.above else f"{self.least:g} or more"
        return f"a number, {least}" + (f", at most {self.most:g}" if self.most < MANY else "")


@dataclass(frozen=True)
class Amount:
    """A number above 0 of a quantity's base unit, or a text with its unit, such as "2 GB"."""

    code: ClassVar[str] = "setting.not_an_amount"
    quantity: Quantity

    def fault(self, value: object) -> str:
        try:
            read = self.quantity.read(value) if isinstance(value, str) else value
        except InputError as error:
            return str(error)
        if isinstance(read, (int, float)) and not isinstance(read, bool) and 0 < read <= MOST:
            return ""
        return f"{_written(value)}, expected {self}"

    def __str__(self) -> str:
        return f"a {self.quantity.name} above 0, such as {self.quantity.example}"


@dataclass(frozen=True)
class Several:
    """A tuple, such as `example`, of values of one kind."""

    code: ClassVar[str] = "setting.not_names"
    kind: Kind
    example: str

    def fault(self, value: object) -> str:
        if not isinstance(value, (tuple, list)):
            return f"{_written(value)}, expected a tuple such as {self.example}"
        return next(filter(None, map(self.kind.fault, value)), "")

    def __str__(self) -> str:
        return f"several: {self.kind}"


@dataclass(frozen=True)
class Setting:
    """A row of a table of settings: what a setting may be, and what it is for in a few words.

    `unit` stands for its value: `--decay-epochs EPOCHS`. `words`: what its default means if the value does not say.
    `option_name`: of its option, where it has another one than the setting; `""` where it has none.
    """

    name: str
    default: Any  # MISSING: it must be given
    kind: Kind
    help: str
    unit: str
    words: str
    option_name: str | None

    @property
    def label(self) -> str:
        """The name in words, for a control."""
        return self.name.replace("_", " ")

    @property
    def option(self) -> str:
        """The option of the command line; one of a flag that is on by default switches it off. Empty: it has none."""
        name = self.option_name
        if name is None:
            name = f"no_{self.name}" if self.default is True else self.name
        return f"--{name.replace('_', '-')}" if name else ""

    @property
    def default_text(self) -> str:
        """The default in words; empty where there is none, and of a flag that is off."""
        if self.words or any(self.default is empty for empty in (MISSING, None, False, ())):
            return self.words
        if isinstance(self.default, tuple):
            return ", ".join(map(str, self.default))
        return f"{self.default:.12g}" if isinstance(self.default, float) else str(self.default)


def row(kind: Kind, help: str, unit: str = "N", words: str = "", option: str | None = None) -> dict[str, Setting]:
    """Return the metadata of a dataclass's field that is a setting; see `Setting` for what they mean."""
    return {"setting": Setting("", MISSING, kind, help, unit, words, option)}


def setting(default: object, kind: Kind, help: str, unit: str = "N", words: str = "", option: str | None = None) -> Any:
    """Return the field of a setting that has a default."""
    return field(default=default, metadata=row(kind, help, unit, words, option))


@dataclass(frozen=True, repr=False)
class Settings:
    """Base of groups of settings: checks them by their annotations, and writes those that are not as by default."""

    def __new__(cls, *values: Any, **settings: Any) -> Self:
        cls.known(settings)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, one in rows(type(self)).items():
            value = getattr(self, name)
            if (value is not None or one.default is not None) and (fault := one.kind.fault(value)):
                raise InputError(one.kind.code, f"{{{name}}} is {fault}", setting=name, name=name)

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
            raise InputError(
                "setting.unknown", f"unknown run setting {shown(unknown[0])}; {expected(unknown[0], names)}"
            )
        return dict(settings)

    def __repr__(self) -> str:
        """The call that makes these settings: what is as by default is left out."""
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.chosen.items())})"


def rows(group: Any) -> dict[str, Setting]:
    """Return the settings of a group, a dataclass, by name."""
    found = {item.name: (item.metadata["setting"], item.default) for item in fields(group)}
    return {name: replace(one, name=name, default=default) for name, (one, default) in found.items()}


def listed(group: Any, indent: str = "    ") -> str:
    """Return the settings of a group, an item each, for the end of a docstring that is indented so far."""
    items = []
    for name, one in rows(group).items():
        default = f" (default: {one.default_text})" if one.default_text else ""
        text = f"`{name}`: {one.help}; {one.kind}{default}"
        items.append(
            fill(text, 119, initial_indent=f"{indent}- ", subsequent_indent=f"{indent}  ", break_on_hyphens=False)
        )
    return "\n".join(items)


def _listed(names: tuple[object, ...]) -> str:
    return ", ".join(f'"{name}"' if isinstance(name, str) else str(name) for name in names)


def _written(value: object) -> str:
    """Write a value in a line: those of Python's own simple types as they are, of others the type alone."""
    simple = value is None or isinstance(value, (bool, int, float, str, list, tuple, dict))
    return " ".join(shown(value).split()) if simple else f"a {type(value).__name__}"
