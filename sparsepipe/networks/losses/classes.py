"""The cross entropy of classes, of samples, voxels or pixels, with accuracy, top-5 accuracy and mean IoU.

`class_weights`, one number for each class, weigh the items of a class as torch's cross_entropy does: the mean is over
the items' weights, in a step of several minibatches and in a validation too. `label_smoothing` is the share of a label
that is spread over all classes (Szegedy et al. 2016, section 7). Images are taken as torch takes them: `output`
[B, classes, H, W], `target` [B, H, W]; each pixel is an item.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from ...data.labels import IGNORED
from ...errors import InputError
from ...util.text.numbers import number_of
from .base import (
    Outcome,
    auxiliary_outputs,
    check_known,
    check_rows,
    described,
    main_output,
    mean_of,
    num_known,
    weighed,
)

_TOP = 5  # a class among so many first ones counts as found


@dataclass(frozen=True)
class CrossEntropy:
    """Of samples' classes: `output` float [B, classes], `target` int64 [B]. Details: those found among the five first.

    Targets IGNORED (-100, as torch has it) count for nothing; if none counts, there is no loss. The minibatches of a
    step weigh by their samples all the same: to know more, every replica would read the images of all. If the output
    is a tuple, such as Inception's (logits, aux_logits) in training, or a dict with entries "aux…", the loss of each
    head besides the first is added, `auxiliary` times: 0.4, as Inception v3 is commonly trained; GoogLeNet's paper
    (Szegedy et al. 2014, section 5) has 0.3. What is found right is the main head's.
    """

    num_classes: int
    auxiliary: float = 0.4
    class_weights: Sequence[float] | None = None
    label_smoothing: float = 0.0
    counts_correct = True

    @property
    def num_details(self) -> int:
        return 1 if self.class_weights is None else 3

    @property
    def items(self) -> Callable[[Any], tuple[float, ...]] | None:
        return None if self.class_weights is None else partial(_weight, self.class_weights)

    def __post_init__(self) -> None:
        _check_classes(self.num_classes, self.class_weights)
        _check_smoothing(self.label_smoothing)
        if not isinstance(self.auxiliary, int | float) or not 0 <= self.auxiliary < math.inf:
            raise InputError(
                "loss.auxiliary_malformed",
                f"loss classes: auxiliary {self.auxiliary!r} given, expected a number of 0 or more",
            )

    def __call__(
        self, output: Any, target: Any, *, samples: int, detailed: bool = False, weights: Sequence[float] | None = None
    ) -> tuple[Tensor, Outcome]:
        """Raises InputError unless there is a row of output for each target, with a column for each class."""
        whole = main_output(output)
        main, labels = as_rows(whole, target)
        _check_width(main, self.num_classes)
        means = partial(
            mean_cross_entropy,
            samples=samples,
            class_weights=self.class_weights,
            label_smoothing=self.label_smoothing,
        )
        loss, outcome = means(main, labels)
        for head in auxiliary_outputs(output):
            if head.shape != whole.shape:
                raise InputError(
                    "loss.heads_differ",
                    f"the heads of the network return different shapes: {described(whole)} and {described(head)}; "
                    "return equal shapes",
                )
            other, _ = means(as_rows(head, target)[0], labels)
            loss = loss + self.auxiliary * other
            outcome = replace(outcome, loss=float(loss.detach()) if outcome.counted else None)
        mean, loss = loss, weighed(loss, weights)
        if not detailed:
            return loss, outcome
        details = [self._details(main.detach().float(), labels), _sums(mean, labels, self.class_weights)]
        return loss, replace(outcome, details=torch.cat(details))

    def _details(self, rows: Tensor, labels: Tensor) -> Tensor:
        """Return how many of `rows` [N, classes] have their label among the first, float64 [1]."""
        first = rows.topk(min(_TOP, rows.shape[1]), dim=1).indices
        return (first == labels.to(rows.device)[:, None]).any(dim=1).sum().to("cpu", torch.float64)[None]

    def report(self, details: Tensor, counted: float) -> dict[str, float | None]:
        top = {"top5_accuracy": mean_of(float(details[0]), counted)} if self.num_classes > _TOP else {}
        return top | _weighed_loss(details[1:])


@dataclass(frozen=True)
class PixelCrossEntropy(CrossEntropy):
    """Of pixels' classes: `output` float [B, classes, H, W], `target` int64 [B, H, W]. Details: the confusion.

    Pixels that are labelled `ignored` count for nothing, such as 255 in many data sets; nor do those labelled -100. The
    minibatches of a step weigh by the pixels that count.
    """

    ignored: int = IGNORED

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.ignored, int):
            raise InputError("loss.ignored_malformed", f"loss pixels: ignored {self.ignored!r} given, expected a label")

    @property
    def num_details(self) -> int:
        return self.num_classes**2 + (0 if self.class_weights is None else 2)

    @property
    def items(self) -> Callable[[object], tuple[float, ...]]:
        counts = num_known if self.class_weights is None else partial(_weight, self.class_weights)
        return lambda target: counts(self.known(target))

    def known(self, target: object) -> object:
        """Return a target with IGNORED in the place of the label that is ignored."""
        return target.masked_fill(target == self.ignored, IGNORED) if isinstance(target, Tensor) else target

    def __call__(
        self,
        output: object,
        target: object,
        *,
        samples: int,
        detailed: bool = False,
        weights: Sequence[float] | None = None,
    ) -> tuple[Tensor, Outcome]:
        """Raises InputError unless there is a score of each class for each pixel of the target."""
        return super().__call__(output, self.known(target), samples=samples, detailed=detailed, weights=weights)

    def _details(self, rows: Tensor, labels: Tensor) -> Tensor:
        _check_width(rows, self.num_classes, exactly=True)
        return confusion_counts(rows, labels, self.num_classes)

    def report(self, details: Tensor, counted: float) -> dict[str, float | None]:
        return _iou_report(details, self.num_classes)


@dataclass(frozen=True)
class Segmentation:
    """Of voxels' classes: `output` float [N, classes], `target` int64 [N]. Details: the confusion, label by row."""

    num_classes: int
    class_weights: Sequence[float] | None = None
    label_smoothing: float = 0.0
    counts_correct = True

    @property
    def items(self) -> Callable[[Any], tuple[float, ...]]:
        return num_known if self.class_weights is None else partial(_weight, self.class_weights)

    def __post_init__(self) -> None:
        _check_classes(self.num_classes, self.class_weights)
        _check_smoothing(self.label_smoothing)

    @property
    def num_details(self) -> int:
        return self.num_classes**2 + (0 if self.class_weights is None else 2)

    def __call__(
        self, output: Any, target: Any, *, samples: int, detailed: bool = False, weights: Sequence[float] | None = None
    ) -> tuple[Tensor, Outcome]:
        """Raises InputError unless there is a row of output for each target, with a column for each class."""
        rows, labels = as_rows(main_output(output), target)
        _check_width(rows, self.num_classes, exactly=True)
        mean, outcome = mean_cross_entropy(
            rows, labels, samples=samples, class_weights=self.class_weights, label_smoothing=self.label_smoothing
        )
        loss = weighed(mean, weights)
        if not detailed:
            return loss, outcome
        confusion = confusion_counts(rows.detach().float(), labels, self.num_classes)
        return loss, replace(outcome, details=torch.cat([confusion, _sums(mean, labels, self.class_weights)]))

    def report(self, details: Tensor, counted: float) -> dict[str, float | None]:
        """ "iou_classes": over how many classes the mean is."""
        return _iou_report(details, self.num_classes)


