"""Remember what was worked out of a value, next to it: the newest answers of each kind, for as long as it lives."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Answer = TypeVar("Answer")
Kept = dict[Hashable, dict[Hashable, Any]]  # of each kind, what was asked for → its answer
_MOST = 16  # answers of a kind: a slider that is dragged asks for one after another


def remembered(kept: Kept, kind: str, key: Hashable, make: Callable[[], Answer]) -> Answer:
    """Return the answer that `kept` has for `key`; if it has none, what `make` returns, which it keeps."""
    own: dict[Hashable, Answer] = kept.setdefault(kind, {})
    if key not in own:
        made = make()
        if len(own) >= _MOST:
            own.pop(next(iter(own)), None)
        own[key] = made
        return made
    return own[key]
