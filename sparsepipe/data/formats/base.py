"""What readers return: a `Mesh` or a `Cloud`. Every format's reader is `read(path, reading) -> Mesh | Cloud`."""

import errno
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...errors import InputError
from ...util.host.limits import available_bytes
from ...util.io.fields import complaint
from ...util.io.files import open_regular
from ..labels import IGNORED
from .reading import AS_THEY_ARE, DROP, LEFT_OUT, OTHERS, Reading, unpacked_gzip

POSITION = ("x", "y", "z")
NORMAL = ("nx", "ny", "nz")
COLOUR = ("red", "green", "blue")  # 0 to 255
INTENSITY = "intensity"
LABEL = "label"  # the column of the points' own classes
_LARGE_BYTES = 2**28  # of a file: more are compared with the memory that is free
_SLACK = 1e-3  # of full brightness: what rounding may add
_MAX_DIGITS = 18  # of a count: what int64 holds; Python itself refuses words of thousands
SAME = {  # what other writers call these columns
    **dict(zip(("normal_x", "normal_y", "normal_z"), NORMAL, strict=True)),
    **dict(zip(("r", "g", "b"), COLOUR, strict=True)),
    **dict(zip(("rf", "gf", "bf"), COLOUR, strict=True)),  # CloudCompare's, 0 to 1
    **dict(zip(("diffuse_red", "diffuse_green", "diffuse_blue"), COLOUR, strict=True)),
    "i": INTENSITY,
    "reflectance": INTENSITY,
    "remission": INTENSITY,
    "class": LABEL,
    "labels": LABEL,
    "scalar_label": LABEL,
    "semantic_label": LABEL,
    "classification": LABEL,
    "scalar_classification": LABEL,
    "scalar_intensity": INTENSITY,
    **dict(zip(("points:0", "points:1", "points:2"), POSITION, strict=True)),  # ParaView's and VeloView's tables
    **dict(zip(("points_0", "points_1", "points_2"), POSITION, strict=True)),
}


@dataclass(frozen=True, eq=False)
class Mesh:
    """A triangulated surface: `vertices` float64 [V, 3], `faces` int64 [F, 3] (vertex indices).

    `labels` int64 [F], where known, holds the part that each face belongs to. A file's polygons may have become several
    triangles each, or none: `polygons` int64 [F] says which of its `num_polygons` each triangle is a piece of.
    `attributes` float32 [V, C] holds the vertices' colours and intensity, where known, a column for each of `names`.
    """

    vertices: np.ndarray
    faces: np.ndarray
    labels: np.ndarray | None = None
    polygons: np.ndarray | None = None
    num_polygons: int | None = None
    num_unmeasured: int = 0  # polygons left out, as a corner of theirs was not measured
    attributes: np.ndarray | None = None
    names: tuple[str, ...] = ()

    @property
    def num_unlabelled(self) -> int:
        """Count the faces declared to be of no class."""
        return 0 if self.labels is None else int((self.labels == IGNORED).sum())

    def with_labels(self, labels: np.ndarray) -> "Mesh":
        """Return the mesh with the label of each of the file's polygons; their triangles take it over.

        Raises InputError, without the file's name, if there are more or fewer.
        """
        expected = len(self.faces) if self.num_polygons is None else self.num_polygons
        _check_count(labels, expected, what="faces")
        return replace(self, labels=labels if self.polygons is None else labels[self.polygons])


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points as measured: float64 [P, 3].

    `attributes` float32 [P, C] holds what else was measured, one column for each of `names` ("nx", "intensity", ...),
    NaN if it was not; `labels` int64 [P], where known, the class of each point, IGNORED for none.
    `measured` bool [rows of the file] says which rows these points are, if some were left out; `rows` int64 [P]
    which row each is, if some of the others were taken.
    """

    points: np.ndarray
    attributes: np.ndarray | None = None
    names: tuple[str, ...] = ()
    labels: np.ndarray | None = None
    measured: np.ndarray | None = None
    rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.points)

    @property
    def file_rows(self) -> np.ndarray:
        """Return which of the file's points each is: int64 [P]."""
        if self.rows is not None:
            return self.rows
        return np.arange(len(self)) if self.measured is None else np.flatnonzero(self.measured)

    @property
    def num_unmeasured(self) -> int:
        """Count the file's points that were left out, as declared."""
        return 0 if self.measured is None else int((~self.measured).sum())

    @property
    def num_unlabelled(self) -> int:
        """Count the points declared to be of no class."""
        return 0 if self.labels is None else int((self.labels == IGNORED).sum())

    def take(self, rows: np.ndarray) -> "Cloud":
        """Return the chosen points with all that belongs to them."""
        return Cloud(
            self.points[rows],
            None if self.attributes is None else self.attributes[rows],
            self.names,
            None if self.labels is None else self.labels[rows],
            rows=self.file_rows[rows],
        )

    def with_labels(self, labels: np.ndarray) -> "Cloud":
        """Return the cloud with the label of each of the file's points, those left out among them.

        Raises InputError, without the file's name, if there are more or fewer.
        """
        _check_count(labels, len(self) if self.measured is None else len(self.measured), what="points")
        return replace(self, labels=labels if self.measured is None else labels[self.measured])


