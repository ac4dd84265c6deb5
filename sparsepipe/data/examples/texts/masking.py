"""What BERT learns from: two pieces of text, of which words are masked, and whether the second follows the first.

Devlin, Chang, Lee, Toutanova. BERT. NAACL 2019, appendix A.1 and A.2: 15% of the words are predicted; of these 80%
are masked, 10% become any other and 10% stay. Every other time the second piece is of another document.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from ...labels import IGNORED
from .ragged import Ragged

_TOLD = 0.15
_MASKED, _CHANGED = 0.8, 0.1
_LEAST = 4  # subwords of a chunk
ROOM = 3  # subwords of a sequence that [CLS] and two [SEP] take


@dataclass(frozen=True, eq=False)
class MaskedSample:
    """One sequence: `words`, `token_types` and the words to predict, `told`, IGNORED elsewhere: int64 [length]."""

    words: np.ndarray
    token_types: np.ndarray
    told: np.ndarray
    next_sentence: int  # 0 where the second piece follows the first, 1 where it is another's


@dataclass(frozen=True, eq=False)
class Chunks:
    """Pieces of documents that fill a sequence each: sentences one after the other, cut at a sentence's end.

    `bounds` int64 [chunks, 2] into the sentences' subwords, `documents` int64 [chunks].
    """

    sentences: Ragged
    bounds: np.ndarray
    documents: np.ndarray

    @classmethod
    def of(cls, sentences: Ragged, documents: np.ndarray, sequence_length: int) -> "Chunks":
        """Fill sequences with the sentences of each document, `documents` int64 [sentences]; scraps are left out."""
        room, bounds, owners = sequence_length - ROOM, [], []
        start = 0
        for place in range(len(sentences)):
            first, last = int(sentences.offsets[place]), int(sentences.offsets[place + 1])
            if place and (documents[place] != documents[place - 1] or last - start > room) and first > start:
                bounds.append((start, first))
                owners.append(documents[place - 1])
                start = first
            while last - start > room:  # a sentence longer than a sequence
                bounds.append((start, start + room))
                owners.append(documents[place])
                start += room
        if len(sentences) and int(sentences.offsets[-1]) > start:
            bounds.append((start, int(sentences.offsets[-1])))
            owners.append(documents[-1])
        table = np.array(bounds, dtype=np.int64).reshape(-1, 2)
        long = (table[:, 1] - table[:, 0]) >= _LEAST
        return cls(sentences, table[long], np.array(owners, dtype=np.int64)[long])

    def __len__(self) -> int:
        return len(self.bounds)

    @property
    def lengths(self) -> np.ndarray:
        """The length of each sequence with its special tokens; shorter where another's piece is: int64 [chunks]."""
        lengths: np.ndarray = self.bounds[:, 1] - self.bounds[:, 0] + ROOM
        return lengths

    def pieces(self, index: int, draw: Generator) -> tuple[np.ndarray, np.ndarray, int]:
        """Cut a chunk in two; every other time the second piece is replaced by as much of another document."""
        start, end = self.bounds[index].tolist()
        offsets = self.sentences.offsets
        inner = offsets[np.searchsorted(offsets, start, side="right") : np.searchsorted(offsets, end, side="left")]
        cut = int(draw.choice(inner)) if len(inner) else (start + end) // 2
        first, second = self.sentences.ids[start:cut], self.sentences.ids[cut:end]
        if draw.random() < 0.5:
            return first, second, 0
        others = np.flatnonzero(self.documents != self.documents[index])
        if not len(others):  # of one document alone
            others = np.flatnonzero(np.arange(len(self)) != index)
        if not len(others):
            return first, second, 0
        low, high = self.bounds[int(draw.choice(others))].tolist()
        return first, self.sentences.ids[low : min(high, low + end - cut)], 1


def masked_sample(
    first: np.ndarray,
    second: np.ndarray,
    next_sentence: int,
    draw: Generator,
    *,
    special: Sequence[int],
    vocabulary_size: int,
) -> MaskedSample:
    """Put two pieces between special tokens and mask words. `special`: the numbers of BERT_TOKENS, which come first."""
    _, _, begin, end, mask = special
    words = np.concatenate([[begin], first, [end], second, [end]]).astype(np.int64)
    types = np.repeat([0, 1], [len(first) + 2, len(second) + 1])
    candidates = np.flatnonzero(~np.isin(words, (begin, end)))
    chosen = draw.permutation(candidates)[: max(1, round(_TOLD * len(candidates)))]
    told = np.full(len(words), IGNORED, dtype=np.int64)
    told[chosen] = words[chosen]
    how = draw.random(len(chosen))
    changed = chosen[(how >= _MASKED) & (how < _MASKED + _CHANGED)]
    words[chosen[how < _MASKED]] = mask
    words[changed] = draw.integers(len(special), vocabulary_size, size=len(changed))
    return MaskedSample(words, types, told, next_sentence)
