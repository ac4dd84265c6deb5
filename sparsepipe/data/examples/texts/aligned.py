"""Aligned texts, as WMT's are laid out: train.en and train.de, where line k of one translates line k of the other.

Files of one split may be there in several states (train.en, train.tok.en, train.tok.clean.bpe.32000.en): the one with
the shortest name is taken, the plain text, as subwords are made here. newstestYEAR is a test, of the latest year.
"""

import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from ....errors import InputError
from ....util.io.files import read_whole
from ...formats.base import check_regular
from ...layouts.base import entries, splits_named

_LANGUAGE = re.compile(r"[a-z]{2}([_-][A-Za-z]{2})?|ces|deu|eng|fra|ita|rus|spa|zho")
# Endings of two letters that are no languages.
_OTHERS = {
    "gz",
    "md",
    "py",
    "sh",
    "xz",
    "db",
    "js",
    "ts",
    "7z",
    "h5",
    "bz",
    "ps",
    "so",
    "rb",
    "pl",
    "cc",
}  # no languages
_YEAR = re.compile(r"newstest(\d{4})(?!.*(?:dev|train))")
_HELD_OUT = 20  # where there is no test: pairs whose source's SHA-256 is a multiple of it


@dataclass(frozen=True)
class AlignedTexts:
    """The files of a split, source language first. `rule` says which of their pairs belong to the split."""

    split: str
    source_file: Path
    target_file: Path
    rule: str  # all, or where the files hold both splits held-out and not-held-out

    @property
    def files(self) -> tuple[Path, Path]:
        return self.source_file, self.target_file

    def read(self) -> tuple[list[str], list[str]]:
        """Return the lines of both, pairs with an empty side left out. Raises InputError if their numbers differ."""
        sources, targets = read_lines(self.source_file), read_lines(self.target_file)
        if len(sources) != len(targets):
            raise InputError(
                "texts.line_count",
                f"{self.target_file}: has {len(targets)} lines for {len(sources)} of {self.source_file.name}, "
                "expected one translation per line; align the files again",
            )
        wanted = {"all": None, "held-out": True, "not-held-out": False}[self.rule]
        chosen = [
            (source, target)
            for source, target in zip(sources, targets, strict=True)
            if source and target and (wanted is None or held_out(source) == wanted)
        ]
        if not chosen:
            raise InputError(
                "texts.no_pairs", f"{self.source_file}: has no pair of lines for split {self.split}; add some"
            )
        return [source for source, _ in chosen], [target for _, target in chosen]


def found(root: Path) -> bool:
    """Return whether a folder holds a training text in two languages."""
    return len(_texts(root).get("train", {})) > 1


def opened(root: Path, split: str, source: str | None, target: str | None) -> AlignedTexts:
    """Find the files of a split. English is the source unless said otherwise, or the first of two languages.

    Without a test every pair whose source's SHA-256 is a multiple of 20 is one. Raises InputError for a language that
    is missing, or a choice that is left open.
    """
    texts = _texts(root)
    languages = sorted(texts["train"])
    source = source or ("en" if "en" in languages else languages[0])
    others = [language for language in languages if language != source]
    if source in languages and target is None and len(others) > 1:
        raise InputError(
            "texts.language_undecided",
            f"{root}: contains texts in {', '.join(languages)}; set target_language to one of them",
        )
    target = target or others[0]
    for language in (source, target):
        if language not in languages:
            raise InputError(
                "texts.language_unknown",
                f"{root}: has no training text in {language!r}, expected one of {', '.join(languages)}",
            )
    if source == target:
        raise InputError(
            "texts.languages_equal",
            f"{root}: language {source} is both source and target, expected two of {', '.join(languages)}",
        )
    there = (texts.get(name, {}) for name in ("test", "validation"))
    testing = next((files for files in there if {source, target} <= files.keys()), None)
    files = testing if split == "test" and testing else texts["train"]
    rule = "all" if testing else ("held-out" if split == "test" else "not-held-out")
    return AlignedTexts(split, files[source], files[target], rule)


def held_out(source: str) -> bool:
    """Say whether a sentence is for testing, where the files do not: the same sentence is never in both splits."""
    return int.from_bytes(hashlib.sha256(source.encode()).digest()[:8]) % _HELD_OUT == 0


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text, blanks at their ends left away: a line ends at a line feed alone.

    Raises InputError that names the file, and the line that is no UTF-8.
    """
    check_regular(path, what="a text")
    try:
        content = read_whole(path)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError("texts.not_utf8", f"{path}: line {line} is not valid UTF-8; convert the file") from None
    except OSError as error:
        raise InputError("file.unreadable", f"{path}: cannot be read ({error.strerror})") from None
    lines = [line.strip() for line in text.split("\n")]
    return lines[:-1] if lines and not lines[-1] else lines


def _texts(root: Path) -> dict[str, dict[str, Path]]:
    """Return split → language → file, of each the state with the shortest name in which two languages exist."""
    stems: dict[str, dict[str, dict[str, Path]]] = defaultdict(lambda: defaultdict(dict))
    for path in entries(root):
        stem, dot, language = path.name.rpartition(".")
        if dot and _LANGUAGE.fullmatch(language) and language not in _OTHERS and path.is_file():
            split = _split(stem)
            if split is not None:
                stems[split][stem][language] = path
    chosen = {}
    for split, states in stems.items():
        whole = [stem for stem, files in states.items() if len(files) > 1]
        if whole:
            chosen[split] = states[min(whole, key=lambda stem: (-_year(stem), len(stem), stem))]
    return chosen


def _split(stem: str) -> str | None:
    if _YEAR.match(stem):
        return "test"
    named = splits_named(stem)
    return named[0] if len(named) == 1 else ("validation" if stem.split(".")[0] == "dev" else None)


def _year(stem: str) -> int:
    found = _YEAR.match(stem)
    return int(found[1]) if found else 0
