"""Frozen weights: patterns of names in a module's state_dict say which tensors the training leaves as they are.

A parameter that matches gets no gradient and no optimizer state. A batch norm whose `running_mean` matches keeps its
statistics and normalizes with them, in training too. So `backbone.*` freezes a backbone whole, and `backbone.*.weight`
with `backbone.*.bias` its parameters alone: its batch norms then still follow the data. Dropout is not affected.

`backbone.*@2` freezes for the first two epochs: then the weights get gradients, and the optimizer starts with them.
"""

import re
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from ..errors import InputError

RUNNING_MEAN = "running_mean"
_SHOWN = 4  # names in a line
_FOR_EPOCHS = re.compile(r"(.+)@(\d+)", re.DOTALL)


def in_epoch(patterns: Sequence[str], epoch: int | None) -> tuple[str, ...]:
    """Return the patterns that freeze weights in an epoch, counted from 0; None: in every epoch.

    Args:
        patterns: Those of the setting, such as `backbone.*`, or `backbone.*@2` for the first two epochs.
    """
    found = []
    for pattern in patterns:
        limited = _FOR_EPOCHS.fullmatch(pattern)
        if limited is None:
            found.append(pattern)
        elif epoch is not None and epoch < int(limited[2]):
            found.append(limited[1])
    return tuple(found)


def check_epochs(patterns: Sequence[str]) -> None:
    """Raise InputError for a pattern with a number of epochs that is none, such as `backbone.*@two`."""
    for pattern in patterns:
        _, limited, epochs = pattern.rpartition("@")
        if limited and not (_FOR_EPOCHS.fullmatch(pattern) and int(epochs)):
            raise InputError(
                "freeze.epochs",
                f"{{freeze}} {pattern!r}: {epochs!r} is no number of epochs, expected a whole number above 0, such as "
                "'backbone.*@2'",
                setting="freeze",
            )


def matching(patterns: Sequence[str], names: Collection[str], *, setting: str) -> frozenset[str]:
    """Return the names that match a pattern, such as `backbone.*`.

    Args:
        patterns: As the shell's: `*` stands for any text, dots included.
        names: Those of a network's tensors.
        setting: Which setting has the patterns, for messages.

    Raises:
        InputError: A pattern matches none.
    """
    chosen: set[str] = set()
    for pattern in patterns:
        if not (of_pattern := {name for name in names if matches([pattern], name)}):
            some = ", ".join(list(names)[:_SHOWN])
            raise InputError(
                "setting.pattern_unmatched",
                f"{{{setting}}} {pattern!r} matches no tensor of the network, which has {len(names)} tensors such as "
                f"{some}, …",
                setting=setting,
            )
        chosen |= of_pattern
    return frozenset(chosen)


def matches(patterns: Sequence[str], name: str) -> bool:
    """Return whether a name matches one of the patterns."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def check_trains(frozen: Collection[str], parameters: Collection[str]) -> None:
    """Raise InputError if all parameters are frozen."""
    if not set(parameters) - set(frozen):
        raise InputError(
            "freeze.nothing_left",
            "{freeze} matches all parameters, so nothing is left to train; freeze fewer",
            setting="freeze",
        )
