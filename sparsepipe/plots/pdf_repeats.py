"""A PDF that has each pattern's tile once: Chromium writes it anew for every bar that it fills, 1 MB for a timeline."""

import re
from collections.abc import Mapping

_END = re.compile(rb"trailer\s*<<(.*?)>>\s*startxref\s*(\d+)\s*%%EOF\s*$", re.DOTALL)
_TABLE = re.compile(rb"xref\n0 (\d+)\n((?:\d{10} \d{5} [fn][ \r]\n)+)")
_ROW = 20  # bytes of a row of the table
_MERGED = (b"/Type /XObject", b"/Type /Pattern")  # what is drawn alike whoever refers to it
_REFERENCE = re.compile(rb"\b(\d+) 0 R\b")
_FREE = b"0000000000 65535 f \n"  # of an object that is no more


def without_repeats(data: bytes) -> bytes:
    """Return the PDF with objects that are equal once, each with its old number (ISO 32000-1, 7.5.4).

    A PDF that is not as Chromium writes it is returned as it is.
    """
    end = _END.search(data)
    table = _TABLE.match(data, int(end[2])) if end and b"/Prev" not in end[1] else None
    if end is None or table is None or len(table[2]) != _ROW * int(table[1]):
        return data
    bodies = _bodies(data, table[2], int(end[2]))
    kept = _merged(bodies) if bodies else None
    if not kept or len(kept) == len(bodies):
        return data
    head = data[: data.index(next(iter(bodies.values())))]
    places, at = {}, len(head)
    for number, body in kept.items():
        places[number] = at
        at += len(body)
    rows = [b"%010d 00000 n \n" % places[k] if k in places else _FREE for k in range(1, int(table[1]))]
    ended = b"trailer\n<<%s>>\nstartxref\n%d\n%%%%EOF\n" % (end[1], at)
    return b"".join([head, *kept.values(), b"xref\n0 %s\n" % table[1], table[2][:_ROW], *rows, ended])


def _bodies(data: bytes, rows: bytes, table: int) -> dict[int, bytes]:
    """Each object by its number, from "1 0 obj" on, as they stand; none where one is not where the table says."""
    lines = [rows[at : at + _ROW] for at in range(_ROW, len(rows), _ROW)]
    places = {number: int(line[:10]) for number, line in enumerate(lines, start=1) if line[17:18] == b"n"}
    ordered = sorted(places, key=places.__getitem__)
    ends = [*(places[number] for number in ordered[1:]), table]
    bodies = {number: data[places[number] : stop] for number, stop in zip(ordered, ends, strict=True)}
    return bodies if all(body.startswith(b"%d 0 obj\n" % number) for number, body in bodies.items()) else {}


def _merged(bodies: Mapping[int, bytes]) -> dict[int, bytes] | None:
    """The objects without those that equal another; None where it cannot be told what refers to them."""
    kept = dict(bodies)
    while True:
        first: dict[bytes, int] = {}
        instead: dict[int, int] = {}
        for number, body in kept.items():
            if any(kind in body[:64] for kind in _MERGED):
                own = first.setdefault(body.partition(b"\n")[2], number)
                if own != number:
                    instead[number] = own
        if not instead:
            return kept
        for number in instead:
            del kept[number]
        for number, body in kept.items():
            told, stream, rest = body.partition(b"stream\n")
            renamed = _referring(told, instead)
            if renamed != told and b"(" in told:
                return None  # a text of a reader's own might say "5 0 R"
            kept[number] = renamed + stream + rest


def _referring(told: bytes, instead: Mapping[int, int]) -> bytes:
    """What an object says, with the numbers of others in place of those that are gone."""
    return _REFERENCE.sub(lambda found: b"%d 0 R" % instead.get(int(found[1]), int(found[1])), told)
