"""The greeting of a rank and its coordinator: each proves that it has the job's secret, and neither says it.

    coordinator ── nonce ──────────────────────────────► rank
    coordinator ◄─ nonce, HMAC(secret, "rank", nonces) ─ rank
    coordinator ── HMAC(secret, "coordinator", nonces) ► rank

So who has taken the port of a coordinator that was killed learns nothing from the ranks that look for it there.
"""

import hmac
import secrets

NONCE_BYTES, PROOF_BYTES = 16, 32
REPLY_BYTES = NONCE_BYTES + PROOF_BYTES  # of a rank


def nonce() -> bytes:
    """Return bytes that nobody can have foreseen."""
    return secrets.token_bytes(NONCE_BYTES)


def reply(secret: bytes, heard: bytes, own: bytes) -> bytes:
    """Return what a rank answers to the coordinator's nonce, with a nonce of its `own`."""
    return own + _proof(secret, b"rank", heard, own)


def proves(secret: bytes, own: bytes, said: bytes) -> bool:
    """Whether what a rank replied to the coordinator's `own` nonce proves that it has the secret."""
    theirs, proof = said[:NONCE_BYTES], said[NONCE_BYTES:]
    return hmac.compare_digest(proof, _proof(secret, b"rank", own, theirs))


def confirmation(secret: bytes, own: bytes, said: bytes) -> bytes:
    """Return what the coordinator answers to a rank's reply; the rank compares it with what it would say itself."""
    return _proof(secret, b"coordinator", own, said[:NONCE_BYTES])


def _proof(secret: bytes, who: bytes, of_coordinator: bytes, of_rank: bytes) -> bytes:
    return hmac.digest(secret, who + of_coordinator + of_rank, "sha256")
