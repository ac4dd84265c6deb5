"""Hostfiles of ssh, mpirun and DeepSpeed, and files with a host list of Slurm: a host or several a line.

gpu1 slots=4          four devices
me@10.0.0.2 slots=2   reached as that user
gpu3                  one device
gpu4:4                four devices, as MPICH writes it
gpu5:2222             one device, reached through ssh at that port, as [gpu5]:2222 and ssh://gpu5:2222 are
[2001:db8::1]:22 slots=2   two devices, at port 22: with slots=, the number after a colon is a port
node[01-03,07] slots=8     # a list as Slurm writes it: each of them has eight
"""

import re
from pathlib import Path

from ...errors import InputError
from ...host.ssh import Destination
from ...io.fields import MOST_DEVICES, shown
from ...io.files import read_text
from .hosts import Host
from .slurm import expand

_KNOWN = ("slots", "max_slots", "max-slots")  # the latter bound what mpirun may start beyond the slots
_LEAST_PORT, _LEAST_FREE_PORT = 22, 1024  # below: slots, no sshd listens there; from there on: a port; between: either


def load_hostfile(path: Path | str) -> tuple[Host, ...]:
    """Read a hostfile. Raises InputError that names file and line."""
    hosts: list[Host] = []
    lines: dict[str, int] = {}  # host → line
    for number, line in enumerate(read_text(path, what="hostfile").splitlines(), start=1):
        words = re.sub(r"\s*=\s*", "=", line.partition("#")[0]).split()
        if not words:
            continue
        try:
            for host in _hosts(words):
                if host.name in lines:
                    raise InputError(
                        f"host {shown(host.name)} is there again, as in line {lines[host.name]}: list it once, with "
                        "slots=N for all its devices"
                    )
                lines[host.name] = number
                hosts.append(host)
            if len(hosts) > MOST_DEVICES:
                raise InputError(f"more than {MOST_DEVICES} hosts: correct the ranges")
        except InputError as error:
            raise InputError(f"{path}:{number}: {error}") from None
    if not hosts:
        raise InputError(f"{path}: names no hosts: expected a line for each, such as 'gpu1 slots=4'")
    return tuple(hosts)


def _hosts(words: list[str]) -> list[Host]:
    slots: int | None = None
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in _KNOWN:
            raise InputError(f"{shown(word)} after host {shown(words[0])}: expected slots=N, a host a line")
        count = _count(words[0], key, value)
        slots = count if key == _KNOWN[0] else slots
    return [_host(text, slots) for text in _destinations(words[0])]


def _destinations(text: str) -> list[str]:
    """The hosts that one word names: one, or those of a list as Slurm writes it, each with the number after it."""
    try:
        Destination.parse(text)
        if "," not in text:
            return [text]
    except InputError:
        pass
    listed, colon, number = text.rpartition(":")
    if not (colon and number.isascii() and number.isdigit()):
        listed, number = text, ""
    if ":" in listed:
        raise InputError(f"host {shown(text)}: expected host:port or slots=N, a host a line")
    return [f"{name}:{number}" if number else name for name in expand(listed)]


def _host(text: str, slots: int | None) -> Host:
    try:
        destination = Destination.parse(text)
    except InputError as error:
        raise InputError(f"host {error}; devices are written slots=N, a host a line") from None
    number = destination.port
    if number is None:
        port = None
    elif slots is not None or number >= _LEAST_FREE_PORT or text.startswith("ssh://"):
        port = number
    elif number < _LEAST_PORT:
        slots, port = number, None
    else:
        host = destination._replace(port=None)
        raise InputError(
            f"host {shown(text)}: is {number} a number of devices or the port of ssh? Write '{host} slots={number}' or "
            f"'{destination} slots=1'"
        )
    ssh = destination._replace(port=port)
    return Host(ssh.host, slots or 1, str(ssh) if ssh.user or ssh.port else "")


def _count(host: str, key: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 7 and 1 <= int(value) <= MOST_DEVICES):
        raise InputError(f"host {shown(host)} has {key} = {shown(value)}: expected a whole number, 1 or more")
    return int(value)
