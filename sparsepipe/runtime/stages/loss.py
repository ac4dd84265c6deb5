"""The loss of a network's output, and what to report of a minibatch: loss, accuracy, confusion."""

from dataclasses import dataclass

import torch
import torch.nn.functional as functional
from torch import Tensor

from ...data.labels import IGNORED
from ..failures import PacketMismatch

_TOP = 5  # a class among so many first ones counts as found


@dataclass(frozen=True)
class Outcome:
    """What came of one minibatch. `counted`: labelled items, samples or for segmentation voxels; `correct`: those of
    them predicted right; `among_first`: those whose class is among the five first.
    """

    loss: float  # mean over what was counted
    samples: int
    counted: int
    correct: int
    among_first: int = 0
    confusion: Tensor | None = None  # int64 [classes, classes], label by row: of segmentation, where asked for


def cross_entropy(
    rows: Tensor, labels: Tensor, *, samples: int, num_classes: int, detailed: bool = False
) -> tuple[Tensor, Outcome]:
    """Return the mean cross entropy of `rows` [B or N, C] and what to report; `detailed` for validation.

    Labels IGNORED count for nothing. Raises PacketMismatch unless there is a label for each row.
    """
    if len(rows) != len(labels):
        raise PacketMismatch(f"{len(rows)} outputs for {len(labels)} labels of the minibatch")
    labels, rows = labels.to(rows.device), rows.float()
    known = labels != IGNORED
    counted = int(known.sum())
    loss = functional.cross_entropy(rows, labels, ignore_index=IGNORED) if counted else rows.sum() * 0.0
    found = rows.detach().argmax(dim=1)
    among_first, confusion = 0, None
    if detailed:
        first = rows.detach().topk(min(_TOP, rows.shape[1]), dim=1).indices
        among_first = int((first == labels[:, None]).any(dim=1).sum())
        pairs = labels[known] * num_classes + found[known]
        confusion = torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes).cpu()
    correct = int((found == labels).sum())
    return loss, Outcome(float(loss.detach()), samples, counted, correct, among_first, confusion)


class Tally:
    """Outcomes of a validation, added up: over minibatches by `add`, over ranks by summing `values`, float64 [n]."""

    def __init__(self, num_classes: int, *, segmentation: bool = False) -> None:
        self._classes, self._segmentation = num_classes, segmentation
        self.values = torch.zeros(5 + num_classes**2, dtype=torch.float64)

    def add(self, outcome: Outcome) -> None:
        counts = [
            outcome.loss * outcome.counted,
            outcome.samples,
            outcome.counted,
            outcome.correct,
            outcome.among_first,
        ]
        self.values[:5] += torch.tensor(counts, dtype=torch.float64)
        if outcome.confusion is not None:
            self.values[5:] += outcome.confusion.flatten()

    def report(self) -> dict[str, float]:
        """Return loss and accuracy; for segmentation the mean intersection over union of the classes that occur."""
        loss, samples, counted, correct, among_first = self.values[:5].tolist()
        counted = max(counted, 1.0)
        told = {"loss": loss / counted, "accuracy": correct / counted, "samples": int(samples)}
        if self._segmentation:
            return told | {"mean_iou": mean_iou(self.values[5:].view(self._classes, self._classes))}
        return told | ({"top5_accuracy": among_first / counted} if self._classes > _TOP else {})


def mean_iou(confusion: Tensor) -> float:
    """Return the mean over classes of |label and found| / |label or found|, of classes that occur in either."""
    both = confusion.diagonal()
    either = confusion.sum(dim=0) + confusion.sum(dim=1) - both
    occurs = either > 0
    return float((both[occurs] / either[occurs]).mean()) if bool(occurs.any()) else 0.0
