"""Atomic writes, checked reads and locks of files: a write is a temporary file, fsync, and a rename.

Locks are those of `flock`: held by a descriptor until it is closed. Some disks of networks have none.
"""

import errno
import fcntl
import hashlib
import io
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError


def name_text(name: str) -> str:
    r"""Return a file's name as text for tables and records: a byte that is no UTF-8 is written out, as \xe9."""
    return re.sub("[\ud800-\udfff]", lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", name)


def expanded(path: Path | str) -> Path:
    """Return a path with the home folder for a leading ~, or ~user, as a shell has it.

    One that begins with the name of no user is left as it is: a file may be called ~draft. "./~" is the folder called ~
    here, by its whole path, since a Path forgets the "./".
    """
    if str(path).startswith("./~"):
        return Path(path).absolute()
    try:
        return Path(path).expanduser()
    except RuntimeError:  # no such user
        return Path(path)


MOST_BYTES = 2**29  # of a file that is read whole: parsed it takes several times as much memory
_MOST_LINE_BYTES = 2**26  # of a row of JSON


def write_atomic(
    path: Path | str, content: str | bytes, *, synced: bool = True, make_folder: bool = True, private: bool = False
) -> Path:
    """Write `content` so that a reader, or a kill at any moment, sees the old file or the new one, never a part.

    Not `synced`, a file may be lost or empty after the machine has lost its power; it is written many times as fast.
    A new file gets the mode that the umask leaves, another keeps its own. Without `make_folder` its folder must be
    there: a run whose folder was taken away must not make it again. `private`: no one but the owner can read it.
    What is no file, such as /dev/stdout, is written to and not replaced. Raises OSError that names `path`, whatever
    went wrong in writing it.
    """
    path = expanded(path)
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content  # names: lone surrogates
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        return _written_to(path, data)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    mode = 0o600 if private else 0o666
    try:
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except OSError as error:
        raise _named(error, path) from None
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            if synced:
                handle.flush()
                os.fsync(handle.fileno())
        if not private and path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _named(error, path) from None
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return path


def _written_to(path: Path, data: bytes) -> Path:
    """Write to a device or a pipe."""
    try:
        with path.open("wb") as handle:
            handle.write(data)
    except OSError as error:
        raise _named(error, path) from None
    return path


def folder_beside(path: Path) -> Path:
    """Make an empty folder, to become `path` once it is whole; its mode is what the umask leaves."""
    folder = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    folder.mkdir()
    return folder


def _named(error: OSError, path: Path) -> OSError:
    """Return the error with the name of the file that was asked for, not of a temporary one, or of none."""
    return OSError(error.errno, error.strerror, str(path))


def write_json(path: Path | str, value: object, *, make_folder: bool = True) -> Path:
    """Write `value` as indented JSON, atomically. NaN and infinity are refused: JSON has neither."""
    return write_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n", make_folder=make_folder)


def open_lock(path: Path | str, *, own: bool = False) -> io.BufferedRandom:
    """Open a file to be locked, making it if need be; nothing is written to it.

    `own`: it must be this user's. Raises OSError that names the file, for a link and a pipe, too.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    return os.fdopen(_checked(os.open(os.fspath(path), flags, 0o600), path, own=own), "r+b")


def open_regular(path: Path | str, *, own: bool = False) -> io.BufferedReader:
    """Open a regular file to read its bytes: whoever opens a pipe waits for a writer, and a device has no end.

    `own`: it must be this user's and no link, as what is read from a cache that others may write to. Raises OSError
    that names the file.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (os.O_NOFOLLOW if own else 0)
    return os.fdopen(_checked(os.open(os.fspath(path), flags), path, own=own), "rb")


def _checked(descriptor: int, path: Path | str, *, own: bool) -> int:
    """Return the descriptor of a regular file; close it and raise OSError if it is of anything else."""
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe, a device or a socket, expected a regular file", str(path))
        if own and status.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "it belongs to another user", str(path))
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_whole(path: Path | str, *, own: bool = False, most: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file (see `open_regular`). Raises OSError, too if it has more than `most` bytes.

    A file can be sparse: without a bound a few bytes on a disk fill the memory.
    """
    with open_regular(path, own=own) as handle:
        if os.fstat(handle.fileno()).st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most >> 20} MiB", str(path))
        return handle.read()


def read_text(path: Path | str, *, what: str = "file") -> str:
    """Read a text file a user named, without the mark that some editors put before it (U+FEFF).

    Raises InputError in one line if that cannot be done, and for what is no regular file of at most 512 MiB.
    """
    path = expanded(path)
    try:
        return io.TextIOWrapper(io.BytesIO(read_whole(path)), encoding="utf-8-sig").read()
    except FileNotFoundError:
        raise InputError("file.not_found", f"{path}: no such {what}; check the path") from None
    except IsADirectoryError:
        raise InputError("file.is_folder", f"{path}: is a folder, expected a {what}") from None
    except (OSError, ValueError) as error:  # no UTF-8, or a name that no file can have
        told = getattr(error, "strerror", None) or error  # without the name again
        raise InputError("file.unreadable", f"{path}: cannot be read as a {what} ({told})") from None


def read_json(path: Path | str, *, what: str = "JSON file") -> Any:
    """Read JSON a user named. Raises InputError with file, line and column where it is not JSON."""
    text = read_text(path, what=what)
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            "json.malformed",
            f"{path}:{error.lineno}: not JSON ({error.msg} at column {error.colno}), expected a {what}",
        ) from None
    except RecursionError:
        raise InputError("json.too_deep", f"{path}: nested too deeply for a {what}; create the file again") from None
    except ValueError as error:  # a whole number of thousands of digits
        raise InputError("json.malformed", f"{path}: not JSON ({error}), expected a {what}") from None


def read_rows(path: Path | str, *, wanted: Callable[[bytes], bool] | None = None) -> list[dict[str, Any]]:
    """Read JSON lines, all of them or the `wanted` ones; see `read_numbered_rows`."""
    return [row for _, row in read_numbered_rows(path, wanted=wanted)]


def read_numbered_rows(
    path: Path | str, *, wanted: Callable[[bytes], bool] | None = None
) -> list[tuple[int, dict[str, Any]]]:
    """Read JSON lines as (number of the line, row). A last line cut short by a kill is left out.

    `wanted` sees each line before it is parsed: what is not asked for costs neither time nor memory.
    Raises InputError, naming file and line, where the file cannot be read or a line is no JSON object.
    """
    path = expanded(path)
    lines: list[tuple[int, bytes]] = []
    try:
        with open_regular(path) as handle:
            for number, line in enumerate(iter(lambda: handle.readline(_MOST_LINE_BYTES), b""), start=1):
                if len(line) == _MOST_LINE_BYTES:
                    raise InputError(
                        "json.row_too_long",
                        f"{path}:{number}: the line is too long; remove it",
                        number=number,
                    )
                if line.endswith(b"\n") and not line.isspace() and (wanted is None or wanted(line)):
                    lines.append((number, line))
    except OSError as error:
        raise InputError("file.unreadable", f"{path}: cannot be read ({error.strerror})") from None
    rows = _all_at_once([line.strip() for _, line in lines])
    if rows is None:  # one of them is damaged
        rows = [_row(path, number, line) for number, line in lines]
    return [(number, row) for (number, _), row in zip(lines, rows, strict=True)]


def _all_at_once(lines: list[bytes]) -> list[dict[str, Any]] | None:
    """Parse rows in half the time that one by one takes; None if one of them is no JSON object."""
    if not all(line.startswith(b"{") and line.endswith(b"}") for line in lines):
        return None
    try:
        rows = json.loads(b"[" + b",".join(lines) + b"]")
    except (ValueError, RecursionError):
        return None
    return rows if len(rows) == len(lines) and all(type(row) is dict for row in rows) else None


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except RecursionError:
        raise InputError("json.too_deep", f"{path}:{number}: the line is nested too deeply; remove it") from None
    except ValueError as error:
        raise InputError(
            "json.row_malformed", f"{path}:{number}: not valid JSON ({error}); remove the line", number=number
        ) from None
    if not isinstance(row, dict):
        raise InputError(
            "json.row_malformed",
            f"{path}:{number}: not a JSON object; remove the line",
            number=number,
        )
    return row


def sha256(path: Path | str) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits."""
    with open_regular(expanded(path)) as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sealed(content: bytes) -> bytes:
    """Return content with its SHA-256 behind it, for formats without a checksum."""
    return content + hashlib.sha256(content).digest()


def unsealed(entry: bytes) -> bytes | None:
    """Return what was sealed, None if a byte of it differs."""
    content = entry[: -hashlib.sha256().digest_size]
    return content if sealed(content) == entry else None


def cut_torn_row(path: Path | str) -> None:
    """Take from JSON lines what `read_rows` leaves out, so that a row written behind it is one of its own.

    No one else may write to the file meanwhile.
    """
    path = expanded(path)
    if path.exists():
        with open_regular(path) as handle:
            whole = handle.read().rfind(b"\n") + 1
        os.truncate(path, whole)


def write_rows(path: Path | str, rows: Sequence[Mapping[str, object]]) -> Path:
    """Write JSON lines, atomically."""
    return write_atomic(path, "".join(json.dumps(row) + "\n" for row in rows))


def lock_file(descriptor: int, how: int, *, path: Path, remedy: str) -> bool:
    """Lock a file that is open; return whether that was done: with LOCK_NB another process may have it.

    Args:
        how: LOCK_EX or LOCK_SH of `fcntl`, which wait, or one of them with LOCK_NB.
        path: what a message calls it.
        remedy: what to do if its disk has no locks.

    Raises InputError if its disk has no locks.
    """
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise InputError(
            "lock.unsupported",
            f"{path}: cannot be locked ({error.strerror}): the file system does not support locks; {remedy}, or "
            "mount it with locks (NFS: -o local_lock=flock; Lustre: -o flock)",
        ) from None
    return True
