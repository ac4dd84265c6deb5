"""Hostfiles of ssh, mpirun and DeepSpeed, and files with a host list of Slurm: a host or several a line.

gpu1 slots=4          four devices
me@10.0.0.2 slots=2   reached as that user
gpu3                  one device
node[01-03,07] slots=8   # a list as Slurm writes it: each of them has eight
"""

from pathlib import Path

from ...errors import InputError
from ...io.fields import MOST_DEVICES, shown
from ...io.files import read_text
from .hosts import Host, with_user
from .slurm import expand

_KNOWN = ("slots", "max_slots", "max-slots")  # the latter bound what mpirun may start beyond the slots


def load_hostfile(path: Path | str) -> tuple[Host, ...]:
    """Read a hostfile. Raises InputError that names file and line."""
    hosts: list[Host] = []
    lines: dict[str, int] = {}  # host → line
    for number, line in enumerate(read_text(path, what="hostfile").splitlines(), start=1):
        words = line.partition("#")[0].split()
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
    count = 1
    name, colon, slots = words[0].rpartition(":")
    if colon and ":" not in name and slots.isascii() and slots.isdigit():  # as MPICH has it; an IPv6 address has more
        raise InputError(f"host {shown(words[0])}: expected {name} slots={slots}, a host a line")
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in _KNOWN:
            raise InputError(f"{shown(word)} after host {shown(words[0])}: expected slots=N, a host a line")
        if not (value.isascii() and value.isdigit() and len(value) < 7 and 1 <= int(value) <= MOST_DEVICES):
            raise InputError(f"host {shown(words[0])} has {key} = {shown(value)}: expected a whole number, 1 or more")
        count = int(value) if key == _KNOWN[0] else count
    made = []
    for text in expand(words[0]):
        name, ssh = with_user(text)
        made.append(Host(name, count, ssh))
    return made
