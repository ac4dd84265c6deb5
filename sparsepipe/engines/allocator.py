"""Keep memory that tensors have let go of in the process, rather than give it back and take it again page by page."""

import ctypes
import functools
import sys

# of glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 2**30  # free memory at the heap's end that stays
_LARGEST_BYTES = 2**25  # tensors above it, more than glibc allows, still come straight from the system


@functools.cache
def keep_freed_memory() -> bool:
    """Tell glibc's malloc, once a process, to keep freed memory; return whether it is there and did.

    A training step allocates and frees all its gradients and activations; to fault their pages in anew takes about a
    twentieth of it. The price is memory: holes between what is kept, some 80 MB in a stage of a dense VGG16.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    return mallopt is not None and bool(
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    )
