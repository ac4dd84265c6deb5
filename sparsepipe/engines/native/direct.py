"""Convolution on the CPU without gathered rows or products in memory: calls the machine code of direct_code.py.

Half precision is widened to single, multiplied and summed there: so the result is rounded once. (Products in bfloat16
proper are oneDNN's, which makes code for each number of rows, and a kernel map has other numbers in every minibatch.)
Tiles of output rows are as large as leaves every thread several tasks: the larger, the more pairs share what is packed
of a matrix.
"""

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
from torch import Tensor

from ...data.folder import user_cache
from ...util.host import cpu
from ...util.host.imports import python_command, python_environment
from ...util.io.files import sealed, unsealed, write_atomic
from ...util.io.options import tell
from .kernel_map import KernelMap

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


# The arguments of the code, int64 each: addresses of float32 or int64 numbers, sizes and strides in numbers.
CONVOLVE = (
    *("counter", "operation", "num_tasks"),
    *("features", "kernel", "output", "in_rows", "out_rows"),
    "starts",  # [K, num_tiles + 1]: where each tile's pairs start
    *("num_offsets", "num_inputs", "num_outputs", "offset_stride", "row_stride"),
    "transposed",  # 0, 1: whether rows of a matrix in memory are columns of the one to multiply by
    *("num_rows", "tile_rows", "num_tiles"),
    *("inputs_at_a_time", "once"),  # once, 0, 1: whether every output row has exactly one pair
)
GRADIENT = (
    *("counter", "operation", "num_tasks"),
    *("features", "gradients", "output", "in_rows", "out_rows"),
    "starts",  # [K + 1]: where each offset's pairs start
    *("num_inputs", "num_outputs"),
    *("block_inputs", "num_blocks"),  # inputs of a task, tasks of an offset for each block of columns
)
LANES = (16, 8)  # of vectors of float32 numbers: AVX-512 has the first, AVX2 the others
MOST_INPUTS = 128  # of a task at a time: with a block of columns they fill the first-level cache

_OPERATIONS = ("convolve", "gradient")
_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_TASKS = 4  # for each thread, at least, where there is enough to do: one that was kept from its work holds up less
_LEAST_PART = 16  # inputs
_LEAST_TILE_ROWS, _MOST_TILE_ROWS = 64, 1024


def operation(lanes: int, name: str) -> int:
    """Return the number by which the machine code knows an operation on vectors of `lanes` numbers."""
    return len(_OPERATIONS) * LANES.index(lanes) + _OPERATIONS.index(name)


def columns_at_a_time(lanes: int) -> int:
    """Return how many columns of a row a task takes: four vectors if there are 32 registers, else two."""
    return 64 if lanes == 16 else 16


def suits(features: Tensor, kernel: Tensor) -> bool:
    """Return whether to convolve here: in single or half precision on a CPU, output rows of whole vectors.

    If matrices are transposes, input rows too.
    """
    if features.dtype not in _TYPES or features.device.type != "cpu":
        return False
    return _lanes_for(kernel) > 0


def convolve(features: Tensor, kernel: Tensor, kernel_map: KernelMap) -> Tensor:
    """Convolve features [N_in, A] with a kernel [K, A, B], or one whose matrices are transposes; return [N_out, B]."""
    dtype, features, kernel = features.dtype, features.float().contiguous(), kernel.float()
    transposed, lanes = _is_transposed(kernel), _lanes_for(kernel)
    if not transposed and kernel.stride(2) != 1:
        kernel = kernel.contiguous()
    num_offsets, num_inputs, num_outputs = kernel.shape
    output = features.new_empty(kernel_map.num_out, num_outputs)
    blocks = _num_parts(num_outputs, columns_at_a_time(lanes))
    tile_rows = _tile_rows(len(output), blocks)
    pairs, starts = kernel_map.pairs, kernel_map.tiles(tile_rows)
    num_tiles = starts.shape[1] - 1
    run(
        (
            *(0, operation(lanes, "convolve"), num_tiles * blocks),
            *_addresses(features, kernel, output, pairs.in_rows, pairs.out_rows, starts),
            *(num_offsets, num_inputs, num_outputs, kernel.stride(0), kernel.stride(2 if transposed else 1)),
            *(int(transposed), len(output), tile_rows, num_tiles, _part(num_inputs, MOST_INPUTS)),
            int(kernel_map.pairs_outputs_once),
        )
    )
    return output.to(dtype)


def kernel_gradient(features: Tensor, grad_output: Tensor, kernel_map: KernelMap) -> Tensor:
    """Return a kernel's gradient, float32 [K, A, B], by features [N_in, A] and the output's gradient [N_out, B]."""
    features, grad_output, pairs = features.float().contiguous(), grad_output.float().contiguous(), kernel_map.pairs
    num_offsets, num_inputs, num_outputs = len(pairs.counts), features.shape[1], grad_output.shape[1]
    kernel_gradients = features.new_empty(num_offsets, num_inputs, num_outputs)
    lanes = _lanes(num_outputs)
    blocks = num_offsets * _num_parts(num_outputs, columns_at_a_time(lanes))
    most = MOST_INPUTS
    while most > _LEAST_PART and blocks * _num_parts(num_inputs, most) < _TASKS * torch.get_num_threads():
        most //= 2
    num_blocks = _num_parts(num_inputs, most)
    run(
        (
            *(0, operation(lanes, "gradient"), blocks * num_blocks),
            *_addresses(features, grad_output, kernel_gradients, pairs.in_rows, pairs.out_rows, kernel_map.starts),
            *(num_inputs, num_outputs, _part(num_inputs, most), num_blocks),
        )
    )
    return kernel_gradients


def _is_transposed(kernel: Tensor) -> bool:
    return kernel.stride(1) == 1 and kernel.stride(2) != 1


def _lanes_for(kernel: Tensor) -> int:
    """Return the lanes for products by a kernel: of matrices that are transposes, input rows are whole vectors too."""
    return _lanes(*kernel.shape[1 if _is_transposed(kernel) else 2 :])


def _lanes(*widths: int) -> int:
    """Return the most lanes that vectors may have for rows of these widths to be whole ones; 0 if there are none."""
    most = lanes()
    return next((lanes for lanes in LANES if lanes <= most and not any(width % lanes for width in widths)), 0)


def _addresses(*tensors: Tensor) -> Sequence[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _num_parts(count: int, most: int) -> int:
    return -(-count // most)


def _part(count: int, most: int) -> int:
    """Return how large the parts of `count` are: at most `most`, all but the last equal, multiples of `_LEAST_PART`."""
    return _LEAST_PART * _num_parts(count, _LEAST_PART * _num_parts(count, most))


def _tile_rows(num_rows: int, blocks: int) -> int:
    """Return a power of two, so that layers of like widths share their tiles."""
    rows = _MOST_TILE_ROWS
    while rows > _LEAST_TILE_ROWS and _num_parts(num_rows, rows) * blocks < _TASKS * torch.get_num_threads():
        rows //= 2
    return rows
