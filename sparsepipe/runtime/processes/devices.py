"""Whether a process's device is on this machine."""

import torch

from ...errors import InputError
from ...util.text.numbers import number_of


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
            f"cuda:{count - 1}, or cuda to assign a device to each process",
        )
