"""Losses and metrics of texts: masked words and next sentences as BERT has them, and BLEU of translations."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import sacrebleu
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from ...data.examples import ExampleDataset
from ...data.labels import IGNORED
from ...errors import InputError
from ..texts.gnmt import GNMT, State
from .base import Outcome, check_known, check_rows, described, main_output, mean_of, num_correct, num_known, weighed


# What BERT is trained by (Devlin et al. 2018, section 3.1): masked words, and whether a sentence follows another
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
                f"loss tokens: label_smoothing {self.label_smoothing!r} given, expected at least 0 and below 1",
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


@dataclass(frozen=True)
class MaskedWords:
    """The mean cross entropy of the masked words plus that of the next-sentence classes.

    `output`: logits of words [B, S, vocabulary] and of sentences [B, 2], a tuple or a dict in this order. `target`: a
    dict of "words" int64 [B, S], IGNORED where none is masked, and "next_sentence" int64 [B]. Without "next_sentence",
    or as a tensor of words alone, it is the masked words alone. A mean over nothing adds nothing, and no gradient:
    without a masked word the loss is the sentences'. What is counted are masked words. Details: summed cross entropies
    of words and of sentences, the sentences, and those of them found right.
    """

    counts_correct = True
    num_details = 4

    def items(self, target: Any) -> tuple[int, ...]:
        """Masked words, and sentences where the target has them."""
        words, follows = _targets(target)
        return num_known(words) + (() if follows is None else num_known(follows))

    def __call__(
        self, output: Any, target: Any, *, samples: int, detailed: bool = False, weights: Sequence[float] | None = None
    ) -> tuple[Tensor, Outcome]:
        """Raises InputError if there is not a row of output for each target, with a column for each word."""
        words, follows = _targets(target)
        word_loss, counted, correct = _mean(main_output(output), words, "word")
        means = [(word_loss, weighed(word_loss, weights), counted)]
        sentences = (0.0, 0, 0)
        if follows is not None:
            sentence_loss, known, right = _mean(_second(output), follows, "next-sentence class")
            means.append((sentence_loss, weighed(sentence_loss, weights, 1), known))
            sentences = (float(sentence_loss.detach()) * known, known, right)
        there = [(mean, part) for mean, part, count in means if count]
        loss = torch.stack([part for _, part in there]).sum() if there else word_loss
        value = float(torch.stack([mean.detach() for mean, _ in there]).sum()) if there else None
        details = torch.tensor([float(word_loss.detach()) * counted, *sentences], dtype=torch.float64)
        return loss, Outcome(value, samples, counted, correct, details if detailed else None)

    def report(self, details: Tensor, counted: float) -> dict[str, float | None]:
        """The loss here is exact: its words are averaged over words, its sentences over sentences."""
        words, sentences, known, right = details.tolist()
        means = (mean_of(words, counted), mean_of(sentences, known))
        there = [mean for mean in means if mean is not None]
        scores = {"loss": sum(there) if there else None, "perplexity": perplexity(means[0])}
        if known:
            scores |= {"sentence_accuracy": right / known, "sentences": int(known)}
        return scores


def _targets(target: Any) -> tuple[Any, Any]:
    if not isinstance(target, Mapping):
        return target, None
    if "words" not in target:
        raise InputError(
            "loss.target_malformed",
            f"the target is {described(target)}, expected a dict with 'words' and optionally 'next_sentence'",
        )
    return target["words"], target.get("next_sentence")


def _second(output: Any) -> Tensor:
    entries = list(output.values()) if isinstance(output, Mapping) else output
    second = entries[1] if isinstance(entries, tuple | list) and len(entries) > 1 else None
    if not isinstance(second, Tensor):
        raise InputError(
            "loss.output_malformed",
            f"the network's forward returns {described(output)}, expected logits of words and of next sentences",
        )
    return second


def _mean(logits: Tensor, target: Any, what: str) -> tuple[Tensor, int, int]:
    """Return the mean cross entropy of those targets that count, how many they are, and how many are found."""
    check_rows(logits, target)
    check_known(logits, target, what)
    known = target.to(logits.device) != IGNORED
    rows, labels = logits[known].float(), target.to(logits.device)[known]  # few of them: spares the softmax of the rest
    correct = int((rows.detach().argmax(1) == labels).sum())
    return words_cross_entropy(rows, labels, len(labels)), len(labels), correct


_INPUTS, _IDS = ("source", "source_mask", "target"), ("begin", "end")


# BLEU (Papineni et al. 2002) of a network's translations, as sacrebleu counts it (Post 2018)
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
    return [row[: row.index(end)] if end in row else row for row in words[:, 1:].tolist()]


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
