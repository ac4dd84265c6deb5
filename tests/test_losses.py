"""Loss and scores of hand-made outputs whose values are known."""

import json
import math

import pytest
import torch
from coded import raises

from sparsepipe.data import IGNORED
from sparsepipe.networks.losses import CrossEntropy, Segmentation, Tally, open_loss
from sparsepipe.networks.losses.texts import MaskedWords


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
    assert set(told) == {"loss", "accuracy", "samples", "counted", "top5_accuracy"} and told["counted"] == 6


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
    assert (nothing.loss, nothing.counted) == (None, 0)


def test_mean_iou_is_over_classes_that_occur() -> None:
    """Class 0: 1 of 2 in either; class 1: 1 of 1; class 2 found once, never right; class 3 does not occur."""
    confusion = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])
    told = Segmentation(4).report(confusion.double(), 4)
    assert told == {"mean_iou": pytest.approx((0.5 + 1.0 + 0.0) / 3), "iou_classes": 3}
    assert Segmentation(3).report(torch.zeros(9, dtype=torch.float64), 0) == {"mean_iou": None, "iou_classes": 0}


def _own_loss(output, target):
    """A mean over what is labelled: of nothing it is NaN."""
    known = target != IGNORED
    loss = torch.nn.functional.cross_entropy(output, target, ignore_index=IGNORED)
    return loss, {"counted": int(known.sum()), "correct": 0, "margin": float("nan") if not known.any() else 1.0}


@pytest.mark.parametrize("name", ["classes", "voxels", "tokens", "masked-words", f"{__file__}:_own_loss"])
def test_a_mean_over_nothing_is_no_number(name) -> None:
    """Nothing labelled was a loss of 0 and an accuracy of 0: the best loss there is."""
    loss = open_loss(name, facts={"num_classes": 8})
    output, target = torch.zeros(4, 8, requires_grad=True), torch.full((4,), IGNORED)
    if name in ("tokens", "masked-words"):
        output, target = output[None], target[None]
    tally = Tally(loss)
    tally.add(loss(output, target, samples=4, detailed=True)[1])
    told = tally.report()
    assert (told.pop("samples"), told.pop("counted"), told.pop("iou_classes", 0)) == (4, 0, 0)
    assert {"loss", "accuracy"} <= told.keys() and set(told.values()) == {None}
    json.dumps(told, allow_nan=False)
    assert Tally(loss).report()["loss"] is None, "a rank that saw no minibatch"


def test_masked_words_and_sentences_are_means_of_their_own() -> None:
    """No word is masked: the loss is the sentences', and the words' output gets no gradient, not even zeros."""
    words, sentences = torch.zeros(2, 3, 8, requires_grad=True), torch.zeros(2, 2, requires_grad=True)
    target = {"words": torch.full((2, 3), IGNORED), "next_sentence": torch.tensor([0, 1])}
    loss, outcome = MaskedWords()((words, sentences), target, samples=2, detailed=True)
    assert outcome.loss == loss.item() == pytest.approx(math.log(2))
    assert torch.autograd.grad(loss, [words, sentences], allow_unused=True)[0] is None
    tally = Tally(MaskedWords())
    tally.add(outcome)
    told = tally.report()
    assert (told["loss"], told["accuracy"], told["perplexity"]) == (pytest.approx(math.log(2)), None, None)
    assert (told["counted"], told["sentences"], told["sentence_accuracy"]) == (0, 2, 0.5)


def test_a_label_for_each_row() -> None:
    with raises("loss.label_count", "4", "3"):
        CrossEntropy(2)(torch.zeros(4, 2), torch.zeros(3, dtype=torch.int64), samples=3)


WEIGHTS = [0.5, 2.0, 0.0, 1.25]


def _drawn(shape: tuple[int, ...], seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 4, (shape[0], *shape[2:]), generator=draw)
    target.view(-1)[::3] = IGNORED
    return torch.randn(shape, generator=draw, requires_grad=True), target


@pytest.mark.parametrize("weights", [None, WEIGHTS, tuple(WEIGHTS)])
@pytest.mark.parametrize("shape", [(7, 4), (3, 4, 5), (3, 4, 5, 6), (2, 4, 3, 2, 2)])
@pytest.mark.parametrize("kind", [CrossEntropy, Segmentation])
def test_it_is_torchs_cross_entropy_of_rows_and_images(kind, shape, weights) -> None:
    output, target = _drawn(shape)
    loss, outcome = kind(4, class_weights=weights)(output, target, samples=shape[0], detailed=True)
    torch_weights = None if weights is None else torch.tensor(weights)
    expected = torch.nn.functional.cross_entropy(output, target, torch_weights, ignore_index=IGNORED)
    torch.testing.assert_close(loss, expected)
    ours, theirs = (torch.autograd.grad(each, output)[0] for each in (loss, expected))
    torch.testing.assert_close(ours, theirs)
    assert outcome.counted == int((target != IGNORED).sum())
    assert outcome.correct == int((output.argmax(1) == target).sum())


