"""Work that keeps a GPU's arithmetic units busy, or its memory. Each step ends when the GPU has done it."""

from collections.abc import Callable

import torch

_ROWS = 4096  # of matrices: enough to have all units at work
_STREAM_BYTES = 512_000_000  # more than any cache


def products(device: torch.device) -> Callable[[], None]:
    """Products of two float32 matrices."""
    a, b = (torch.rand(_ROWS, _ROWS, device=device) for _ in range(2))
    out = torch.empty_like(a)

    def step() -> None:
        torch.mm(a, b, out=out)
        torch.cuda.synchronize(device)

    return step


def copies(device: torch.device) -> Callable[[], None]:
    """Copies from one array to another."""
    source, target = (torch.ones(_STREAM_BYTES // 4, device=device) for _ in range(2))

    def step() -> None:
        target.copy_(source)
        torch.cuda.synchronize(device)

    return step
