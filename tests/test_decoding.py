"""Greedy decoding and BLEU: of a network that copies, of GNMT a word at a time, and of one that has learned."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from coded import raises
from torch import Tensor, nn

from sparsepipe.data import IGNORED
from sparsepipe.data.examples import ExampleBatch
from sparsepipe.networks.losses.texts import TokenCrossEntropy, greedy_decode
from sparsepipe.networks.texts.gnmt import gnmt

PADDING, BEGIN, END = 0, 1, 2
MARKS = {"begin": BEGIN, "end": END}


class Copier(nn.Module):
    """Translates each word as itself plus `shift`, and ends where the source does."""

    def __init__(self, shift: int = 0) -> None:
        super().__init__()
        self.shift, self.weight = shift, nn.Parameter(torch.ones(()))

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> Tensor:
        ends = nn.functional.pad(torch.where(source_mask, source + self.shift, END), (0, 9), value=END)
        return self.weight * nn.functional.one_hot(ends[:, : target.shape[1]], 40).float()


class Wrapped(nn.Module):
    """A GNMT that is not known as one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, source: Tensor, source_mask: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {"logits": self.inner(source, source_mask, target)}


@dataclass(frozen=True)
class Copies:
    """Sentences whose translation they are themselves, a data set of examples."""

    sentences: list[list[int]]
    facts: dict[str, Any] = field(default_factory=lambda: MARKS | {"padding": PADDING})

    def __len__(self) -> int:
        return len(self.sentences)

    def sample_sizes(self) -> list[int]:
        return list(map(len, self.sentences))

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> ExampleBatch:
        chosen = [torch.tensor(self.sentences[i]) for i in indices]
        padded = nn.utils.rnn.pad_sequence
        source = padded(chosen, batch_first=True, padding_value=PADDING)
        begun = [nn.functional.pad(words, (1, 0), value=BEGIN) for words in chosen]
        ended = [nn.functional.pad(words, (0, 1), value=END) for words in chosen]
        inputs = {"source": source, "source_mask": source != PADDING}
        inputs["target"] = padded(begun, batch_first=True, padding_value=PADDING)
        target = padded(ended, batch_first=True, padding_value=IGNORED)
        return ExampleBatch(inputs, target, len(indices), source.numel())


class Numbers:
    """A vocabulary that writes each id as its number."""

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(str(word) for word in ids if word > END)


def sentences(count: int = 12) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 7, (count,), generator=generator).tolist()
    return [torch.randint(3, 30, (length,), generator=generator).tolist() for length in lengths]


def test_translations_end_where_the_end_is_or_at_the_longest() -> None:
    batch = Copies([[5, 6, 7], [8], [9, 10]]).batch([0, 1, 2])
    source, mask = batch.inputs["source"], batch.inputs["source_mask"]
    options = {"begin": BEGIN, "end": END}
    assert greedy_decode(Copier(), source, mask, **options, longest=9) == [[5, 6, 7], [8], [9, 10]]
    assert greedy_decode(Copier(), source, mask, **options, longest=2) == [[5, 6], [8], [9, 10]]
    assert greedy_decode(Copier(), source, mask, **options, longest=0) == [[], [], []]


def test_gnmt_says_a_word_at_a_time_what_it_says_anew() -> None:
    torch.manual_seed(0)
    model = gnmt(vocabulary_size=30, hidden=8, num_layers=3, spread=2.0).double().eval()  # so that they are not alike
    batch = Copies(sentences()).batch(range(12))
    source, mask = batch.inputs["source"], batch.inputs["source_mask"]
    options = {"begin": BEGIN, "end": END, "longest": 12}
    found = greedy_decode(model, source, mask, **options)
    assert found == greedy_decode(Wrapped(model), source, mask, **options)
    assert len(set(map(tuple, found))) > 6
    for one, translation in enumerate(found):  # nor does it matter what it is padded and batched with
        length = int(mask[one].sum())
        alone = greedy_decode(model, source[one : one + 1, :length], mask[one : one + 1, :length], **options)
        assert alone == [translation]


