"""Parameter groups of a stage: which optimizer steps which of its weights, and with which settings.

A weight's group follows from its name and its shape alone, so any cut of the network trains it in the same way.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from ...errors import CODE_FAILURES, InputError
from ...util.io.fields import complaint, json_object
from ...util.io.functions import UserFunction, is_function
from ..config import TORCH_OPTIMIZERS, OptimizerConfig
from .optimizer import LAMB, SGD, Adam, Lion, Muon, Optimizer


def open_optimizer(config: OptimizerConfig, parameters: Mapping[str, Tensor]) -> Optimizer:
    """Return the optimizer of a stage's weights, given by name: one, or one for each group of them.

    Raises InputError for a class that does not exist, or that refuses its arguments.
    """
    positions: dict[tuple[OptimizerConfig, float], list[int]] = {}
    names = list(parameters)
    for position, (name, weight) in enumerate(parameters.items()):
        positions.setdefault(config.group_of(name, weight.dim()), []).append(position)
    groups = [
        (members, factor, _opened(settings, {names[position]: parameters[names[position]] for position in members}))
        for (settings, factor), members in positions.items()
    ]
    if len(groups) == 1 and groups[0][1] == 1:
        return groups[0][2]
    return ParameterGroups(groups)


def _opened(config: OptimizerConfig, parameters: Mapping[str, Tensor]) -> Optimizer:
    name, decay = config.optimizer, config.weight_decay
    first, second = config.betas or (0.9, 0.99 if name == "lion" else 0.999)
    eps = {"lamb": 1e-6, "muon": 1e-7}.get(name, 1e-8) if config.eps is None else config.eps
    match name:
        case "sgd":
            return SGD(momentum=config.momentum, weight_decay=decay, nesterov=config.nesterov)
        case "adam" | "adamw":
            return Adam(weight_decay=decay, betas=(first, second), eps=eps, decoupled=name == "adamw")
        case "lamb":
            return LAMB(weight_decay=decay, betas=(first, second), eps=eps)
        case "lion":
            return Lion(weight_decay=decay, betas=(first, second))
        case "muon":
            last = [name.endswith("kernel") for name in parameters]  # MinkowskiEngine's layout, [K, I, O]
            return Muon(
                weight_decay=decay, momentum=config.momentum, nesterov=config.nesterov, channels_last=last, eps=eps
            )
    return TorchOptimizer(config, parameters)


class ParameterGroups:
    """Several optimizers, each of its own weights, at the learning rate times a factor of its own."""

    def __init__(self, groups: Sequence[tuple[Sequence[int], float, Optimizer]]) -> None:
        """`groups`: the positions of the weights in the list that is stepped, the factor, and what steps them."""
        self._groups = groups

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        for positions, factor, optimizer in self._groups:
            optimizer.step(
                [weights[position] for position in positions],
                [gradients[position] for position in positions],
                learning_rate * factor,
            )

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        for positions, _, optimizer in self._groups:
            state |= optimizer.state([names[position] for position in positions])
        return state

    def load(self, names: Sequence[str], state: Mapping[str, Tensor], *, adopt: bool = False) -> None:
        for positions, _, optimizer in self._groups:
            group_names = [names[position] for position in positions]
            known = set(group_names)
            theirs = {key: tensor for key, tensor in state.items() if key.split(":", 1)[1] in known}
            optimizer.load(group_names, theirs, adopt=adopt)


Made = TypeVar("Made")
_TENSOR, _NUMBER, _GROUP = "state.", "number.", "group."  # kinds of what a class of torch.optim keeps


class TorchOptimizer:
    """A class of torch.optim, or of the user's own with its interface, on weights that may move in memory.

    The class sees the same parameters in each step: only their memory is exchanged. It keeps its state by these.
    """

    def __init__(self, config: OptimizerConfig, weights: Mapping[str, Tensor]) -> None:
        """Raises InputError for a class that does not exist, or that refuses its arguments."""
        self._name = config.optimizer
        arguments: dict[str, object] = {"lr": config.learning_rate, "weight_decay": config.weight_decay}
        kind = optimizer_class(self._name)
        if not config.weight_decay and "weight_decay" not in _parameters(kind):
            del arguments["weight_decay"]
        arguments |= json_object(config.optimizer_args, "optimizer_args")
        self._weights = [nn.Parameter(weight.detach()) for weight in weights.values()]
        made = self._called(lambda: kind(self._weights, **arguments))
        if not isinstance(made, torch.optim.Optimizer):
            raise InputError(
                "optimizer.not_an_optimizer",
                f"{{optimizer}} {self._name}: returns a {type(made).__name__}, expected a torch.optim.Optimizer",
                setting="optimizer",
            )
        self._optimizer = made
        self._initial = [dict(group) for group in self._optimizer.param_groups]

    @torch.no_grad()
    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        for parameter, weight, gradient in zip(self._weights, weights, gradients, strict=True):
            parameter.data, parameter.grad = weight.detach(), gradient
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._called(self._optimizer.step)
        for parameter, weight in zip(self._weights, weights, strict=True):
            if parameter.data_ptr() != weight.data_ptr():  # the class made new memory
                weight.copy_(parameter)
            parameter.grad = None

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        state: dict[str, Tensor] = {}
        changed = {
            key: value
            for group, before in zip(self._optimizer.param_groups, self._initial, strict=True)
            for key, value in group.items()
            if key not in ("params", "lr") and isinstance(value, int | float | Tensor) and value is not before[key]
        }
        for name, parameter in zip(names, self._weights, strict=True):
            values = self._optimizer.state.get(parameter, {})
            for key, value in values.items():
                if isinstance(value, Tensor):
                    state[f"{_TENSOR}{key}:{name}"] = value
                elif isinstance(value, int | float | complex):
                    state[f"{_NUMBER}{key}:{name}"] = _number(value)
                elif value is not None:
                    raise InputError(
                        "optimizer.state_unsupported",
                        f"{{optimizer}} {self._name}: stores a {type(value).__name__} ({key!r}) for each weight, but "
                        "checkpoints support only tensors and numbers",
                        setting="optimizer",
                    )
            if values:
                state |= {f"{_GROUP}{key}:{name}": _number(value) for key, value in changed.items()}
        return state

    def load(self, names: Sequence[str], state: Mapping[str, Tensor], *, adopt: bool = False) -> None:
        self._optimizer.state.clear()
        weight_of = dict(zip(names, self._weights, strict=True))
        for key, tensor in state.items():
            kind, name = key.split(":", 1)
            if name not in weight_of:  # of another stage: layers made one have names that say other layers
                continue
            if kind.startswith(_TENSOR):
                values = self._optimizer.state.setdefault(weight_of[name], {})
                values[kind.removeprefix(_TENSOR)] = tensor if adopt else tensor.clone()
            elif kind.startswith(_NUMBER):
                self._optimizer.state.setdefault(weight_of[name], {})[kind.removeprefix(_NUMBER)] = tensor.item()
            elif kind.startswith(_GROUP):
                for group in self._optimizer.param_groups:
                    before = group[kind.removeprefix(_GROUP)]
                    group[kind.removeprefix(_GROUP)] = tensor if isinstance(before, Tensor) else tensor.item()
            else:
                raise InputError(
                    "checkpoint.other_optimizer",
                    f"the checkpoint has {kind} of another optimizer, but this run uses {self._name}; resume with "
                    "the original optimizer",
                    name=self._name,
                )

    def _called(self, call: Callable[[], Made]) -> Made:
        try:
            return call()
        except InputError:
            raise
        except CODE_FAILURES as error:  # whatever the class raises
            what = f"{type(error).__name__}: {complaint(error, None)}"
            raise InputError(
                "optimizer.raises",
                f"{{optimizer}} {self._name} raises {what}; set its arguments by {{optimizer_args}}",
                setting=dict.fromkeys(("optimizer", "optimizer_args")),
            ) from error


def optimizer_class(name: str) -> Callable[..., object]:
    """Return a class of torch.optim, or of the user's own. Raises InputError if there is none."""
    if not is_function(name):
        kind: Callable[..., object] = getattr(torch.optim, TORCH_OPTIMIZERS[name])
        return kind
    return UserFunction.parse(name).load()


def _parameters(kind: Callable[..., object]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(kind).parameters
    except (TypeError, ValueError):  # of a class written in C
        return {}


def _number(value: float | complex | Tensor) -> Tensor:
    """Return a number as a tensor whose item is of the same Python type."""
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
