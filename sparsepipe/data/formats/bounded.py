"""Limits on the sizes that files claim in their headers, checked before memory is allocated for them."""

from pathlib import Path

from ...errors import InputError

MOST_TIMES = 100  # bytes unpacked of one packed: what points compress to stays far below, labels of one class too
ALWAYS_ALLOWED = 16 * 2**20  # bytes; a small file of one repeated number may compress better


def check_claim(path: Path, claimed: int, *, num_bytes: int, what: str, packed: bool) -> None:
    """Raise InputError, before any memory is taken, where `what` claims more bytes than a file of `num_bytes` can hold.

    That is as many as it has, and where its content is `packed` MOST_TIMES as many, or ALWAYS_ALLOWED.
    """
    allowed = max(ALWAYS_ALLOWED, MOST_TIMES * num_bytes) if packed else num_bytes
    if claimed > allowed:
        rule = f"{MOST_TIMES} times a packed file's own, or {ALWAYS_ALLOWED}" if packed else "what the file itself has"
        raise InputError(
            f"{path}: {what} claims {_shown(claimed)} bytes in a file of {num_bytes}, expected at most {allowed} "
            f"({rule}); fetch the file again or remove it"
        )


def _shown(claimed: int) -> str:
    return str(claimed) if claimed < 10**18 else "over 10^18"  # Python refuses to write thousands of digits
