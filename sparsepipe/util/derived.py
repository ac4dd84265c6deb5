"""Values derived from others: digests, seeds, and answers that are remembered next to what they were worked out of.

A digest is a short hash of a value's canonical JSON, equal for equal values however they were read.
"""

import hashlib
import json
import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

_DIGITS = 12  # hexadecimal ones: two of a million values share a name with a chance of 1 in 500


def digest(value: object) -> str:
    """The first digits of the SHA-256 of the value's canonical JSON: keys sorted, 1.0 as 1, infinity as a word."""
    return _digest_of(canonical_text(value))


def digest_with(value: Mapping[str, Any], texts: Mapping[str, str]) -> str:
    """Return the digest of an object of which some entries are there as canonical JSON already, in `texts`."""
    return _digest_of(object_text({key: canonical_text(item) for key, item in value.items()} | dict(texts)))


def object_text(texts: Mapping[str, str]) -> str:
    """The canonical JSON of an object whose entries are there as canonical JSON."""
    return "{" + ",".join(f"{json.dumps(key)}:{texts[key]}" for key in sorted(texts)) + "}"


def canonical_text(value: object) -> str:
    """The value's canonical JSON."""
    return json.dumps(canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False)


def row_texts(rows: Iterable[Iterable[float]]) -> list[str]:
    """The canonical JSON of each row of finite numbers, without its brackets: at once, as profiles have thousands."""
    whole = [[int(number) if number % 1 == 0 else number for number in row] for row in rows]
    return json.dumps(whole, separators=(",", ":"))[2:-2].split("],[")


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]


def canonical(value: object) -> Any:  # noqa: ANN401 - a value of JSON
    """The value as JSON can hold it. What `to_json` or a dataclass's fields give stands for an object."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return int(value) if value.is_integer() else value
    if hasattr(value, "item"):  # a number of numpy's
        return canonical(value.item())
    if isinstance(value, Mapping):
        return {str(key): canonical(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [canonical(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(canonical(item) for item in value)
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return canonical(asdict(value))
    raise TypeError(f"a {type(value).__name__} has no canonical JSON")


# Held by whoever seeds the generators that a process's threads share, and draws from them: a layer with dropout in the
# thread that computes, a user's data set in the one that reads ahead.
SHARED_GENERATORS = RLock()
_NAMES = "surrogatepass"  # Python has bytes of a file's name that are no UTF-8 as lone surrogates


def sample_seed(seed: int, name: str) -> int:
    """Return the own seed in [0, 2^64) of a sample of a data set, so that neither order nor split changes what it is.

    Another hash than `derived_seed`'s: samples stay those that earlier runs and caches have.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode(errors=_NAMES)).digest()[:8])


def derived_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2^63) for the given parts: the same on every machine and in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(errors=_NAMES), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


Answer = TypeVar("Answer")
Kept = dict[Hashable, dict[Hashable, Any]]  # of each kind, what was asked for → its answer
_MOST = 16  # answers of a kind: a slider that is dragged asks for one after another


def remembered(kept: Kept, kind: str, key: Hashable, make: Callable[[], Answer]) -> Answer:
    """Return the answer that `kept` has for `key`; if it has none, what `make` returns, which it keeps."""
    own: dict[Hashable, Answer] = kept.setdefault(kind, {})
    if key not in own:
        made = make()
        if len(own) >= _MOST:
            own.pop(next(iter(own)), None)
        own[key] = made
        return made
    return own[key]
