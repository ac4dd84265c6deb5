"""Files that are whole or absent: every write goes through a temporary file and rename, after fsync."""

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from .errors import InputError


def write_atomic(path: Path | str, content: str | bytes, *, synced: bool = True) -> Path:
    """Write `content` so that a reader, or a kill at any moment, sees the old file or the new one, never a part.

    Not `synced`, a file may be lost or empty after the machine has lost its power; it is written many times as fast.
    """
    path = Path(path)
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:  # names the file that was asked for, not a temporary one
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            if synced:
                handle.flush()
                os.fsync(handle.fileno())
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        Path(temporary).chmod(mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_json(path: Path | str, value: Any) -> Path:
    """Write `value` as indented JSON, atomically. NaN and infinity are refused: JSON has neither."""
    return write_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_text(path: Path | str, *, what: str = "file") -> str:
    """Read a text file a user named. Raises InputError in one line where that cannot be done."""
    path = Path(path)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: no such {what}; check the path") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder, expected a {what}") from None
    except (OSError, ValueError) as error:  # no UTF-8, or a name that no file can have
        raise InputError(f"{path}: cannot be read as a {what} ({error})") from None


def read_json(path: Path | str, *, what: str = "JSON file") -> Any:
    """Read JSON a user named. Raises InputError with file, line and column where it is not JSON."""
    text = read_text(path, what=what)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f"{path}:{error.lineno}: not JSON ({error.msg} at column {error.colno}), expected a {what}"
        ) from None
    except RecursionError:
        raise InputError(f"{path}: nested too deeply for a {what}") from None
    except ValueError as error:  # a whole number of thousands of digits
        raise InputError(f"{path}: not JSON ({error}), expected a {what}") from None


def read_rows(path: Path | str) -> list[dict]:
    """Read JSON lines. A last line cut short by a kill is left out; raises InputError for another that is not whole."""
    rows = []
    for place, line in enumerate(Path(path).read_text(encoding="utf-8").split("\n")[:-1], start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except ValueError as error:
                raise InputError(f"{path}:{place}: not a row of JSON ({error}); take the line out") from None
    return rows


def sha256(path: Path | str) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sealed(content: bytes) -> bytes:
    """Return content with its SHA-256 behind it, for formats without a checksum."""
    return content + hashlib.sha256(content).digest()


def unsealed(entry: bytes) -> bytes | None:
    """Return what was sealed, None where a byte of it differs."""
    content = entry[: -hashlib.sha256().digest_size]
    return content if sealed(content) == entry else None


def cut_torn_row(path: Path | str) -> None:
    """Take from JSON lines what `read_rows` leaves out, so that a row written behind it is one of its own.

    Nobody else may write to the file meanwhile.
    """
    path = Path(path)
    if path.exists():
        whole = path.read_bytes().rfind(b"\n") + 1
        os.truncate(path, whole)


def write_rows(path: Path | str, rows: list[dict]) -> Path:
    """Write JSON lines, atomically."""
    return write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))
