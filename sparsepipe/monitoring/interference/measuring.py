"""Measure what intruders cost: victims × sets of intruders × the processor, or GPU, that they share or do not share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.host import cpu
from ...util.host.background_load import num_processors
from ...util.host.machine_watch import MachineWatch
from ...util.io.fields import shown
from .intruding import KINDS, check_kind, intruding
from .measurements import Measurement, MeasurementFile
from .victims import CPU, OpenVictim, Victim, device_at, device_here, pinned_to, places, torch_device

MOST_TOGETHER = 3  # intruders at once, as DynPipe has it
NOBODY = -1  # the place of no intruder


def intruder_sets(kinds: Sequence[str], most: int = MOST_TOGETHER) -> list[tuple[str, ...]]:
    """Return all sets of one to `most` different intruders, the small ones first."""
    return [chosen for count in range(1, most + 1) for chosen in combinations(kinds, count)]


def measure(
    victims: Sequence[Victim],
    out: Path,
    *,
    device: str | None = None,
    kinds: Sequence[str] = tuple(KINDS),
    together: int = MOST_TOGETHER,
    seconds: float = 2.0,
    seed: int = 0,
    say: Callable[[str], None] = lambda line: None,
) -> list[Measurement]:
    """Measure every victim alone and alongside every set of intruders, and add each measurement to the file `out`.

    The victim is on one processor; the intruders are all on that one, then all on another, if there is one. With
    device "cuda" both are on GPUs, whose gauges are among the metrics; None: there where torch sees one. What `out` has
    is not measured again, so that an interrupted call continues. Raises InputError for unknown kinds and victims, for a
    device that is missing, and for a file of another machine or of other settings.
    """
    for kind in kinds:
        check_kind(kind)
    if not victims or not kinds:
        raise InputError(
            "interference.none_given", "no networks or co-located workloads given; give at least one of each"
        )
    device = device or device_here()
    if not (numbers := places(device)):
        raise InputError("device.no_cuda", f"device {shown(device)}: torch finds no CUDA device; use {CPU}")
    sets = intruder_sets(kinds, together)
    header = {"machine": machine_name(device), "processors": num_processors(), "device": device}
    header |= {"seconds": seconds, "seed": seed}
    header |= {"victims": [asdict(victim) for victim in victims], "intruders": list(kinds), "together": together}
    file = MeasurementFile(out, header)
    asked = list(_asked(victims, sets, numbers))
    for victim in victims:
        wanted = [one for one in asked if one[0] == victim.name and one not in file.measured]
        if not wanted:
            continue
        say(f"{victim.name}: opening")
        opened = OpenVictim(victim, device=device_at(device, numbers[0]), seed=seed)
        for key in wanted:
            company = _company(device, *key[1:])
            say(f"{len(file.measured) + 1} of {len(asked)}: {victim.name} {company}")
            file.add(_one(opened, device, *key[1:], seconds=seconds))
    return [file.measured[key] for key in asked]


def _asked(
    victims: Sequence[Victim], sets: Sequence[tuple[str, ...]], numbers: Sequence[int]
) -> Iterator[tuple[Any, ...]]:
    """Return the measurements in order, each network alone first."""
    for victim in victims:
        yield victim.name, (), numbers[0], NOBODY
        for chosen in sets:
            for beside in numbers[:2]:
                yield victim.name, chosen, numbers[0], beside


def _one(
    opened: OpenVictim, device: str, intruders: tuple[str, ...], place: int, beside: int, *, seconds: float
) -> Measurement:
    where = [place if beside == NOBODY else beside]
    on_cpu = device == CPU
    company = intruding(intruders, cores=where) if on_cpu else intruding(intruders, gpus=where)
    # Beside a GPU processes use any processor: it is the GPU that they are to share.
    kept = pinned_to(place if on_cpu else None)
    with company, kept, MachineWatch(gpu=opened.gpu) as watch:
        passes, kinds = opened.measure(seconds)
        metrics = watch.read()
    return Measurement(opened.victim.name, intruders, place, beside, passes, metrics, kinds)


def _company(device: str, intruders: tuple[str, ...], place: int, beside: int) -> str:
    if not intruders:
        return "alone"
    name = "processor" if device == CPU else "GPU"
    return f"beside {' + '.join(intruders)} on {'its' if place == beside else 'another'} {name}"


def machine_name(device: str) -> str:
    """Return what a predictor's file says of where it learned: the processor's name, and the GPU's."""
    if device == CPU:
        return cpu.name()
    from ...profiling.devices import device_name

    return f"{device_name(torch_device(device))}, {cpu.name()}"
