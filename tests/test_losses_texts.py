"""Losses of words, tied to plain arithmetic: a mean is over the words that count, however they are padded and cut."""

import math

import pytest
import torch
from coded import raises
from torch.nn.functional import log_softmax, pad

from sparsepipe.data import IGNORED
from sparsepipe.networks.losses import Tally, open_loss
from sparsepipe.networks.losses.base import num_correct
from sparsepipe.networks.losses.texts import MaskedWords, TokenCrossEntropy, perplexity

VOCABULARY = 7


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def words() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and targets of three sentences of 4, 2 and 1 words."""
    target = torch.randint(0, VOCABULARY, (3, 4))
    target[1, 2:] = target[2, 1:] = IGNORED
    return torch.randn(3, 4, VOCABULARY, dtype=torch.float64, requires_grad=True), target


def by_hand(logits: torch.Tensor, target: torch.Tensor, smoothing: float) -> list[float]:
    """The smoothed cross entropy of each word that counts: sum over the vocabulary of -share * log probability."""
    costs = []
    for row, word in zip(log_softmax(logits, -1).reshape(-1, VOCABULARY), target.reshape(-1), strict=True):
        if word != IGNORED:
            shares = torch.full((VOCABULARY,), smoothing / VOCABULARY, dtype=torch.float64)
            shares[word] += 1 - smoothing
            costs.append(-float((shares * row).sum()))
    return costs


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_words_cost_what_label_smoothing_says(smoothing) -> None:
    logits, target = words()
    found = logits.argmax(-1)
    target[0, 0] = found[0, 0]  # one at least is right
    loss, outcome = TokenCrossEntropy(smoothing)(logits, target, samples=3)
    costs = by_hand(logits.detach(), target, smoothing)
    assert loss.item() == pytest.approx(sum(costs) / 7, rel=1e-6)
    assert (outcome.samples, outcome.counted, outcome.correct) == (3, 7, int((found == target).sum()))


def test_padding_and_how_sentences_are_batched_change_no_report() -> None:
    loss, (logits, target) = TokenCrossEntropy(), words()
    whole, parts = Tally(loss), Tally(loss)
    whole.add(loss(logits, target, samples=3, detailed=True)[1])
    parts.add(loss(logits[:1], target[:1], samples=1, detailed=True)[1])
    more = loss(pad(logits[1:], (0, 0, 0, 3)), pad(target[1:], (0, 3), value=IGNORED), samples=2, detailed=True)
    parts.add(more[1])
    assert parts.report() == pytest.approx(whole.report(), rel=1e-6)
    plain = sum(by_hand(logits.detach(), target, 0.0)) / 7
    assert whole.report()["perplexity"] == pytest.approx(math.exp(plain), rel=1e-6)  # of the labels as they are
    assert set(whole.report()) == {"loss", "accuracy", "perplexity", "samples", "counted"}


def test_no_gradient_goes_to_padding() -> None:
    logits, target = words()
    TokenCrossEntropy()(logits, target, samples=3)[0].backward()
    assert not logits.grad[target == IGNORED].any() and logits.grad[target != IGNORED].all()
    nothing, outcome = TokenCrossEntropy()(logits, torch.full_like(target, IGNORED), samples=3)
    assert (nothing.item(), outcome.counted) == (0.0, 0)
    nothing.backward()


def test_perplexity_has_an_end() -> None:
    assert perplexity(0.0) == 1.0
    assert math.isfinite(perplexity(1e9))


def bert_batch() -> tuple[tuple[torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]:
    """Two pairs of sentences, of which 3 and 1 words are masked."""
    target = torch.full((2, 5), IGNORED)
    target[0, :3], target[1, 4] = torch.tensor([1, 2, 3]), 0
    output = (torch.randn(2, 5, VOCABULARY, requires_grad=True), torch.randn(2, 2, requires_grad=True))
    return output, {"words": target, "next_sentence": torch.tensor([0, 1])}


def test_masked_words_and_next_sentences_are_averaged_each_over_their_own() -> None:
    output, target = bert_batch()
    loss, outcome = MaskedWords()(output, target, samples=2, detailed=True)
    told = by_hand(output[0].detach().double(), target["words"], 0.0)
    sentences = [-float(log_softmax(row, -1)[label]) for row, label in zip(output[1].detach(), [0, 1], strict=True)]
    assert loss.item() == pytest.approx(sum(told) / 4 + sum(sentences) / 2, rel=1e-5)
    right = int((output[0].argmax(-1) == target["words"]).sum())
    assert (outcome.samples, outcome.counted, outcome.correct) == (2, 4, right)
    tally = Tally(MaskedWords())
    tally.add(outcome)
    report = tally.report()
    assert report["perplexity"] == pytest.approx(math.exp(sum(told) / 4), rel=1e-5)
    assert report["sentence_accuracy"] == ((output[1].argmax(-1) == target["next_sentence"]).float().mean())
    assert set(report) == {"loss", "accuracy", "perplexity", "sentence_accuracy", "sentences", "samples", "counted"}


def test_masked_words_add_up_over_batches_of_unlike_many_words() -> None:
    loss, (output, target) = MaskedWords(), bert_batch()
    whole, parts = Tally(loss), Tally(loss)
    whole.add(loss(output, target, samples=2, detailed=True)[1])
    for one in (slice(0, 1), slice(1, 2)):
        part = {name: value[one] for name, value in target.items()}
        parts.add(loss((output[0][one], output[1][one]), part, samples=1, detailed=True)[1])
    assert parts.report() == pytest.approx(whole.report(), rel=1e-5)


def test_words_that_are_not_masked_get_no_gradient() -> None:
    output, target = bert_batch()
    MaskedWords()(output, target, samples=2)[0].backward()
    assert not output[0].grad[target["words"] == IGNORED].any()
    assert output[0].grad[target["words"] != IGNORED].all() and output[1].grad.all()


def test_masked_words_alone_and_outputs_by_name() -> None:
    output, target = bert_batch()
    alone, outcome = MaskedWords()(output[0], target["words"], samples=2, detailed=True)
    tally = Tally(MaskedWords())
    tally.add(outcome)
    assert "sentence_accuracy" not in tally.report()
    assert tally.report()["loss"] == pytest.approx(alone.item())
    named = {"prediction_logits": output[0], "seq_relationship_logits": output[1]}
    assert MaskedWords()(named, target, samples=2)[0] == MaskedWords()(output, target, samples=2)[0]
    nothing = target | {"words": torch.full_like(target["words"], IGNORED)}
    assert MaskedWords()(output, nothing, samples=2)[1].counted == 0


@pytest.mark.parametrize(
    ("loss", "output", "target", "error"),
    [
        (
            "tokens",
            torch.zeros(2, 3, 5),
            torch.zeros(2, 4).long(),
            ("loss.shapes_differ", "float32 [2, 3, 5]", "int64 [2, 4]"),
        ),
        ("tokens", torch.zeros(2, 3, 5), torch.full((2, 3), 5), ("loss.class_count", "word", "5", "5")),
        ("tokens", torch.zeros(2, 3, 5), torch.zeros(2, 3), ("loss.target_malformed", "float32 [2, 3]")),
        ("tokens", "translated", torch.zeros(2, 3), ("loss.output_malformed", "a str")),
        ("masked-words", torch.zeros(2, 3, 5), {"next_sentence": torch.zeros(2)}, ("loss.target_malformed",)),
        (
            "masked-words",
            torch.zeros(2, 3, 5),
            {"words": torch.zeros(2, 3).long(), "next_sentence": torch.zeros(2).long()},
            ("loss.output_malformed",),
        ),
        (
            "masked-words",
            (torch.zeros(2, 3, 5), torch.zeros(2, 2)),
            {"words": torch.zeros(2, 3).long(), "next_sentence": torch.full((2,), 2)},
            ("loss.class_count", "next-sentence", "class 2", "2"),
        ),
    ],
)
def test_what_does_not_fit_is_told_in_a_line(loss, output, target, error) -> None:
    with raises(*error):
        open_loss(loss, facts={})(output, target, samples=2)


@pytest.mark.parametrize("levels", [2, 5, 1000], ids=["nearly all tie", "many tie", "few tie"])
def test_correct_rows_are_counted_as_argmax_does_ties_included(levels):
    generator = torch.Generator().manual_seed(levels)
    rows = torch.randint(0, levels, (400, 7), generator=generator).float()
    labels = torch.randint(0, 7, (400,), generator=generator)
    labels[::5] = IGNORED
    expected = int((rows.argmax(1) == labels).sum())
    assert num_correct(rows, labels) == expected > 0
    assert num_correct(torch.zeros(3, 4), torch.tensor([0, 1, IGNORED])) == 1
    assert num_correct(rows[:0], labels[:0]) == 0
