"""Make a data set of the files that a manifest fetches, if they are not one as they are: a function for each way.

Digits: from a table (784 pixels and the digit in each row) to idx files, as MNIST itself has them.

Aligned paragraphs of LibreOffice's help in two languages: pages carry the same ids of paragraphs in each. A page is
HTML; the text of an element with an id such as par_id3150085 or hd_id3159176 is one paragraph.

Pages of Wikipedia from an export of MediaWiki (XML, bz2) to plain text, a file each: prose alone. Tables, templates,
references, files and lists go; links and emphasis leave their words; redirects are no pages.
"""

import bz2
import gzip
import hashlib
import html
import io
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..util.io.fields import complaint
from ..util.io.files import expanded, folder_beside, write_atomic, write_json
from .layouts import MARKER

Preparer = Callable[[Path, Path], None]  # (folder of the files fetched, the empty folder that becomes the data set)
_SIDE = 28
_MOST_TABLE_BYTES = 64 * 2**20  # of the table, unpacked
_EVERY_DIGIT = 5  # digits of each class: the last of so many is for testing


def digits_from_table(files: Path, out: Path) -> None:
    """Write the idx files of MNIST to `out` from the one table in `files`; every fifth digit of each class is test.

    Raises InputError if the table is not of such rows.
    """
    path = next(iter(sorted(files.rglob("*.csv.gz"))))
    images, labels = _read_table(path)
    test = held_out(labels)
    for name, rows in (("train", ~test), ("t10k", test)):
        write_atomic(out / f"{name}-images-idx3-ubyte", idx_bytes(images[rows]))
        write_atomic(out / f"{name}-labels-idx1-ubyte", idx_bytes(labels[rows]))


def held_out(labels: np.ndarray) -> np.ndarray:
    """Say of each sample whether it is for testing: the last of every five of its class, in their order."""
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        test[np.flatnonzero(labels == label)[_EVERY_DIGIT - 1 :: _EVERY_DIGIT]] = True
    return test


def idx_bytes(array: np.ndarray) -> bytes:
    """Write unsigned bytes in the idx format: two zeros, 8 for their type, how many axes, their lengths, the bytes."""
    head = np.array(array.shape, dtype=">u4").tobytes()
    return bytes([0, 0, 8, array.ndim]) + head + np.ascontiguousarray(array, dtype=np.uint8).tobytes()


def _read_table(path: Path) -> tuple[np.ndarray, np.ndarray]:
    try:
        with gzip.open(path) as file:
            content = file.read(_MOST_TABLE_BYTES)
        table = np.loadtxt(io.BytesIO(content), delimiter=",", ndmin=2)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the decompressor's
            raise
        raise InputError(
            "digits.malformed", f"{path}: not a table of digits ({complaint(error)}); fetch the file again"
        ) from None
    if table.shape[1] != _SIDE**2 + 1:
        raise InputError(
            "digits.column_count",
            f"{path}: has {table.shape[1]} columns, expected {_SIDE**2} pixels and the digit; fetch the file again",
        )
    return table[:, :-1].astype(np.uint8).reshape(-1, _SIDE, _SIDE), table[:, -1].astype(np.uint8)


_PARAGRAPH = re.compile(r"(par|hd)_id\w+")
_ELEMENTS = ("p", "h1", "h2", "h3", "h4", "h5", "h6")
_HELP = "usr/share/libreoffice/help"
_LANGUAGES = {"en-US": "en", "de": "de"}  # a folder of the help: the ending of its text
_MOST_PAGE_BYTES = 4 * 2**20
_TIMEOUT_SECONDS = 600.0
_EVERY_PAIR = 20  # a pair is for testing where the SHA-256 of its English side is a multiple of it


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
    return int.from_bytes(hashlib.sha256(source.encode()).digest()[:8]) % _EVERY_PAIR == 0


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


_MOST_EXPORT_BYTES = 256 * 2**20  # of an export, unpacked
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
_EVERY_PAGE = 10  # pages: the last of so many is for testing


