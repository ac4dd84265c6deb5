"""Point clouds as tables with a head line (.csv), as pandas, R, ParaView and spreadsheets write them.

Tables of numbers alone are read as text is.
"""

import csv
import io
import re
from pathlib import Path

from ...errors import InputError
from .base import COLOUR, INTENSITY, LABEL, NORMAL, POSITION, SAME, Cloud, cloud_of, decoded, library_errors, read_bytes
from .reading import AS_THEY_ARE, LEFT_OUT, Reading
from .text import is_number, read_text_cloud

_WHAT = "a table of points"
_SEPARATORS = ";\t,"
_MEANT = (*POSITION, *NORMAL, *COLOUR, INTENSITY, LABEL)


def read_csv(path: Path, reading: Reading = AS_THEY_ARE) -> Cloud:
    """Read a table whose first line names its columns; empty fields are not measured, columns of words are left out.

    Its separator is the one of semicolon, tab and comma that its first line has most of; decimals have commas if no
    number has a point. Raises InputError that names the file, and the row and the word for a word in a column of
    numbers.
    """
    text = decoded(read_bytes(path, what=_WHAT)).lstrip("\r\n")
    while text.startswith(("#", "//")):  # names in such a line are read as text's are
        text = text.partition("\n")[2].lstrip("\r\n")
    head, _, body = text.replace("\r\n", "\n").replace("\r", "\n").partition("\n")
    separator = max(_SEPARATORS, key=head.count)
    with library_errors(path, what=_WHAT):
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

    with library_errors(path, what=_WHAT):
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