Reader = Callable[[Path, Reading], Mesh | Cloud]


def cloud_of(path: Path, columns: Iterable[tuple[str, np.ndarray]], reading: Reading = AS_THEY_ARE) -> Cloud:
    """Make a cloud of pairs (name, column [P]).

    Points whose coordinates are not finite are left out if that is declared. Further numbers may be NaN or infinite:
    they are kept as NaN, and matter to those who ask for them. Raises InputError that names the file without x, y, z,
    for two columns of one meaning, for points that were not measured, and for labels that are no whole numbers from 0.
    """
    points, attributes, names, labels = parted(path, columns, reading)
    measured = np.isfinite(points).all(axis=1)
    if not measured.all():
        check_measured(path, points, measured, reading, what="point")
        points = points[measured]
        attributes, labels = (None if rows is None else rows[measured] for rows in (attributes, labels))
    whole = None if labels is None else whole_labels(path, labels, reading)
    return Cloud(points, attributes, names, whole, None if measured.all() else measured)


def parted(
    path: Path, columns: Iterable[tuple[str, np.ndarray]], reading: Reading
) -> tuple[np.ndarray, np.ndarray | None, tuple[str, ...], np.ndarray | None]:
    """Part named columns into points [P, 3], attributes [P, C] with their names, and labels [P] as the file has them.

    Raises InputError that names the file without x, y, z, for two columns of one meaning, and for colours out of range.
    """
    named = _named(path, columns, reading)
    missing = [axis for axis in POSITION if axis not in named]
    if missing:
        other = next((name for name in named if name not in POSITION), "")
        remedy = f'; name them in dataset.json, such as "columns": {{"{other[:40]}": "{missing[0]}"}}' if other else ""
        raise InputError(
            "cloud.column_missing",
            f"{path}: has no column {', '.join(missing)} among {', '.join(named)[:200] or 'none'}; expected x, y and "
            f"z{remedy}",
        )
    with np.errstate(invalid="ignore", over="ignore"):  # damaged numbers are found and named below
        points = np.stack([named.pop(axis) for axis in POSITION], axis=1).astype(np.float64)
        labels = named.pop(LABEL, None)
        names = tuple(named)
        attributes = np.stack([named[name] for name in names], axis=1).astype(np.float32) if names else None
    if attributes is not None:
        attributes = _scaled_colours(path, attributes, names, named, reading)
        attributes[~np.isfinite(attributes)] = np.nan
    return points, attributes, names, labels


