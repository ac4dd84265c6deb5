"""The hosts of a Slurm job, by the variables that Slurm sets in it.

    SLURM_JOB_NODELIST=gpu[01-03,07],login     gpu01, gpu02, gpu03, gpu07 and login
    SLURM_TASKS_PER_NODE=2(x3),1,1             tasks, a rank each, on each of them
    SLURM_GPUS_PER_NODE=a100:4                 ranks on each of them if no tasks are listed
    SLURM_JOB_NODELIST_HET_GROUP_1=big[1-2]    of the second component of a heterogeneous job, likewise the others

Ranks are numbered component by component. Before Slurm 20.02 the ending was _PACK_GROUP_1.
Source: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; scontrol(1), "hostlist expressions"; "Heterogeneous Job Support".
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TypeVar

from ....errors import InputError
from ....util.io.fields import MOST_DEVICES, shown
from ....util.text.numbers import number_of
from ....values.cluster import Cluster, DeviceType, Link, Node


@dataclass(frozen=True, slots=True)
class Host:
    """A host, which is its own address; `gpus` are the numbers of its GPUs where a file says which."""

    name: str
    num_devices: int
    ssh: str = ""  # such as user@name:2222, where the file names a user or a port
    gpus: tuple[int, ...] = ()

    @property
    def environment(self) -> tuple[tuple[str, str], ...]:
        return (("CUDA_VISIBLE_DEVICES", ",".join(map(str, self.gpus))),) if self.gpus else ()


@dataclass(frozen=True, slots=True)
class Unsaid:
    """Facts missing in those files: the type of the devices, their memory, and the links inside and between hosts."""

    device_type: str = "device"
    memory_bytes: float = float("inf")
    link: Link = Link()
    network: Link = Link()


def cluster_of_hosts(hosts: Sequence[Host], unsaid: Unsaid) -> Cluster:
    """The hosts as nodes of like devices; ranks are numbered host by host, in the file's order.

    Raises InputError for no hosts, two of one name, and more devices than a cluster may have.
    """
    if not hosts:
        raise InputError("hostfile.no_hosts", "the file lists no hosts, expected at least one")
    names = [host.name for host in hosts]
    if len(set(names)) < len(names):
        twice = max(names, key=names.count)
        raise InputError(
            "hostfile.host_twice", f"host {shown(twice)} is listed twice; list it once, with all its devices"
        )
    if (count := sum(host.num_devices for host in hosts)) > MOST_DEVICES:
        raise InputError(
            "hostfile.too_many_devices",
            f"{shown(count)} devices, expected at most {MOST_DEVICES}: correct the device counts",
        )
    kind = DeviceType(unsaid.device_type, unsaid.memory_bytes)
    made = (
        Node(
            each_host.name,
            (kind,) * each_host.num_devices,
            unsaid.link,
            each_host.name,
            each_host.ssh,
            environment=each_host.environment,
        )
        for each_host in hosts
    )
    return Cluster(tuple(made), unsaid.network)


_NODELISTS = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
_TASK_COUNTS = ("SLURM_TASKS_PER_NODE",)
_COUNTS_OF_ALL = ("SLURM_NTASKS_PER_NODE", "SLURM_GPUS_PER_NODE")  # if Slurm does not list the tasks of each host
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_TASKS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")
T = TypeVar("T")


def expand(text: str) -> tuple[str, ...]:
    """The hosts of a hostlist expression, in its order. Raises InputError for one that is none, or far too long."""
    names: list[str] = []
    for part in _split(text):
        names += _hosts(part)
        if len(names) > MOST_DEVICES:
            raise InputError(
                "hostfile.too_many_hosts", f"{shown(text)} gives more than {MOST_DEVICES} hosts; correct the host range"
            )
    return tuple(names)


def hosts_of_job(variables: Mapping[str, str]) -> tuple[Host, ...]:
    """Return the hosts of the job in which this runs, of all its components, with a device for each task.

    A host that two components share has the devices of both. Raises InputError outside of a job.
    """
    devices: dict[str, int] = {}
    for suffix in _suffixes(variables):
        names = _read(variables, suffix, _NODELISTS, expand)
        if names is None:
            raise InputError(
                "slurm.not_a_job",
                f"SLURM_JOB_NODELIST{suffix} is not set, so this is not a Slurm job; run the command within sbatch "
                "or salloc",
            )
        counts = _read(variables, suffix, _TASK_COUNTS, partial(_counts, num_hosts=len(names)))
        counts = counts or [_read(variables, suffix, _COUNTS_OF_ALL, _count_of_all) or 1] * len(names)
        for name, count in zip(names, counts, strict=True):
            devices[name] = devices.get(name, 0) + count
    return tuple(Host(name, count) for name, count in devices.items())


def _suffixes(variables: Mapping[str, str]) -> list[str]:
    """The endings of the variables' names, one for each component of a heterogeneous job; one empty ending for others.

    Without the endings, a heterogeneous job has the variables of its first component alone.
    """
    for group, size in (("_HET_GROUP_", "SLURM_HET_SIZE"), ("_PACK_GROUP_", "SLURM_PACK_SIZE")):
        listed = re.compile(rf"SLURM_JOB_NODELIST{group}([0-9]{{1,5}})")
        numbers = {int(match[1]) for name in variables if (match := listed.fullmatch(name))}
        count = variables.get(size, str(len(numbers)))
        if count != str(len(numbers)) or numbers != set(range(len(numbers))):
            raise InputError(
                "slurm.group_count",
                f"{size} is {shown(count)}, but the job has SLURM_JOB_NODELIST{group}N only for N = "
                f"{sorted(numbers)[:8]}; run the command in the batch script",
            )
        if numbers:
            return [f"{group}{number}" for number in sorted(numbers)]
    return [""]


def _read(variables: Mapping[str, str], suffix: str, names: Sequence[str], read: Callable[[str], T]) -> T | None:
    """Read the first of the variables that is set, None if none is. Raises InputError that names it."""
    for name in (f"{name}{suffix}" for name in names):
        if text := variables.get(name):
            try:
                return read(text)
            except InputError as error:
                raise error.within(f"{name} = {shown(text)}: ") from None
    return None


def _split(text: str) -> list[str]:
    """The parts between commas that are outside of brackets."""
    parts, depth, begin = [], 0, 0
    for char_index, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if not 0 <= depth <= 1:
            break
        if letter == "," and not depth:
            parts.append(text[begin:char_index])
            begin = char_index + 1
    parts.append(text[begin:])
    if depth or not all(part.strip() for part in parts):
        raise InputError(
            "slurm.hosts_malformed",
            f"{shown(text)} is not a list of hosts, expected one such as gpu[01-03,07],login",
        )
    return [part.strip() for part in parts]


def _hosts(part: str) -> list[str]:
    pieces = _BRACKETS.split(part)  # text, ranges, text, ranges, …, text
    choices = [_numbers(piece, part) if piece_index % 2 else [piece] for piece_index, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST_DEVICES:
        raise InputError(
            "hostfile.too_many_hosts",
            f"{shown(part)} is {number_of(count, 'host')}, expected at most {MOST_DEVICES}: correct the range",
        )
    return ["".join(chosen) for chosen in product(*choices)]


def _numbers(ranges: str, part: str) -> list[str]:
    """The numbers of `01-03,07` as they are written: zeros in front of the first are kept."""
    numbers: list[str] = []
    for range_text in ranges.split(","):
        match = _RANGE.fullmatch(range_text)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(first) > int(last):
            raise InputError(
                "slurm.range_malformed",
                f"{shown(part)}: malformed range {shown(range_text)}, expected a range such as 01-03 with the "
                "smaller number first",
            )
        if int(last) - int(first) >= MOST_DEVICES:
            raise InputError(
                "hostfile.too_many_hosts",
                f"{shown(part)}: range {shown(range_text)} gives more than {MOST_DEVICES} hosts; correct it",
            )
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        if len(numbers) > MOST_DEVICES:
            raise InputError(
                "hostfile.too_many_hosts", f"{shown(part)}: more than {MOST_DEVICES} hosts; correct the host ranges"
            )
    return numbers


def _counts(text: str, num_hosts: int) -> list[int]:
    """Tasks of each host."""
    counts: list[int] = []
    for count_text in text.split(","):
        match = _TASKS.fullmatch(count_text)
        if not match or int(match[1]) < 1 or int(match[2] or 1) > MOST_DEVICES:
            raise InputError("slurm.counts_malformed", "expected counts such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
        if len(counts) > num_hosts:
            break
    if len(counts) != num_hosts:
        raise InputError(
            "slurm.count_differs",
            f"is for {number_of(len(counts), 'host')}, but the host list has {num_hosts}",
            num_hosts=num_hosts,
        )
    return counts


def _count_of_all(text: str) -> int:
    """A count of every host: `4`, or of GPUs by their types, `a100:2,v100:1`."""
    counts = [count_text.rpartition(":")[2] for count_text in text.split(",")]
    if not all(count.isascii() and count.isdigit() and len(count) < 6 for count in counts):
        raise InputError("slurm.devices_malformed", "expected a device count such as 4 or a100:4")
    return sum(map(int, counts))
