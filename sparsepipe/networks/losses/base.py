"""What every loss offers: a scalar to train on, what to report of a minibatch, and how reports add up."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Outcome:
    """Result of the loss for one minibatch.

    `counted`: the items that have a target, such as samples, voxels or words; `correct`: those of them predicted right.
    """

    loss: float | None  # mean over what was counted; None if nothing was: then there is no gradient either
    samples: int
    counted: int
    correct: int = 0
    details: Tensor | None = None  # float64 [loss.num_details]: what else a validation adds up
    names: tuple[str, ...] = ()  # of the first details, where a loss learns only as it runs what there is to report


class Loss(Protocol):
    """Judges a network's output. The same value of its settings is made in every process that needs it."""

    @property
    def counts_correct(self) -> bool:
        """Return whether outcomes say how many predictions are right: then there is an accuracy to report."""
        ...

    @property
    def num_details(self) -> int:
        """Return the length of `Outcome.details`."""
        ...

    @property
    def items(self) -> Callable[[Any], tuple[float, ...]] | None:
        """Counts (or weighs) in a target the items that each mean of the loss is over, a number for each mean it adds.

        Minibatches of a step weigh by these numbers; None: by their samples, as no target tells more.
        """
        ...

    def __call__(
        self, output: Any, target: Any, *, samples: int, detailed: bool = False, weights: Sequence[float] | None = None
    ) -> tuple[Tensor, Outcome]:
        """Return the loss, a scalar that gradients go back from, and what to report.

        `output` is what the network's forward gives, `target` what the data set gives for the same samples;
        `detailed`: for a validation; `weights`: what each mean weighs among those of the step's other minibatches, 1
        unless masked. Words to predict weigh 1. Raises InputError if output and target do not fit each other.
        """
        ...

    def report(self, details: Tensor, counted: float) -> Mapping[str, float | None]:
        """Return what to report, by name, of details added up over a validation in which so many items counted.

        None for a mean over nothing (`mean_of`).
        """
        ...


def mean_of(total: float, count: float) -> float | None:
    """Return the mean of `count` items that add up to `total`; None of nothing, which is no number to compare with."""
    return total / count if count else None


def weighed(mean: Tensor, weights: Sequence[float] | None, which: int = 0) -> Tensor:
    """Return a mean of the loss times its weight, if there are weights."""
    return mean if weights is None else mean * weights[which]


class Tally:
    """Outcomes of a validation, added up: over minibatches by `add`, over ranks by summing `values`, float64 [n]."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss
        self._names: tuple[str, ...] = ()
        self.values = torch.zeros(4 + loss.num_details, dtype=torch.float64)

    @property
    def counts_correct(self) -> bool:
        """Return whether there is an accuracy to report."""
        return self._loss.counts_correct

    def add(self, outcome: Outcome) -> None:
        counts = [(outcome.loss or 0.0) * outcome.counted, outcome.samples, outcome.counted, outcome.correct]
        self.values[:4] += torch.tensor(counts, dtype=torch.float64)
        if outcome.details is not None:
            self.values[4:] += outcome.details
            self._names = outcome.names

    def report(self) -> dict[str, float | None]:
        """Return the mean loss, the accuracy if the loss counts one, over how many samples and items ("counted") they
        are, and what the loss adds. Means are None if nothing counted.

        Details that outcomes have named are means over what was counted.
        """
        loss, samples, counted, correct = self.values[:4].tolist()
        scores = {"loss": mean_of(loss, counted)}
        if self._loss.counts_correct:
            scores["accuracy"] = mean_of(correct, counted)
        named = zip(self._names, self.values[4:].tolist(), strict=False)
        scores |= {"samples": int(samples), "counted": int(counted), **self._loss.report(self.values[4:], counted)}
        return scores | {name: mean_of(total, counted) for name, total in named}
