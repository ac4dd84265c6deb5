"""Limits on the sizes that files claim in their headers, checked before memory is allocated for them."""

import gzip
import io
import zlib
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
        remedy = (
            "if this is correct, store the file uncompressed; otherwise remove it"
            if packed
            else "fetch the file again or remove it"
        )
        raise InputError(
            "file.claims_too_much",
            f"{path}: {what} claims {_shown(claimed)} bytes in a file of {num_bytes}, expected at most {allowed} "
            f"({rule}); {remedy}",
        )


def unpacked_gzip(path: Path, data: bytes) -> bytes:
    """Unpack what gzip packed. Raises InputError that names the file if it is damaged, or too large for its size.

    It is unpacked twice: the first time its bytes are counted alone, so that none is kept of one that is too large.
    """
    if not data.startswith(b"\x1f\x8b"):
        raise InputError("file.not_gzipped", f"{path}: named .gz but not compressed by gzip; rename it to {path.stem}")
    num_bytes = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while chunk := file.read(2**20):
                num_bytes += len(chunk)
                check_claim(path, num_bytes, num_bytes=len(data), what="its gzip content", packed=True)
            file.rewind()
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            "file.gzip_damaged", f"{path}: the gzip content is damaged or truncated ({error}); fetch the file again"
        ) from None


def _shown(claimed: int) -> str:
    return str(claimed) if claimed < 10**18 else "over 10^18"  # Python refuses to write thousands of digits
