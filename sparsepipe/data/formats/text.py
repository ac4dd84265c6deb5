"""Point clouds as text, one point a row: ModelNet40's resampled clouds (.txt, commas), .xyz files, rooms of S3DIS."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import COLOUR, INTENSITY, LABEL, NORMAL, POSITION, Cloud, check_finite, cloud_of, read_bytes, whole_number
from .reading import AS_THEY_ARE, Reading

_WHAT = "a point cloud as text"
_NAME = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r"\s*(?:#|//)")


def read_text_cloud(path: Path, reading: Reading = AS_THEY_ARE, *, columns: Sequence[str] | None = None) -> Cloud:
    """Read rows of numbers between blanks, commas or semicolons; lines that start with # or // are comments.

    The columns are those given, else those a first line names, else, by their number: 3 x y z; 4 with intensity; 6 with
    normals (all within -1 and 1) or colours (0 to 255); 7 with normals and a label. A first line of one whole number is
    the number of points. Raises InputError that names file and line where a row differs from the others, is no number,
    or where there are more or fewer rows than that first line says.
    """
    lines = _lines(path)
    columns = columns or reading.columns
    named = columns
    words = lines[0][1].split()
    if all(map(_NAME.fullmatch, words)) and {"x", "y", "z"} <= set(map(str.lower, words)):
        named, lines = columns or words, lines[1:]
    elif len(words) == 1 and words[0].isdecimal() and len(lines) > 1:
        expected, lines = whole_number(words[0]), lines[1:]
        if expected != len(lines):
            state = "truncated" if expected is None or len(lines) < expected else "longer than its first line says"
            raise InputError(
                f"{path}: {state}: {len(lines)} rows, expected {words[0][:40]} points; fetch the file again"
            )
    rows = _numbers(path, lines, width=len(named) if named else None)
    named = named or _guessed_columns(path, rows)
    return cloud_of(path, zip(named, rows.T, strict=True), reading)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Return (line number, text) of every row, separators as blanks."""
    data = read_bytes(path, what=_WHAT)
    if b"\0" in data:
        raise InputError(f"{path}: holds binary data, expected {_WHAT}; fetch the file again")
    text = data.decode("utf-8-sig", errors="replace").replace(",", " ").replace(";", " ")
    # not splitlines(): it parts a line at the control characters that damaged files hold
    lines = [(number, line.strip()) for number, line in enumerate(text.split("\n"), start=1)]
    found = [(number, line) for number, line in lines if line and not _COMMENT.match(line)]
    if not found:
        raise InputError(f"{path}: only comments, expected {_WHAT}; fetch the file again or remove it")
    return found


def _numbers(path: Path, lines: list[tuple[int, str]], *, width: int | None) -> np.ndarray:
    """Return the rows as float64 [P, C]: at once where they are sound, else with the line that is not."""
    if not lines:
        raise InputError(f"{path}: names its columns but has no row; fetch the file again or remove it")
    try:
        rows = np.loadtxt(io.StringIO("\n".join(line for _, line in lines)), comments=None, ndmin=2)
    except ValueError:
        rows = None
    if rows is not None and width in (None, rows.shape[1]):
        return rows
    width = width or len(lines[0][1].split())
    for number, line in lines:
        words = line.split()
        if len(words) != width or not all(map(_is_number, words)):
            raise InputError(f"{path}:{number}: {line[:60]!r}, expected {width} numbers; repair or remove the file")
    raise InputError(f"{path}: not {_WHAT}; fetch the file again or remove it")


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _guessed_columns(path: Path, rows: np.ndarray) -> tuple[str, ...]:
    check_finite(path, rows, what="row")
    width = rows.shape[1]
    if width == 3:
        return POSITION
    if width == 4:
        return (*POSITION, INTENSITY)
    if width in (6, 7):
        further = rows[:, 3:6]
        label = (LABEL,) if width == 7 else ()
        if (np.abs(further) <= 1.001).all():
            return (*POSITION, *NORMAL, *label)
        if ((further >= 0) & (further <= 255)).all():
            return (*POSITION, *COLOUR, *label)
        raise InputError(
            f"{path}: columns 4 to 6 are neither normals nor colours; name the columns in a first line such as "
            "'x y z a b c'"
        )
    raise InputError(
        f"{path}: rows of {width} numbers, expected 3, 4, 6 or 7; name them in a first line such as 'x y z'"
    )
