"""DynPipe's published logs as they are: seconds by iteration with what happened, and accuracy by hours."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from ...errors import InputError
from ...util.io.fields import shown
from ...util.io.files import read_text

_EVERY = 10  # iterations from one line of a log to the next
_ITERATION = re.compile(
    r"Epoch: \[(?P<epoch>\d{1,6})\]\[(?P<at>\d{1,9})/\d+\]\s+Time: (?P<seconds>[\d.]{1,20}) .*"
    r"Running Time: (?P<running>[\d.]{1,20})"
)
_PARTITION = re.compile(r"partition tensor\(\[([\d, ]{1,200})\]\)")
_VALIDATION = re.compile(r" \* Prec@1 (?P<top1>[\d.]{1,20}) ")


@dataclass(frozen=True)
class LoggedIteration:
    """One line of a log: every tenth iteration has one."""

    epoch: int
    iteration: int  # since the run began, of all epochs
    seconds: float
    running_seconds: float  # since the run began; some logs begin again from 0


@dataclass(frozen=True)
class DynPipeLog:
    """Content of one log. `marks` are (iteration, what happened): another partition, or "restart", at which it asked
    for one. `validation` is (hours, top-1 accuracy in percent) at the end of each epoch that was validated.
    """

    iterations: tuple[LoggedIteration, ...]
    marks: tuple[tuple[int, str], ...]
    validation: tuple[tuple[float, float], ...]


def read_log(path: Path | str) -> DynPipeLog:
    """Read a log of a run of DynPipe. Raises InputError for a file that holds no iterations."""
    iterations: list[LoggedIteration] = []
    marks: list[tuple[int, str]] = []
    validation: list[tuple[float, float]] = []
    before, last, partition = 0, 0, ""  # iterations of the epochs before; of this one, at the line before
    for line in read_text(path, what="log").splitlines():
        if match := _ITERATION.match(line):
            epoch, at = int(match["epoch"]), int(match["at"])
            if iterations and (epoch != iterations[-1].epoch or at < last):
                before = iterations[-1].iteration + _EVERY
            last = at
            seconds, running = (_number(match[name], path) for name in ("seconds", "running"))
            iterations.append(LoggedIteration(epoch, before + at, seconds, running))
        elif match := _PARTITION.match(line):
            ranks_text = ", ".join(match[1].replace(" ", "").split(","))
            if ranks_text != partition and iterations:
                marks.append((iterations[-1].iteration, ranks_text))
            partition = ranks_text
        elif line.strip() == "restart" and iterations:
            marks.append((iterations[-1].iteration, "restart"))
        elif (match := _VALIDATION.match(line)) and iterations:
            validation.append((iterations[-1].running_seconds / 3600, _number(match["top1"], path)))
    if not iterations:
        raise InputError("dynpipe_log.no_iterations", f"{path}: contains no iterations, expected a log of DynPipe")
    return DynPipeLog(tuple(iterations), tuple(marks), tuple(validation))


def read_curve(path: Path | str) -> list[tuple[float, float]]:
    """Read a file of (hours, accuracy or loss), a pair a line. Raises InputError, naming the line, for another."""
    curve = []
    for number, line in enumerate(read_text(path, what="curve").splitlines(), start=1):
        words = line.split()
        if words and len(words) != 2:
            raise InputError(
                "dynpipe_log.line_malformed", f"{path}:{number}: {shown(line)}, expected hours and a value"
            )
        if words:
            curve.append((_number(words[0], f"{path}:{number}"), _number(words[1], f"{path}:{number}")))
    if not curve:
        raise InputError("dynpipe_log.empty", f"{path}: is empty, expected lines with hours and a value")
    return curve


def _number(text: str, where: Path | str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError("dynpipe_log.not_a_number", f"{where}: {shown(text)}, expected a finite number")
    return value
