"""Load the code of direct_code.py: compiled once for this processor, cached on disk, run on torch's own threads."""

import ctypes
import errno
import functools
import hashlib
import mmap
import os
import stat
import subprocess
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import threadpoolctl
import torch

from ...data.sources import user_cache
from ...util.host import cpu
from ...util.host.imports import python_command, python_environment
from ...util.io.files import sealed, unsealed, write_atomic
from ...util.io.told import tell

_LANES = {"AVX512": 16, "AVX2": 8}  # float32 numbers of a vector, by what torch says the processor can do
_SECONDS = 120.0  # for compiling, which takes one or two
_READ_AND_EXECUTE = 1 | 4  # of mprotect


@dataclass(frozen=True)
class Code:
    """Code in memory, which is there as long as this."""

    address: int
    memory: mmap.mmap


@functools.cache
def lanes() -> int:
    """Return how many numbers a vector has here; 0 if there is no code for this machine, which is said once."""
    lane_count, why_none = compiled()
    if why_none:
        tell(f"engine native: {why_none}: torch computes the convolutions instead, which takes longer")
    return lane_count


@functools.cache
def compiled() -> tuple[int, str]:
    """Return how many numbers a vector has here, and ""; or 0, and why there is no code for this machine.

    Decided by what the machine is and has installed, not by a measurement: all its processes must round in the same
    way.
    """
    lane_count = _LANES.get(torch.backends.cpu.get_cpu_capability(), 0)
    try:
        if not lane_count:
            raise RuntimeError("no machine code for processors without AVX2")
        _team(), _code(lane_count)
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        return 0, str(error)
    return lane_count, ""


def run(arguments: Sequence[int]) -> None:
    """Have all of torch's threads run the code. The first argument, 0, counts the tasks that were taken."""
    numbers = (ctypes.c_int64 * len(arguments))(*arguments)
    _team()(_code(lanes()).address, numbers, torch.get_num_threads(), 0)


@functools.cache
def _team() -> Callable[..., None]:
    """Return the entry point of the OpenMP library that torch uses, which runs a function on all its threads.

    Raises RuntimeError if that library is unknown.
    """
    library_paths = [row["filepath"] for row in threadpoolctl.threadpool_info() if row["user_api"] == "openmp"]
    torch_folder = Path(torch.__file__).resolve().parent  # an environment may be reached by a link
    of_torch = [path for path in library_paths if Path(path).resolve().is_relative_to(torch_folder)] or library_paths
    parallel = getattr(ctypes.CDLL(of_torch[0]), "GOMP_parallel", None) if len(of_torch) == 1 else None
    if parallel is None:
        raise RuntimeError("torch uses several OpenMP libraries")
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    parallel.restype = None
    return parallel


@functools.cache
def _code(lanes: int) -> Code:
    """Return the code for vectors of `lanes` numbers, ready to run.

    Raises OSError, RuntimeError or SubprocessError if it cannot be compiled.
    """
    path = _path(lanes)
    return _placed((_kept(path) if path else None) or _compiled(lanes, path))


def _path(lanes: int) -> Path | None:
    """Return where the code is kept: under the hash of all that decides it. None for a user without a home.

    Raises RuntimeError without llvmlite, which makes it.
    """
    try:
        version = metadata.version("llvmlite")
    except metadata.PackageNotFoundError:
        raise RuntimeError("llvmlite is not installed") from None
    facts = (cpu.facts().get(key, "") for key in ("vendor_id", "cpu family", "model", "flags"))
    digest = hashlib.sha256("\n".join((version, str(lanes), *facts)).encode())
    for name in ("assembler.py", "direct.py", "direct_code.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    with suppress(RuntimeError):
        return user_cache() / "kernels" / f"direct-{digest.hexdigest()[:32]}.code"
    return None


def _kept(path: Path) -> bytes | None:
    """Return the code that a file holds; None if there is none, it is damaged, or others may have written it.

    It is run as it is, and its seal is a checksum that anybody can make: file and folder must be the user's own.
    """
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not _is_own(os.fstat(folder)):
            return None  # said where it is written
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(path.name, flags, dir_fd=folder), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or not _is_own(status):
                warnings.warn(f"{path}: other users can write this file, so it is compiled again", stacklevel=2)
                return None
            return unsealed(file.read())
    except OSError:
        return None
    finally:
        os.close(folder)


def _is_own(status: os.stat_result) -> bool:
    """Return whether this user alone may write to a file or folder."""
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _keep(path: Path, code: bytes) -> None:
    """Keep the code for the next process, in a folder of the user's own; raises OSError if there can be none."""
    folder = path.parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    if status.st_uid == os.geteuid() and status.st_mode & 0o022:
        folder.chmod(0o700)  # an earlier version made it; what others put into it is told by its owner
    elif not _is_own(status):
        raise OSError(errno.EPERM, "another user's folder", str(folder))
    write_atomic(path, sealed(code), private=True)


def _compiled(lanes: int, path: Path | None) -> bytes:
    """Compile the code in a process of its own, which takes LLVM's memory with it; keep it in a file, where one can be.

    Raises RuntimeError with the last line of what went wrong.
    """
    command = python_command("sparsepipe.engines.native.direct_code", str(lanes))
    done = subprocess.run(command, check=False, capture_output=True, timeout=_SECONDS, env=python_environment())
    if done.returncode:
        compiler_output = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(f"its machine code could not be compiled ({compiler_output[-1]})")
    if path:
        try:
            _keep(path, done.stdout)
        except OSError as error:
            why = error.strerror or error
            warnings.warn(f"{path}: cannot be written ({why}); code is compiled again next time", stacklevel=2)
    return done.stdout


def _placed(code: bytes) -> Code:
    """Copy code into memory that can be run and no longer written."""
    memory = mmap.mmap(-1, len(code))
    memory.write(code)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    if libc.mprotect(address, len(code), _READ_AND_EXECUTE):
        number = ctypes.get_errno()
        raise OSError(number, f"executable memory is not allowed: {os.strerror(number)}")
    return Code(address, memory)
