"""The cross entropy of words, each told from those before it, with smoothed labels: translation, language models."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from ...data.labels import IGNORED
from ...errors import InputError
from .base import Outcome, mean_of, weighed
from .outputs import check_known, check_rows, main_output, num_correct, num_known


@dataclass(frozen=True)
class TokenCrossEntropy:
    """Of words: `output` float [B, T, vocabulary], `target` int64 [B, T], IGNORED for padding.

    Means are over the words that count, whatever the padding. `label_smoothing`: the share of a label that is spread
    over the whole vocabulary (Szegedy et al. 2016, section 7). Details: the summed cross entropy without smoothing,
    which the perplexity is of.
    """

    label_smoothing: float = 0.1
    counts_correct = True
    items = staticmethod(num_known)
    num_details = 1

    def __post_init__(self) -> None:
        if not isinstance(self.label_smoothing, int | float) or not 0 <= self.label_smoothing < 1:
            raise InputError(
                "loss.label_smoothing_malformed",
                f"loss tokens: label_smoothing {self.label_smoothing!r}, expected 0 or more, and below 1",
            )

    def __call__(
        self, output: Any, target: Any, *, samples: int, detailed: bool = False, weights: Sequence[float] | None = None
    ) -> tuple[Tensor, Outcome]:
        """Raises InputError unless there is a row of output for each target, with a column for each word."""
        logits = main_output(output)
        check_rows(logits, target)
        check_known(logits, target, "word")
        rows, words = logits.flatten(0, -2).float(), target.to(logits.device).flatten()
        counted = int((words != IGNORED).sum())
        loss = words_cross_entropy(rows, words, counted, label_smoothing=self.label_smoothing)
        correct = num_correct(rows.detach(), words)
        details = None
        if detailed:
            plain = words_cross_entropy(rows.detach(), words, counted)
            details = (plain.double() * counted).cpu()[None]
        value = float(loss.detach()) if counted else None
        return weighed(loss, weights), Outcome(value, samples, counted, correct, details)

    def report(self, details: Tensor, counted: float) -> dict[str, float | None]:
        return {"perplexity": perplexity(mean_of(float(details[0]), counted))}


def words_cross_entropy(rows: Tensor, words: Tensor, counted: int, *, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean over those of `words` [N] that count of the cross entropy of `rows` [N, V]; 0 if none does."""
    if not counted:
        return rows.sum() * 0.0
    return functional.cross_entropy(rows, words, ignore_index=IGNORED, label_smoothing=label_smoothing)


def perplexity(cross_entropy: float | None) -> float | None:
    """Return e to the mean cross entropy of a word, at most the largest number that there is; None of no words."""
    return None if cross_entropy is None else math.exp(min(cross_entropy, math.log(torch.finfo(torch.float64).max)))
