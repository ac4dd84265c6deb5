"""Seeds of what is drawn, derived from what it belongs to, and who may draw from what all threads share."""

import hashlib
from threading import RLock

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
