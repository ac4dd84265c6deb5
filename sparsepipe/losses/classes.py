"""The cross entropy of classes, of whole samples or of each voxel, with accuracy, top-5 accuracy and mean IoU."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from ..data.labels import IGNORED
from ..errors import InputError
from .base import Outcome

_TOP = 5  # a class among so many first ones counts as found


@dataclass(frozen=True)
class CrossEntropy:
    """Of samples' classes: `output` float [B, classes], `target` int64 [B]. Details: those found among the five first.

    Targets IGNORED (-100, as torch has it) count for nothing; where none counts, the loss is 0.
    """

    num_classes: int
    counts_correct = True

    @property
    def num_details(self) -> int:
        return 1

    def __call__(self, output: Any, target: Any, *, samples: int, detailed: bool = False) -> tuple[Tensor, Outcome]:
        """Raises InputError unless there is a row of output for each target."""
        loss, outcome = mean_cross_entropy(output, target, samples=samples)
        if not detailed:
            return loss, outcome
        rows = output.detach().float()
        first = rows.topk(min(_TOP, rows.shape[1]), dim=1).indices
        found = (first == target.to(rows.device)[:, None]).any(dim=1).sum()
        return loss, _with_details(outcome, found.to("cpu", torch.float64)[None])

    def report(self, details: Tensor, counted: float) -> dict[str, float]:
        return {"top5_accuracy": float(details[0]) / counted} if self.num_classes > _TOP else {}


@dataclass(frozen=True)
class Segmentation:
    """Of voxels' classes: `output` float [N, classes], `target` int64 [N]. Details: the confusion, label by row."""

    num_classes: int
    counts_correct = True

    @property
    def num_details(self) -> int:
        return self.num_classes**2

    def __call__(self, output: Any, target: Any, *, samples: int, detailed: bool = False) -> tuple[Tensor, Outcome]:
        """Raises InputError unless there is a row of output for each target."""
        loss, outcome = mean_cross_entropy(output, target, samples=samples)
        if not detailed:
            return loss, outcome
        found, labels = output.detach().float().argmax(dim=1), target.to(output.device)
        known = labels != IGNORED
        pairs = labels[known] * self.num_classes + found[known]
        confusion = torch.bincount(pairs, minlength=self.num_details)
        return loss, _with_details(outcome, confusion.to("cpu", torch.float64))

    def report(self, details: Tensor, counted: float) -> dict[str, float]:
        return {"mean_iou": mean_iou(details.view(self.num_classes, self.num_classes))}


def mean_cross_entropy(output: Tensor, target: Tensor, *, samples: int) -> tuple[Tensor, Outcome]:
    """Return the mean cross entropy of `output` [N, classes] over the targets [N] that count, and what to report.

    Raises InputError unless there is a row of output for each target.
    """
    if len(output) != len(target):
        raise InputError(f"{len(output)} outputs for {len(target)} labels of the minibatch: expected one for each")
    labels, rows = target.to(output.device), output.float()
    counted = int((labels != IGNORED).sum())
    loss = functional.cross_entropy(rows, labels, ignore_index=IGNORED) if counted else rows.sum() * 0.0
    correct = int((rows.detach().argmax(dim=1) == labels).sum())
    return loss, Outcome(float(loss.detach()), samples, counted, correct)


def _with_details(outcome: Outcome, details: Tensor) -> Outcome:
    return Outcome(outcome.loss, outcome.samples, outcome.counted, outcome.correct, details)


def mean_iou(confusion: Tensor) -> float:
    """Return the mean over classes of |label and found| / |label or found|, of classes that occur in either."""
    both = confusion.diagonal()
    either = confusion.sum(dim=0) + confusion.sum(dim=1) - both
    occurs = either > 0
    return float((both[occurs] / either[occurs]).mean()) if bool(occurs.any()) else 0.0
