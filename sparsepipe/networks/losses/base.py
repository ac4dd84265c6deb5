"""What every loss offers: a scalar to train on, and what to report of a minibatch.

Of what a network's forward gives, one tensor counts: see `main_output`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ...data.labels import IGNORED
from ...errors import InputError


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


def main_output(output: Any) -> Tensor:
    """Return a tensor as it is; of a dict its logits, or else the first entry; of a tuple the first entry.

    Raises InputError if that is no tensor.
    """
    main = output
    if isinstance(output, Mapping) and output:
        logits = logits_of(output)
        main = next(iter(output.values())) if logits is None else logits
    elif isinstance(output, tuple | list) and output:
        main = output[0]
    if not isinstance(main, Tensor):
        raise InputError(
            "loss.output_malformed",
            f"the network's forward returns {described(output)}, expected a tensor, or a tensor as the first entry",
        )
    return main


def logits_of(output: Any) -> Tensor | None:
    """Return "logits" of a dict, else its first tensor by a name that ends so ("seg_logits"); None if it has none."""
    if not isinstance(output, Mapping):
        return None
    named = [name for name in output if str(name).endswith("logits") and not str(name).startswith("aux")]
    named = ["logits"] if "logits" in output else named
    return next((output[name] for name in named if isinstance(output[name], Tensor)), None)


def auxiliary_outputs(output: Any) -> tuple[Tensor, ...]:
    """Return what heads besides the main one give: further tensors of a tuple, entries of a dict named "aux…"."""
    found: list[Any] = []
    if isinstance(output, Mapping):
        found = [value for name, value in output.items() if str(name).startswith("aux")]
    elif isinstance(output, tuple | list):
        found = list(output[1:])
    return tuple(value for value in found if isinstance(value, Tensor))


def further_outputs(output: object, *, count: int) -> dict[str, Tensor]:
    """Return what a network gives besides its main output, by name: tensors of `count` rows of a dict or a tuple.

    Entries of a tuple are named by their places, from 1.
    """
    if not isinstance(output, Mapping | tuple | list) or not output:
        return {}
    main = main_output(output)
    named = output.items() if isinstance(output, Mapping) else enumerate(output)
    tensors = {str(name): value for name, value in named if isinstance(value, Tensor) and value is not main}
    return {name: tensor for name, tensor in tensors.items() if tensor.dim() and len(tensor) == count}


def check_rows(output: Tensor, target: Any) -> None:
    """Raise InputError unless `output` [..., classes] has a row for each of `target`, int64 [...]."""
    if not isinstance(target, Tensor) or target.dtype != torch.int64:
        raise InputError(
            "loss.target_malformed", f"the target is {described(target)}, expected class indices as an int64 tensor"
        )
    if output.shape[:-1] != target.shape:
        raise InputError(
            "loss.shapes_differ",
            f"the network returns {described(output)} for a target of {described(target)}; expected the target's "
            "shape plus a last axis with one number per class or word",
        )


def check_known(output: Tensor, target: Tensor, what: str) -> None:
    """Raise InputError if `target` has an id that `output` [..., classes] has no column for; IGNORED needs none."""
    unknown = target[(target != IGNORED) & ((target < 0) | (target >= output.shape[-1]))]
    if len(unknown):
        raise InputError(
            "loss.class_count",
            f"the target has {what} {int(unknown[0])}, but the network has {output.shape[-1]} outputs; use a model "
            f"with enough outputs, and label with {IGNORED} what does not count",
        )


def num_correct(rows: Tensor, labels: Tensor) -> int:
    """Return how many of `rows` [N, C] are largest at their label, int64 [N]: as `argmax` says, in a third of its time.

    Negative labels are no one's. Only where the label's number is as large as any is it asked which comes first.
    """
    if not rows.numel():
        return 0
    at_label = rows.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    hit = (at_label == rows.amax(1)) & (labels >= 0)
    return int((rows[hit].argmax(1) == labels[hit]).sum())


def num_known(target: Any) -> tuple[int, ...]:
    """Return how many of a target's ids count, as `Loss.items` does; 0 for no tensor, which the loss itself refuses."""
    return (int((target != IGNORED).sum()) if isinstance(target, Tensor) else 0,)


def check_scalar(loss: Any, who: str) -> Tensor:
    """Return `loss` if it can be trained on. Raises InputError for what is no scalar, no float or has no gradient."""
    if not isinstance(loss, Tensor):
        raise InputError("loss.not_a_scalar", f"{who} is {described(loss)}, expected a scalar tensor")
    if loss.dim():
        raise InputError("loss.not_a_scalar", f"{who} is {described(loss)}, expected a scalar; take its mean")
    if not loss.is_floating_point():
        raise InputError("loss.not_floating", f"{who} is {described(loss)}, expected a floating-point scalar")
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise InputError(
            "loss.no_gradient",
            f"{who} has no gradient; compute it from the output without detach(), item() or no_grad()",
        )
    return loss


def described(value: Any) -> str:
    """Say of what type and shape a value is, such as "float32 [8, 10]" or "(int64 [8], None)"."""
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {described(entry)}" for name, entry in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(described, value)) + ")"
    return "None" if value is None else f"a {type(value).__name__}"
