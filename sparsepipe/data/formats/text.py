"""Point clouds as text, one point a row: .txt, .xyz, .pts, .asc, rooms of S3DIS, ModelNet40's resampled clouds.

Tables with a head line (.csv) are as pandas, R, ParaView and spreadsheets write them; those of numbers alone are read
as text is.
"""

import csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import (
    COLOUR,
    INTENSITY,
    LABEL,
    NORMAL,
    POSITION,
    SAME,
    Cloud,
    cloud_of,
    decoded,
    library_errors,
    miscounted,
    read_bytes,
    whole_number,
)
from .columns import guessed_columns
from .reading import AS_THEY_ARE, LEFT_OUT, Reading

_WHAT = "a point cloud as text"
_NAME = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r"\s*(?:#|//)")
_DECIMAL_COMMA = re.compile(r"[+-]?(?:\d+(?:,\d+)?|,\d+)(?:[eE][+-]?\d+)?")  # one number, whole or with a comma in it
_HALF = re.compile(r"(?:^|,)0\d")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+,\d+")


def read_text_cloud(path: Path, reading: Reading = AS_THEY_ARE, *, columns: Sequence[str] | None = None) -> Cloud:
    """Read rows of numbers between blanks, commas or semicolons; lines that start with # or // are comments.

    A comma is a decimal mark where numbers stand between blanks or semicolons and no number has a point. The columns
    are those the folder declares, else those given, else those a first line or a comment before it names, else those
    that `guessed_columns` tells by their numbers. A first line of one whole number is the number of points. Raises
    InputError that names file and line where a row differs from the others, is no number, or if there are more or
    fewer rows than that first line says, and InputError that asks for names if the columns are ambiguous.
    """
    renamed = dict(reading.renamed)
    lines, comment = _lines(path, renamed)
    named, counted = reading.columns or columns, False
    words = lines[0][1].split()
    if words[:1] in (["ncols"], ["NCOLS"]):
        raise InputError(
            "text.esri_grid", f"{path}: is an ESRI height grid, expected {_WHAT}; convert it to rows with x, y and z"
        )
    if _are_names(words, renamed) or (words and _begin_with_words([line for _, line in lines[:2]])):
        if named is None and not _are_names(words, renamed):
            raise InputError(
                "text.columns_unnamed",
                f"{path}:{lines[0][0]}: {lines[0][1][:60]!r} names columns, but not x, y and z; name the columns in "
                'dataset.json, such as "columns": ["x", "y", "z", "intensity"], or correct the line',
            )
        named, lines = named or words, lines[1:]
    elif len(words) == 1 and words[0].isdecimal() and len(lines) > 1:
        expected, lines, counted = whole_number(words[0]), lines[1:], True
        _refuse_ptx(path, lines)
        if expected != len(lines):
            _numbers(path, lines, width=None)  # names the line that is no point, if there is one
            numbers = f"{len(lines)} rows, expected {words[0][:40]} points"
            raise miscounted(path, numbers, short=expected is None or len(lines) < expected, source="first line")
    rows = _numbers(path, lines, width=len(named) if named else None)
    if named is None and len(comment) == rows.shape[1]:
        named = comment
    named = named or guessed_columns(path, rows, counted=counted)
    return cloud_of(path, zip(named, rows.T, strict=True), reading)


def _begin_with_words(lines: list[str]) -> bool:
    """Return whether the first of two lines holds words alone, and the second numbers alone."""
    first, second = (lines[0].split(), lines[1].split()) if len(lines) > 1 else ([], [])
    return bool(second) and not any(map(is_number, first)) and all(map(is_number, second))


def _refuse_ptx(path: Path, lines: list[tuple[int, str]]) -> None:
    """Raise InputError for a PTX scan: columns, rows, the scanner's place and axes, a 4 x 4 matrix, then points."""
    widths = [len(line.split()) for _, line in lines[:9]]
    if widths == [1, 3, 3, 3, 3, 4, 4, 4, 4]:
        raise InputError(
            "text.ptx_scan",
            f"{path}: is a PTX scan; export it as PTS, PLY or LAS",
        )


