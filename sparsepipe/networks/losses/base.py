"""What every loss offers: a scalar to train on, and what to report of a minibatch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
