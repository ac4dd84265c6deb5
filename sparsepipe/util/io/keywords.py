"""Names that a caller gives: an unknown one is reported in a line, with the known one that was probably meant."""

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from typing import Any, ParamSpec, TypeVar

from ...errors import InputError
from .fields import shown

_Given = ParamSpec("_Given")
_Returned = TypeVar("_Returned")


def meant(given: str, known: Iterable[str]) -> str | None:
    """Return the known word that a given one is nearest to, or begins; None if none is near."""
    words = list(known)
    if len(given.strip("-")) > 2 and (longer := [word for word in words if word.startswith(given)]):
        return longer[0]
    near = get_close_matches(given, words, n=1, cutoff=0.6)
    return near[0] if near else None


def expected(given: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant; if none is near, which there are."""
    names = list(known)
    near = meant(given, names)
    return f"did you mean {near!r}?" if near else f"expected some of {', '.join(sorted(names))}"


def keywords_of(*functions: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the functions' parameters that can be given by name."""
    kinds = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    found = [one.name for each in functions for one in signature(each).parameters.values() if one.kind in kinds]
    return tuple(dict.fromkeys(found))


def check_keywords(call: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise InputError for the first of the `given` names that a call does not know."""
    names = set(known)
    for name in given:
        if name not in names:
            raise InputError("argument.unknown", f"{call} has no argument {shown(name)}: {expected(name, names)}")


def knows_its_keywords(function: Callable[_Given, _Returned]) -> Callable[_Given, _Returned]:
    """Have a public function raise InputError, which names it, for a keyword that it does not know."""
    known = frozenset(keywords_of(function))

    @wraps(function)
    def checked(*args: _Given.args, **given: _Given.kwargs) -> _Returned:
        if not known.issuperset(given):
            check_keywords(function.__qualname__, given, known)
        return function(*args, **given)

    return checked
