"""BLEU (Papineni et al. 2002) of a network's translations, as sacrebleu counts it (Post 2018)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import sacrebleu
import torch
from torch import Tensor, nn

from ...data.examples import ExampleDataset
from ...data.labels import IGNORED
from ...errors import InputError
from ..texts.gnmt import GNMT, State
from .base import described, main_output

_INPUTS, _IDS = ("source", "source_mask", "target"), ("begin", "end")


class WordWriter(Protocol):
    """Writes words out: a tokenizer of tokenizers is one."""

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of word ids, without words that only mark something, such as padding."""
        ...


def bleu(
    module: nn.Module,
    examples: ExampleDataset,
    *,
    vocabulary: WordWriter,
    most_sentences: int,
    batch_size: int = 32,
    longest: int | None = None,
) -> dict[str, float | None]:
    """Translate at most `most_sentences` of `examples`, spread evenly over them, and compare with their targets.

    Returns "bleu", from 0 to 100 (None of no sentences), and "bleu_sentences", how many were translated. `module` is
    the whole network, see `greedy_decode`; it is in eval mode meanwhile. `vocabulary` is the target language's. A
    translation has at most `longest` words: twice the words of its minibatch's longest source and ten, unless told.
    Raises InputError for examples that are no translations.
    """
    begin, end = _marks(examples)
    device, training = next(module.parameters()).device, module.training
    translations: list[str] = []
    references: list[str] = []
    module.eval()
    try:
        for indices in _minibatches(examples, most_sentences, batch_size):
            batch = examples.batch(indices)
            source, source_mask = (entry.to(device) for entry in _source(batch.inputs))
            most = 2 * source.shape[1] + 10 if longest is None else longest
            found = greedy_decode(module, source, source_mask, begin=begin, end=end, longest=most)
            translations += [vocabulary.decode(words) for words in found]
            references += [vocabulary.decode(_words(row, end)) for row in batch.target.tolist()]
    finally:
        module.train(training)
    return _score(translations, references)


def bleu_of_copies(
    examples: ExampleDataset,
    *,
    source_vocabulary: WordWriter,
    vocabulary: WordWriter,
    most_sentences: int,
    batch_size: int = 32,
) -> dict[str, float | None]:
    """As `bleu`, of sources taken for translations as they stand: names and numbers alone are right, so learn more."""
    _, end = _marks(examples)
    copies: list[str] = []
    references: list[str] = []
    for indices in _minibatches(examples, most_sentences, batch_size):
        batch = examples.batch(indices)
        for row, mask in zip(*_source(batch.inputs), strict=True):
            copies.append(source_vocabulary.decode(_words(row[mask != 0].tolist(), end)))
        references += [vocabulary.decode(_words(row, end)) for row in batch.target.tolist()]
    return _score(copies, references)


def _score(translations: list[str], references: list[str]) -> dict[str, float | None]:
    score = float(sacrebleu.corpus_bleu(translations, [references]).score) if references else None
    return {"bleu": score, "bleu_sentences": float(len(references))}


def _minibatches(examples: ExampleDataset, most_sentences: int, batch_size: int) -> list[list[int]]:
    """Return indices of samples spread evenly, those of like size together: little padding is decoded."""
    count = min(len(examples), most_sentences)
    sizes = examples.sample_sizes()
    chosen = sorted((i * len(examples) // count for i in range(count)), key=lambda index: (sizes[index], index))
    return [chosen[first : first + batch_size] for first in range(0, count, batch_size)]


def _marks(examples: ExampleDataset) -> tuple[int, int]:
    lacking = [name for name in _IDS if name not in examples.facts]
    if lacking:
        raise InputError(
            "bleu.no_special_ids",
            "metric bleu needs the ids of the start and end of a sentence, but this data set has no "
            f"{', '.join(lacking)}",
        )
    return examples.facts["begin"], examples.facts["end"]


def _source(inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
    if not isinstance(inputs, Mapping) or not all(name in inputs for name in _INPUTS):
        raise InputError(
            "bleu.inputs_malformed",
            f"metric bleu needs translation inputs: inputs are {described(inputs)}, expected {', '.join(_INPUTS)}",
        )
    return inputs["source"], inputs["source_mask"]


def _words(row: Sequence[int], end: int) -> list[int]:
    return [word for word in row if word not in (IGNORED, end)]


@torch.no_grad()
def greedy_decode(
    module: nn.Module, source: Tensor, source_mask: Tensor, *, begin: int, end: int, longest: int
) -> list[list[int]]:
    """Translate sentences, `source` int64 [B, S] with `source_mask` [B, S], false in padding.

    `module` is called as module(source=, source_mask=, target=) and returns logits [B, T, V] of the words that follow
    target's: of GNMT the encoder runs once and the decoder a word at a time, any other runs again for each word, on
    what there is so far. It should be in eval mode. `begin` is the id that translations begin with, `end` that they end
    with; one of `longest` words ends there. Returns ids without either.
    """
    next_logits = (
        _by_states(module, source, source_mask) if isinstance(module, GNMT) else _anew(module, source, source_mask)
    )
    words = source.new_full((len(source), 1), begin)
    ended = torch.zeros(len(source), dtype=torch.bool, device=source.device)
    while words.shape[1] <= longest and not ended.all():
        following = next_logits(words).argmax(-1)
        words = torch.cat([words, following[:, None]], 1)
        ended = ended | (following == end)
    return [_before(end, row) for row in words[:, 1:].tolist()]


def _anew(module: nn.Module, source: Tensor, source_mask: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda words: main_output(module(source=source, source_mask=source_mask, target=words))[:, -1]


def _by_states(module: GNMT, source: Tensor, source_mask: Tensor) -> Callable[[Tensor], Tensor]:
    """As `_anew`, of words that grow by one a call: what the decoder knows of those before it has kept."""
    encoded = module.encoder(source, source_mask)
    states: list[State] | None = None

    def next_logits(words: Tensor) -> Tensor:
        nonlocal states
        logits, states = module.decoder.go_on(words[:, -1:], encoded, source_mask, states)
        return logits[:, -1]

    return next_logits


def _before(end: int, words: list[int]) -> list[int]:
    return words[: words.index(end)] if end in words else words
