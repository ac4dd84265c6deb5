"""Which GPU a worker computes on, for whoever watches it: logs/rankN.gpu has its UUID.

CUDA numbers the GPUs that a process may see, and in an order of its own; by its UUID everybody means the same one.
"""

from contextlib import suppress
from pathlib import Path
from typing import Any


def uuid_of(device: Any) -> str:
    """Return the UUID of a torch.device that is a GPU."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid)


def tell_gpu(logs: Path, rank: int, device: Any) -> None:
    """Write down which GPU a rank computes on."""
    with suppress(OSError):  # a full disk: nobody watches its GPU then
        (logs / f"rank{rank}.gpu").write_text(f"{uuid_of(device)}\n")


def forget_gpu(logs: Path, rank: int) -> None:
    """Remove what a worker of that rank wrote before."""
    (logs / f"rank{rank}.gpu").unlink(missing_ok=True)


def gpu_of(logs: Path, rank: int) -> str | None:
    """Return the UUID of the GPU that a rank computes on; None if it has not told of one."""
    with suppress(OSError, ValueError):
        return (logs / f"rank{rank}.gpu").read_text().strip() or None
    return None
