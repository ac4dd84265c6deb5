"""Losses: what a network's output costs against its target, and what is reported of it. One family of losses a file.

A new loss is a file here with a member of `Loss` (base.py), and a row in LOSSES and _HOMES. Names are known without
torch: classes are imported when first asked for.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...util.io.functions import UserFunction, is_function
from ...util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .base import Loss, Outcome
    from .classes import CrossEntropy, Segmentation
    from .metrics import Tally

_HOMES = {
    **dict.fromkeys(("Loss", "Outcome"), "base"),
    "Tally": "metrics",
    **dict.fromkeys(("CrossEntropy", "Segmentation"), "classes"),
}

__all__ = ["LOSSES", "METRICS", "CrossEntropy", "Loss", "Outcome", "Segmentation", "Tally", "open_loss"]

# name -> (file, builder), called with settings of the user's and the facts of the data that its parameters are named as
LOSSES: Mapping[str, tuple[str, str]] = {
    "classes": ("classes", "CrossEntropy"),
    "voxels": ("classes", "Segmentation"),
    "pixels": ("classes", "PixelCrossEntropy"),
    "tokens": ("texts", "TokenCrossEntropy"),
    "masked-words": ("texts", "MaskedWords"),
    "output": ("of_users", "OutputLoss"),
}

# Of a validation, besides what its loss reports: classes of metrics.py
METRICS = ("f1", "mean_iou", "point_mean_iou", "auc", "confusion", "map")


def open_loss(name: str, *, facts: Mapping[str, Any], args: Mapping[str, Any] | None = None) -> "Loss":
    """Return a loss by name, or one of the user's own: `package.module:function` or `path/file.py:function`.

    `facts` are what the data set says of itself (num_classes, ...); `args` are settings, which come last. Raises
    InputError for an unknown name, a function that does not exist, settings that it does not have, facts that it lacks.
    """
    args = args or {}
    if is_function(name):
        from .of_users import UserLoss

        return UserLoss(UserFunction.parse(name), args)
    if name not in LOSSES:
        raise InputError(
            "loss.unknown",
            f"unknown loss {name!r}, expected {', '.join(LOSSES)}, or your own function as package.module:function",
        )
    home, builder_name = LOSSES[name]
    builder: Callable[..., Loss] = getattr(import_module(f".{home}", __name__), builder_name)
    parameters = inspect.signature(builder).parameters
    for setting in args:
        if setting not in parameters:
            has = f"it has {', '.join(parameters)}" if parameters else "it has none"
            raise InputError("loss.setting_unknown", f"loss {name} has no setting {setting!r}; {has}")
    needed = [p for p, parameter in parameters.items() if parameter.default is parameter.empty]
    dear = getattr(facts, "dear", ())  # such as classes that are counted by reading all samples
    given = {fact: facts[fact] for fact in facts if fact in parameters and (fact in needed or fact not in dear)}
    given |= args
    lacking = [parameter for parameter in needed if parameter not in given]
    if lacking:
        raise InputError(
            "loss.fact_missing",
            f"loss {name} needs {', '.join(lacking)}, which this data set does not provide; choose another loss",
        )
    return builder(**given)


__getattr__, __dir__ = lazy_names(globals(), _HOMES)
