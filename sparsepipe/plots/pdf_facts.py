"""What a PDF says of itself: title, subject, keywords, in the place of what the browser wrote.

A PDF may be added to at its end: a new object of facts, and a table of where it is, which names the table before it
(ISO 32000-1, 7.5.6, "incremental updates"). Nothing before it moves, so that every offset in it stays right.
"""

import re
from collections.abc import Mapping

_TRAILER = re.compile(rb"trailer\s*<<(.*?)>>\s*startxref\s*(\d+)\s*%%EOF\s*$", re.DOTALL)
_INFO = re.compile(rb"/Info (\d+) 0 R")


def with_facts(data: bytes, facts: Mapping[str, str]) -> bytes:
    """Return the PDF with these facts, such as {"Title": …, "Subject": …}; others that it had are gone.

    A PDF whose end is not as Chromium writes it is returned as it is.
    """
    end = _TRAILER.search(data)
    info = _INFO.search(end[1]) if end else None
    if end is None or info is None:
        return data
    number = int(info[1])
    told = b"\n".join(b"/%s %s" % (key.encode("ascii"), _text(value)) for key, value in facts.items())
    start = len(data)
    added = b"%d 0 obj\n<<%s>>\nendobj\n" % (number, told)
    table = b"xref\n%d 1\n%010d 00000 n \ntrailer\n<<%s\n/Prev %s>>\n" % (number, start, end[1].strip(), end[2])
    return data + added + table + b"startxref\n%d\n%%%%EOF\n" % (start + len(added))


def _text(value: str) -> bytes:
    """A string of any letters, as PDF writes it: UTF-16 with its mark, in hexadecimal."""
    return b"<%s>" % ("\ufeff" + value).encode("utf-16-be", errors="replace").hex().encode("ascii")
