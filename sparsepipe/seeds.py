"""Seeds of what is drawn, derived from what it belongs to."""

import hashlib


def derived_seed(*parts: int | str) -> int:
    """Return a seed in [0, 2^63) for the given parts: the same on every machine and in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
