"""Optimizers as functions on lists of tensors: torch's own arithmetic, fused, on whichever weights they are given."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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

    def __init__(self, *, momentum: float, weight_decay: float, nesterov: bool = False) -> None:
        self._momentum, self._weight_decay, self._nesterov = momentum, weight_decay, nesterov
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
            nesterov=self._nesterov,
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


class Moments:
    """Base of optimizers that keep tensors of each weight by kind: zeros of its shape at first; `steps` is a number."""

    def __init__(self, name: str, kinds: Sequence[str]) -> None:
        self._name = name
        self._moments: dict[str, dict[int, Tensor]] = {kind: {} for kind in kinds}  # by place in the list of weights

    def of(self, weights: Sequence[Tensor]) -> dict[str, dict[int, Tensor]]:
        """Return the tensors of each kind, of each weight."""
        for kind, tensors in self._moments.items():
            for number, weight in enumerate(weights):
                if number not in tensors:  # also of a weight that was frozen when the checkpoint was written
                    scalar = torch.zeros((), device=weight.device)
                    tensors[number] = scalar if kind == "steps" else torch.zeros_like(weight)
        return self._moments

    def state(self, names: Sequence[str]) -> dict[str, Tensor]:
        return {
            f"{kind}:{names[number]}": tensor
            for kind, tensors in self._moments.items()
            for number, tensor in sorted(tensors.items())
        }

    def load(self, names: Sequence[str], state: Mapping[str, Tensor], *, adopt: bool = False) -> None:
        _only(state, set(self._moments), self._name)
        for kind, tensors in self._moments.items():
            tensors.clear()
            for number, name in enumerate(names):
                if (tensor := state.get(f"{kind}:{name}")) is not None:
                    tensors[number] = tensor if adopt else tensor.clone()


class Adam(Moments):
    """Adam, or with `decoupled` AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization")."""

    def __init__(
        self,
        *,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        decoupled: bool = False,
    ) -> None:
        self._weight_decay, self._betas, self._eps, self._decoupled = weight_decay, betas, eps, decoupled
        super().__init__("adam", ("mean", "square", "steps"))

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        weights, gradients = _real(weights), _real(gradients)
        reached = _reached(weights, gradients)
        moments = self.of(weights)
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
            eps=self._eps,
            maximize=False,
        )


class LAMB(Moments):
    """Adam whose step has, for each weight tensor, the length of the tensor (You et al., "Large Batch Optimization",
    algorithm 2).
    """

    def __init__(self, *, weight_decay: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6) -> None:
        self._weight_decay, self._betas, self._eps = weight_decay, betas, eps
        super().__init__("lamb", ("mean", "square", "steps"))

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        weights, gradients = _real(weights), _real(gradients)
        reached, (first, second) = _reached(weights, gradients), self._betas
        if not reached:
            return
        moments = {kind: [own[place] for place in reached] for kind, own in self.of(weights).items()}
        stepped, slopes = ([pair[k] for pair in reached.values()] for k in (0, 1))
        torch._foreach_add_(moments["steps"], 1)
        torch._foreach_lerp_(moments["mean"], slopes, 1 - first)
        torch._foreach_mul_(moments["square"], second)
        torch._foreach_addcmul_(moments["square"], slopes, slopes, 1 - second)
        steps = [float(own) for own in moments["steps"]]
        scales = torch._foreach_div(moments["square"], [1 - second**own for own in steps])
        torch._foreach_sqrt_(scales)
        torch._foreach_add_(scales, self._eps)
        changes = torch._foreach_div(moments["mean"], [1 - first**own for own in steps])
        torch._foreach_div_(changes, scales)
        torch._foreach_add_(changes, stepped, alpha=self._weight_decay)
        for weight, change in zip(stepped, changes, strict=True):
            length, reach = float(weight.norm()), float(change.norm())
            weight.sub_(change, alpha=learning_rate * (length / reach if length and reach else 1.0))


