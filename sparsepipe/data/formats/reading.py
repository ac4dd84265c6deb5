"""Declarations in dataset.json on how to read files: names of columns, ignored labels, unmeasured points."""

import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError

REFUSE, DROP = "refuse", "drop"  # what becomes of points that were not measured
LEFT_OUT = "_"  # as a column's name: not read
OTHERS = "*"  # as a label: all that are not named


@dataclass(frozen=True)
class Reading:
    """Options for reading files with an ambiguous format.

    `columns` names the columns of files that have no names of their own: text, bare binary scans, unnamed arrays.
    `renamed` holds pairs (name in the file, name to take it for), for files that do have names; `_` leaves one out.
    `ignore` holds the labels that mean "not labelled"; they become IGNORED. `labels` holds pairs (label in the files,
    class that it counts as, None for "not labelled"), () where labels are classes already; `other_labels` says whether
    those that it does not name are "not labelled", too. `unmeasured` says what becomes of points
    whose coordinates, or features that are asked for, are NaN or infinite: `refuse` the file, or `drop` these points.
    `colour_max` is the number that stands for full brightness, such as 1, 255 or 65535; None decides by the numbers.
    """

    columns: tuple[str, ...] | None = None
    renamed: tuple[tuple[str, str], ...] = ()
    ignore: tuple[int, ...] = ()
    labels: tuple[tuple[int, int | None], ...] = ()
    other_labels: bool = False
    unmeasured: str = REFUSE
    colour_max: float | None = None

    @classmethod
    def declared(cls, marker: Mapping[str, Any], path: Path) -> "Reading":
        """Take `columns`, `ignore`, `labels`, `unmeasured` and `colour_max` from the dataset.json at `path`.

        Raises InputError that names the file and the entry if one is of another kind.
        """
        columns, renamed = _columns(marker.get("columns"), path)
        unmeasured = marker.get("unmeasured", REFUSE)
        if unmeasured not in (REFUSE, DROP):
            raise _refused(path, "unmeasured", unmeasured, f'"{REFUSE}" or "{DROP}"')
        colour_max = marker.get("colour_max")
        if colour_max is not None and not (_is_number(colour_max) and colour_max > 0):
            raise _refused(path, "colour_max", colour_max, "a number above 0, such as 1, 255 or 65535")
        labels, other_labels = _mapped(marker.get("labels", {}), marker.get("parts"), path)
        ignore = _ignored(marker.get("ignore", []), path)
        return cls(columns, renamed, ignore, labels, other_labels, unmeasured, colour_max)

    def facts(self) -> dict[str, Any]:
        """Return what is declared, ready for JSON; nothing if nothing is."""
        facts = {
            "columns": dict(self.renamed) or (None if self.columns is None else list(self.columns)),
            "ignore": list(self.ignore) or None,
            "labels": {str(label): target for label, target in self.labels}
            | ({OTHERS: None} if self.other_labels else {}),
            "unmeasured": None if self.unmeasured == REFUSE else self.unmeasured,
            "colour_max": self.colour_max,
        }
        return {name: value for name, value in facts.items() if value not in (None, {})}


AS_THEY_ARE = Reading()


def _columns(given: object, path: Path) -> tuple[tuple[str, ...] | None, tuple[tuple[str, str], ...]]:
    """Return the columns of files without names, and the pairs that rename those of files with names."""
    wanted = 'a list of names such as ["x", "y", "z", "intensity", "_"], or {"name in the file": "label"}'
    if given is None:
        return None, ()
    if isinstance(given, dict):
        if not all(isinstance(name, str) and name for name in given.values()):
            raise _refused(path, "columns", given, wanted)
        return None, tuple(given.items())
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        raise _refused(path, "columns", given, wanted)
    lower = [name.lower() for name in given if name != LEFT_OUT]
    missing = [axis for axis in "xyz" if axis not in lower]
    twice = sorted({name for name in lower if lower.count(name) > 1})
    if missing or twice:
        fault = f"no {', '.join(missing)} in it" if missing else f"{', '.join(twice)} twice in it"
        raise _refused(path, "columns", given, f"each name once, x, y and z among them ({fault}); '_' leaves one out")
    return tuple(given), ()


