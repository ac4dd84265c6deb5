"""Translation: minibatches of source sentences and their translations, in subwords of one vocabulary for both.

inputs  source int64 [B, S], source_mask bool [B, S] (false in padding), target int64 [B, T] from begin-of-sentence on
target  int64 [B, T]: the word that follows each, end-of-sentence last, -100 in padding

The source ends with end-of-sentence as well. A minibatch's size is B * (S + T) tokens, padding among them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ....errors import InputError
from ....util.io.fields import given_integer
from ....util.io.files import name_text
from ...cache import SampleCache, sample_key
from ...folder import check_indices, look_at, named_digest
from ...labels import IGNORED
from ..base import ExampleBatch, TextExamples
from . import aligned
from .aligned import AlignedTexts
from .vocabulary import BEGIN, END, PADDING, TRANSLATION_TOKENS, Ragged, Vocabulary, opened_vocabulary, padded


@dataclass(frozen=True)
class TranslationSettings:
    """Options of `open_examples`. `sequence_length`: of a sentence in subwords, its end among them.

    Training pairs with a longer side are left out, those for testing are cut. `vocabulary` names a file of tokenizers'
    JSON instead of one that is trained, of `vocabulary_size` subwords.
    """

    source_language: str | None = None
    target_language: str | None = None
    vocabulary_size: int = 8000
    sequence_length: int = 64
    vocabulary: str | None = None

    def __post_init__(self) -> None:
        given_integer(self.sequence_length, "sequence_length", least=2)


@dataclass(frozen=True, eq=False)
class TranslationExamples(TextExamples):
    """One split of aligned texts, as `ExampleDataset`."""

    pieces = "sentences"
    root: Path
    split: str
    settings: TranslationSettings
    cache: SampleCache | None = None

    def __post_init__(self) -> None:
        _ = self._texts

    @cached_property
    def _texts(self) -> AlignedTexts:
        return self._of("train") if self.split == "train" else self._of("test")

    def _of(self, split: str) -> AlignedTexts:
        return aligned.opened(self.root, split, self.settings.source_language, self.settings.target_language)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The subwords of both languages, of the training split."""
        training = self._texts if self.split == "train" else self._of("train")
        return opened_vocabulary(
            lambda: [line for pair in zip(*training.read(), strict=True) for line in pair],
            training.files,
            size=self.settings.vocabulary_size,
            special=TRANSLATION_TOKENS,
            given=self.settings.vocabulary,
            cache=self.cache,
            facts={"rule": training.rule},
        )

    @cached_property
    def _pairs(self) -> tuple[Ragged, Ragged]:
        """The subwords of sources and targets, each with its end, from the cache where they exist."""
        facts: dict[str, object] = {"what": "pairs", "rule": self._texts.rule, "vocabulary": self.vocabulary.sha256}
        facts |= {"split": self.split, "length": self.settings.sequence_length}
        key = sample_key(self.cache, self._texts.files, facts)
        if self.cache is None or key is None:
            return self._encoded()
        with self.cache.alone(key):
            kept = self.cache.load(key)
            if kept is not None and len(kept) == 4:
                source = Ragged(kept["source_ids"], kept["source_offsets"])
                return source, Ragged(kept["target_ids"], kept["target_offsets"])
            source, target = self._encoded()
            sides = {"source": source, "target": target}
            arrays = {f"{name}_ids": side.ids for name, side in sides.items()}
            self.cache.save(key, arrays | {f"{name}_offsets": side.offsets for name, side in sides.items()})
            return source, target

    def _encoded(self) -> tuple[Ragged, Ragged]:
        """Encode all pairs; what is too long is left out of training, cut in testing."""
        sides = [self.vocabulary.encoded(lines) for lines in self._texts.read()]
        room, end = self.settings.sequence_length - 1, self.vocabulary.id(END)
        chosen = np.arange(len(sides[0]))
        if self.split == "train":
            chosen = chosen[(sides[0].lengths <= room) & (sides[1].lengths <= room)]
        if not len(chosen):
            raise InputError(
                "texts.no_pairs",
                f"{self._texts.source_file}: has no pair within sequence_length {room + 1}; raise it",
            )
        source, target = (Ragged.of([*side[index][:room].tolist(), end] for index in chosen.tolist()) for side in sides)
        return source, target

    def __len__(self) -> int:
        return len(self._pairs[0])

    @property
    def loss(self) -> str:
        return "tokens"

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        size = len(self.vocabulary)
        numbers = {"padding": PADDING, "begin": BEGIN, "end": END}
        return {
            "source_vocabulary_size": size,
            "target_vocabulary_size": size,
            "sequence_length": self.settings.sequence_length,
            **{name: self.vocabulary.id(token) for name, token in numbers.items()},
        }

    @cached_property
    def origin(self) -> dict[str, Any]:
        source, target = (file.name.rpartition(".")[2] for file in self._texts.files)
        return {
            "name": name_text(self.root.name),
            "split": self.split,
            "samples": len(self),
            "synthetic": self.synthetic,
            "source_language": source,
            "target_language": target,
            "pairs": self._texts.rule,
            "sequence_length": self.settings.sequence_length,
            "vocabulary_size": len(self.vocabulary),
            "vocabulary_sha256": self.vocabulary.sha256,
            **named_digest(self._texts.files, self.root),
        }

    def name(self, index: int) -> str:
        return f"{self.split}/{index}"

    def look(self) -> None:
        """Check that all files exist, without reading them."""
        look_at(self._texts.files, self.split)

    def sample_sizes(self) -> Sequence[int]:
        source, target = self._pairs
        return tuple((source.lengths + target.lengths).tolist())

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> ExampleBatch:
        """Return pairs as one minibatch, padded to the longest on each side."""
        check_indices(indices, len(self), self.split)
        begin, padding = (self.facts[name] for name in ("begin", "padding"))
        sources = [self._pairs[0][index] for index in indices]
        targets = [self._pairs[1][index] for index in indices]
        source = torch.from_numpy(padded(sources, padding))
        lengths = torch.tensor([len(row) for row in sources])
        before = torch.from_numpy(padded([np.concatenate([[begin], row[:-1]]) for row in targets], padding))
        inputs = {"source": source, "source_mask": torch.arange(source.shape[1]) < lengths[:, None], "target": before}
        size = len(indices) * (source.shape[1] + before.shape[1])
        return ExampleBatch(inputs, torch.from_numpy(padded(targets, IGNORED)), len(indices), size)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of subwords up to the first end-of-sentence; what is negative (padding) is left away."""
        numbers = [int(number) for number in ids if int(number) >= 0]
        end = self.facts["end"]
        return self.vocabulary.decoded(numbers[: numbers.index(end)] if end in numbers else numbers)
