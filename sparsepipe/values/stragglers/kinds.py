"""What can delay a rank, or end it, at a minibatch: one small frozen value each."""

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ...errors import InputError
from ...util.derived import derived_seed
from ...util.io.fields import integer, number
from ...util.io.quantities import TIME
from ...util.text.numbers import listed


class Straggler(Protocol):
    """One cause of delay. Its fields are the options that it is given by."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]

    def delay(self, rank: int, minibatch: int, own_seconds: float, *, seed: str) -> float:
        """Return how much longer a rank takes for a minibatch than its `own_seconds`: 0 or more.

        Depends on the arguments alone, not on what was asked before.
        """
        ...

    def kills(self, rank: int, minibatch: int) -> bool:
        """Return whether the rank's process ends at the beginning of a minibatch."""
        ...

    def check(self, num_ranks: int) -> None:
        """Raise InputError if it is of a rank that is not among 0 to `num_ranks` - 1."""
        ...

    def note(self) -> str:
        """Say in a few words what it does, for a figure's note."""
        ...


@dataclass(frozen=True)
class Jitter:
    """Sleeps that come by chance, independently in each minibatch of each rank, or of one `rank`.

    As SDPipe injects them (`--hetero`): there each forward and each backward sleeps with a chance of 0.1, here a
    minibatch does, once; and here they are seeded.
    """

    name: ClassVar[str] = "jitter"
    p: float
    seconds: float
    rank: int | None = None

    def __post_init__(self) -> None:
        if number(self.p, "straggler jitter: p") > 1:
            raise InputError(
                "straggler.chance", f"straggler jitter: p is {self.p:g}, expected a probability from 0 to 1"
            )
        number(self.seconds, "straggler jitter: seconds")
        if self.rank is not None:
            integer(self.rank, "straggler jitter: rank")

    def delay(self, rank: int, minibatch: int, own_seconds: float, *, seed: str) -> float:
        if self.rank not in (None, rank):
            return 0.0
        drawn = derived_seed(seed, "jitter", rank, minibatch) / 2**63
        return self.seconds if drawn < self.p else 0.0

    def kills(self, rank: int, minibatch: int) -> bool:
        return False

    def check(self, num_ranks: int) -> None:
        if self.rank is not None:
            check_rank(self.rank, num_ranks, self.name)

    def note(self) -> str:
        whose = "any rank" if self.rank is None else f"rank {self.rank}"
        return f"{whose} sleeps {TIME.shown(self.seconds)} in {100 * self.p:g}% of its minibatches"


@dataclass(frozen=True)
class Slow:
    """A rank that takes `factor` times as long, in the minibatches from `from` up to, without it, `to`."""

    name: ClassVar[str] = "slow"
    rank: int
    factor: float
    from_: int = 0
    to: int | None = None

    def __post_init__(self) -> None:
        integer(self.rank, "straggler slow: rank")
        if number(self.factor, "straggler slow: factor") < 1:
            raise InputError(
                "straggler.factor",
                f"straggler slow: factor is {self.factor:g}, expected a slowdown factor of at least 1",
            )
        integer(self.from_, "straggler slow: from")
        if self.to is not None:
            integer(self.to, "straggler slow: to", least=self.from_ + 1)

    def delay(self, rank: int, minibatch: int, own_seconds: float, *, seed: str) -> float:
        within = self.from_ <= minibatch and (self.to is None or minibatch < self.to)
        return own_seconds * (self.factor - 1) if rank == self.rank and within else 0.0

    def kills(self, rank: int, minibatch: int) -> bool:
        return False

    def check(self, num_ranks: int) -> None:
        check_rank(self.rank, num_ranks, self.name)

    def note(self, *others: int) -> str:
        """Say it in a few words, together with `others`: ranks that are as slow at the same times."""
        until = "" if self.to is None else f" to {self.to}"
        when = f" from minibatch {self.from_}{until}" if self.from_ or until else ""
        whose = f"ranks {listed((self.rank, *others))} are" if others else f"rank {self.rank} is"
        return f"{whose} {self.factor:g} times as slow{when}"


@dataclass(frozen=True)
class Stop:
    """A rank that stands still for some seconds in one minibatch."""

    name: ClassVar[str] = "stop"
    rank: int
    at: int
    seconds: float

    def __post_init__(self) -> None:
        integer(self.rank, "straggler stop: rank")
        integer(self.at, "straggler stop: at")
        number(self.seconds, "straggler stop: seconds")

    def delay(self, rank: int, minibatch: int, own_seconds: float, *, seed: str) -> float:
        return self.seconds if (rank, minibatch) == (self.rank, self.at) else 0.0

    def kills(self, rank: int, minibatch: int) -> bool:
        return False

    def check(self, num_ranks: int) -> None:
        check_rank(self.rank, num_ranks, self.name)

    def note(self) -> str:
        return f"rank {self.rank} stops for {TIME.shown(self.seconds)} at minibatch {self.at}"


@dataclass(frozen=True)
class Kill:
    """A rank whose process is ended, as by SIGKILL, at the beginning of one minibatch."""

    name: ClassVar[str] = "kill"
    rank: int
    at: int

    def __post_init__(self) -> None:
        integer(self.rank, "straggler kill: rank")
        integer(self.at, "straggler kill: at")

    def delay(self, rank: int, minibatch: int, own_seconds: float, *, seed: str) -> float:
        return 0.0

    def kills(self, rank: int, minibatch: int) -> bool:
        return (rank, minibatch) == (self.rank, self.at)

    def check(self, num_ranks: int) -> None:
        check_rank(self.rank, num_ranks, self.name)

    def note(self) -> str:
        return f"rank {self.rank} is killed at minibatch {self.at}"


def check_rank(rank: int, num_ranks: int, kind: str) -> None:
    """Raise InputError if a straggler is of a rank that does not exist."""
    if rank >= num_ranks:
        raise InputError(
            "straggler.rank_unknown",
            f"straggler {kind}: rank {rank} does not exist, expected 0 to {num_ranks - 1}",
            rank=rank,
        )