def _ignored(given: Any, path: Path) -> tuple[int, ...]:
    values = given if isinstance(given, list) else [given]
    if not all(_is_number(value) and float(value).is_integer() and abs(value) < 2**53 for value in values):
        raise _refused(path, "ignore", given, "a list of the labels that mean 'not labelled', such as [-1, 255]")
    return tuple(sorted({int(value) for value in values}))


def _mapped(given: object, parts: object, path: Path) -> tuple[tuple[tuple[int, int | None], ...], bool]:
    """Return pairs (label in the files, class or None), and whether all others are "not labelled"."""
    wanted = 'such as {"2": 0, "6": 1, "7": null, "*": null}: a class by its number or name, null for "not labelled"'
    names = parts if isinstance(parts, list) and all(isinstance(part, str) for part in parts) else None
    if not isinstance(given, dict):
        raise _refused(path, "labels", given, wanted)
    pairs: dict[int, int | None] = {}
    for word, named in given.items():
        if word == OTHERS and named is None:
            continue
        target = names.index(named) if isinstance(named, str) and names and named in names else named
        label = int(word) if re.fullmatch(r"-?\d{1,15}", word, flags=re.ASCII) else None
        whole = target is None or (isinstance(target, int) and not isinstance(target, bool) and abs(target) < 2**53)
        if label is None or label in pairs or not whole or (target is not None and names and target >= len(names)):
            raise _refused(path, "labels", {word: named}, f"{wanted}{f', of {len(names)} parts' if names else ''}")
        pairs[label] = None if target is not None and target < 0 else target
    return tuple(sorted(pairs.items())), OTHERS in given


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**1023 and math.isfinite(value)
    )


def _refused(path: Path, name: str, given: object, expected: str) -> InputError:
    shown = json.dumps(given)
    shown = shown if len(shown) <= 80 else f"{shown[:80]}…"
    return InputError(
        "marker.value_malformed", f"{path}: '{name}' is {shown}, expected {expected}; correct or remove it"
    )


MOST_TIMES = 100  # bytes unpacked of one packed: what points compress to stays far below, labels of one class too
ALWAYS_ALLOWED = 16 * 2**20  # bytes; a small file of one repeated number may compress better


def check_claim(path: Path, claimed: int, *, num_bytes: int, what: str, packed: bool) -> None:
    """Raise InputError, before any memory is taken, where `what` claims more bytes than a file of `num_bytes` can hold.

    That is as many as it has, and where its content is `packed` MOST_TIMES as many, or ALWAYS_ALLOWED.
    """
    allowed = max(ALWAYS_ALLOWED, MOST_TIMES * num_bytes) if packed else num_bytes
    if claimed > allowed:
        rule = f"{MOST_TIMES} times a packed file's own, or {ALWAYS_ALLOWED}" if packed else "what the file itself has"
        remedy = (
            "if this is correct, store the file uncompressed; otherwise remove it"
            if packed
            else "fetch the file again or remove it"
        )
        raise InputError(
            "file.claims_too_much",
            f"{path}: {what} claims {_shown(claimed)} bytes in a file of {num_bytes}, expected at most {allowed} "
            f"({rule}); {remedy}",
        )


def unpacked_gzip(path: Path, data: bytes) -> bytes:
    """Unpack what gzip packed. Raises InputError that names the file if it is damaged, or too large for its size.

    It is unpacked twice: the first time its bytes are counted alone, so that none is kept of one that is too large.
    """
    if not data.startswith(b"\x1f\x8b"):
        raise InputError("file.not_gzipped", f"{path}: named .gz but not compressed by gzip; rename it to {path.stem}")
    num_bytes = 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while chunk := file.read(2**20):
                num_bytes += len(chunk)
                check_claim(path, num_bytes, num_bytes=len(data), what="its gzip content", packed=True)
            file.rewind()
            return file.read()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            "file.gzip_damaged", f"{path}: the gzip content is damaged or truncated ({error}); fetch the file again"
        ) from None


def _shown(claimed: int) -> str:
    return str(claimed) if claimed < 10**18 else "over 10^18"  # Python refuses to write thousands of digits
