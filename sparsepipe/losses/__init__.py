"""Losses: what a network's output costs against its target, and what is reported of it. One family of losses a file.

A new loss is a file here with a member of `Loss` (base.py) and a row in LOSSES.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InputError
from ..functions import UserFunction, is_function
from .base import Loss, Outcome, Tally
from .classes import CrossEntropy, Segmentation
from .masked_words import MaskedWords
from .of_output import OutputLoss
from .of_users import UserLoss
from .tokens import TokenCrossEntropy

__all__ = ["LOSSES", "CrossEntropy", "Loss", "Outcome", "Segmentation", "Tally", "open_loss"]

# name -> builder, called with settings of the user's and facts of the data that its parameters have the names of
LOSSES: dict[str, Callable[..., Loss]] = {
    "classes": CrossEntropy,
    "voxels": Segmentation,
    "tokens": TokenCrossEntropy,
    "masked-words": MaskedWords,
    "output": OutputLoss,
}


def open_loss(name: str, *, facts: Mapping[str, Any], args: Mapping[str, Any] | None = None) -> Loss:
    """Return a loss by name, or one of the user's own: `package.module:function` or `path/file.py:function`.

    `facts` are what the data set tells of itself (num_classes, ...); `args` are settings, which come last. Raises
    InputError for an unknown name, a function that is not there, settings that it does not have, facts that it lacks.
    """
    args = args or {}
    if is_function(name):
        return UserLoss(UserFunction.parse(name), args)
    if name not in LOSSES:
        raise InputError(
            "loss.unknown",
            f"unknown loss {name!r}, expected {', '.join(LOSSES)}, or one's own as package.module:function",
        )
    parameters = inspect.signature(LOSSES[name]).parameters
    for setting in args:
        if setting not in parameters:
            has = f"it has {', '.join(parameters)}" if parameters else "it has none"
            raise InputError("loss.setting_unknown", f"loss {name} has no setting {setting!r}; {has}")
    given = {fact: facts[fact] for fact in facts if fact in parameters} | dict(args)  # others may be dear to find
    lacking = [p for p, parameter in parameters.items() if parameter.default is parameter.empty and p not in given]
    if lacking:
        raise InputError(
            "loss.fact_missing",
            f"loss {name} needs {', '.join(lacking)}, which these data do not tell; choose another loss",
        )
    return LOSSES[name](**given)