def wiki_pages(files: Path, out: Path) -> None:
    """Write train/NNN.txt and test/NNN.txt to `out`, a paragraph a line; every tenth page is for testing.

    Raises InputError if there is no export that can be read.
    """
    pages = [page for path in sorted(files.rglob("*.bz2")) for page in _pages(path)]
    if not pages:
        raise InputError("wiki.no_pages", f"{files}: the exports contain no text pages; fetch them again")
    for place, lines in enumerate(pages):
        split = "test" if place % _EVERY_PAGE == _EVERY_PAGE - 1 else "train"
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
            content = file.read(_MOST_EXPORT_BYTES).decode("utf-8", errors="replace")
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


_WAYS: Mapping[str, Preparer] = {
    "digits-table": digits_from_table,
    "help-paragraphs": help_texts,
    "wiki-pages": wiki_pages,
}


def preparer(name: str) -> Preparer:
    """Return the way that a manifest names. Raises InputError that lists the names there are."""
    if name not in _WAYS:
        raise InputError(
            "preparing.unknown", f"unknown preparation {name!r} of a data set, expected one of {', '.join(_WAYS)}"
        )
    return _WAYS[name]


_FACTOR = 4  # grid steps between two pixels
_HEIGHT = 0.5  # of full ink, in units of an image's width
_NUM_TEST = 360  # the last fifth


def make_digits(out: Path | str) -> Path:
    """Generate 1,437 clouds for training and 360 for testing in `out`, of 841 points each, from scikit-learn's digits.

    A cloud is the surface x, y, ink over a grid four times as fine as the 8 × 8 pixels. The folder is written
    completely or not at all, and an existing one is reused. Returns the folder. Raises InputError if it cannot be
    written.
    """
    import h5py  # here: a listing of data sets need not wait for them
    from sklearn.datasets import load_digits

    out = expanded(out)
    digits = load_digits()
    clouds, labels = height_fields(digits.images / 16), digits.target.astype(np.uint8)
    marker = {"name": "digits", "synthetic": False, "generator": "digits", "version": 1}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = folder_beside(out)
        try:
            for split, rows in (("train", slice(None, -_NUM_TEST)), ("test", slice(-_NUM_TEST, None))):
                with h5py.File(work / f"digits_{split}.h5", "w") as file:
                    file.create_dataset("data", data=clouds[rows], compression="gzip", chunks=(1, *clouds.shape[1:]))
                    file.create_dataset("label", data=labels[rows, None])
            write_atomic(work / "shape_names.txt", "".join(f"{digit}\n" for digit in range(10)))
            write_json(work / MARKER, marker)
            if not (out / MARKER).is_file():
                work.replace(out)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        if not (out / MARKER).is_file():  # else another process has just put it there
            raise InputError(
                "out.unwritable", f"{out}: cannot be written ({error.strerror or error}); name another folder"
            ) from None
    return out


def height_fields(images: np.ndarray) -> np.ndarray:
    """Return the surface over each image [S, H, W] of values 0 to 1, interpolated linearly: float32 [S, P, 3]."""
    for axis in (1, 2):
        images = _refined(images, axis)
    rows, columns = images.shape[1:]
    y, x = np.meshgrid(np.linspace(1, 0, rows), np.linspace(0, 1, columns), indexing="ij")  # row 0 is the top
    flat = np.broadcast_to(np.stack([x, y], axis=-1), (*images.shape, 2))
    surface = np.concatenate([flat, _HEIGHT * images[..., None]], axis=-1)
    return surface.reshape(len(images), -1, 3).astype(np.float32)


def _refined(values: np.ndarray, axis: int) -> np.ndarray:
    """Interpolate linearly along one axis, _FACTOR steps for one."""
    fine = np.arange((values.shape[axis] - 1) * _FACTOR + 1) / _FACTOR
    low = np.minimum(fine.astype(int), values.shape[axis] - 2)
    share = (fine - low).reshape([-1 if place == axis else 1 for place in range(values.ndim)])
    between: np.ndarray = values.take(low, axis) * (1 - share) + values.take(low + 1, axis) * share
    return between