def confusion_counts(rows: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return the confusion of `rows` [N, classes] with labels [N], label by row: float64 [num_classes ** 2]."""
    predicted, labels = rows.argmax(dim=1), labels.to(rows.device)
    known = labels != IGNORED
    pairs = labels[known] * num_classes + predicted[known]
    return torch.bincount(pairs, minlength=num_classes**2).to("cpu", torch.float64)


def _iou_report(details: Tensor, num_classes: int) -> dict[str, float | None]:
    confusion, sums = details[: num_classes**2], details[num_classes**2 :]
    iou = class_ious(confusion.view(num_classes, num_classes))
    return {"mean_iou": mean_of(float(iou.sum()), len(iou)), "iou_classes": len(iou), **_weighed_loss(sums)}


def as_rows(output: Tensor, target: Any) -> tuple[Tensor, Any]:
    """Return images [B, classes, ...] with targets [B, ...] as rows [N, classes] with targets [N]; others as is."""
    if isinstance(target, Tensor) and output.dim() > 2 and output.shape[:1] + output.shape[2:] == target.shape:
        return output.movedim(1, -1).flatten(0, -2), target.flatten()
    return output, target


def _weight(class_weights: Sequence[float], target: Any) -> tuple[float, ...]:
    """Return the sum of the weights of a target's items; 0 for no tensor, which the loss itself refuses."""
    if not isinstance(target, Tensor):
        return (0.0,)
    known = target[(target >= 0) & (target < len(class_weights))].cpu()
    return (float(torch.tensor(class_weights, dtype=torch.float64)[known].sum()),)


def _sums(mean: Tensor, target: Tensor, class_weights: Sequence[float] | None) -> Tensor:
    """Return what weighed means add up by: the sum of weighed losses, and that of weights. Nothing without weights."""
    if class_weights is None:
        return torch.empty(0, dtype=torch.float64)
    (weight,) = _weight(class_weights, target)
    return torch.tensor([float(mean.detach()) * weight, weight], dtype=torch.float64)


def _weighed_loss(sums: Tensor) -> dict[str, float]:
    return {"loss": float(sums[0] / sums[1])} if len(sums) and sums[1] else {}


def mean_cross_entropy(
    output: Tensor,
    target: Tensor,
    *,
    samples: int,
    class_weights: Sequence[float] | None = None,
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Outcome]:
    """Return the mean cross entropy of `output` [N, classes] over the targets [N] that count, and what to report.

    If none counts, the tensor is 0 and the outcome has no loss.

    Raises InputError unless there is a row of output for each target.
    """
    if isinstance(target, Tensor) and len(output) != len(target):
        raise InputError(
            "loss.label_count",
            f"the minibatch has {len(output)} outputs but {len(target)} labels; expected one output per label",
        )
    check_rows(output, target)
    check_known(output, target, "label")
    labels, rows = target.to(output.device), output.float()
    counted = int((labels != IGNORED).sum())
    weight = None
    if class_weights is not None:
        weight = functional.pad(rows.new_tensor(class_weights), (0, rows.shape[1] - len(class_weights)))
        counted = counted if _weight(class_weights, labels)[0] else 0
    loss = rows.sum() * 0.0
    if counted:
        loss = functional.cross_entropy(rows, labels, weight, ignore_index=IGNORED, label_smoothing=label_smoothing)
    correct = int((rows.detach().argmax(dim=1) == labels).sum()) if counted else 0
    return loss, Outcome(float(loss.detach()) if counted else None, samples, counted, correct)


def _check_classes(num_classes: int, class_weights: Any) -> None:
    if not isinstance(num_classes, int) or num_classes < 1:
        raise InputError("loss.num_classes_malformed", f"num_classes {num_classes!r} given, expected at least 1")
    if class_weights is None:
        return
    given = class_weights if isinstance(class_weights, list | tuple) else []
    numbers = [each for each in given if isinstance(each, int | float) and 0 <= each < math.inf]
    if not len(given) == len(numbers) == num_classes or not any(numbers):
        raise InputError(
            "loss.class_weights_malformed",
            f"class_weights {class_weights!r} given, expected a number of 0 or more for each of "
            f"{number_of(num_classes, 'class')}",
        )


def _check_smoothing(label_smoothing: object) -> None:
    if not isinstance(label_smoothing, int | float) or not 0 <= label_smoothing < 1:
        raise InputError(
            "loss.label_smoothing_malformed",
            f"label_smoothing {label_smoothing!r} given, expected at least 0 and below 1",
        )


def _check_width(output: Tensor, num_classes: int, *, exactly: bool = False) -> None:
    if output.dim() != 2 or output.shape[1] < num_classes or (exactly and output.shape[1] > num_classes):
        raise InputError(
            "loss.class_count",
            f"the network returns {described(output)}, but the data have {number_of(num_classes, 'class')}; expected "
            "one number per class for each target",
        )


def class_ious(confusion: Tensor) -> Tensor:
    """Return |label and found| / |label or found| of each class that occurs in either."""
    both = confusion.diagonal()
    either = confusion.sum(dim=0) + confusion.sum(dim=1) - both
    occurs = either > 0
    return both[occurs] / either[occurs]
