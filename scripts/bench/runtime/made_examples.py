"""Minibatches of made examples, each kind in the form in which the data sets of its kind give them."""

import torch
from torch import Generator, Tensor

from sparsepipe.data.examples import ExampleBatch
from sparsepipe.data.labels import IGNORED

_SHORTEST = 0.4  # of the longest: lengths of texts are even between
_TOLD = 0.15  # of words: masked, to be told


def pictures(count: int, generator: Generator, *, num_classes: int, image_size: int, **_: int) -> ExampleBatch:
    """Random pictures [B, 3, size, size] of random classes."""
    images = torch.randn(count, 3, image_size, image_size, generator=generator)
    return ExampleBatch(images, torch.randint(0, num_classes, (count,), generator=generator), count, count)


def sentence_pairs(
    count: int, generator: Generator, *, vocabulary_size: int, sequence_length: int, **_: int
) -> ExampleBatch:
    """Pairs of sentences of random words, each of its own length, padded to `sequence_length`."""
    source, source_mask = _words(count, generator, vocabulary_size, sequence_length)
    told, told_mask = _words(count, generator, vocabulary_size, sequence_length)
    before = torch.cat([torch.ones(count, 1, dtype=torch.int64), told[:, :-1]], 1)
    inputs = {"source": source, "source_mask": source_mask, "target": before}
    return ExampleBatch(inputs, told.masked_fill(~told_mask, IGNORED), count, 2 * count * sequence_length)


def masked_words(
    count: int, generator: Generator, *, vocabulary_size: int, sequence_length: int, **_: int
) -> ExampleBatch:
    """Texts of random words in two pieces, some words of each to be told, and whether the pieces belong together."""
    words, mask = _words(count, generator, vocabulary_size, sequence_length)
    told = (torch.rand(words.shape, generator=generator) < _TOLD) & mask
    told[:, 0] = True  # one at least
    types = (torch.arange(sequence_length) >= sequence_length // 3).long().expand(count, -1).clone()
    inputs = {"words": words.masked_fill(told, 4), "token_types": types * mask, "attention_mask": mask}
    follows = torch.randint(0, 2, (count,), generator=generator)
    target = {"words": words.masked_fill(~told, IGNORED), "next_sentence": follows}
    return ExampleBatch(inputs, target, count, words.numel())


def _words(count: int, generator: Generator, vocabulary_size: int, length: int) -> tuple[Tensor, Tensor]:
    """Return words [B, length], 0 in padding, and where there are any."""
    lengths = torch.randint(int(_SHORTEST * length), length + 1, (count, 1), generator=generator)
    lengths[0] = length
    mask = torch.arange(length) < lengths
    return torch.randint(5, vocabulary_size, (count, length), generator=generator) * mask, mask
