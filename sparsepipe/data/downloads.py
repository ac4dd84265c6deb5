"""Downloads a data set: checked by size and SHA-256 before anything uses it, whole or absent under its final name."""

import hashlib
import os
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from ..errors import InputError
from .manifests import Manifest, RemoteFile, get_manifest
from .sources import data_folders, generator

Progress = Callable[[str, int, int | None], None]  # (file name, bytes so far, bytes in all or None)

_CHUNK_BYTES = 1 << 20
_TIMEOUT_SECONDS = 60


def fetch(
    name: str, folder: Path | str | None = None, *, manifests: Path | None = None, progress: Progress | None = None
) -> Path:
    """Download the data set `name` into `folder` (the last of the data folders by default) and return its own folder.

    Zip archives are unpacked. What is there already stays. Raises InputError where a file's SHA-256 is not known, does
    not match, or the download fails; nothing half-done is left under the final name.
    """
    manifest = get_manifest(name, manifests)
    parent = Path(folder) if folder is not None else data_folders()[-1]
    target = parent / manifest.folder
    if manifest.generator:
        return generator(manifest.generator)(target)
    unknown = [file.url for file in manifest.files if not file.sha256]
    if unknown or not manifest.files:
        what = f"no SHA-256 is known for {unknown[0]}" if unknown else "its manifest lists no files"
        raise InputError(
            f"{name}: {what}, so a download could not be verified; "
            f"get it yourself from {manifest.homepage} and give its folder"
        )
    if target.exists():
        if target.is_dir() and any(target.iterdir()):
            return target
        raise InputError(f"{target}: is there but holds nothing; remove it, then fetch again")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(dir=parent, prefix=f".{manifest.folder}."))
    except OSError as error:
        raise InputError(f"{parent}: cannot be written ({error.strerror}); name another folder") from None
    try:
        _fill(work, manifest, progress)
        content = _without_wrapper(work, manifest.folder)
        content.chmod(0o755)
        content.replace(target)
    except OSError as error:
        raise InputError(f"{name}: cannot be stored in {parent} ({error.strerror or error})") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _fill(work: Path, manifest: Manifest, progress: Progress | None) -> None:
    for file in manifest.files:
        path = _download(file, work, progress)
        if path.suffix.lower() == ".zip":
            _unpack(path, work, file)
            path.unlink()


def _download(file: RemoteFile, work: Path, progress: Progress | None) -> Path:
    """Download one file into `work` and verify it. Raises InputError with both sides' numbers where they differ."""
    path, digest, size = work / file.path, hashlib.sha256(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(file.url, timeout=_TIMEOUT_SECONDS) as response, path.open("wb") as handle:
            while chunk := response.read(_CHUNK_BYTES):
                size += len(chunk)
                if file.num_bytes is not None and size > file.num_bytes:
                    break
                handle.write(chunk)
                digest.update(chunk)
                if progress is not None:
                    progress(file.path, size, file.num_bytes)
            handle.flush()
            os.fsync(handle.fileno())
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise InputError(f"{file.url}: cannot be downloaded ({getattr(error, 'reason', error)}); try again") from None
    if file.num_bytes is not None and size != file.num_bytes:
        more = "or more " if size > file.num_bytes else ""
        raise InputError(f"{file.url}: {size} bytes {more}came, expected {file.num_bytes}; try again")
    if digest.hexdigest() != file.sha256:
        raise InputError(f"{file.url}: its SHA-256 is {digest.hexdigest()}, expected {file.sha256}; not used")
    return path


def _unpack(archive: Path, work: Path, file: RemoteFile) -> None:
    """Unpack a zip, leaving macOS's own files out. Raises InputError where a member would land outside `work`."""
    try:
        with zipfile.ZipFile(archive) as members:
            for member in members.infolist():
                parts = PurePosixPath(member.filename).parts
                if ".." in parts or member.filename.startswith("/"):
                    raise InputError(f"{file.url}: member {member.filename!r} leaves its folder; not used")
                if "__MACOSX" not in parts and ".DS_Store" not in parts:
                    members.extract(member, work)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        raise InputError(f"{file.url}: not a zip archive that can be unpacked ({error})") from None


def _without_wrapper(work: Path, folder: str) -> Path:
    """Return the archive's own top folder where it bears the data set's name, else all that was fetched."""
    inside = work / folder
    return inside if inside.is_dir() and len(list(work.iterdir())) == 1 else work
