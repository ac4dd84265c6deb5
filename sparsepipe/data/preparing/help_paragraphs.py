"""Aligned paragraphs of LibreOffice's help in two languages: pages carry the same ids of paragraphs in each.

A page is HTML; the text of an element with an id such as par_id3150085 or hd_id3159176 is one paragraph.
"""

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import complaint
from ...util.io.files import write_atomic

_PARAGRAPH = re.compile(r"(par|hd)_id\w+")
_ELEMENTS = ("p", "h1", "h2", "h3", "h4", "h5", "h6")
_HELP = "usr/share/libreoffice/help"
_LANGUAGES = {"en-US": "en", "de": "de"}  # a folder of the help: the ending of its text
_MOST_PAGE_BYTES = 4 * 2**20
_TIMEOUT_SECONDS = 600.0
EVERY = 20  # a pair is for testing where the SHA-256 of its English side is a multiple of it


def help_texts(files: Path, out: Path) -> None:
    """Write train.en, train.de, test.en and test.de to `out` from the Debian packages in `files`.

    A pair of paragraphs comes once, in the order of pages and ids; what is the same in both languages is left out.
    Raises InputError if a package cannot be unpacked, or has no such pages.
    """
    with tempfile.TemporaryDirectory(dir=out.parent) as place:
        for package in sorted(files.rglob("*.deb")):
            _unpack(package, Path(place))
        pairs = dict.fromkeys(_pairs(Path(place) / _HELP))
    if not pairs:
        raise InputError(
            "help.no_pages", f"{files}: the packages have no page in two languages below {_HELP}; fetch them again"
        )
    source, target = _LANGUAGES.values()
    for split, wanted in (("train", False), ("test", True)):
        chosen = [pair for pair in pairs if is_for_testing(pair[0]) == wanted]
        for language, side in ((source, 0), (target, 1)):
            write_atomic(out / f"{split}.{language}", "".join(f"{pair[side]}\n" for pair in chosen))


def is_for_testing(source: str) -> bool:
    """Say of a paragraph whether it is for testing: the same paragraph is never in both splits."""
    return int.from_bytes(hashlib.sha256(source.encode()).digest()[:8]) % EVERY == 0


def paragraphs(page: Path) -> dict[str, str]:
    """Return the text of each paragraph of a page that has an id, in their order; blanks are single ones."""
    parser = _Paragraphs()
    with page.open(encoding="utf-8", errors="replace") as file:
        parser.feed(file.read(_MOST_PAGE_BYTES))
    texts = {name: " ".join(text.split()) for name, text in parser.texts.items()}
    return {name: text for name, text in texts.items() if text}


class _Paragraphs(HTMLParser):
    """Gathers text by the id of the paragraph around it."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self._name = self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        name = dict(attrs).get("id") or ""
        if _PARAGRAPH.match(name):
            self._name, self._tag = name, tag
        elif tag in _ELEMENTS:
            self._name, self._tag = "", tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._tag:
            self._name = self._tag = ""

    def handle_data(self, data: str) -> None:
        if self._name:
            self.texts[self._name] = self.texts.get(self._name, "") + data


def _pairs(root: Path) -> Iterator[tuple[str, str]]:
    source, target = _LANGUAGES
    for page in sorted((root / source).rglob("*.html")):
        other = root / target / page.relative_to(root / source)
        if not other.is_file():
            continue
        translated = paragraphs(other)
        for name, text in paragraphs(page).items():
            if translated.get(name, text) != text:
                yield text, translated[name]


def _unpack(package: Path, folder: Path) -> None:
    if shutil.which("dpkg-deb") is None:
        raise InputError(
            "download.no_dpkg",
            f"{package.name}: dpkg-deb not found; fetch the data set on a Debian machine",
        )
    try:
        done = subprocess.run(
            ["dpkg-deb", "--extract", str(package), str(folder)],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            "download.dpkg_failed", f"{package.name}: dpkg-deb cannot be run ({complaint(error)})"
        ) from None
    if done.returncode:
        raise InputError(
            "download.dpkg_failed",
            f"{package.name}: cannot be unpacked ({complaint(done.stderr)}); fetch it again",
            name=package.name,
        )
