"""The device that is measured on: whether it is available, what it is called, how many threads work there."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from threadpoolctl import threadpool_limits

from ..errors import InputError
from ..util.host import cpu


def usable(name: str | torch.device) -> torch.device:
    """Return a device by name. Raises InputError for one that is missing."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InputError("device.malformed", f"device {name!r}: {str(error).splitlines()[0]}") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(
            "device.no_cuda",
            f"device {str(device)!r}: torch finds {torch.cuda.device_count()} CUDA devices on this machine; use 'cpu'",
        )
    return device


def num_gpus() -> int:
    """Return how many GPUs torch sees."""
    return torch.cuda.device_count()


def made_current(device: torch.device) -> torch.device:
    """Have a GPU be the current one: Triton's kernels run there, whichever their tensors are on. Returns the device.

    "cuda" without a number is the one that is current already.
    """
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)
    return device


def device_name(device: torch.device) -> str:
    """Return the product name of a GPU, or of this machine's processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return cpu.name() or platform.machine()


@contextmanager
def limited_to(threads: int) -> Iterator[None]:
    """Keep torch, OpenMP and the BLAS libraries (MinkowskiEngine brings its own) to `threads` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with threadpool_limits(threads):
            yield
    finally:
        torch.set_num_threads(before)
