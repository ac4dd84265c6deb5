"""Unpack downloaded zip archives within bounds: nothing outside the folder, and no more bytes than their size allows.

An archive states how large its members are, and zipfile writes no more than that of each. So their sum is checked
before the first byte is written.
"""

import lzma
import stat
import struct
import zipfile
import zlib
from pathlib import Path, PurePosixPath

from ..errors import InputError
from ..io.fields import complaint, shown
from ..io.quantities import SIZE
from .layouts import is_litter

MOST_TIMES = 100  # an archive's bytes; point clouds as text shrink to a fifth, seldom to a twentieth
MOST_ANYWAY_BYTES = 16 * 2**20  # a small archive of empty pages may hold so many
MOST_MEMBERS = 1_000_000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)  # others may ask for any amount of memory
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError),
    *(struct.error, ValueError, OverflowError, IndexError),
)


def unpack_zip(archive: Path, folder: Path, *, source: str) -> None:
    """Unpack a zip into `folder`, leaving out what operating systems put there.

    Raises InputError, which names `source`, for an archive that is damaged or too large for its size, and for members
    that would land outside, are links, or are there twice.
    """
    try:
        with zipfile.ZipFile(archive) as found:
            members = [member for member in found.infolist() if not _is_litter(member)]
            _check(members, archive.stat().st_size, source)
            for member in members:
                found.extract(member, folder)
    except InputError:
        raise
    except _DAMAGED as error:
        raise _damaged(source, error) from None
    except OSError as error:
        if error.errno is not None:  # of the disk
            raise
        raise _damaged(source, error) from None  # of a decompressor


def _check(members: list[zipfile.ZipInfo], num_bytes: int, source: str) -> None:
    if len(members) > MOST_MEMBERS:
        raise InputError(f"{source}: {len(members)} members, expected at most {MOST_MEMBERS}; not used")
    seen: set[str] = set()
    for member in members:
        name = shown(member.filename)
        if ".." in PurePosixPath(member.filename).parts or member.filename.startswith("/"):
            raise InputError(f"{source}: member {name} leaves its folder; not used")
        if stat.S_ISLNK(member.external_attr >> 16):
            raise InputError(f"{source}: member {name} is a link, expected files and folders; not used")
        if member.filename in seen:
            raise InputError(f"{source}: member {name} is there twice; not used")
        if member.compress_type not in _METHODS:
            raise InputError(f"{source}: member {name} is packed by another method than deflate and bzip2; not used")
        seen.add(member.filename)
    total, most = sum(member.file_size for member in members), max(MOST_TIMES * num_bytes, MOST_ANYWAY_BYTES)
    if total > most:
        raise InputError(
            f"{source}: would unpack to {SIZE.shown(total)}, expected at most {SIZE.shown(most)}, {MOST_TIMES} times "
            "its size; not used"
        )


def _is_litter(member: zipfile.ZipInfo) -> bool:
    return any(is_litter(part) for part in PurePosixPath(member.filename).parts if part not in ("..", "/"))


def _damaged(source: str, error: Exception) -> InputError:
    return InputError(f"{source}: not a zip archive that can be unpacked ({complaint(error)})")