class Lion(Moments):
    """Steps by the sign of a mean of gradients (Chen et al., "Symbolic Discovery of Optimization Algorithms")."""

    def __init__(self, *, weight_decay: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        self._weight_decay, self._betas = weight_decay, betas
        super().__init__("lion", ("lion_mean",))

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        weights, gradients = _real(weights), _real(gradients)
        reached, means = _reached(weights, gradients), self.of(weights)["lion_mean"]
        if not reached:
            return
        stepped, slopes = ([pair[k] for pair in reached.values()] for k in (0, 1))
        kept = [means[place] for place in reached]
        changes = torch._foreach_lerp(kept, slopes, 1 - self._betas[0])
        torch._foreach_sign_(changes)
        torch._foreach_mul_(stepped, 1 - learning_rate * self._weight_decay)
        torch._foreach_add_(stepped, changes, alpha=-learning_rate)
        torch._foreach_lerp_(kept, slopes, 1 - self._betas[1])


class Muon(Moments):
    """Steps a matrix by the orthogonal matrix nearest to its momentum (Jordan et al., 2024).

    The step is scaled to the mean square of an AdamW step (Liu et al., "Muon is Scalable for LLM Training", section
    2.2), so one learning rate suits both. Convolution kernels are matrices with a row for each output channel.

    Args:
        channels_last: For each weight, whether its output channels are the last axis, as in a sparse kernel [K, I, O].
    """

    def __init__(
        self, *, weight_decay: float, momentum: float, nesterov: bool, channels_last: Sequence[bool], eps: float = 1e-7
    ) -> None:
        self._weight_decay, self._momentum, self._nesterov, self._eps = weight_decay, momentum, nesterov, eps
        self._channels_last = channels_last
        super().__init__("muon", ("muon_mean",))

    def step(self, weights: Sequence[Tensor], gradients: Sequence[Tensor | None], learning_rate: float) -> None:
        means = self.of(weights)["muon_mean"]
        for place, (weight, gradient) in _reached(weights, gradients).items():
            mean = means[place].lerp_(gradient, 1 - self._momentum)
            step = gradient.lerp(mean, self._momentum) if self._nesterov else mean
            size = weight.shape[-1] if self._channels_last[place] else weight.shape[0]
            matrix = step.reshape(-1, size).T if self._channels_last[place] else step.reshape(size, -1)
            change = _orthogonal(matrix, eps=self._eps)
            change = (change.T if self._channels_last[place] else change).reshape(weight.shape)
            weight.mul_(1 - learning_rate * self._weight_decay)
            weight.sub_(change, alpha=learning_rate * 0.2 * math.sqrt(max(matrix.shape)))


def _orthogonal(matrix: Tensor, *, eps: float) -> Tensor:
    """Return a matrix with nearly the same singular vectors and singular values near 1, by five Newton-Schulz steps."""
    wide = matrix.shape[0] <= matrix.shape[1]
    x: Tensor = matrix.float() if wide else matrix.float().T
    x = x / x.norm().clamp(min=eps)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x if wide else x.T).to(matrix.dtype)


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


def _only(state: Mapping[str, Tensor], kinds: set[str], name: str) -> None:
    if other := {key.split(":", 1)[0] for key in state} - kinds:
        raise InputError(
            "checkpoint.other_optimizer",
            f"the checkpoint has {', '.join(sorted(other))} of another optimizer, but this run uses {name}; resume "
            "with the original optimizer",
            name=name,
        )


@dataclass
class LossScale:
    """torch.amp.GradScaler's rule, as numbers that every rank computes identically (Micikevicius et al., ICLR 2018,
    3.2).
    """

    factor: float = 2.0**16
    good_steps: int = 0  # since the factor changed
    interval: int = 2000  # so many of them in a row double it

    def update(self, *, overflowed: bool) -> None:
        """Take note of a step, which was left out where it overflowed."""
        if overflowed:
            self.factor, self.good_steps = self.factor / 2, 0
            return
        self.good_steps += 1
        if self.good_steps == self.interval:
            self.factor, self.good_steps = self.factor * 2, 0