def _are_names(words: list[str], renamed: dict[str, str]) -> bool:
    meant = {renamed.get(word, word).lower() for word in words}
    return all(map(_NAME.fullmatch, words)) and {"x", "y", "z"} <= meant


def _lines(path: Path, renamed: dict[str, str]) -> tuple[list[tuple[int, str]], list[str]]:
    """Return (line number, text) of every row, separators as blanks, and the columns named by a comment before them."""
    data = read_bytes(path, what=_WHAT)
    text = decoded(data)
    if "\0" in text:
        raise InputError(
            "text.binary", f"{path}: holds binary data, expected {_WHAT}; rename it with the suffix of its format"
        )
    end = "\n" if "\n" in text else "\r"  # old Macs
    # not splitlines(): it parts a line at the control characters that damaged files hold
    lines = [(number, line.strip()) for number, line in enumerate(text.split(end), start=1)]
    found = [(number, line) for number, line in lines if line and not _COMMENT.match(line)]
    if not found:
        raise InputError(
            "file.only_comments", f"{path}: contains only comments, expected {_WHAT}; fetch the file again or remove it"
        )
    comments = (line.lstrip("#/ ") for number, line in lines if line and number < found[0][0])
    names = next((words for words in (_separated(line).split() for line in comments) if _are_names(words, renamed)), [])
    if _has_decimal_commas(path, found):
        return [(number, line.replace(";", " ").replace(",", ".")) for number, line in found], names
    return [(number, _separated(line)) for number, line in found], names


def _separated(line: str) -> str:
    return line.replace(",", " ").replace(";", " ")


def _has_decimal_commas(path: Path, lines: list[tuple[int, str]]) -> bool:
    """Return whether commas are decimal marks, which is so where every row then holds three or more numbers, one with a
    comma.

    Raises InputError that names a line in which they could be both marks and separators.
    """
    first = lines[0][1]
    of_words = not any(map(is_number, _separated(first).split())) and len(lines) > 1
    rows = lines[1:] if first.isdecimal() or of_words else lines
    if not any("," in line for _, line in rows):
        return False
    if len(_words(rows[0][1])) < 3:
        _refuse_halves(path, rows)
        return False
    for number, line in rows:
        if any(map(_THOUSANDS.fullmatch, _words(line))):
            raise InputError(
                "text.number_grouped",
                f"{path}:{number}: {line[:60]!r} has both points and commas within a number; write it as 1234.5",
            )
    if any("." in line for _, line in rows):
        return False
    if all(_are_decimals(_words(line)) for _, line in rows):
        return True
    both = all(_are_decimals([word.removesuffix(",") for word in _words(line)]) for _, line in rows)
    if both and any("," in word.removesuffix(",") for _, line in rows for word in _words(line)):
        raise _undecided(path, rows[0])
    return False


def _words(line: str) -> list[str]:
    return line.replace(";", " ").split()


def _are_decimals(words: list[str]) -> bool:
    return len(words) >= 3 and all(map(_DECIMAL_COMMA.fullmatch, words))


def _refuse_halves(path: Path, rows: list[tuple[int, str]]) -> None:
    """Raise InputError if commas alone part whole numbers of which one begins with 0, as the decimals of 2,05 do."""
    if any("." in line for _, line in rows):
        return
    for row in rows:
        if _HALF.search(row[1]):
            raise _undecided(path, row)


def _undecided(path: Path, row: tuple[int, str]) -> InputError:
    return InputError(
        "text.commas_undecided",
        f"{path}:{row[0]}: {row[1][:60]!r} has commas within numbers and between them; write decimal points, or "
        "separate the numbers by semicolons",
    )