def check_measured(path: Path, rows: np.ndarray, measured: np.ndarray, reading: Reading, *, what: str) -> None:
    """Raise InputError, naming the first of `rows` [N, C] that is not `measured` [N], if it is not declared so."""
    bad = np.flatnonzero(~measured)
    if len(bad) and reading.unmeasured != DROP:
        raise InputError(
            "cloud.not_finite",
            f"{path}: {what} {bad[0]} is {rows[bad[0]].tolist()} ({len(bad)} of {len(rows)} are NaN or infinite), "
            f'expected finite numbers; set "unmeasured": "{DROP}" in dataset.json, or repair the file',
        )
    if len(bad) and len(bad) == len(rows):
        raise InputError("cloud.none_finite", f"{path}: all {len(rows)} points are NaN or infinite; remove the file")


def _named(path: Path, columns: Iterable[tuple[str, np.ndarray]], reading: Reading) -> dict[str, np.ndarray]:
    """Return the columns under the names used here. Raises InputError if two that differ mean the same."""
    renamed = dict(reading.renamed)
    given = [(renamed.get(name, name).lower(), name, np.asarray(column)) for name, column in columns]
    own = {name for name, _, _ in given}
    named: dict[str, np.ndarray] = {}
    source: dict[str, str] = {}
    for name, word, column in given:
        if name == LEFT_OUT:
            continue
        meaning = SAME.get(name, name)
        if meaning in own and meaning != LABEL:
            meaning = name  # a column of that very name is there: this one is something else
        if meaning in named and not np.array_equal(named[meaning], column, equal_nan=column.dtype.kind == "f"):
            raise InputError(
                "cloud.columns_conflict",
                f"{path}: columns {source[meaning]!r} and {word!r} both contain {meaning!r} and differ; exclude one "
                f'in dataset.json, such as "columns": {{"{word}": "{LEFT_OUT}"}}, or repair the file',
                word=word,
                meaning=meaning,
            )
        if meaning not in named:
            named[meaning], source[meaning] = column, word
    return named


def _scaled_colours(
    path: Path, attributes: np.ndarray, names: tuple[str, ...], columns: dict[str, np.ndarray], reading: Reading
) -> np.ndarray:
    """Bring colours to 0 to 255: from the declared range, else from that of shares of 1, or of 16 bits.

    Raises InputError that names the first one below 0, or brighter than the brightest that is declared.
    """
    if not set(COLOUR) <= set(names):
        return attributes
    places = [names.index(name) for name in COLOUR]
    colours = attributes[:, places]
    most = 65535 if reading.colour_max is None else reading.colour_max
    least = -_SLACK * min(most, 255)
    bad = np.flatnonzero(((colours < least) | (colours > (1 + _SLACK) * most)).any(axis=1))
    if len(bad):
        raise InputError(
            "cloud.colour_out_of_range",
            f"{path}: red, green, blue of point {bad[0]} are {colours[bad[0]].tolist()}, expected 0 to {most:g}; "
            f'correct "columns" or "colour_max" in dataset.json, or repair the file',
        )
    if reading.colour_max is not None:
        attributes[:, places] = colours * (255 / reading.colour_max)
    elif all(columns[name].dtype.kind == "f" for name in COLOUR) and are_shares(colours):
        attributes[:, places] = colours * 255
    elif _are_of_16_bits(colours):
        attributes[:, places] = colours * (255 / 65535)
    return attributes


def are_shares(colours: np.ndarray) -> bool:
    """Return whether colours are given from 0 to 1: all lie there, and some between. NaN says nothing."""
    known = colours[np.isfinite(colours)]
    return bool(len(known) and ((known >= 0) & (known <= 1)).all() and (known != np.floor(known)).any())


def _are_of_16_bits(colours: np.ndarray) -> bool:
    """Return whether colours are whole numbers beyond 8 bits and within 16, as LAS files have them."""
    known = colours[np.isfinite(colours)]
    whole = bool(len(known)) and bool(((known >= 0) & (known <= 65535) & (known == np.floor(known))).all())
    return whole and bool(known.max() > 255)


