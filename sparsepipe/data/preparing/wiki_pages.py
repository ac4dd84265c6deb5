"""Pages of Wikipedia from an export of MediaWiki (XML, bz2) to plain text, a file each: prose alone.

Tables, templates, references, files and lists go; links and emphasis leave their words; redirects are no pages.
"""

import bz2
import html
import re
from collections.abc import Iterator
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import complaint
from ...util.io.files import write_atomic

_MOST_BYTES = 256 * 2**20  # of an export, unpacked
_PAGE = re.compile(r"<page>(.*?)</page>", re.DOTALL)
_TEXT = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)
_INNERMOST = re.compile(r"\{\{[^{}]*\}\}|\{\|(?:(?!\{\|).)*?\|\}", re.DOTALL)
_DEPTH = 20  # templates inside each other
_DROPPED = [
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"<ref[^<>]*/>"),
    re.compile(r"<(ref|math|gallery|code|pre|source|timeline|table|div)\b.*?</\1\s*>", re.DOTALL | re.IGNORECASE),
]
_FILE = re.compile(r"\[\[(?:File|Image|Category|Datei)\s*:(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]", re.IGNORECASE)
_LINK = re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]")
_OUTER_LINK = re.compile(r"\[(?:https?|ftp)://\S+\s*([^\]]*)\]")
_TAG = re.compile(r"<[^<>]+>")
_LEAST_LETTERS = 40  # of a paragraph
_SKIPPED = re.compile(r"^(?:=|[*#:;|!{}])")  # headings, lists, what is left of tables
EVERY = 10  # pages: the last of so many is for testing


def wiki_pages(files: Path, out: Path) -> None:
    """Write train/NNN.txt and test/NNN.txt to `out`, a paragraph a line; every tenth page is for testing.

    Raises InputError if there is no export that can be read.
    """
    pages = [page for path in sorted(files.rglob("*.bz2")) for page in _pages(path)]
    if not pages:
        raise InputError("wiki.no_pages", f"{files}: the exports contain no text pages; fetch them again")
    for place, lines in enumerate(pages):
        split = "test" if place % EVERY == EVERY - 1 else "train"
        write_atomic(out / split / f"{place:05d}.txt", "".join(f"{line}\n" for line in lines))


def prose(markup: str) -> list[str]:
    """Return the paragraphs of a page's markup as plain text."""
    for dropped in _DROPPED:
        markup = dropped.sub("", markup)
    for _ in range(_DEPTH):
        markup, count = _INNERMOST.subn("", markup)
        if not count:
            break
    markup = _OUTER_LINK.sub(r"\1", _LINK.sub(r"\1", _LINK.sub(r"\1", _FILE.sub("", markup))))
    markup = html.unescape(_TAG.sub("", markup).replace("'''", "").replace("''", ""))
    lines = (" ".join(line.split()) for line in markup.split("\n"))
    return [line for line in lines if not _SKIPPED.match(line) and sum(map(str.isalpha, line)) >= _LEAST_LETTERS]


def _pages(path: Path) -> Iterator[list[str]]:
    try:
        with bz2.open(path) as file:
            content = file.read(_MOST_BYTES).decode("utf-8", errors="replace")
    except (OSError, EOFError, ValueError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the decompressor's
            raise
        raise InputError(
            "wiki.malformed", f"{path}: cannot be read as a Wikipedia export ({complaint(error)}); fetch it again"
        ) from None
    for page in _PAGE.finditer(content):
        text = _TEXT.search(page[1])
        if text is not None and "<redirect" not in page[1]:
            lines = prose(html.unescape(text[1]))
            if lines:
                yield lines
