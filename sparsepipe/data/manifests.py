"""Manifests of known data sets: licence, citation, splits, and files with their size and SHA-256."""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import SplitResult, unquote, urlsplit

from ..errors import InputError
from ..util.io.fields import read_yaml, shown
from ..util.io.files import expanded
from ..util.io.quantities import meant

_REQUIRED = ("name", "title", "licence", "citation", "homepage", "splits", "files")
_TEXTS = ("name", "title", "licence", "citation", "homepage", "folder", "generator", "prepared_by", "notes")
_KEYS = {*_REQUIRED, *_TEXTS, "classes", "base", "kind"}
_SCHEMES = ("https", "http", "file")
CLOUDS = "clouds"
LEARNED = (CLOUDS, "images", "translation", "text")  # what the samples are of data that a network learns from
KINDS = (*LEARNED, "traces", "graphs", "times")  # of times: measurements
_SHIPPED = {"clusters": "cluster file", "profiles": "profile"}  # folders of data_manifests: what is in them
_MOST_BYTES = 10**15  # of a file, and samples: a larger count is a slip of the hand
_MOST_NAME_BYTES = 255  # of a file's or folder's name: what file systems take


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch, and its `path` inside the data set's folder; size and SHA-256 are None if not published.

    `url` is an address, or a `package_address` for what only a package has.
    """

    url: str
    path: str
    num_bytes: int | None
    sha256: str | None


@dataclass(frozen=True)
class Manifest:
    """Describe a data set by its manifest.

    `folder` is the name of its unpacked folder; `splits` are (name, samples).
    """

    name: str
    title: str
    licence: str
    citation: str
    homepage: str
    folder: str
    splits: tuple[tuple[str, int], ...]
    files: tuple[RemoteFile, ...]
    classes: int | None = None
    notes: str = ""
    generator: str = ""  # what makes the data set here, where nothing is to be fetched
    prepared_by: str = ""  # what makes the data set of the files that are fetched, where they are not it themselves
    kind: str = CLOUDS

    @property
    def verifiable(self) -> bool:
        """Return whether `fetch` accepts it: every file has a SHA-256, or the data set is generated."""
        return bool(self.generator) or bool(self.files) and all(file.sha256 for file in self.files)


def manifests_folder() -> Path:
    """Return the folder of the data sets' manifests: alongside the package in a checkout, inside it once installed."""
    package = Path(__file__).resolve().parents[1]
    for root in (package.parent, package):
        if (root / "data_manifests" / "datasets").is_dir():
            return root / "data_manifests" / "datasets"
    missing = package.parent / "data_manifests" / "datasets"
    raise InputError(
        "manifest.folder_missing", f"{missing}: no such folder; install sparsepipe again, or use a checkout of it"
    )


def list_datasets(manifests: Path | None = None, *, damaged: list[str] | None = None) -> tuple[Manifest, ...]:
    """Read all manifests, by name.

    A malformed one is added to `damaged`, or raises InputError if `damaged` is not given.
    """
    found = []
    for path in _manifest_paths(manifests):
        try:
            found.append(read_manifest(path))
        except InputError as error:
            if damaged is None:
                raise
            damaged.append(str(error))
    return tuple(found)


def get_manifest(name: str, manifests: Path | None = None) -> Manifest:
    """Return the manifest of a data set, or of traces of jobs. Raises InputError that lists the names there are."""
    paths = _paths_by_name(manifests)
    if name not in paths:
        raise _unknown(name, list(paths))
    return read_manifest(paths[name])


def get_learned(name: str) -> Manifest:
    """Return the manifest of a data set that networks learn from. Raises InputError that lists the names of those."""
    paths = _paths_by_name(None)
    if name in paths and (found := read_manifest(paths[name])).kind in LEARNED:
        return found
    raise _unknown(name, [one for one, path in paths.items() if _is_learned(path)])


def _is_learned(path: Path) -> bool:
    with suppress(InputError):  # a damaged one is told where it is asked for
        return read_manifest(path).kind in LEARNED
    return False


