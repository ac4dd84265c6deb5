"""Optimizers as functions on lists of tensors: torch's own arithmetic, fused, on whichever weights they are given."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from ...errors import InputError


class Optimizer(Protocol):
    """Changes weights in place by a gradient; what it remembers is keyed by the weights' places in the list."""

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        """Step each weight that has a gradient. One without (None) keeps its value and its state, as in torch.optim:
        neither weight decay nor momentum moves it.
        """
        ...

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        """Return what must be kept to continue exactly, as KIND:NAME. Empty before the first step."""
        ...

    def load(self, names: Sequence[str], state: Mapping[str, Tensor], *, adopt: bool = False) -> None:
        """Go on from what `state` gave: from copies, unless the tensors are this one's to `adopt`.

        Raises InputError if it is another optimizer's.
        """
        ...


class SGD:
    """Stochastic gradient descent with momentum and weight decay."""

    def __init__(self, *, momentum: float, weight_decay: float) -> None:
        self._momentum, self._weight_decay = momentum, weight_decay
        self._velocity: list[Tensor | None] = []

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        weights, gradients = _real(weights), _real(gradients)
        self._velocity = self._velocity or [None] * len(weights)
        reached = _reached(weights, gradients)
        fresh = {place for place in reached if self._velocity[place] is None}
        for places in (fresh, reached.keys() - fresh):  # torch's kernel takes velocities of all weights, or of none
            self._step({place: reached[place] for place in sorted(places)}, learning_rate)

    def _step(self, reached: Mapping[int, tuple[Tensor, Tensor]], learning_rate: float) -> None:
        known = [(self._velocity[place], weight) for place, (weight, _) in reached.items()]
        velocity = [v if v is None else _laid_out(v, w) for v, w in known]
        sgd(
            [weight for weight, _ in reached.values()],
            [_laid_out(gradient, weight) for weight, gradient in reached.values()],
            velocity,
            fused=True,
            foreach=False,
            lr=learning_rate,
            momentum=self._momentum,
            weight_decay=self._weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for place, own in zip(reached, velocity, strict=True):
            self._velocity[place] = own

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        kept = zip(names, self._velocity, strict=False)
        return {f"velocity:{name}": tensor for name, tensor in kept if tensor is not None}

    def load(self, names: Sequence[str], state: Mapping[str, Tensor], *, adopt: bool = False) -> None:
        _only(state, {"velocity"}, "sgd")
        kept = [state.get(f"velocity:{name}") for name in names]  # none of a weight that no gradient has reached yet
        self._velocity = kept if adopt else [tensor if tensor is None else tensor.clone() for tensor in kept]


class Adam:
    """Adam, or with `decoupled` AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization")."""

    def __init__(
        self, *, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999), decoupled: bool = False
    ) -> None:
        self._weight_decay, self._betas, self._decoupled = weight_decay, betas, decoupled
        self._moments: dict[str, list[Tensor]] = {}

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        weights, gradients = _real(weights), _real(gradients)
        moments = self._moments = self._moments or _moments(weights)
        reached = _reached(weights, gradients)
        for kind in ("mean", "square"):
            for place, (weight, _) in reached.items():
                moments[kind][place] = _laid_out(moments[kind][place], weight)
        adam(
            [weight for weight, _ in reached.values()],
            [_laid_out(gradient, weight) for weight, gradient in reached.values()],
            [moments["mean"][place] for place in reached],
            [moments["square"][place] for place in reached],
            [],
            [moments["steps"][place] for place in reached],
            fused=True,
            foreach=False,
            decoupled_weight_decay=self._decoupled,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=learning_rate,
            weight_decay=self._weight_decay,
            eps=1e-8,
            maximize=False,
        )

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        return _named(self._moments, names)

    def load(self, names: Sequence[str], state: Mapping[str, Tensor], *, adopt: bool = False) -> None:
        _only(state, {"mean", "square", "steps"}, "adam")
        self._moments = _unnamed(state, names, adopt=adopt)