def _check_count(labels: np.ndarray, expected: int, *, what: str) -> None:
    if len(labels) != expected:
        raise InputError("cloud.label_count", f"{len(labels)} labels, expected {expected}: one for each of the {what}")


def whole_number(word: str) -> int | None:
    """Return the number that a header's word says; None if it is none from 0, or longer than any count is."""
    return int(word) if word.isdecimal() and len(word) <= _MAX_DIGITS else None


def whole_labels(path: Path, labels: np.ndarray, reading: Reading = AS_THEY_ARE) -> np.ndarray:
    """Return labels [P] as int64: as classes where it is declared what they count as, IGNORED for "not labelled".

    Raises InputError, naming the first offender, where another is no whole number from 0, or not among those declared.
    """
    values = labels.astype(np.float64)
    ignored = np.isin(values, reading.ignore) if reading.ignore else np.zeros(values.shape, dtype=bool)
    if reading.labels or reading.other_labels:
        return _counted_as(path, values, ignored, reading)
    bad = np.flatnonzero(~(ignored | ((values >= 0) & (values < 2**63) & (values == np.floor(values)))))
    if len(bad):
        raise InputError(
            "cloud.label_malformed",
            f"{path}: label {bad[0]} is {labels[bad[0]]}, expected a whole number from 0; name the labels that mean "
            f'"not labelled" in dataset.json, such as "ignore": [-1], or repair the file',
        )
    return np.where(ignored, IGNORED, labels.astype(np.int64))


def _counted_as(path: Path, values: np.ndarray, ignored: np.ndarray, reading: Reading) -> np.ndarray:
    """Return the classes that labels [P] are declared to count as; `ignored` [P] ones that are not named are none."""
    sources = np.array([label for label, _ in reading.labels], dtype=np.float64)
    targets = np.array([IGNORED if target is None else target for _, target in reading.labels], dtype=np.int64)
    place = np.searchsorted(sources, values)
    named = np.append(sources, np.nan)[place] == values
    bad = np.flatnonzero(~(named | ignored))
    if len(bad) and not reading.other_labels:
        raise InputError(
            "cloud.label_unnamed",
            f"{path}: label {bad[0]} is {values[bad[0]]:g}, which is missing in 'labels' of dataset.json; add it, or "
            f'set "{OTHERS}": null for all others',
        )
    return np.where(named, np.append(targets, IGNORED)[place], IGNORED)


def suffix_of(path: Path) -> str:
    """Return the suffix that names a file's format, in lower case: `.ply` of `a.PLY` and of `a.ply.gz`."""
    return _unpacked_name(path).suffix.lower()


def stem_of(path: Path) -> str:
    """Return a file's name without the suffixes of its format: `a` of `a.ply` and of `a.ply.gz`."""
    return _unpacked_name(path).stem


def format_of(path: Path) -> str:
    """Return what a file's format is called: `ply`, or `ply.gz` where it is packed."""
    return suffix_of(path).removeprefix(".") + (".gz" if is_packed(path) else "")


def is_packed(path: Path) -> bool:
    """Return whether a file is named as one that gzip packed."""
    return path.suffix.lower() == ".gz"


def _unpacked_name(path: Path) -> Path:
    return path.with_suffix("") if is_packed(path) else path


def read_bytes(path: Path, *, what: str) -> bytes:
    """Read a file a user named; `NAME.gz` is unpacked, to a bounded size.

    Raises InputError in one line if it is missing, unreadable, empty, no file, larger than the free memory, or of
    another kind: packed, a pointer of Git LFS, a web page that a failed download left.
    """
    num_bytes = check_regular(path, what=what)
    if num_bytes > _LARGE_BYTES and num_bytes > (room := available_bytes()):  # it may be sparse, and small on the disk
        raise InputError(
            "cloud.too_large",
            f"{path}: needs {num_bytes / 1e9:.1f} GB, but only {room / 1e9:.1f} GB of memory are free; split it into "
            "several files",
        )
    try:
        with open_regular(path) as handle:
            data = handle.read()
    except OSError as error:
        raise unreadable(path, error, what=what) from None
    if is_packed(path):
        data = unpacked_gzip(path, data)
    if not data.strip():
        raise InputError("file.empty", f"{path}: is empty, expected {what}; fetch the file again or remove it")
    _check_kind(path, data, what=what)
    return data


