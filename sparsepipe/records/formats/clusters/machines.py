"""The `machines:` of PipeDream's and SparsePipe's driver yml: a GPU of a host for each rank.

    machines: ['server0:0', 'server0:1', 'server1:4', 'server1:5']     ranks 0 to 3

The numbers are the hosts' own: `server1:4` is the GPU that is number 4 there, and no other is seen by the worker.
Source: the driver of PipeDream's runtime, where WorkerInfo reads an entry.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....errors import InputError
from ....util.io.fields import MOST_DEVICES, shown
from ....util.text.counting import number_of
from ..pipedream_conf import checked_values
from .slurm import Host

_FORM = "'host:gpu', such as 'server0:0'"


def hosts_of_machines(path: Path, document: Mapping[str, Any]) -> tuple[Host, ...]:
    """The hosts of a driver file, in its order.

    Raises InputError that names the file and the entry, or a key or value that is none of a driver file's.
    """
    try:
        checked_values(document)
        return _hosts(document.get("machines"))
    except InputError as error:
        raise error.within(f"{path}: ") from None


def _hosts(entries: object) -> tuple[Host, ...]:
    if not isinstance(entries, list) or not entries:
        raise InputError("machines.malformed", f"machines is {shown(entries)}, expected a list of {_FORM}")
    if len(entries) > MOST_DEVICES:
        raise InputError(
            "hostfile.too_many_devices",
            f"machines lists {number_of(len(entries), 'GPU')}, expected at most {MOST_DEVICES}; list fewer GPUs",
        )
    devices_by_host: dict[str, list[int]] = {}
    last = None
    for index, entry in enumerate(entries):
        host, gpu = _entry(index, entry)
        if host in devices_by_host and host != last:
            raise InputError(
                "machines.host_scattered",
                f"machines[{index}]: host {shown(host)} occurs again after {shown(last)}; list all GPUs of a host "
                "together, because ranks are numbered by host",
            )
        if gpu in devices_by_host.setdefault(host, []):
            raise InputError(
                "machines.device_twice",
                f"machines[{index}]: {shown(entry)} is listed twice, but each GPU is one rank; remove one entry",
            )
        devices_by_host[host].append(gpu)
        last = host
    return tuple(Host(host, len(gpus), gpus=tuple(gpus)) for host, gpus in devices_by_host.items())


def _entry(place: int, entry: object) -> tuple[str, int]:
    host, colon, gpu = entry.rpartition(":") if isinstance(entry, str) else ("", "", "")
    if not host or not colon or not (gpu.isascii() and gpu.isdigit() and len(gpu) < 6):
        raise InputError("machines.malformed", f"machines[{place}] is {shown(entry)}, expected {_FORM}")
    return host, int(gpu)
