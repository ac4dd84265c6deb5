"""Stragglers: what delays ranks, injected in the same way into runs, emulations and simulations.

    kinds.py            jitter, slow, stop, kill: what one of them is
    minibatch_times.py  trace: the times of a recorded job's workers
    restarts.py         what a kill costs a simulated job of one pipeline

Given as KIND:option=value,…, several separated by semicolons, and perhaps a seed:

    jitter:p=0.1,seconds=0.05                 sleeps by chance, in any rank (or of rank=3 alone)
    slow:rank=3,factor=4,from=100,to=300      a rank that takes four times as long, in these minibatches or in all
    stop:rank=1,at=50,seconds=20              a rank that stands still once
    trace:job_4_norm.csv                      the minibatch times of a real job
    kill:rank=2,at=80                         a rank whose process is ended
    seed=3                                    of what is drawn
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from ...errors import InputError
from ...util.io.fields import integer, shown, text
from ...util.io.options import split_options, typed, with_options, written_options
from .kinds import Jitter, Kill, Slow, Stop, Straggler
from .minibatch_times import MinibatchTimes, read_minibatch_times

KINDS: Mapping[str, type[Straggler]] = {cls.name: cls for cls in (Jitter, Slow, Stop, MinibatchTimes, Kill)}
_FIRST = {MinibatchTimes.name: "file"}  # the option that may be given without its name


@dataclass(frozen=True)
class Stragglers:
    """All that delays ranks in a run. Ranks are the plan file's, numbered over all pipelines.

    Minibatches are numbered as the rank meets them: its pipeline's own, from 0 at the run's beginning, over all epochs.
    The answers depend on the seed, the rank and the minibatch, not on the order of the questions. Delays of several
    parts add up; so do jitters, whose draws are independent.
    """

    parts: tuple[Straggler, ...] = ()
    seed: int = 0

    @classmethod
    def parse(cls, given: str) -> "Stragglers":
        """Read what the command line takes; nothing of an empty text. Raises InputError in one line."""
        parts: list[Straggler] = []
        seeds: list[int] = []
        for part in filter(None, map(str.strip, text(given, "stragglers").split(";"))):
            if part.startswith("seed="):
                seeds.append(integer(typed(part.removeprefix("seed=").strip()), "straggler seed"))
            else:
                parts.append(_parsed(part))
        if len(seeds) > 1:
            raise InputError("straggler.seed_twice", f"straggler {shown(given)}: seed is given twice")
        return cls(tuple(parts), *seeds)

    @classmethod
    def of(cls, given: "Stragglers | str | None") -> "Stragglers":
        """Return stragglers given as such, as what the command line takes, or not at all. Raises InputError."""
        return given if isinstance(given, Stragglers) else cls.parse("" if given is None else given)

    def extra_seconds(self, rank: int, minibatch: int, own_seconds: float) -> float:
        """Return how many seconds more than its own a rank takes for a minibatch, forward and backward together."""
        return sum(
            part.delay(rank, minibatch, own_seconds, seed=f"{self.seed}/{index}")
            for index, part in enumerate(self.parts)
        )

    def kills(self, rank: int, minibatch: int) -> bool:
        """Return whether a rank is killed at the beginning of a minibatch.

        True as often as it is asked: a rank that was started again must not ask for what its life before has met.
        """
        return any(part.kills(rank, minibatch) for part in self.parts)

    @property
    def end_ranks(self) -> bool:
        """Return whether one of them is a kill, whenever that may be."""
        return any(isinstance(part, Kill) for part in self.parts)

    def without_kills(self) -> "Stragglers":
        """Return the others; what they draw stays the same, which their places among all decide."""
        parts = (Stop(part.rank, part.at, 0.0) if isinstance(part, Kill) else part for part in self.parts)
        return replace(self, parts=tuple(parts))

    def later(self, first: int) -> "Later":
        """Return them for a part of the run that begins at minibatch `first`, counted from there."""
        return Later(self.parts, self.seed, first)

    def check(self, num_ranks: int) -> None:
        """Raise InputError if one is of a rank that does not exist."""
        for part in self.parts:
            part.check(num_ranks)

    def note(self) -> str:
        """Say in a few words what delays ranks, for a figure's note; empty if nothing does."""
        return "; ".join(self._notes())

    def clause(self) -> str:
        """Say the same as a clause of a sentence, after "while": "rank 0 is 4 times as slow and rank 1 stops …"."""
        *others, last = self._notes() or [""]
        return f"{', '.join(others)} and {last}" if others else last

    def _notes(self) -> list[str]:
        """Say each in a few words; of ranks that are as slow as one another, all in one: "ranks 0, 2 and 3 are …"."""
        notes = []
        for _, alike in groupby(self.parts, key=_but_for_rank):
            first, *others = alike
            if isinstance(first, Slow):
                notes.append(first.note(*(part.rank for part in others if isinstance(part, Slow))))
            else:
                notes += [part.note() for part in (first, *others)]
        return notes

    def __str__(self) -> str:
        """Write it as `parse` reads it."""
        parts = [written_options(part.name, part, first=_FIRST.get(part.name)) for part in self.parts]
        return ";".join([*parts, *([f"seed={self.seed}"] if self.seed else [])])


@dataclass(frozen=True)
class Later(Stragglers):
    """A run's stragglers, for a part of the run that begins at the run's minibatch `first`."""

    first: int = 0

    def extra_seconds(self, rank: int, minibatch: int, own_seconds: float) -> float:
        return super().extra_seconds(rank, self.first + minibatch, own_seconds)

    def check(self, num_ranks: int) -> None:
        """Say nothing of ranks that the part's plan leaves out: those of the whole run count."""

    def kills(self, rank: int, minibatch: int) -> bool:
        return super().kills(rank, self.first + minibatch)

    def later(self, first: int) -> "Later":
        return Later(self.parts, self.seed, self.first + first)


def held_up_fact(stragglers: Stragglers | None) -> dict[str, str]:
    """The fact of a trace that says what held ranks up, as `Trace.held_up` reads it; none if nothing did."""
    return {"held_up": stragglers.note()} if stragglers is not None and stragglers.parts else {}


def _but_for_rank(part: Straggler) -> Straggler:
    """The same for all ranks that are as slow as one another, and at the same times."""
    return replace(part, rank=0) if isinstance(part, Slow) else part


def _parsed(part: str) -> Straggler:
    name, options = split_options(part, "straggler", first=_FIRST)
    if name not in KINDS:
        raise InputError(
            "straggler.unknown",
            f"unknown straggler {shown(name)}, expected one of {', '.join(KINDS)}, or seed=NUMBER",
        )
    words = {key: value if key in ("file", "workers") else typed(value) for key, value in options.items()}
    return with_options(KINDS[name], words, f"straggler {name}")


__all__ = ["KINDS", "Straggler", "Stragglers", "held_up_fact", "read_minibatch_times"]