def test_bleu_pairs_each_translation_with_its_target() -> None:
    pytest.importorskip("sacrebleu")
    from sparsepipe.networks.losses.texts import bleu

    examples, model = Copies(sentences()), Copier().train()
    told = bleu(model, examples, vocabulary=Numbers(), most_sentences=100, batch_size=5)
    assert told == {"bleu": pytest.approx(100.0), "bleu_sentences": 12.0}
    assert model.training
    assert bleu(Copier(shift=1), examples, vocabulary=Numbers(), most_sentences=100)["bleu"] < 5
    some = bleu(model, examples, vocabulary=Numbers(), most_sentences=4)
    assert some == {"bleu": pytest.approx(100.0), "bleu_sentences": 4.0}
    assert bleu(model, Copies([]), vocabulary=Numbers(), most_sentences=4) == {"bleu": None, "bleu_sentences": 0.0}


def test_bleu_of_copies_is_what_a_network_that_copies_gets() -> None:
    pytest.importorskip("sacrebleu")
    from sparsepipe.networks.losses.texts import bleu, bleu_of_copies

    class Half(Copies):
        def batch(self, indices: Sequence[int], *, epoch: int = 0) -> ExampleBatch:
            batch = super().batch(indices)
            batch.target[:, 1] = 35  # a word that the source has not
            return batch

    examples, both = Half(sentences()), {"vocabulary": Numbers(), "most_sentences": 9}
    told = bleu_of_copies(examples, source_vocabulary=Numbers(), **both)
    assert told == bleu(Copier(), examples, **both)
    assert 10 < told["bleu"] < 90 and told["bleu_sentences"] == 9


def test_bleu_is_papinenis() -> None:
    """One sentence of 6 words found as 5: precisions 5/5, 4/4, 3/3, 2/2 and the brevity penalty exp(1 - 6/5)."""
    pytest.importorskip("sacrebleu")
    from sparsepipe.networks.losses.texts import bleu

    examples = Copies([[3, 4, 5, 6, 7, 8]])
    found = bleu(Copier(), examples, vocabulary=Numbers(), most_sentences=1, longest=5)["bleu"]
    assert found == pytest.approx(100 * 2.718281828**-0.2, rel=1e-6)


def test_bleu_is_of_translations() -> None:
    pytest.importorskip("sacrebleu")
    from sparsepipe.networks.losses.texts import bleu

    with raises("bleu.no_special_ids", "begin, end"):
        bleu(Copier(), Copies(sentences(), facts={}), vocabulary=Numbers(), most_sentences=1)

    class Images(Copies):
        def batch(self, indices: Sequence[int], *, epoch: int = 0) -> ExampleBatch:
            return ExampleBatch(torch.zeros(1, 3, 8, 8), torch.zeros(1), 1, 1)

    with raises("bleu.inputs_malformed", "float32 [1, 3, 8, 8]", "source, source_mask, target"):
        bleu(Copier(), Images(sentences()), vocabulary=Numbers(), most_sentences=1)


def test_a_small_gnmt_learns_to_copy_and_bleu_tells() -> None:
    pytest.importorskip("sacrebleu")
    from sparsepipe.networks.losses.texts import bleu

    torch.manual_seed(0)
    words = torch.randint(3, 9, (64, 4)).tolist()
    examples, model = Copies(words), gnmt(vocabulary_size=9, hidden=32, num_layers=2, dropout=0.0, spread=0.2)
    before = bleu(model, examples, vocabulary=Numbers(), most_sentences=64)["bleu"]
    optimizer, loss = torch.optim.Adam(model.parameters(), lr=1e-2), TokenCrossEntropy()
    batch = examples.batch(range(64))
    for _ in range(120):
        optimizer.zero_grad()
        cost, _ = loss(model(**batch.inputs), batch.target, samples=64)
        cost.backward()
        optimizer.step()
    after = bleu(model, examples, vocabulary=Numbers(), most_sentences=64)["bleu"]
    assert before < 20 and after > 90
