"""Masked words and next sentences, as BERT is trained: minibatches padded to their longest sequence.

inputs  words int64 [B, S], token_types int64 [B, S] (0, 1), attention_mask bool [B, S] (false in padding)
target  words int64 [B, S], -100 where none is masked, and next_sentence int64 [B] (0: it follows, 1: it does not)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....errors import InputError
from ....util.derived import sample_seed
from ....util.io.fields import given_integer
from ....util.io.files import name_text
from ...cache import SampleCache, sample_key
from ...folder import check_indices, look_at, named_digest
from ...labels import IGNORED
from ..base import ExampleBatch, TextExamples
from . import masking
from .masking import Chunks, MaskedSample, PlainTexts, masked_sample
from .vocabulary import BERT_TOKENS, Ragged, Vocabulary, opened_vocabulary, padded


@dataclass(frozen=True)
class PlainTextSettings:
    """Options of `open_examples`. `sequence_length`: in subwords, both pieces and three special tokens together.

    `vocabulary` names a file of tokenizers' JSON instead of one that is trained, of `vocabulary_size` subwords.
    """

    vocabulary_size: int = 8000
    sequence_length: int = 128
    vocabulary: str | None = None

    def __post_init__(self) -> None:
        given_integer(self.sequence_length, "sequence_length", least=8)


def bert_batch(samples: Sequence[MaskedSample], padding: int) -> ExampleBatch:
    """Put samples side by side."""
    words = torch.from_numpy(padded([sample.words for sample in samples], padding))
    lengths = torch.tensor([len(sample.words) for sample in samples])
    inputs = {
        "words": words,
        "token_types": torch.from_numpy(padded([sample.token_types for sample in samples], 0)),
        "attention_mask": torch.arange(words.shape[1]) < lengths[:, None],
    }
    target = {
        "words": torch.from_numpy(padded([sample.told for sample in samples], IGNORED)),
        "next_sentence": torch.tensor([sample.next_sentence for sample in samples], dtype=torch.int64),
    }
    return ExampleBatch(inputs, target, len(samples), words.numel())


@dataclass(frozen=True, eq=False)
class PlainTextExamples(TextExamples):
    """One split of plain texts, as `ExampleDataset`. In split test a sample is the same in each epoch."""

    root: Path
    split: str
    settings: PlainTextSettings
    seed: int = 0
    cache: SampleCache | None = None

    def __post_init__(self) -> None:
        _ = self._texts

    @cached_property
    def _texts(self) -> PlainTexts:
        return masking.opened(self.root, self.split)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The subwords of the training split."""
        training = self._texts if self.split == "train" else masking.opened(self.root, "train")
        return opened_vocabulary(
            lambda: [sentence for document in training.read() for sentence in document],
            training.files,
            size=self.settings.vocabulary_size,
            special=BERT_TOKENS,
            given=self.settings.vocabulary,
            cache=self.cache,
            facts={"part": training.part},
        )

    @cached_property
    def _chunks(self) -> Chunks:
        sentences, documents = self._sentences()
        chunks = Chunks.of(sentences, documents, self.settings.sequence_length)
        if not len(chunks):
            raise InputError(
                "texts.too_short",
                f"{self._texts.files[0]}: the text is too short in split {self.split}; add text",
            )
        return chunks

    def _sentences(self) -> tuple[Ragged, np.ndarray]:
        """The subwords of each sentence and the document it is of, from the cache where they exist."""
        facts = {"what": "sentences", "part": self._texts.part, "vocabulary": self.vocabulary.sha256}
        key = sample_key(self.cache, self._texts.files, facts)
        if self.cache is None or key is None:
            return self._encoded()
        with self.cache.alone(key):
            kept = self.cache.load(key)
            if kept is not None and len(kept) == 3:
                return Ragged(kept["ids"], kept["offsets"]), kept["documents"]
            sentences, owners = self._encoded()
            self.cache.save(key, {"ids": sentences.ids, "offsets": sentences.offsets, "documents": owners})
            return sentences, owners

    def _encoded(self) -> tuple[Ragged, np.ndarray]:
        documents = self._texts.read()
        sentences = self.vocabulary.encoded([sentence for document in documents for sentence in document])
        return sentences, np.repeat(np.arange(len(documents)), [len(document) for document in documents])

    def __len__(self) -> int:
        return len(self._chunks)

    @property
    def loss(self) -> str:
        return "masked-words"

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        return {
            "vocabulary_size": len(self.vocabulary),
            "sequence_length": self.settings.sequence_length,
            "padding": self.vocabulary.id(BERT_TOKENS[0]),
        }

    @cached_property
    def origin(self) -> dict[str, Any]:
        return {
            "name": name_text(self.root.name),
            "split": self.split,
            "samples": len(self),
            "synthetic": self.synthetic,
            "seed": self.seed,
            "sequence_length": self.settings.sequence_length,
            "vocabulary_size": len(self.vocabulary),
            "vocabulary_sha256": self.vocabulary.sha256,
            "documents": {None: "all", True: "every tenth", False: "all but every tenth"}[self._texts.part],
            **named_digest(self._texts.files, self.root),
        }

    def name(self, index: int) -> str:
        return f"{self.split}/{index}"

    def look(self) -> None:
        """Check that all files exist, without reading them."""
        look_at(self._texts.files, self.split)

    def sample_sizes(self) -> Sequence[int]:
        return tuple(self._chunks.lengths.tolist())

    @cached_property
    def _special(self) -> tuple[int, ...]:
        return tuple(self.vocabulary.id(token) for token in BERT_TOKENS)

    def sample(self, index: int, *, epoch: int = 0) -> MaskedSample:
        """Return a sample, drawn by seed, its place and in split train the epoch."""
        turn = epoch if self.split == "train" else 0
        draw = np.random.default_rng(sample_seed(self.seed, f"{self.split}:{index}:{turn}"))
        first, second, next_sentence = self._chunks.pieces(index, draw)
        size = len(self.vocabulary)
        return masked_sample(first, second, next_sentence, draw, special=self._special, vocabulary_size=size)

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> ExampleBatch:
        """Return sequences as one minibatch; `epoch` decides which words are masked and what follows."""
        check_indices(indices, len(self), self.split)
        return bert_batch([self.sample(index, epoch=epoch) for index in indices], self.facts["padding"])

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of subwords; special tokens and what is negative are left away."""
        return self.vocabulary.decoded([int(number) for number in ids if int(number) >= 0])
