"""Whether a process's device is on this machine."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from ...errors import InputError
from ...util.text.counting import number_of


def check_device(name: str) -> None:
    """Raise InputError for a CUDA device, "cuda" or "cuda:1", that is missing."""
    if not name.startswith("cuda"):
        return
    count = torch.cuda.device_count()  # leaves CUDA alone, which a process that has begun with it cannot fork any more
    if not count:
        text = f"device {name!r} given, but this machine has no CUDA device; use {{device}}"
        raise InputError("device.no_cuda", text, setting={"device": "cpu"})
    _, _, number = name.partition(":")
    if number and not (number.isdecimal() and int(number) < count):
        raise InputError(
            "device.unknown",
            f"device {name!r} given, but this machine has {number_of(count, 'CUDA device')}; use cuda:0 to "
            f"cuda:{count - 1}, or cuda, which gives each process its own device",
        )


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
