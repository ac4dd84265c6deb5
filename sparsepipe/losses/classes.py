"""The cross entropy of classes, of whole samples or of each voxel, with accuracy, top-5 accuracy and mean IoU."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from ..data.labels import IGNORED
from ..display.counting import number_of
from ..errors import InputError
from .base import Outcome, mean_of, weighed
from .outputs import auxiliary_outputs, check_rows, described, main_output, num_known

_TOP = 5  # a class among so many first ones counts as found


@dataclass(frozen=True)
class CrossEntropy:
    """Of samples' classes: `output` float [B, classes], `target` int64 [B]. Details: those found among the five first.

    Targets IGNORED (-100, as torch has it) count for nothing; if none counts, there is no loss. The minibatches of a
    step weigh by their samples all the same: to know more, every replica would read the images of all. Where the output
    is a tuple, such as Inception's (logits, aux_logits) in training, or a dict with entries "aux…", the loss of each
    head beside the first is added, `auxiliary` times: 0.4, as Inception v3 is commonly trained; GoogLeNet's paper
    (Szegedy et al. 2014, section 5) has 0.3. What is found right is the main head's.
    """

    num_classes: int
    auxiliary: float = 0.4
    counts_correct = True
    items = None
    num_details = 1

    def __post_init__(self) -> None:
        _check_classes(self.num_classes)
        if not isinstance(self.auxiliary, int | float) or not 0 <= self.auxiliary < math.inf:
            raise InputError(f"loss classes: auxiliary {self.auxiliary!r}, expected a number from 0 on")

    def __call__(
        self, output: Any, target: Any, *, samples: int, detailed: bool = False, weights: Sequence[float] | None = None
    ) -> tuple[Tensor, Outcome]:
        """Raises InputError unless there is a row of output for each target, with a column for each class."""
        main = main_output(output)
        _check_width(main, self.num_classes)
        loss, outcome = mean_cross_entropy(main, target, samples=samples)
        for head in auxiliary_outputs(output):
            if head.shape != main.shape:
                raise InputError(f"a head of the network gives {described(head)}, the first one {described(main)}")
            loss = loss + self.auxiliary * mean_cross_entropy(head, target, samples=samples)[0]
            outcome = replace(outcome, loss=float(loss.detach()) if outcome.counted else None)
        loss = weighed(loss, weights)
        if not detailed:
            return loss, outcome
        rows = main.detach().float()
        first = rows.topk(min(_TOP, rows.shape[1]), dim=1).indices
        found = (first == target.to(rows.device)[:, None]).any(dim=1).sum()
        return loss, replace(outcome, details=found.to("cpu", torch.float64)[None])

    def report(self, details: Tensor, counted: float) -> dict[str, float | None]:
        return {"top5_accuracy": mean_of(float(details[0]), counted)} if self.num_classes > _TOP else {}


@dataclass(frozen=True)
class Segmentation:
    """Of voxels' classes: `output` float [N, classes], `target` int64 [N]. Details: the confusion, label by row."""

    num_classes: int
    counts_correct = True
    items = staticmethod(num_known)

    def __post_init__(self) -> None:
        _check_classes(self.num_classes)

    @property
    def num_details(self) -> int:
        return self.num_classes**2

    def __call__(
        self, output: Any, target: Any, *, samples: int, detailed: bool = False, weights: Sequence[float] | None = None
    ) -> tuple[Tensor, Outcome]:
        """Raises InputError unless there is a row of output for each target, with a column for each class."""
        rows = main_output(output)
        _check_width(rows, self.num_classes, exactly=True)
        loss, outcome = mean_cross_entropy(rows, target, samples=samples)
        loss = weighed(loss, weights)
        if not detailed:
            return loss, outcome
        found, labels = rows.detach().float().argmax(dim=1), target.to(rows.device)
        known = labels != IGNORED
        pairs = labels[known] * self.num_classes + found[known]
        confusion = torch.bincount(pairs, minlength=self.num_details)
        return loss, replace(outcome, details=confusion.to("cpu", torch.float64))

    def report(self, details: Tensor, counted: float) -> dict[str, float | None]:
        """ "iou_classes": over how many classes the mean is."""
        iou = class_ious(details.view(self.num_classes, self.num_classes))
        return {"mean_iou": mean_of(float(iou.sum()), len(iou)), "iou_classes": len(iou)}


def mean_cross_entropy(output: Tensor, target: Tensor, *, samples: int) -> tuple[Tensor, Outcome]:
    """Return the mean cross entropy of `output` [N, classes] over the targets [N] that count, and what to report.

    If none counts, the tensor is 0 and the outcome has no loss.

    Raises InputError unless there is a row of output for each target.
    """
    if isinstance(target, Tensor) and len(output) != len(target):
        raise InputError(f"{len(output)} outputs for {len(target)} labels of the minibatch: expected one for each")
    check_rows(output, target)
    labels, rows = target.to(output.device), output.float()
    counted = int((labels != IGNORED).sum())
    loss = functional.cross_entropy(rows, labels, ignore_index=IGNORED) if counted else rows.sum() * 0.0
    correct = int((rows.detach().argmax(dim=1) == labels).sum())
    return loss, Outcome(float(loss.detach()) if counted else None, samples, counted, correct)


def _check_classes(num_classes: int) -> None:
    if not isinstance(num_classes, int) or num_classes < 1:
        raise InputError(f"num_classes {num_classes!r}, expected a number from 1 on")


def _check_width(output: Tensor, num_classes: int, *, exactly: bool = False) -> None:
    if output.dim() != 2 or output.shape[1] < num_classes or (exactly and output.shape[1] > num_classes):
        raise InputError(
            f"the network gives {described(output)}, the data have {number_of(num_classes, 'class')}: expected a row "
            "of as many numbers for each target"
        )


def class_ious(confusion: Tensor) -> Tensor:
    """Return |label and found| / |label or found| of each class that occurs in either."""
    both = confusion.diagonal()
    either = confusion.sum(dim=0) + confusion.sum(dim=1) - both
    occurs = either > 0
    return both[occurs] / either[occurs]
