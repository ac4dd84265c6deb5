"""Measure what intruders cost: victims × sets of intruders × the processor that they share or do not share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...host import cpu
from ...host.background_load import num_processors, processors_of
from .intruding import intruding
from .kinds import KINDS, check_kind
from .machine import MachineWatch
from .measurements import Measurement, MeasurementFile
from .victims import OpenVictim, Victim, pinned_to

MOST_TOGETHER = 3  # intruders at once, as DynPipe has it
NOBODY = -1  # the processor of no intruder


def intruder_sets(kinds: Sequence[str], most: int = MOST_TOGETHER) -> list[tuple[str, ...]]:
    """Return all sets of one to `most` different intruders, the small ones first."""
    return [chosen for count in range(1, most + 1) for chosen in combinations(kinds, count)]


def measure(
    victims: Sequence[Victim],
    out: Path,
    *,
    kinds: Sequence[str] = tuple(KINDS),
    together: int = MOST_TOGETHER,
    seconds: float = 2.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> list[Measurement]:
    """Measure every victim alone and beside every set of intruders, and add each measurement to the file `out`.

    The victim is on one processor; the intruders are all on that one, then all on another, where there is one. What
    `out` has is not measured again, so that an interrupted call goes on. Raises InputError for unknown kinds and
    victims, and for a file of another machine or of other settings.
    """
    for kind in kinds:
        check_kind(kind)
    if not victims or not kinds:
        raise InputError("no victims or no intruders: expected one or more of either")
    cores = sorted(processors_of()) or [0]
    sets = intruder_sets(kinds, together)
    header = {"machine": cpu.name(), "processors": num_processors(), "seconds": seconds, "seed": seed}
    header |= {"victims": [asdict(victim) for victim in victims], "intruders": list(kinds), "together": together}
    file = MeasurementFile(out, header)
    asked = list(_asked(victims, sets, cores))
    for victim in victims:
        wanted = [one for one in asked if one[0] == victim.name and one not in file.measured]
        if not wanted:
            continue
        say(f"{victim.name}: opening")
        opened = OpenVictim(victim, seed=seed)
        for key in wanted:
            company = _company(*key[1:])
            say(f"{len(file.measured) + 1} of {len(asked)}: {victim.name} {company}")
            file.add(_one(opened, *key[1:], seconds=seconds))
    return [file.measured[key] for key in asked]


def _asked(
    victims: Sequence[Victim], sets: Sequence[tuple[str, ...]], cores: Sequence[int]
) -> Iterator[tuple[Any, ...]]:
    """What is measured, in order: each victim alone first."""
    for victim in victims:
        yield victim.name, (), cores[0], NOBODY
        for chosen in sets:
            for intruder_core in cores[:2]:
                yield victim.name, chosen, cores[0], intruder_core


def _one(
    opened: OpenVictim, intruders: tuple[str, ...], core: int, intruder_core: int, *, seconds: float
) -> Measurement:
    beside = intruding(intruders, cores=[core if intruder_core == NOBODY else intruder_core])
    with beside, pinned_to(core), MachineWatch() as watch:
        passes, kinds = opened.measure(seconds)
        metrics = watch.read()
    return Measurement(opened.victim.name, intruders, core, intruder_core, passes, metrics, kinds)


def _company(intruders: tuple[str, ...], core: int, intruder_core: int) -> str:
    if not intruders:
        return "alone"
    return f"beside {' + '.join(intruders)} on {'its' if core == intruder_core else 'another'} processor"
