"""The hosts of a Slurm job, by the variables that Slurm sets in it.

    SLURM_JOB_NODELIST=gpu[01-03,07],login     gpu01, gpu02, gpu03, gpu07 and login
    SLURM_TASKS_PER_NODE=2(x3),1,1             tasks, a rank each, on each of them

Source: sbatch(1), "OUTPUT ENVIRONMENT VARIABLES"; scontrol(1), "hostlist expressions".
"""

import re
from collections.abc import Mapping
from itertools import product

from ...display.counting import number_of
from ...errors import InputError
from ...io.fields import MOST_DEVICES, shown
from .hosts import Host

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_TASKS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")


def expand(text: str) -> tuple[str, ...]:
    """The hosts of a hostlist expression, in its order. Raises InputError for one that is none, or far too long."""
    names: list[str] = []
    for part in _split(text):
        names += _hosts(part)
        if len(names) > MOST_DEVICES:
            raise InputError(f"{shown(text)} is more than {MOST_DEVICES} hosts: correct the range")
    return tuple(names)


def hosts_of_job(variables: Mapping[str, str]) -> tuple[Host, ...]:
    """The hosts of the job in which this runs, with a device for each task. Raises InputError outside of one."""
    listed = variables.get("SLURM_JOB_NODELIST") or variables.get("SLURM_NODELIST")
    if not listed:
        raise InputError("SLURM_JOB_NODELIST is not set: this is no job of Slurm; ask within sbatch or salloc")
    try:
        names = expand(listed)
        counts = _counts(variables.get("SLURM_TASKS_PER_NODE", ""), len(names))
    except InputError as error:
        raise InputError(f"SLURM_JOB_NODELIST: {error}") from None
    return tuple(Host(name, count) for name, count in zip(names, counts, strict=True))


def _split(text: str) -> list[str]:
    """The parts between commas that are outside of brackets."""
    parts, depth, begin = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if not 0 <= depth <= 1:
            break
        if letter == "," and not depth:
            parts.append(text[begin:place])
            begin = place + 1
    parts.append(text[begin:])
    if depth or not all(part.strip() for part in parts):
        raise InputError(f"{shown(text)} is no list of hosts: expected such as gpu[01-03,07],login")
    return [part.strip() for part in parts]


def _hosts(part: str) -> list[str]:
    pieces = _BRACKETS.split(part)  # text, ranges, text, ranges, …, text
    choices = [_numbers(piece, part) if place % 2 else [piece] for place, piece in enumerate(pieces)]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > MOST_DEVICES:
        raise InputError(
            f"{shown(part)} is {number_of(count, 'host')}, expected {MOST_DEVICES} at most: correct the range"
        )
    return ["".join(chosen) for chosen in product(*choices)]


def _numbers(ranges: str, part: str) -> list[str]:
    """The numbers of `01-03,07` as they are written: zeros in front of the first are kept."""
    numbers: list[str] = []
    for one in ranges.split(","):
        match = _RANGE.fullmatch(one)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if int(first) > int(last):
            raise InputError(f"{shown(part)}: range {shown(one)}: expected such as 01-03, the smaller number first")
        if int(last) - int(first) >= MOST_DEVICES:
            raise InputError(f"{shown(part)}: range {shown(one)} is more than {MOST_DEVICES} hosts: correct it")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        if len(numbers) > MOST_DEVICES:
            raise InputError(f"{shown(part)}: more than {MOST_DEVICES} hosts: correct its ranges")
    return numbers


def _counts(text: str, num_hosts: int) -> list[int]:
    """Tasks of each host; one each where Slurm says nothing."""
    if not text:
        return [1] * num_hosts
    counts: list[int] = []
    for one in text.split(","):
        match = _TASKS.fullmatch(one)
        if not match or int(match[1]) < 1 or int(match[2] or 1) > MOST_DEVICES:
            raise InputError(f"SLURM_TASKS_PER_NODE = {shown(text)}: expected such as 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
        if len(counts) > num_hosts:
            break
    if len(counts) != num_hosts:
        raise InputError(
            f"SLURM_TASKS_PER_NODE = {shown(text)} is for {number_of(len(counts), 'host')}, the list has {num_hosts}"
        )
    return counts