def _check_kind(path: Path, data: bytes, *, what: str) -> None:
    """Raise InputError for content that lies under any name by mistake, and would be called damaged."""
    if data.startswith(b"\x1f\x8b\x08"):
        raise InputError("file.gzipped", f"{path}: is compressed by gzip, expected {what}; name it {path.name}.gz")
    if data.startswith(b"PK\x03\x04") and suffix_of(path) != ".npz":
        raise InputError("file.zipped", f"{path}: is a zip archive, expected {what}; unpack it")
    if data.startswith(b"version https://git-lfs.github.com/spec/"):
        raise InputError(
            "file.lfs_pointer",
            f"{path}: is a pointer of Git LFS, expected {what}; run `git lfs pull` in its repository",
        )
    if data[:512].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        raise InputError(
            "file.web_page", f"{path}: is a web page, expected {what}; the download failed, fetch the file again"
        )


def unreadable(path: Path, error: OSError, *, what: str) -> InputError:
    """Return what to say of a file that the system does not give: its cause, and where to look."""
    denied = error.errno in (errno.EACCES, errno.EPERM)
    remedy = "check its permissions" if denied else "check its disk or network"
    return InputError(
        "file.unreadable", f"{path}: cannot be read as {what} ({error.strerror or complaint(error)}); {remedy}"
    )


def miscounted(path: Path, numbers: str, *, short: bool, source: str = "header") -> InputError:
    """Return what to say of a file that holds fewer rows or bytes than its header says (`short`), or more."""
    if short:
        return InputError(
            "file.truncated", f"{path}: truncated: {numbers}; fetch the file again, or correct its {source}"
        )
    return InputError(
        "file.too_long",
        f"{path}: longer than its {source} declares: {numbers}; correct the {source}, or remove the rest",
    )


def too_large(path: Path) -> InputError:
    """Return what to say of a file whose content does not fit into memory."""
    return InputError("file.too_large", f"{path}: needs more memory than is available; split it into smaller files")


@contextmanager
def library_errors(path: Path, *, what: str) -> Iterator[None]:
    """Turn whatever a library raises over a file's content into InputError that names the file."""
    try:
        yield
    except InputError:
        raise
    except MemoryError:
        raise too_large(path) from None
    except Exception as error:  # libraries raise many kinds; the content is at fault in each
        raise InputError(
            "file.malformed",
            f"{path}: cannot be read as {what} ({complaint(error)}); repair the file, or fetch it again",
        ) from None


def decoded(data: bytes) -> str:
    """Return text without its byte-order mark: UTF-16 where one says so, else UTF-8, Latin-1 if it is neither."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace").lstrip("\ufeff")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("latin-1")  # comments in the author's own encoding; numbers read the same


def check_regular(path: Path, *, what: str) -> int:
    """Return a file's bytes by its folder's word. Raises InputError if it is none: pipes and devices never end."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        raise InputError("file.not_found", f"{path}: no such file, expected {what}; check the path") from None
    except (OSError, ValueError) as error:  # a name that no file can have
        raise InputError("file.unreadable", f"{path}: cannot be read as {what} ({complaint(error)})") from None
    if stat.S_ISDIR(facts.st_mode):
        raise InputError("file.is_folder", f"{path}: is a folder, expected {what}")
    if not stat.S_ISREG(facts.st_mode):
        raise InputError(
            "file.not_regular", f"{path}: is a pipe, a device or a socket, expected {what} as a regular file"
        )
    return facts.st_size
