"""The C allocator of this process: let it keep the memory of freed tensors, and read how much is in use."""

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

# of glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 2**30  # free memory at the heap's end that stays
_LARGEST_BYTES = 2**25  # more than glibc allows; larger tensors come straight from the system where no room is left
_RETURNED_BYTES = 2**16  # of a tensor that comes from the system and goes back to it
_ROOM_BYTES = _KEPT_BYTES - 2 * _LARGEST_BYTES  # for them, at the heap's end: less than what would be given back


@functools.cache
def keep_freed_memory() -> bool:
    """Tell glibc's malloc, once a process, to keep freed memory; return whether it is there and did.

    A training step allocates and frees all its gradients and activations; to fault their pages in again takes about a
    twentieth of it. The heap gets room at its end, which costs nothing until it is used, for tensors too large to be
    kept otherwise: VGG16's widest layer takes 1.6 times as long where each of its gradients is faulted in. The price is
    memory: holes between what is kept, some 80 MB in a stage of a dense VGG16. False after `return_freed_memory`.
    """
    if return_freed_memory.cache_info().currsize or not _set_thresholds(_LARGEST_BYTES, _KEPT_BYTES):
        return False
    _make_room(ctypes.CDLL(None))
    return True


@functools.cache
def return_freed_memory() -> None:
    """Tell glibc's malloc, once a process, to give freed memory back, as under a limit: it takes a twentieth longer.

    Larger tensors then come straight from the system, so that no holes are left between those that stay. Call it before
    an engine opens: what stays above the room of `keep_freed_memory` would hold that room, and tensors would fill it.
    """
    if _set_thresholds(_RETURNED_BYTES, _RETURNED_BYTES):
        ctypes.CDLL(None).malloc_trim(0)


def _set_thresholds(mmap_bytes: int, trim_bytes: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(mallopt(_MMAP_THRESHOLD, mmap_bytes) and mallopt(_TRIM_THRESHOLD, trim_bytes))


def _make_room(libc: Any) -> None:
    """Let the heap grow, untouched, by blocks that come from it, and give the blocks back: its end stays."""
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    libc.free.argtypes, libc.free.restype = [ctypes.c_void_p], None
    block = _LARGEST_BYTES // 2
    blocks = [libc.malloc(block) for _ in range(_ROOM_BYTES // block)]
    for address in blocks:  # free takes what could not be had, too
        libc.free(address)


class _MallocInfo(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    )


def allocated_bytes(device: torch.device) -> Callable[[], int]:
    """Return a function of the bytes in use: of a GPU's tensors, or of this process's heap; 0 if neither is known."""
    if device.type == "cuda":
        return lambda: torch.cuda.memory_allocated(device)
    mallinfo2 = _mallinfo2()
    if mallinfo2 is None:
        return lambda: 0

    def heap() -> int:
        info = mallinfo2()
        return int(info.uordblks + info.hblkhd)

    return heap


def free_bytes() -> int:
    """Return the bytes of this process's heap that are free, but not given back; 0 if that is unknown."""
    mallinfo2 = _mallinfo2()
    return int(mallinfo2().fordblks) if mallinfo2 else 0


def _mallinfo2() -> Callable[[], _MallocInfo] | None:
    """Return glibc's function of that name; None for an older glibc, and for another library."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None) if sys.platform.startswith("linux") else None
    if mallinfo2 is not None:
        mallinfo2.restype = _MallocInfo
    return mallinfo2
