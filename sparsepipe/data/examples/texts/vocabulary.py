"""Subwords of texts as numbers: how words are split, and lists of several lengths padded to one.

Subword vocabularies, trained on a text by the library tokenizers: BPE for translation, WordPiece for BERT.

BPE: Sennrich, Haddow, Birch, ACL 2016. WordPiece: Wu et al. 2016; words as BERT divides them, accents kept.
"""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import InputError
from ....util.io.fields import complaint, given_integer
from ....util.io.files import expanded, read_text
from ...cache import SampleCache, sample_key


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequence k is `ids`[`offsets`[k] : `offsets`[k + 1]]: ids int32 [N], offsets int64 [sequences + 1]."""

    ids: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, sequences: Iterable[Sequence[int] | np.ndarray]) -> "Ragged":
        arrays = [np.asarray(sequence, dtype=np.int32) for sequence in sequences]
        offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
        np.cumsum([len(array) for array in arrays], out=offsets[1:])
        return cls(np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int32), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """The length of each sequence: int64 [sequences]."""
        return np.diff(self.offsets)


def padded(rows: Sequence[np.ndarray], padding: int) -> np.ndarray:
    """Put sequences into one array, the shorter ones padded at their end: int64 [rows, longest]."""
    table = np.full((len(rows), max(len(row) for row in rows)), padding, dtype=np.int64)
    for place, row in zip(table, rows, strict=True):
        place[: len(row)] = row
    return table


PADDING, UNKNOWN, BEGIN, END = TRANSLATION_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
BERT_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_MARK = "▁"  # of a word's start
_LEAST, _MOST = 100, 200_000  # subwords
_MOST_LINES = 2_000_000  # that a vocabulary is trained on, evenly spaced
_CHUNK = 10_000  # lines encoded at once
_LOOKED_AT = 2000  # lines that tell whether a vocabulary is of the text
_MOST_UNKNOWN = 0.1  # of their tokens


@dataclass(frozen=True)
class Vocabulary:
    """Subwords and their numbers, as JSON of tokenizers. The special tokens come first."""

    json: str
    special: tuple[str, ...]

    @cached_property
    def tokenizer(self) -> Any:
        from tokenizers import Tokenizer

        return Tokenizer.from_str(self.json)

    def __len__(self) -> int:
        return int(self.tokenizer.get_vocab_size())

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.json.encode()).hexdigest()

    def id(self, token: str) -> int:
        """Return a special token's number."""
        return int(self.tokenizer.token_to_id(token))

    def encoded(self, lines: Sequence[str]) -> Ragged:
        """Return the subwords of each line, without special tokens."""
        rows: list[np.ndarray] = []
        for start in range(0, len(lines), _CHUNK):
            found = self.tokenizer.encode_batch_fast(list(lines[start : start + _CHUNK]), add_special_tokens=False)
            rows += [np.array(encoding.ids, dtype=np.int32) for encoding in found]
        return Ragged.of(rows)

    def decoded(self, ids: Sequence[int]) -> str:
        """Return the text of subwords; special tokens are left away."""
        return str(self.tokenizer.decode([int(number) for number in ids], skip_special_tokens=True)).strip()


def opened_vocabulary(
    read: Callable[[], Sequence[str]],
    files: Sequence[Path],
    *,
    size: int,
    special: tuple[str, ...],
    given: str | Path | None,
    cache: SampleCache | None,
    facts: dict[str, Any],
) -> Vocabulary:
    """Return the vocabulary of a text: the one in a file `given`, else what is in the cache, else trained and kept.

    `files` and `facts` determine the lines that `read` returns, if they are needed. Raises InputError for a size out
    of range, and for a file that is no vocabulary, lacks the special tokens, or is of another text.
    """
    if given is not None:
        return _read(expanded(given), special, read())
    given_integer(size, "vocabulary_size", least=_LEAST)
    if size > _MOST:
        raise InputError("vocabulary.too_large", f"vocabulary_size {size} given, expected at most {_MOST}")
    key = sample_key(cache, files, {"what": "vocabulary", "size": size, "special": special, **facts})
    if cache is None or key is None:
        return Vocabulary(_trained(read(), size, special), special)
    with cache.alone(key):  # the ranks of a run ask at once: one of them trains
        kept = cache.load(key)
        if kept is not None and "json" in kept:
            return Vocabulary(kept["json"].tobytes().decode(), special)
        trained = Vocabulary(_trained(read(), size, special), special)
        cache.save(key, {"json": np.frombuffer(trained.json.encode(), dtype=np.uint8)})
        return trained


