"""Frozen weights: patterns of names in a module's state_dict say which tensors the training leaves as they are.

A parameter that matches gets no gradient and no optimizer state. A batch norm whose `running_mean` matches keeps its
statistics and normalizes with them, in training too. So `backbone.*` freezes a backbone whole, and `backbone.*.weight`
with `backbone.*.bias` its parameters alone: its batch norms then still follow the data. Dropout is not affected.
"""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from ..errors import InputError

RUNNING_MEAN = "running_mean"
_SHOWN = 4  # names in a line


def matching(patterns: Sequence[str], names: Collection[str], *, setting: str) -> frozenset[str]:
    """Return the names that match a pattern, such as `backbone.*`.

    Args:
        patterns: As the shell's: `*` stands for any text, dots included.
        names: Those of a network's tensors.
        setting: Which setting has the patterns, for messages.

    Raises:
        InputError: A pattern matches none.
    """
    matches: set[str] = set()
    for pattern in patterns:
        if not (of_pattern := {name for name in names if fnmatchcase(name, pattern)}):
            some = ", ".join(list(names)[:_SHOWN])
            raise InputError(
                "setting.pattern_unmatched",
                f"{{{setting}}} {pattern!r} matches no tensor of the network, which has {len(names)} tensors such as "
                f"{some}, …",
                setting=setting,
            )
        matches |= of_pattern
    return frozenset(matches)


def check_trains(frozen: Collection[str], parameters: Collection[str]) -> None:
    """Raise InputError if all parameters are frozen."""
    if not set(parameters) - set(frozen):
        raise InputError(
            "freeze.nothing_left",
            "{freeze} matches all parameters, so nothing is left to train; freeze fewer",
            setting="freeze",
        )
