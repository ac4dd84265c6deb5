"""Data sets by name: what a manifest says of one: licence, citation, splits, files with size and SHA-256."""

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

import yaml

from ..errors import InputError
from ..files import read_text

_REQUIRED = ("name", "title", "licence", "citation", "homepage", "splits", "files")
_KEYS = {*_REQUIRED, "folder", "classes", "base", "generator", "notes"}
_SCHEMES = ("https", "http", "file")
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # as safe, and ten times faster on a manifest of many files


@dataclass(frozen=True)
class RemoteFile:
    """One file to fetch, and its `path` inside the data set's folder; size and SHA-256 are None where not published."""

    url: str
    path: str
    num_bytes: int | None
    sha256: str | None


@dataclass(frozen=True)
class Manifest:
    """What is known of a data set. `folder` is the name of its folder once unpacked; `splits` are (name, samples)."""

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

    @property
    def verifiable(self) -> bool:
        """Say whether `fetch` will take it: every file has a SHA-256, or the data set is made here."""
        return bool(self.generator) or bool(self.files) and all(file.sha256 for file in self.files)


def manifests_folder() -> Path:
    """Return the folder of the data sets' manifests: beside the package in a checkout, inside it once installed."""
    package = Path(__file__).resolve().parents[1]
    for root in (package.parent, package):
        if (root / "data_manifests" / "datasets").is_dir():
            return root / "data_manifests" / "datasets"
    raise InputError(f"{package.parent / 'data_manifests' / 'datasets'}: no such folder; use a checkout of the project")


def list_datasets(manifests: Path | None = None) -> tuple[Manifest, ...]:
    """Read every manifest, by name."""
    return tuple(read_manifest(path) for path in _manifest_paths(manifests))


def get_manifest(name: str, manifests: Path | None = None) -> Manifest:
    """Return the manifest of a data set. Raises InputError that lists the names there are."""
    paths = {path.stem: path for path in _manifest_paths(manifests)}
    if name not in paths:
        raise InputError(f"no data set {name!r}, expected one of {', '.join(paths)}, or a folder's path")
    return read_manifest(paths[name])


def _manifest_paths(folder: Path | None) -> list[Path]:
    return sorted((folder or manifests_folder()).glob("*.yaml"), key=lambda path: path.stem)


def read_manifest(path: Path | str) -> Manifest:
    """Read and check one manifest. Raises InputError in one line that names the file and the entry."""
    path = Path(path)
    try:
        content = yaml.load(read_text(path, what="manifest"), Loader=_LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}: not YAML ({getattr(error, 'problem', None) or 'malformed'})") from None
    _require(isinstance(content, dict), path, "expected a mapping with the keys " + ", ".join(_REQUIRED))
    missing = [key for key in _REQUIRED if key not in content]
    _require(not missing, path, f"no {', '.join(missing)}; add what is missing")
    unknown = sorted(set(map(str, content)) - _KEYS)
    _require(not unknown, path, f"unknown key {', '.join(unknown)}; expected {', '.join(sorted(_KEYS))}")
    for key in ("name", "title", "licence", "citation", "homepage", "folder", "generator", "notes"):
        _require(isinstance(content.get(key, ""), str), path, f"{key} is {content.get(key)!r}, expected text")
    name = content["name"]
    _require(
        bool(re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name)), path, f"name {name!r}, expected lower case, digits, - and _"
    )
    _require(name == path.stem, path, f"name {name!r}, expected {path.stem!r} as the file is called")
    folder = content.get("folder", name)
    _require(bool(folder) and Path(folder).name == folder, path, f"folder {folder!r}, expected one folder's name")
    splits = content["splits"]
    valid = isinstance(splits, dict) and all(isinstance(k, str) and _is_count(v) for k, v in splits.items())
    _require(valid, path, f"splits {splits!r}, expected NAME: NUMBER OF SAMPLES")
    _require(content.get("classes") is None or _is_count(content["classes"]), path, "classes: expected a whole number")
    _require(isinstance(content["files"], list), path, "files: expected a list of url or path, bytes, sha256")
    base = content.get("base", "")
    _require(
        isinstance(base, str) and (not base or base.endswith("/")), path, f"base {base!r}, expected a URL ending in /"
    )
    return Manifest(
        name=name,
        title=content["title"],
        licence=content["licence"],
        citation=content["citation"].strip(),
        homepage=content["homepage"],
        folder=folder,
        splits=tuple(splits.items()),
        files=tuple(
            _remote_file(path, index, entry, base=base) for index, entry in enumerate(content["files"], start=1)
        ),
        classes=content.get("classes"),
        notes=content.get("notes", "").strip(),
        generator=content.get("generator", ""),
    )


def _remote_file(manifest: Path, index: int, entry: object, *, base: str) -> RemoteFile:
    """Check one file's entry: {url, bytes, sha256}, or below the manifest's base URL {path, bytes, sha256}."""
    where = f"file {index}"
    known = isinstance(entry, dict) and {"bytes", "sha256"} <= set(entry) <= {"url", "path", "bytes", "sha256"}
    _require(
        known and ("url" in entry or "path" in entry), manifest, f"{where}: expected url or path, bytes and sha256"
    )
    assert isinstance(entry, dict)
    url = entry.get("url", f"{base}{entry.get('path')}")
    valid = isinstance(url, str) and urlsplit(url).scheme in _SCHEMES
    _require(valid, manifest, f"{where}: url {url!r}, expected {', '.join(_SCHEMES)}")
    path = entry.get("path", unquote(urlsplit(url).path).rsplit("/", 1)[-1])
    valid = isinstance(path, str) and path not in ("", ".") and not {"..", "/"} & set(PurePosixPath(path).parts)
    _require(valid, manifest, f"{where}: path {path!r}, expected one inside the data set's folder")
    num_bytes, sha256 = entry["bytes"], entry["sha256"]
    _require(num_bytes is None or _is_count(num_bytes), manifest, f"{where}: bytes {num_bytes!r}, expected a number")
    valid = sha256 is None or (isinstance(sha256, str) and re.fullmatch(r"[0-9a-f]{64}", sha256) is not None)
    _require(valid, manifest, f"{where}: sha256 {sha256!r}, expected 64 hexadecimal digits, quoted, or null")
    return RemoteFile(url, path, num_bytes, sha256)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _require(condition: bool, path: Path, problem: str) -> None:
    if not condition:
        raise InputError(f"{path}: {problem}")
