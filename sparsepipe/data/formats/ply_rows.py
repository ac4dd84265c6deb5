"""Parse the rows of a PLY file's elements into one column for each property; lists become values and lengths."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import InputError
from .base import miscounted
from .words import numbers_of, shown


@dataclass(frozen=True)
class Property:
    """A number of `type` (NumPy's, without its byte order); with a `count_type` a list of such numbers."""

    name: str
    type: str
    count_type: str | None = None


@dataclass(frozen=True)
class Element:
    """A table of the file: `count` rows of these properties."""

    name: str
    count: int
    properties: tuple[Property, ...]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Lists of different lengths: all `values` one after the other, `counts` [rows] of them in each."""

    values: np.ndarray
    counts: np.ndarray


Columns = dict[str, np.ndarray | Ragged]
Take = Callable[[np.ndarray, str], np.ndarray]  # the numbers at these places, of this type


class _TooShort(Exception):
    """Row `args[0]` ends before its properties do."""


def read_ascii(path: Path, body: bytes, elements: tuple[Element, ...], *, first_line: int) -> dict[str, Columns]:
    """Return {element: its columns} of rows of text, a row a line. Raises InputError that names a wrong line."""
    lines = [(number, line) for number, line in enumerate(body.splitlines(), start=first_line) if line.strip()]
    elements = tuple(element for element in elements if element.properties)
    expected = sum(element.count for element in elements)
    if len(lines) != expected:
        raise miscounted(path, f"{len(lines)} rows, expected {_counts(elements)}", short=len(lines) < expected)
    found, done = {}, 0
    for element in elements:
        rows = lines[done : done + element.count]
        done += element.count
        widths = np.array([len(line.split()) for _, line in rows], dtype=np.int64)
        numbers = numbers_of(path, rows, int(widths.sum()))
        ends = np.cumsum(widths)
        try:
            columns, at = _walked(element, ends - widths, ends, lambda at, _, numbers=numbers: numbers[at], whole=False)
            wrong = np.flatnonzero(at != ends)
        except _TooShort as error:
            wrong = error.args
        if len(wrong):
            number, line = rows[int(wrong[0])]
            raise InputError(
                f"{path}:{number}: {shown(line)}, expected the numbers of one {element.name}: "
                f"{' '.join(_described(each) for each in element.properties)[:200]}; repair or remove the file"
            )
        found[element.name] = columns
    return found


def read_binary(
    path: Path, data: bytes, elements: tuple[Element, ...], *, start: int, order: str
) -> dict[str, Columns]:
    """Return {element: its columns} of packed rows from byte `start`, in NumPy's byte `order`.

    Raises InputError where the rows do not end where the file does.
    """
    octets, found = np.frombuffer(data, dtype=np.uint8), {}
    numbers = f"{len(data) - start} bytes after the header, expected more for {_counts(elements)}"
    truncated = miscounted(path, numbers, short=True)

    def take(at: np.ndarray, type_: str) -> np.ndarray:
        dtype = np.dtype(order + type_)
        return octets[at[:, None] + np.arange(dtype.itemsize)].reshape(-1).view(dtype)

    for element in elements:
        if not element.properties:
            continue
        least = sum(np.dtype(each.count_type or each.type).itemsize for each in element.properties)
        if element.count * least > len(data) - start:
            raise truncated
        alike = _rows_alike(data, element, start=start, order=order)
        if alike is not None:
            found[element.name], start = alike
            continue
        starts = _row_starts(data, element, start=start, order=order)
        if starts is None:
            raise truncated
        try:
            columns, at = _walked(element, starts, np.full(len(starts), len(data)), take, whole=True)
        except _TooShort:
            raise truncated from None
        found[element.name] = columns
        start = int(at[-1]) if len(at) else start
    if data[start:].strip(b"\r\n"):
        raise miscounted(path, f"{len(data) - start} bytes are left after {_counts(elements)}", short=False)
    return found


def _walked(
    element: Element, at: np.ndarray, ends: np.ndarray, take: Take, *, whole: bool
) -> tuple[Columns, np.ndarray]:
    """Go through the properties of all rows at once, from the places `at` [rows]; return the columns and last places.

    Places count bytes, or numbers where each is one word (not `whole`). Raises _TooShort where a row ends within them.
    """

    def step(type_: str) -> int:
        return np.dtype(type_).itemsize if whole else 1

    def within(after: np.ndarray) -> None:
        beyond = np.flatnonzero(after > ends)
        if len(beyond):
            raise _TooShort(beyond[0])

    columns: Columns = {}
    for each in element.properties:
        first = each.count_type or each.type
        within(at + step(first))
        numbers = take(at, first)
        at = at + step(first)
        if each.count_type is None:
            columns[each.name] = numbers
            continue
        odd = np.flatnonzero(~((numbers >= 0) & (numbers == np.floor(numbers)) & (numbers <= ends)))
        if len(odd):
            raise _TooShort(odd[0])
        counts = numbers.astype(np.int64)
        within(at + counts * step(each.type))
        ramp = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        columns[each.name] = Ragged(take(np.repeat(at, counts) + ramp * step(each.type), each.type), counts)
        at = at + counts * step(each.type)
    return columns, at


def _rows_alike(data: bytes, element: Element, *, start: int, order: str) -> tuple[Columns, int] | None:
    """Return the columns, and the byte after them, where all rows have lists as long as the first; else None."""
    fields, at = [], start
    for place, each in enumerate(element.properties):
        if each.count_type is None:
            fields.append((f"{place}", order + each.type))
        else:
            count_type = np.dtype(order + each.count_type)
            if at + count_type.itemsize > len(data):
                return None
            length = int(np.frombuffer(data, count_type, count=1, offset=at)[0])
            if not 0 <= length <= len(data):
                return None
            fields += [(f"{place} count", count_type), (f"{place}", order + each.type, (length,))]
        at = start + sum(np.dtype(kind).itemsize * (shape[0][0] if shape else 1) for _, kind, *shape in fields)
        if at > len(data):
            return None
    dtype = np.dtype(fields)
    after = start + element.count * dtype.itemsize
    if after > len(data):
        return None
    table = np.frombuffer(data, dtype, count=element.count, offset=start)
    columns: Columns = {}
    for place, each in enumerate(element.properties):
        columns[each.name] = table[f"{place}"]
        if each.count_type is not None:
            counts = table[f"{place} count"]
            if len(counts) and (counts != counts[0]).any():
                return None
            columns[each.name] = Ragged(table[f"{place}"].reshape(-1), counts.astype(np.int64))
    return columns, after


def _row_starts(data: bytes, element: Element, *, start: int, order: str) -> np.ndarray | None:
    """Return the byte at which each row begins; None where the file ends before the rows do."""
    starts = []
    steps = [  # of each property: bytes of the number, or of the list's length, and then of each of its items
        (np.dtype(each.count_type or each.type).itemsize, each.count_type and np.dtype(each.type).itemsize, each)
        for each in element.properties
    ]
    byte_order = "big" if order == ">" else "little"
    for _ in range(element.count):
        starts.append(start)
        for num_bytes, item_bytes, each in steps:
            if item_bytes:
                signed = each.count_type[0] == "i"
                count = int.from_bytes(data[start : start + num_bytes], byte_order, signed=signed)
                start += max(count, 0) * item_bytes
            start += num_bytes
        if start > len(data):
            return None
    return np.array(starts, dtype=np.int64)


def _described(each: Property) -> str:
    return each.name if each.count_type is None else f"list {each.name}"


def _counts(elements: tuple[Element, ...]) -> str:
    return " + ".join(f"{element.count} {element.name}" for element in elements)[:200]
