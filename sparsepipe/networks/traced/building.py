"""Build a network that is a torch module: one of ours by name, or what a function of the user's own returns."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils import checkpoint

from ...errors import CODE_FAILURES, InputError
from ...util.io.functions import UserFunction, is_function
from .. import MODULE_NETWORKS
from ..freezing import RUNNING_MEAN, check_trains, in_epoch, matching


def build_module(model: str, args: Mapping[str, Any], facts: Mapping[str, Any], *, seed: int) -> nn.Module:
    """Return the module, its parameters drawn as its builder draws them, from `seed` alone.

    `facts` of the data (num_classes, in_channels, ...) are given to a builder whose parameters have these names,
    `args` come over them. Raises InputError for a function that does not exist, arguments that do not fit, or anything
    but a module returned.
    """
    home, given = builder(model, args, facts)
    function = home.load()
    _check_arguments(model, function, given)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            module = function(**given)
        except InputError:
            raise
        except CODE_FAILURES as error:  # whatever a function of the user's own raises: it is told in a line
            told = " ".join(str(error).split())
            remedy = UserFunction.parse(model).neighbour(error) if is_function(model) else ""
            what = f"the module raises {type(error).__name__} when built ({told}){remedy}"
            raise InputError("model.raises", f"model {model}: {what}") from error
    if not isinstance(module, nn.Module):
        raise InputError(
            "model.not_a_module", f"model {model}: returns a {type(module).__name__}, expected a torch.nn.Module"
        )
    return module


def builder(
    model: str, args: Mapping[str, object], facts: Mapping[str, object]
) -> tuple[UserFunction, dict[str, object]]:
    """Return the function that builds a module by name, ours or the user's own, and its arguments.

    `facts` and `args` are as in `build_module`.
    """
    if model in MODULE_NETWORKS:
        entry = MODULE_NETWORKS[model]
        function = UserFunction(f"sparsepipe.networks.{entry.home}", entry.function)
        args = {**entry.args, **args}
    else:
        function = UserFunction.parse(model)
    return function, {**_wanted(function.load(), facts), **args}


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # of a class written in C
        return {}


def _wanted(function: Callable[..., Any], facts: Mapping[str, object]) -> dict[str, object]:
    return {name: facts[name] for name in _parameters(function) if name in facts}


def _check_arguments(model: str, function: Callable[..., Any], given: Mapping[str, object]) -> None:
    """Raise InputError if a function does not take these arguments, or wants others."""
    parameters = _parameters(function)
    if not parameters and given:
        raise InputError(
            "model.no_arguments", f"model {model}: takes no arguments, but {', '.join(given)} given; omit them"
        )
    try:
        if parameters:
            inspect.signature(function).bind(**given)
    except TypeError as error:
        takes = ", ".join(map(str, parameters.values()))
        text = f"model {model}: {error}; expected ({takes}); give them with {{model_args}}"
        raise InputError("model.arguments_refused", text, setting="model_args") from None


def called_once(module: nn.Module, batch: object) -> frozenset[str]:
    """Return the paths of the modules that a forward calls once, on a minibatch of inputs: others cannot be cut at.

    `batch`: a tensor, a tuple of positional arguments, or a dict of keywords. Raises InputError if the forward raises.
    """
    counts: dict[str, int] = {}

    def counted(path: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            counts[path] = counts.get(path, 0) + 1

        return hook

    hooks = [part.register_forward_pre_hook(counted(path)) for path, part in module.named_modules() if path]
    keywords = batch if isinstance(batch, Mapping) else {}
    positional = () if keywords else tuple(batch) if isinstance(batch, list | tuple) else (batch,)
    try:
        with torch.no_grad():
            module(*positional, **keywords)
    except CODE_FAILURES as error:
        what = f"{type(error).__name__} ({' '.join(str(error).split())})"
        raise InputError("model.raises", f"the forward of {type(module).__name__} raises {what}") from error
    finally:
        for hook in hooks:
            hook.remove()
    return frozenset(path for path, count in counts.items() if count == 1)


def freeze(module: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the tensors of a torch module that match a pattern in every epoch.

    Raises:
        InputError: A pattern matches no tensor, or no parameter is left to train in the first epoch.
    """
    parameters = dict(module.named_parameters(remove_duplicate=False))
    at_first = matching(in_epoch(patterns, 0), [*module.state_dict()], setting="freeze")
    frozen = matching(in_epoch(patterns, None), [*module.state_dict()], setting="freeze")
    for name, parameter in parameters.items():
        if name in frozen:
            parameter.requires_grad_(False)
    fixed = [name for name, parameter in parameters.items() if name in at_first or not parameter.requires_grad]
    check_trains(fixed, parameters)
    for path, part in module.named_modules():
        if (f"{path}.{RUNNING_MEAN}" if path else RUNNING_MEAN) in frozen:
            part.train = MethodType(_keep_evaluating, part)  # of this part alone
            part.train()


def _keep_evaluating(part: nn.Module, mode: bool = True) -> nn.Module:
    return nn.Module.train(part, False)


@contextmanager
def without_checkpoints() -> Iterator[None]:
    """Have torch.utils.checkpoint.checkpoint call its function and no more, under whatever name it was imported.

    What it runs again in the backward would find other weights in place than the forward had: the optimizer's.
    """
    function: Any = getattr(checkpoint.checkpoint, "__wrapped__", checkpoint.checkpoint)
    original = function.__code__
    function.__code__ = _once.__code__
    try:
        yield
    finally:
        function.__code__ = original


def _once(
    function: Callable[..., Any],
    *args: Any,
    use_reentrant: Any = None,
    context_fn: Any = None,
    determinism_check: Any = None,
    debug: Any = None,
    early_stop: Any = None,
    **kwargs: Any,
) -> Any:
    kwargs.pop("preserve_rng_state", None)
    return function(*args, **kwargs)