class LAMB:
    """Adam whose step has, for each weight tensor, the length of the tensor (You et al., "Large Batch Optimization",
    algorithm 2).
    """

    def __init__(self, *, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999)) -> None:
        self._weight_decay, self._betas = weight_decay, betas
        self._moments: dict[str, list[Tensor]] = {}

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        weights, gradients = _real(weights), _real(gradients)
        self._moments = self._moments or _moments(weights)
        reached, (first, second) = _reached(weights, gradients), self._betas
        if not reached:
            return
        moments = {kind: [own[place] for place in reached] for kind, own in self._moments.items()}
        stepped, slopes = ([pair[k] for pair in reached.values()] for k in (0, 1))
        torch._foreach_add_(moments["steps"], 1)
        torch._foreach_lerp_(moments["mean"], slopes, 1 - first)
        torch._foreach_mul_(moments["square"], second)
        torch._foreach_addcmul_(moments["square"], slopes, slopes, 1 - second)
        steps = [float(own) for own in moments["steps"]]
        scales = torch._foreach_div(moments["square"], [1 - second**own for own in steps])
        torch._foreach_sqrt_(scales)
        torch._foreach_add_(scales, 1e-6)
        changes = torch._foreach_div(moments["mean"], [1 - first**own for own in steps])
        torch._foreach_div_(changes, scales)
        torch._foreach_add_(changes, stepped, alpha=self._weight_decay)
        for weight, change in zip(stepped, changes, strict=True):
            length, reach = float(weight.norm()), float(change.norm())
            weight.sub_(change, alpha=learning_rate * (length / reach if length and reach else 1.0))

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        return _named(self._moments, names)

    def load(self, names: Sequence[str], state: Mapping[str, Tensor], *, adopt: bool = False) -> None:
        _only(state, {"mean", "square", "steps"}, "lamb")
        self._moments = _unnamed(state, names, adopt=adopt)


def optimizer(name: str, *, momentum: float, weight_decay: float) -> Optimizer:
    """Return a new optimizer by name; `momentum` is SGD's."""
    if name == "sgd":
        return SGD(momentum=momentum, weight_decay=weight_decay)
    if name in ("adam", "adamw"):
        return Adam(weight_decay=weight_decay, decoupled=name == "adamw")
    if name == "lamb":
        return LAMB(weight_decay=weight_decay)
    raise AssertionError(f"{name} is not one of the optimizers of RunConfig")


def _reached(weights: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> dict[int, tuple[Tensor, Tensor]]:
    """Return the weights that have a gradient, with it, by their place in the list."""
    pairs = enumerate(zip(weights, gradients, strict=True))
    return {place: (weight, gradient) for place, (weight, gradient) in pairs if gradient is not None}


def _real(tensors: Iterable[Tensor | None]) -> list[Any]:
    """Return complex tensors as views of real and imaginary parts, [..., 2]: the kernels take real numbers alone."""
    return [
        torch.view_as_real(tensor.resolve_conj()) if tensor is not None and tensor.is_complex() else tensor
        for tensor in tensors
    ]


def _laid_out(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor in the memory layout of another: the fused kernels go through all memory in one order.

    A convolution's gradient may come with channels last though its weights have not; a checkpoint keeps no layout.
    """
    return tensor if tensor.stride() == like.stride() else torch.empty_like(like).copy_(tensor)


def _moments(weights: Sequence[Tensor]) -> dict[str, list[Tensor]]:
    return {
        "mean": [torch.zeros_like(weight) for weight in weights],
        "square": [torch.zeros_like(weight) for weight in weights],
        "steps": [torch.zeros((), device=weight.device) for weight in weights],
    }


def _named(moments: Mapping[str, Sequence[Tensor]], names: Sequence[str]) -> dict[str, Tensor]:
    return {
        f"{kind}:{name}": tensor
        for kind, tensors in moments.items()
        for name, tensor in zip(names, tensors, strict=True)
    }


def _unnamed(state: Mapping[str, Tensor], names: Sequence[str], *, adopt: bool) -> dict[str, list[Tensor]]:
    kinds = dict.fromkeys(key.split(":", 1)[0] for key in state)
    found = {kind: [state[f"{kind}:{name}"] for name in names] for kind in kinds}
    return found if adopt else {kind: [tensor.clone() for tensor in own] for kind, own in found.items()}


def _only(state: Mapping[str, Tensor], kinds: set[str], name: str) -> None:
    if other := {key.split(":", 1)[0] for key in state} - kinds:
        raise InputError(
            "checkpoint.other_optimizer",
            f"the checkpoint holds {', '.join(sorted(other))} of another optimizer, this run's is {name}",
            name=name,
        )
