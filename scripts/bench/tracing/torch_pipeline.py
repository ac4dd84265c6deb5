"""Cut a module with torch.distributed.pipelining.pipeline, and run the stages as processes would."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.utils import _pytree as pytree

TRIES = 4  # places for its cuts: it cuts before modules alone, and not before all of them


class WrongStages(Exception):
    """It gave another number of stages than asked."""


def cut(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], before: tuple[str, ...]) -> fx.GraphModule:
    """Return the module cut before some of its submodules: a graph of stages."""
    pipe = pipeline(module, args, dict(kwargs), split_spec=dict.fromkeys(before, SplitPoint.BEGINNING))
    if pipe.num_stages != len(before) + 1:
        raise WrongStages(f"{pipe.num_stages} stages instead of {len(before) + 1}")
    return pipe.split_gm


def places(paths: list[str], num_stages: int) -> Iterator[tuple[str, ...]]:
    """Yield modules to cut before, even shares of those that are called first; each time a little later."""
    for shift in range(TRIES) if paths else ():
        found = [paths[min(len(paths) - 1, round(i * len(paths) / num_stages) + shift)] for i in range(1, num_stages)]
        if len(set(found)) == num_stages - 1:
            yield tuple(found)


class Stages(fx.Interpreter):
    """Runs stages one after the other, on values that were detached where they crossed."""

    def __init__(self, stages: fx.GraphModule) -> None:
        super().__init__(stages)
        self.tape: list[tuple[list[tuple[Tensor, Tensor]], list[Tensor]]] = []  # what entered a stage and what left it
        self.gradients: dict[int, Tensor] = {}  # of values that crossed, by identity

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        entered: list[tuple[Tensor, Tensor]] = []
        args, kwargs = pytree.tree_map(lambda value: detached(value, entered), (args, kwargs))
        output = super().call_module(target, args, kwargs)
        left = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
        self.tape.append((entered, left))
        return output

    def backward(self, output: Any, loss: Callable[[Any], Tensor]) -> None:
        """Hand gradients back from stage to stage, each stage's backward once."""
        entered: list[tuple[Tensor, Tensor]] = []
        loss(pytree.tree_map(lambda value: detached(value, entered), output)).backward()
        self._collect(entered)
        for entered, left in reversed(self.tape):
            pairs = [(value, self.gradients[id(value)]) for value in left if id(value) in self.gradients]
            if pairs:
                torch.autograd.backward(*zip(*pairs, strict=True))
            self._collect(entered)

    def _collect(self, entered: list[tuple[Tensor, Tensor]]) -> None:
        for value, leaf in entered:
            if leaf.grad is not None:
                before = self.gradients.get(id(value))
                self.gradients[id(value)] = leaf.grad if before is None else before + leaf.grad


def detached(value: Any, entered: list[tuple[Tensor, Tensor]]) -> Any:
    """Return a value as another process has it, noted with the one that was sent."""
    if not isinstance(value, Tensor) or not value.requires_grad:
        return value
    entered.append((value, value.detach().requires_grad_()))
    return entered[-1][1]


def run(
    stages: fx.GraphModule, leaves: list[Any], loss: Callable[[Any], Tensor]
) -> tuple[Any, list[tuple[str, Tensor]]]:
    """Return what the stages give, and each parameter's gradient: once for every stage that has the parameter."""
    interpreter = Stages(stages)
    output = interpreter.run(*leaves)
    interpreter.backward(output, loss)
    found = []
    for _, stage in stages.named_children():
        for name, parameter in stage.named_parameters(remove_duplicate=False):
            gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            found.append((name, gradient))
    return output, found
