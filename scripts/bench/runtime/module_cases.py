"""Networks that are torch modules, on examples made here: the module, its layers, and its loss in plain torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from sparsepipe.data.examples import ExampleBatch
from sparsepipe.data.labels import IGNORED
from sparsepipe.engines import Engine, engine
from sparsepipe.engines.allocator import keep_freed_memory
from sparsepipe.networks.base import AnyNetwork

from .table_cases import DISTINCT

Make = Callable[..., ExampleBatch]  # called with a number of samples, a generator and facts


@dataclass(frozen=True)
class ModuleCase:
    """One network on minibatches of one kind, all of one shape, so that torch's own schedules can take them."""

    model: str
    batch_size: int
    make: Make
    loss_name: str
    size_unit: str
    facts: Mapping[str, int] = field(default_factory=dict)

    engine, in_parts = "torch", True

    @property
    def targets_are_labels(self) -> bool:
        return self.loss_name == "classes"

    def minibatches(self, folder: Path) -> list[ExampleBatch]:
        """Make the few minibatches of a case, the same in every process."""
        generator = torch.Generator().manual_seed(0)
        return [self.make(self.batch_size, generator, **self.facts) for _ in range(DISTINCT)]

    def module(self) -> nn.Module:
        from sparsepipe.networks.traced.building import build_module  # here: not every role needs it

        keep_freed_memory()  # as every engine by name does: all competitors alike
        return build_module(self.model, {}, self.facts, seed=0).train()

    def network(self) -> AnyNetwork:
        """Return the network's layers, which take what `minibatches` makes."""
        from sparsepipe.networks.traced import trace

        example = self.make(2, torch.Generator().manual_seed(0), **self.facts)
        num_classes = self.facts.get("num_classes", 0)
        return trace(self.module(), example.inputs, name=self.model, num_classes=num_classes)

    def chosen_engine(self) -> Engine:
        return engine(self.engine)

    def whole(self) -> nn.Module:
        """Return a module from (minibatch, its number) to the loss."""
        return WholeModule(self)


class WholeModule(nn.Module):
    """A torch module as it is, and its loss."""

    def __init__(self, case: ModuleCase) -> None:
        super().__init__()
        self.inner, self.loss = case.module(), PLAIN_LOSSES[case.loss_name]

    def forward(self, batch: ExampleBatch, number: int) -> Tensor:
        inputs = batch.inputs
        output = self.inner(**inputs) if isinstance(inputs, dict) else self.inner(inputs)
        return self.loss(output, packed_target(batch))


def packed_target(batch: ExampleBatch) -> Tensor:
    """Return a target as one tensor, as torch's own schedules take it: a sentence's class behind its words."""
    target = batch.target
    return torch.cat([target["words"], target["next_sentence"][:, None]], 1) if isinstance(target, dict) else target


def of_tokens(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=IGNORED, label_smoothing=0.1)


def of_masked_words(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    words, follows = target[:, :-1], target[:, -1]
    known = words != IGNORED
    return functional.cross_entropy(output[0][known], words[known]) + functional.cross_entropy(output[1], follows)


# What losses of these names come to in a plain loop, which counts nothing.
PLAIN_LOSSES: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "classes": functional.cross_entropy,
    "tokens": of_tokens,
    "masked-words": of_masked_words,
}
