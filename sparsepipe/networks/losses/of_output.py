"""The loss that a network's last layer computes by itself, from targets among its own inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from .base import Outcome, mean_of, weighed
from .classes import class_ious
from .outputs import check_scalar, described, logits_of


@dataclass(frozen=True)
class OutputLoss:
    """`output` is a scalar, a dict (transformers' outputs are) with one as "loss", or a tuple with one first.

    A dict may have logits too, as Pointcept's segmentors give in evaluation: "seg_logits", float [N, num_classes]. With
    a target int64 [N] these give accuracy and mean IoU. Targets below 0 or from `num_classes` on count for nothing.
    Details: the confusion, label by row. `num_classes`: 0 for no such report.
    """

    num_classes: int = 0
    counts_correct = False
    items = None

    @property
    def num_details(self) -> int:
        return self.num_classes**2

    def __call__(
        self, output: Any, target: Any, *, samples: int, detailed: bool = False, weights: Sequence[float] | None = None
    ) -> tuple[Tensor, Outcome]:
        """Raises InputError if the output has no loss."""
        found = output
        if isinstance(output, Mapping):
            if output.get("loss") is None:
                raise InputError(
                    "loss.output_malformed",
                    f'the network\'s forward returns {described(output)}, expected an entry "loss"',
                )
            found = output["loss"]
        elif isinstance(output, tuple | list) and output:
            found = output[0]
        loss = check_scalar(found, "the loss that the network gives")
        details = self._confusion(output, target) if detailed and self.num_classes else None
        return weighed(loss, weights), Outcome(float(loss.detach()), samples, samples, details=details)

    def _confusion(self, output: Any, target: Any) -> Tensor:
        """Return how often each class, by row, was taken for each, float64 [num_classes²]; zeros without logits."""
        logits, size = logits_of(output), self.num_classes
        fits = isinstance(target, Tensor) and target.dtype == torch.int64
        if logits is None or not fits or logits.shape != (*target.shape, size):
            return torch.zeros(size**2, dtype=torch.float64)
        labels, found = target.to(logits.device), logits.detach().argmax(dim=-1)
        known = (labels >= 0) & (labels < size)
        pairs = labels[known] * size + found[known]
        return torch.bincount(pairs, minlength=size**2).to("cpu", torch.float64)

    def report(self, details: Tensor, counted: float) -> dict[str, float | None]:
        """ "iou_classes": over how many classes the mean is."""
        confusion = details.view(self.num_classes, self.num_classes)
        total = float(confusion.sum())
        if not total:
            return {}
        iou = class_ious(confusion)
        accuracy = float(confusion.diagonal().sum()) / total
        return {"accuracy": accuracy, "mean_iou": mean_of(float(iou.sum()), len(iou)), "iou_classes": len(iou)}