def _paths_by_name(manifests: Path | None) -> dict[str, Path]:
    folders = [manifests] if manifests else [manifests_folder(), manifests_folder().parent / "traces"]
    return {path.stem: path for folder in folders for path in _manifest_paths(folder)}


def _unknown(name: str, known: Sequence[str]) -> InputError:
    near = f"; did you mean {one!r}?" if (one := meant(name, known)) else ""
    return InputError(
        "dataset.unknown",
        f"unknown data set {name!r}, expected one of {', '.join(known)}, or a folder's path{near}",
        name=name,
    )


def shipped(text: str, folder: str, ending: str) -> Path:
    """Return a file's path; if there is no such file, that of data_manifests/FOLDER which has this name.

    Raises InputError, which lists the names there are, for a name that is neither.
    """
    path = expanded(text)
    if text.isprintable() and path.name == text and not path.suffix and not path.exists():
        named = manifests_folder().parent / folder / f"{text}{ending}"
        if not named.is_file():
            known = sorted(one.stem for one in named.parent.glob(f"*{ending}"))
            raise InputError(
                "manifest.not_found",
                f"{text}: no such {_SHIPPED[folder]}; check the path, or choose one of {', '.join(known)}",
            )
        return named
    return path


def _manifest_paths(folder: Path | None) -> list[Path]:
    return sorted((folder or manifests_folder()).glob("*.yaml"), key=lambda path: path.stem)


def read_manifest(path: Path | str) -> Manifest:
    """Read and check one manifest. Raises InputError in one line that names the file and the entry."""
    path = expanded(path)
    content = read_yaml(path, what="manifest")
    _require(isinstance(content, dict), path, "expected a mapping with the keys " + ", ".join(_REQUIRED))
    missing = [key for key in _REQUIRED if key not in content]
    _require(not missing, path, f"no {', '.join(missing)}; add what is missing")
    unknown = [shown(key).strip("'") for key in content if key not in _KEYS]
    _require(not unknown, path, f"unknown key {', '.join(unknown[:5])}; expected {', '.join(sorted(_KEYS))}")
    for key in _TEXTS:
        _require(isinstance(content.get(key, ""), str), path, f"{key} is {shown(content.get(key))}, expected text")
    name = content["name"]
    _require(
        bool(re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name)),
        path,
        f"name {shown(name)}, expected lower case, digits, - and _",
    )
    _require(name == path.stem, path, f"name {shown(name)}, expected {path.stem!r} as the file is called")
    folder = content.get("folder", name)
    _require(_is_file_name(folder), path, f"folder {shown(folder)}, expected one folder's name")
    splits = content["splits"]
    valid = isinstance(splits, dict) and all(isinstance(k, str) and _is_count(v) for k, v in splits.items())
    _require(valid, path, f"splits {shown(splits)}, expected NAME: NUMBER OF SAMPLES")
    _require(content.get("classes") is None or _is_count(content["classes"]), path, "classes: expected a whole number")
    _require(isinstance(content["files"], list), path, "files: expected a list of url or path, bytes, sha256")
    kind = content.get("kind", CLOUDS)
    _require(kind in KINDS, path, f"kind {shown(kind)}, expected one of {', '.join(KINDS)}")
    base = content.get("base", "")
    _require(
        isinstance(base, str) and (not base or base.endswith("/")),
        path,
        f"base {shown(base)}, expected a URL ending in /",
    )
    files = tuple(_remote_file(path, index, entry, base=base) for index, entry in enumerate(content["files"], start=1))
    _require_places(path, files)
    return Manifest(
        name=name,
        title=content["title"],
        licence=content["licence"],
        citation=content["citation"].strip(),
        homepage=content["homepage"],
        folder=folder,
        splits=tuple(splits.items()),
        files=files,
        classes=content.get("classes"),
        notes=content.get("notes", "").strip(),
        generator=content.get("generator", ""),
        prepared_by=content.get("prepared_by", ""),
        kind=kind,
    )


