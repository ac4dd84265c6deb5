"""Where victims and intruders compute: the processors that this process may use, and the GPUs that torch sees."""

import os
from collections.abc import Sequence
from typing import Any

from ...errors import InputError
from ...util.host.background_load import processors_of
from ...util.io.fields import shown

CPU, GPU = "cpu", "cuda"


def places(device: str) -> list[int]:
    """Return the numbers of the processors that this process may use; with "cuda" of the GPUs that torch sees."""
    if device == CPU:
        return sorted(processors_of()) or list(range(os.cpu_count() or 1))
    from ...profiling.devices import num_gpus

    return list(range(num_gpus()))


def check_places(device: str, numbers: Sequence[int]) -> None:
    """Raise InputError if there is no such processor that this process may use, or no such GPU, or none is given."""
    here = places(device)
    if numbers and not set(numbers) - set(here):
        return
    name = "cores" if device == CPU else "GPUs"
    told = f"{name} {shown(list(numbers))}" if numbers else f"no {name}"
    if not here:
        raise InputError("device.no_cuda", f"{told} given, but torch finds no CUDA device; give CPU cores instead")
    raise InputError(
        "intruder.core_unusable",
        f"{told} given, but this process can use {', '.join(map(str, here))}; choose some of these",
    )


def device_here() -> str:
    """Return "cuda" where torch sees a GPU, else "cpu"."""
    return GPU if places(GPU) else CPU


def device_at(device: str, number: int) -> str:
    """Return how torch calls a processor, which it does not distinguish, or a GPU."""
    return device if device == CPU else f"{device}:{number}"


def torch_device(name: str) -> Any:
    """Return a torch.device, the current one from now on where it is a GPU. Raises InputError for one not here."""
    from ...profiling.devices import made_current, usable

    return made_current(usable(name))
