"""Intruders alongside a job, for measurements and demonstrations: a process for each processor or GPU to disturb."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ...errors import InputError
from ...util.host.contention import processes_at_work
from ...util.io.fields import shown
from .kinds import BEGIN, REST, check_kind, check_share
from .places import CPU, GPU, check_places

_LOOK = 0.1  # seconds between two looks at whether all are done, and whether whoever asked is still there
MOST_SECONDS = 1e6


@dataclass(frozen=True)
class Intruder:
    """A process that disturbs one processor (device "cpu") or one GPU ("cuda")."""

    kind: str
    device: str
    number: int  # of the processor, or of the GPU as torch counts them
    process: subprocess.Popen[str]

    def begin(self) -> None:
        """Have one that rests compute, at once."""
        self._tell(BEGIN)

    def rest(self) -> None:
        """Have it compute no more, once its step is done, until it is to begin again."""
        self._tell(REST)

    def _tell(self, word: str) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{word}\n")
            self.process.stdin.flush()
        except OSError:
            raise InputError(
                "intruder.gone",
                f"the co-located workload on {_where(self)} ended unexpectedly; its last command was {word}",
            ) from None


@contextmanager
def intruding(
    kinds: Sequence[str],
    *,
    cores: Sequence[int] = (),
    gpus: Sequence[int] = (),
    after: float = 0.0,
    seconds: float | None = None,
    share: float = 1.0,
    resting: bool = False,
) -> Iterator[tuple[Intruder, ...]]:
    """Run an intruder of each of `kinds` on each of the processors `cores`, or of `gpus`, while the `with` block runs.

    The block starts once all of them are ready. They wait `after` seconds, then compute for `seconds` (None: until the
    block ends), or, `resting`, from each `begin` of an intruder to its `rest`. `share`: of its processor's time (a
    GPU's: of the time) each computes so much at most, a quarter of it for 0.25; whoever gets less does not catch up.
    They are killed at the block's end, and when this process dies, whatever kills it.
    Raises InputError for unknown kinds, for processors that this process may not use, and GPUs that are missing.
    """
    for kind in kinds:
        check_kind(kind)
    check_share(share)
    device, numbers = (GPU, gpus) if gpus and not cores else (CPU, cores)
    check_places(device, numbers)
    if cores and gpus:
        raise InputError(
            "intruder.place_undecided",
            f"cores {shown(list(cores))} and GPUs {shown(list(gpus))} given; give only cores or only GPUs",
        )
    for name, value in (("after", after), ("seconds", seconds)):
        if value is not None and not 0 <= value <= MOST_SECONDS:
            raise InputError(
                "intruder.seconds_out_of_range", f"{name} is {value:g} seconds, expected 0 to {MOST_SECONDS:g}"
            )
    places = [(kind, device, number) for kind in kinds for number in numbers]
    when = {"after": after, "seconds": seconds, "share": share, "resting": resting}
    asked = [{"kind": k, "device": d, "number": n, **when} for k, d, n in places]
    alone = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    with processes_at_work(__package__, asked, **alone) as processes:
        yield tuple(Intruder(*place, process) for place, process in zip(places, processes, strict=True))


def run_intruders(
    kind: str,
    *,
    cores: Sequence[int] = (),
    gpus: Sequence[int] = (),
    after: float,
    seconds: float,
    share: float = 1.0,
    say: Callable[[str], None],
) -> dict[int, int]:
    """Intrude once, to the end; return the steps made by the number of the processor or GPU.

    The intruders end early with whoever started this process. Raises InputError if one of them failed.
    """
    parent = os.getppid()
    with intruding([kind], cores=cores, gpus=gpus, after=after, seconds=seconds, share=share) as intruders:
        where = f"{'GPU ' if gpus else ''}{', '.join(map(str, gpus or cores))}"
        say(f"{kind} on {where}: ready; begins in {after:g} s, for {seconds:g} s")
        while any(one.process.poll() is None for one in intruders):
            if os.getppid() != parent:
                raise InputError("intruder.orphaned", "the workload stopped because its parent process ended")
            time.sleep(_LOOK)
        return {one.number: _steps(one) for one in intruders}


def _where(intruder: Intruder) -> str:
    return f"{'processor' if intruder.device == CPU else 'GPU'} {intruder.number}"


def _steps(intruder: Intruder) -> int:
    assert intruder.process.stdout is not None
    told = intruder.process.stdout.read().split()
    if intruder.process.returncode != 0 or not told:
        raise InputError(
            "intruder.ended",
            f"the co-located workload on {_where(intruder)} ended with code {intruder.process.returncode}; start "
            "it again",
        )
    return int(told[-1])
