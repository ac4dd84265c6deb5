"""Loss and scores of hand-made outputs whose values are known."""

import math

import pytest
import torch

from sparsepipe.data import IGNORED
from sparsepipe.errors import InputError
from sparsepipe.losses import CrossEntropy, Segmentation, Tally
from sparsepipe.losses.classes import mean_iou


def _certain(classes: list[int], num_classes: int) -> torch.Tensor:
    """Rows so sure of their class that nothing else counts."""
    return 100.0 * torch.nn.functional.one_hot(torch.tensor(classes), num_classes).float()


def test_classification_counts_samples() -> None:
    labels = torch.tensor([0, 1, 2, 0])
    loss, outcome = CrossEntropy(8)(torch.zeros(4, 8), labels, samples=4, detailed=True)
    assert loss.item() == pytest.approx(math.log(8))
    assert (outcome.samples, outcome.counted) == (4, 4)
    tally = Tally(CrossEntropy(8))
    tally.add(outcome)
    _, sure = CrossEntropy(8)(_certain([3, 4], 8), torch.tensor([3, 5]), samples=2, detailed=True)
    tally.add(sure)
    told = tally.report()
    assert told["samples"] == 6
    assert told["loss"] == pytest.approx((4 * math.log(8) + 2 * sure.loss) / 6)
    assert set(told) == {"loss", "accuracy", "samples", "top5_accuracy"}


def test_top_five_counts_a_class_among_the_first() -> None:
    rows = torch.arange(8.0).expand(2, 8)  # class 7 first, then 6, 5, 4, 3
    _, outcome = CrossEntropy(8)(rows, torch.tensor([3, 2]), samples=2, detailed=True)
    assert (outcome.correct, outcome.details.tolist()) == (0, [1.0])


def test_voxels_without_a_class_count_for_nothing() -> None:
    rows = _certain([0, 1, 1, 2], 3)
    labels = torch.tensor([0, IGNORED, 1, 0])
    loss, outcome = Segmentation(3)(rows, labels, samples=1, detailed=True)
    assert loss.item() == pytest.approx(100 / 3)
    assert (outcome.samples, outcome.counted, outcome.correct) == (1, 3, 2)
    assert outcome.details.view(3, 3).tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0]]
    _, nothing = Segmentation(3)(rows, torch.full((4,), IGNORED), samples=1)
    assert (nothing.loss, nothing.counted) == (0.0, 0)


def test_mean_iou_is_over_classes_that_occur() -> None:
    """Class 0: 1 of 2 in either; class 1: 1 of 1; class 2 found once, never right; class 3 does not occur."""
    confusion = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    assert mean_iou(confusion) == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert mean_iou(torch.zeros(3, 3)) == 0.0


def test_a_label_for_each_row() -> None:
    with pytest.raises(InputError, match="4 outputs for 3 labels"):
        CrossEntropy(2)(torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64), samples=3)