def _remote_file(manifest: Path, index: int, entry: object, *, base: str) -> RemoteFile:
    """Check one file's entry: {url, bytes, sha256}, or below the manifest's base URL {path, bytes, sha256}."""
    where = f"file {index}"
    known = isinstance(entry, dict) and {"bytes", "sha256"} < set(entry) <= {"url", "path", "bytes", "sha256"}
    _require(known, manifest, f"{where}: expected url or path, bytes and sha256")
    assert isinstance(entry, dict)
    url = entry.get("url", f"{base}{entry.get('path')}")
    package = package_address(url) if isinstance(url, str) else None
    address = _address(url)
    _require(
        package is not None or address is not None,
        manifest,
        f"{where}: url {shown(url)}, expected an address in ASCII that begins with {', '.join(_SCHEMES)}, "
        "or pip:NAME==VERSION#FILE, or apt:NAME=VERSION",
    )
    own_name = package.default_path if package else unquote(address.path).rsplit("/", 1)[-1] if address else ""
    path = entry.get("path", own_name)
    valid = isinstance(path, str) and all(map(_is_file_name, path.split("/"))) and not path.endswith(".part")
    _require(valid, manifest, f"{where}: path {shown(path)}, expected one inside the data set's folder")
    num_bytes, sha256 = entry["bytes"], entry["sha256"]
    _require(
        num_bytes is None or _is_count(num_bytes), manifest, f"{where}: bytes {shown(num_bytes)}, expected a number"
    )
    valid = sha256 is None or (isinstance(sha256, str) and re.fullmatch(r"[0-9a-f]{64}", sha256) is not None)
    _require(valid, manifest, f"{where}: sha256 {shown(sha256)}, expected 64 hexadecimal digits, quoted, or null")
    return RemoteFile(url, path, num_bytes, sha256)


@dataclass(frozen=True)
class PackageAddress:
    """A place in a package, fetched by `installer` from wherever this machine's is set up to look.

    `member` is a file's path inside a wheel; a Debian package is fetched whole.
    """

    installer: str  # pip, or apt
    requirement: str  # as it is given to the installer
    member: str = ""

    @property
    def default_path(self) -> str:
        name = re.split("[=]", self.requirement)[0]
        return PurePosixPath(self.member).name if self.member else f"{name}.deb"


_PIP = re.compile(r"pip:([A-Za-z0-9][\w.-]*==\d[\w.+!]*)#([\w][\w./-]*)", re.ASCII)
_APT = re.compile(r"apt:([a-z0-9][a-z0-9+.-]*=\d[\w.+~:-]*)", re.ASCII)


def package_address(url: str) -> PackageAddress | None:
    """Read pip:NAME==VERSION#FILE, a file in a wheel, or apt:NAME=VERSION, a Debian package; None for another URL."""
    if found := _PIP.fullmatch(url):
        return PackageAddress("pip", found[1], found[2])
    if found := _APT.fullmatch(url):
        return PackageAddress("apt", found[1])
    return None


def _address(url: object) -> SplitResult | None:
    """Return the parts of a URL that can be asked for, None if it is none."""
    if not (isinstance(url, str) and url.isascii() and url.isprintable() and " " not in url):
        return None
    try:
        address = urlsplit(url)
        _ = address.port
    except ValueError:  # brackets without an end, a port that is no number
        return None
    return address if address.scheme in _SCHEMES and (address.scheme == "file" or address.hostname) else None


def _is_file_name(name: object) -> bool:
    """Return whether a file or folder can be called so on any system of ours, and is not hidden."""
    if not (isinstance(name, str) and name and name.isprintable() and not name.startswith(".")):
        return False
    return "/" not in name and len(name.encode()) <= _MOST_NAME_BYTES


def _require_places(path: Path, files: tuple[RemoteFile, ...]) -> None:
    """Raise InputError if two files would lie at one place, or one inside another."""
    places = Counter(file.path for file in files)
    twice = [place for place, count in places.items() if count > 1]
    _require(not twice, path, f"path {shown(twice[:1])} is there twice, expected each file once")
    around = {parent.as_posix() for place in places for parent in PurePosixPath(place).parents}
    clash = sorted(around & set(places))
    _require(not clash, path, f"path {shown(clash[:1])} is a file, and a folder of others")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_BYTES


def _require(condition: bool, path: Path, problem: str) -> None:
    if not condition:
        raise InputError("manifest.malformed", f"{path}: {problem}")