@pytest.mark.parametrize("kind", [CrossEntropy, Segmentation])
def test_weighed_classes_add_up_over_minibatches(kind) -> None:
    """The mean over a step, and over a validation, is that over all its items' weights."""
    judge, tally = kind(4, class_weights=WEIGHTS), Tally(kind(4, class_weights=WEIGHTS))
    parts = [_drawn((2, 4, 5, 6), 1), _drawn((3, 4, 5, 6), 2)]
    whole, targets = (torch.cat(each) for each in zip(*parts, strict=True))
    expected = torch.nn.functional.cross_entropy(whole, targets, torch.tensor(WEIGHTS), ignore_index=IGNORED)
    counts = [judge.items(target)[0] for _, target in parts]
    found = 0.0
    for (output, target), count in zip(parts, counts, strict=True):
        share = len(parts) * count / sum(counts)
        loss, outcome = judge(output, target, samples=len(output), detailed=True, weights=(share,))
        found += loss.item() / len(parts)
        tally.add(outcome)
    assert found == pytest.approx(expected.item(), rel=1e-5)
    assert tally.report()["loss"] == pytest.approx(expected.item(), rel=1e-5)


def test_heads_of_images_count_too() -> None:
    main, target = _drawn((2, 4, 3, 3))
    other, _ = _drawn((2, 4, 3, 3), 5)
    loss, _ = CrossEntropy(4)({"out": main, "aux": other}, target, samples=2)
    one, two = (torch.nn.functional.cross_entropy(each, target, ignore_index=IGNORED) for each in (main, other))
    torch.testing.assert_close(loss, one + 0.4 * two)


@pytest.mark.parametrize("given", [[1.0], [1, 2, 3, -1], [0, 0, 0, 0], [1, 2, 3, math.nan], "1234", 3, [1, 2, 3, "4"]])
def test_weights_that_fit_no_classes_are_refused(given) -> None:
    for kind in (CrossEntropy, Segmentation):
        with raises("loss.class_weights_malformed", "4 classes"):
            kind(4, class_weights=given)


def test_only_classes_without_weight_are_no_item() -> None:
    output = torch.randn(2, 4, requires_grad=True)
    loss, outcome = Segmentation(4, class_weights=WEIGHTS)(output, torch.tensor([2, 2]), samples=1, detailed=True)
    assert loss.item() == 0.0 and outcome.counted == 0


@pytest.mark.parametrize("name", ["classes", "voxels", "pixels"])
def test_smoothed_labels_are_torchs(name: str) -> None:
    rows, labels = torch.randn(6, 4), torch.tensor([0, 1, 2, 3, IGNORED, 1])
    smoothed = {"label_smoothing": 0.2, "class_weights": [1.0, 2.0, 0.5, 1.0]}
    if name == "pixels":
        rows, labels = rows.T.reshape(1, 4, 2, 3), labels.view(1, 2, 3)
    loss, _ = open_loss(name, facts={"num_classes": 4}, args=smoothed)(rows, labels, samples=1)
    weight = torch.tensor(smoothed["class_weights"])
    assert float(loss) == pytest.approx(
        float(torch.nn.functional.cross_entropy(rows, labels, weight, label_smoothing=0.2))
    )
    with raises("loss.label_smoothing_malformed"):
        open_loss(name, facts={"num_classes": 4}, args={"label_smoothing": 1})


def test_pixels_without_a_class_count_for_nothing_and_weigh_nothing() -> None:
    """Two minibatches, shared out: loss and mean IoU are those of all pixels that count."""
    loss = open_loss("pixels", facts={"num_classes": 3}, args={"ignored": 255})
    images = torch.randn(2, 3, 4, 5)
    target = torch.randint(0, 3, (2, 4, 5))
    target[0, :3], target[1, 0, 0] = 255, IGNORED
    assert loss.items is not None and [loss.items(one) for one in target[:, None]] == [(5.0,), (19.0,)]
    tally = Tally(loss)
    for image, labels in zip(images[:, None], target[:, None], strict=True):
        tally.add(loss({"out": image, "aux": image}, labels, samples=1, detailed=True)[1])
    known = target.masked_fill(target == 255, IGNORED)
    told = tally.report()
    assert told["loss"] == pytest.approx(1.4 * float(torch.nn.functional.cross_entropy(images, known)), rel=1e-6)
    confusion = torch.zeros(3, 3, dtype=torch.int64)
    for label, found in zip(known.flatten().tolist(), images.argmax(1).flatten().tolist(), strict=True):
        if label != IGNORED:
            confusion[label, found] += 1
    union = confusion.sum(0) + confusion.sum(1) - confusion.diagonal()
    assert told["mean_iou"] == pytest.approx(float((confusion.diagonal() / union).mean()))