def _numbers(path: Path, lines: list[tuple[int, str]], *, width: int | None) -> np.ndarray:
    """Return the rows as float64 [P, C]: at once if they are sound, else with the line that is not."""
    if not lines:
        raise InputError(
            "text.no_rows", f"{path}: contains column names but no rows; fetch the file again or remove it"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # NumPy only warns of rows that hold separators alone
            rows = np.loadtxt(io.StringIO("\n".join(line for _, line in lines)), comments=None, ndmin=2)
    except (ValueError, UserWarning):
        rows = None
    if rows is not None and width in (None, rows.shape[1]):
        return rows
    width = width or Counter(len(line.split()) for _, line in lines).most_common(1)[0][0]
    for number, line in lines:
        words = line.split()
        if not words or len(words) != width or not all(map(is_number, words)):
            raise InputError(
                "text.row_malformed",
                f"{path}:{number}: the row is {line[:60]!r}, expected {width or 3} numbers; repair or remove the file",
                number=number,
            )
    raise InputError("text.malformed", f"{path}: not {_WHAT}; fetch the file again, or remove it")


def is_number(word: str) -> bool:
    """Return whether Python reads a word as a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


_TABLE = "a table of points"
_SEPARATORS = ";\t,"
_MEANT = (*POSITION, *NORMAL, *COLOUR, INTENSITY, LABEL)


def read_csv(path: Path, reading: Reading = AS_THEY_ARE) -> Cloud:
    """Read a table whose first line names its columns; empty fields are not measured, columns of words are left out.

    Its separator is the one of semicolon, tab and comma that its first line has most of; decimals have commas if no
    number has a point. Raises InputError that names the file, and the row and the word for a word in a column of
    numbers.
    """
    text = decoded(read_bytes(path, what=_TABLE)).lstrip("\r\n")
    while text.startswith(("#", "//")):  # names in such a line are read as text's are
        text = text.partition("\n")[2].lstrip("\r\n")
    head, _, body = text.replace("\r\n", "\n").replace("\r", "\n").partition("\n")
    separator = max(_SEPARATORS, key=head.count)
    with library_errors(path, what=_TABLE):
        names = [name.strip() for name in next(csv.reader([head], delimiter=separator, skipinitialspace=True), [])]
        first = next(csv.reader([body.partition("\n")[0]], delimiter=separator), [])
    if any(map(is_number, names)) or separator not in head or not body.strip():
        return read_text_cloud(path, reading)
    if len(first) != len(names) and any(first[len(names) :] or ["x"]):
        raise InputError(
            "table.field_count",
            f"{path}: its first row has {len(first)} fields, but its header has {len(names)}; repair the file",
        )
    if reading.columns is not None and len(reading.columns) != len(names):
        raise InputError(
            "table.column_count",
            f"{path}: has {len(names)} columns, but dataset.json declares {len(reading.columns)}; correct its list",
        )
    commas = separator != "," and re.search(r"\d,\d", body) and not re.search(r"\d\.\d", body)
    import pandas  # here: few files need it

    with library_errors(path, what=_TABLE):
        table = pandas.read_csv(
            io.StringIO(body),
            sep=separator,
            decimal="," if commas else ".",
            header=None,
            names=list(range(len(first))),
            index_col=False,
            skipinitialspace=True,
            low_memory=False,
        )
    columns = []
    for place, name in enumerate(reading.columns or names):
        column = table[place]
        if not name or name == LEFT_OUT:
            continue
        if column.dtype.kind in "biuf":
            columns.append((name, column.to_numpy()))
            continue
        word = dict(reading.renamed).get(name, name).lower()
        if SAME.get(word, word) in _MEANT:
            row, value = next((k, value) for k, value in enumerate(column) if not is_number(str(value)))
            raise InputError(
                "table.not_a_number",
                f"{path}: column {name[:40]!r} is {str(value)[:40]!r} in row {row}, expected a number; repair the file",
            )
    return cloud_of(path, columns, reading)
