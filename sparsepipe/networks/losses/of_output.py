"""The loss that a network's last layer computes by itself, from targets among its own inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ...errors import InputError
from .base import Outcome, weighed
from .outputs import check_scalar, described


@dataclass(frozen=True)
class OutputLoss:
    """`output` is a scalar, a dict (transformers' outputs are) with one as "loss", or a tuple with one first."""

    counts_correct = False
    items = None
    num_details = 0

    def __call__(
        self, output: Any, target: Any, *, samples: int, detailed: bool = False, weights: Sequence[float] | None = None
    ) -> tuple[Tensor, Outcome]:
        """Raises InputError if the output has no loss."""
        found = output
        if isinstance(output, Mapping):
            if output.get("loss") is None:
                raise InputError(
                    "loss.output_malformed",
                    f'the network\'s forward gives {described(output)}, expected "loss" among its entries',
                )
            found = output["loss"]
        elif isinstance(output, tuple | list) and output:
            found = output[0]
        loss = check_scalar(found, "the loss that the network gives")
        return weighed(loss, weights), Outcome(float(loss.detach()), samples, samples)

    def report(self, details: Tensor, counted: float) -> dict[str, float | None]:
        return {}