def _trained(lines: Sequence[str], size: int, special: tuple[str, ...]) -> str:
    """Train on a text; the same text gives the same vocabulary in every process."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # a worker's threads are its own share of the machine
    chosen = lines[:: -(-len(lines) // _MOST_LINES) or 1]
    tokenizer = _word_pieces(chosen, size, special) if special == BERT_TOKENS else _byte_pairs(chosen, size, special)
    return str(tokenizer.to_str())


def _byte_pairs(lines: Sequence[str], size: int, special: Sequence[str], *, bert: bool = False) -> Any:
    """Train BPE. Pieces of a word's start begin with a mark, "▁"; `bert` divides and writes words as BERT does."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=special[1]))
    tokenizer.normalizer = normalizers.BertNormalizer(strip_accents=False) if bert else normalizers.NFC()
    mark = pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.BertPreTokenizer(), mark]) if bert else mark
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), show_progress=False)
    tokenizer.train_from_iterator(_parts(lines), trainer)
    return tokenizer


def _word_pieces(lines: Sequence[str], size: int, special: Sequence[str]) -> Any:
    """Return WordPiece over the pieces that BPE finds: those inside a word are written ##piece.

    The library's own trainer of WordPiece numbers letters in the order of a hash map, differently in each process.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    pairs = _byte_pairs(lines, size, special, bert=True)
    found = sorted(pairs.get_vocab().items(), key=lambda piece: piece[1])
    pieces = [piece for piece, number in found if number >= len(special)]
    counts = Counter(letter for line in lines for letter in pairs.normalizer.normalize_str(line))
    letters = sorted({piece for piece in pieces if len(piece) == 1 and piece != _MARK}, key=lambda x: (-counts[x], x))
    kept = set(letters[: size // 4])  # of thousands of letters the rare ones are unknown
    words = [*special, *(form for letter in letters if letter in kept for form in (letter, f"##{letter}"))]
    longer = [piece for piece in pieces if len(piece) > 1 and set(piece) <= kept | {_MARK}]
    words += [piece[1:] if piece.startswith(_MARK) else f"##{piece}" for piece in longer if _MARK not in piece[1:]]
    numbers = {word: number for number, word in enumerate(list(dict.fromkeys(words))[:size])}
    tokenizer = Tokenizer(models.WordPiece(numbers, unk_token=special[1]))
    tokenizer.normalizer, tokenizer.pre_tokenizer = pairs.normalizer, pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _parts(lines: Sequence[str]) -> Iterable[list[str]]:
    for start in range(0, len(lines), _CHUNK):
        yield list(lines[start : start + _CHUNK])


def _read(path: Path, special: tuple[str, ...], lines: Sequence[str]) -> Vocabulary:
    vocabulary = Vocabulary(read_text(path, what="vocabulary of tokenizers (JSON)"), special)
    try:
        size = len(vocabulary)
    except ImportError:  # of tokenizers: the file is not at fault
        raise
    except Exception as error:  # tokenizers raises Exception itself
        raise InputError(
            "vocabulary.malformed",
            f"{path}: not a vocabulary file of the tokenizers library ({complaint(error)}); train another vocabulary",
        ) from None
    lacking = [token for token in special if vocabulary.tokenizer.token_to_id(token) is None]
    if lacking or vocabulary.id(special[0]) != 0:
        what = f"has no {', '.join(lacking)}" if lacking else f"numbers {special[0]} {vocabulary.id(special[0])}"
        raise InputError(
            "vocabulary.special_tokens",
            f"{path}: {what}, expected the special tokens {', '.join(special)} first; train another vocabulary",
        )
    ids = vocabulary.encoded(lines[:_LOOKED_AT]).ids
    unknown = float((ids == vocabulary.id(special[1])).mean()) if len(ids) else 0.0
    if unknown > _MOST_UNKNOWN:
        raise InputError(
            "vocabulary.of_other_text",
            f"{path}: belongs to another text: it lacks {unknown:.0%} of the subwords here (it has {size}); omit it "
            "to train a vocabulary on this text",
        )
    return vocabulary
