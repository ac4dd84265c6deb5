"""Losses that are not ours: a function of the user's own, or what a network's last layer computes by itself."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ...errors import CODE_FAILURES, InputError
from ...util.io.functions import UserFunction
from .base import Outcome, check_scalar, described, logits_of, mean_of, weighed
from .classes import class_ious

_OURS = {"loss", "samples"}
_ROOM = 16  # numbers that it may report: every rank adds up as many, whether or not it sees them


class UserLoss:
    """Called as function(output, target, **args) -> loss, or (loss, numbers).

    `numbers` is a dict of what to report of the minibatch by name, each a mean over what was counted; besides, it may
    say "counted", the items that the mean is over (samples, unless said), and "correct", those predicted right. If it
    counts 0, the minibatch has no loss and no gradient, whatever scalar it returns. The
    target is on the output's device. What it counts is known too late to weigh the minibatches of a step by: they weigh
    by their samples.
    """

    items = None
    num_details = _ROOM
    counts_correct = False  # where the function does, "accuracy" is one of its numbers

    def __init__(self, function: UserFunction, args: Mapping[str, Any]) -> None:
        """Raises InputError if there is no such function."""
        self._name, self._args, self._function = str(function), dict(args), function.load()
        self._reported: tuple[str, ...] | None = None

    def __call__(
        self, output: Any, target: Any, *, samples: int, detailed: bool = False, weights: Sequence[float] | None = None
    ) -> tuple[Tensor, Outcome]:
        """Raises InputError if the function raises, and for what it must not return."""
        result = self._call(output, target)
        found, numbers = result if isinstance(result, tuple) and len(result) == 2 else (result, {})
        loss = check_scalar(found, f"what loss {self._name} returns")
        told = self._numbers(numbers)
        counted, correct = told.pop("counted", samples), told.pop("correct", None)
        sums = {name: value * counted if counted else 0.0 for name, value in told.items()}
        if correct is not None:
            sums["accuracy"] = correct
        names, details = self._details(sums)
        known = details if detailed else None
        value = float(loss.detach()) if counted else None
        outcome = Outcome(value, samples, int(counted), int(correct or 0), known, names)
        return weighed(loss, weights), outcome

    def report(self, details: Tensor, counted: float) -> dict[str, float | None]:
        return {}  # Tally knows the names

    def _call(self, output: Any, target: Any) -> Any:
        tensors = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
        if tensors:
            target = pytree.tree_map(
                lambda leaf: leaf.to(tensors[0].device) if isinstance(leaf, Tensor) else leaf, target
            )
        try:
            return self._function(output, target, **self._args)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except CODE_FAILURES as error:  # whatever the user's function raises: it is told in a line
            given = f"output {described(output)}, target {described(target)}"
            given += f", {', '.join(self._args)}" if self._args else ""
            raise InputError(
                "loss.raises",
                f"loss {self._name} raises {type(error).__name__} ({error}) when called with {given}",
                kind=type(error).__name__,
            ) from error

    def _numbers(self, numbers: Any) -> dict[str, float]:
        if not isinstance(numbers, Mapping):
            raise InputError(
                "loss.numbers_malformed",
                f"loss {self._name} returns {described(numbers)} in addition to the loss, expected a dict of numbers",
            )
        try:
            values = {
                str(name): float(value.detach() if isinstance(value, Tensor) else value)
                for name, value in numbers.items()
            }
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                "loss.number_malformed",
                f"loss {self._name} returns {described(numbers)}, expected a number for each name",
            ) from None
        for name in _OURS & values.keys():
            raise InputError(
                "loss.name_reserved",
                f"loss {self._name} reports {name!r}, which is a reserved name; choose another name",
            )
        for name, value in values.items():
            if (not math.isfinite(value) and values.get("counted") != 0) or (
                name in ("counted", "correct") and value < 0
            ):
                raise InputError(
                    "loss.number_not_finite",
                    f"loss {self._name} reports {name}: {value}, expected a finite number, or a count of 0 or more",
                )
        return values

    def _details(self, sums: Mapping[str, float]) -> tuple[tuple[str, ...], Tensor]:
        names = tuple(sorted(sums))
        self._reported = names if self._reported is None else self._reported
        if names != self._reported:
            before = ", ".join(self._reported) or "nothing"
            raise InputError(
                "loss.names_changed",
                f"loss {self._name} reports {', '.join(names) or 'nothing'}, but reported {before} before; report "
                "the same names in each minibatch",
                before=before,
            )
        if len(names) > _ROOM:
            raise InputError(
                "loss.too_many_numbers", f"loss {self._name} reports {len(names)} numbers, expected at most {_ROOM}"
            )
        details = torch.zeros(_ROOM, dtype=torch.float64)
        details[: len(names)] = torch.tensor([sums[name] for name in names], dtype=torch.float64)
        return names, details


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
