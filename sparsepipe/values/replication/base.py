"""What a replication rule is: with whom a pipeline averages, when, and whether it waits.

Several pipelines train copies of one network. Each finishes minibatches at its own pace; every so many updates it
*contributes* its weights (or gradients) to a *merge* with others that a rule puts together. A rule is a small frozen
value of options; `Rule.groups` starts the state machine that makes its decisions. It has no clock and no threads of its
own, so that the coordinator of a real run and the simulator ask the same code.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

SERVER = -1  # the parameter server's number among the pipelines, for rules that have one


class Arithmetic(Enum):
    """Arithmetic of an average, implemented in runtime/replication."""

    MEAN_GRADIENTS = "gradients"  # their mean, before the optimizer's step: each member waits for it
    MEAN_WEIGHTS = "weights"  # their mean, after the step
    PAIR = "pair"  # the mean of the contributor and of one other pipeline, which does not wait
    SERVER = "server"  # what the contributor's weights changed by is added to a server's, which are taken back
    OUTER_STEP = "outer step"  # the mean of what weights changed by is a gradient of an outer optimizer


@dataclass(frozen=True)
class Merge:
    """One decision of a scheme: these contributions are averaged with these weights.

    `members` are pipelines in ascending order, `contributions` the number of each one's contribution (from 0),
    `weights` their weights, which sum to 1. A merge of one member averages nothing. For PAIR and SERVER only the member
    contributes, `partner` is the other pipeline, and `weights` are those of the member and the partner. For SERVER, the
    member's weight is the share of its change that is added. A PAIR of one live pipeline has no partner.
    """

    number: int  # among the merges of the run, from 0
    members: tuple[int, ...]
    contributions: tuple[int, ...]
    weights: tuple[float, ...]
    partner: int | None = None
    forced: bool = False  # decided by the rule's bound and not by who was ready


class Groups(Protocol):
    """Decide the groups of a synchronization scheme in one run.

    Times are seconds on the caller's clock, never decreasing.

    A pipeline contributes again only after it has received the result of its last average, or was ordered to continue
    without it. Every call returns the averages that it decides, usually none or one.
    """

    def contribute(self, pipeline: int, *, now: float, samples: int) -> list[Merge]:
        """Process the next contribution of a pipeline, trained on `samples` since its last one.

        Raises InputError if the pipeline has left.
        """
        ...

    def may_begin(self, pipeline: int) -> bool:
        """Return whether a pipeline may continue, or waits for slower ones (bounded staleness). By default True."""
        ...

    def leave(self, pipeline: int, *, now: float) -> list[Merge]:
        """Remove a pipeline that died or ended.

        Others no longer wait for it, and its unused contributions are dropped.
        """
        ...

    def join(self, pipeline: int, *, now: float) -> list[Merge]:
        """Add a pipeline again, with the weights of a live pipeline."""
        ...

    def next_deadline(self) -> float | None:
        """Return the time at which `expire` decides without further contributions. None: there is none."""
        ...

    def expire(self, *, now: float) -> list[Merge]:
        """Decide the averages whose wait budget or grace window has ended."""
        ...


class Rule(Protocol):
    """Options of a synchronization scheme, as a frozen dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]
    name: ClassVar[str]  # as --replication takes it
    arithmetic: ClassVar[Arithmetic]
    summary: ClassVar[str]  # one sentence: what it averages, with whom, who proposed it

    @property
    def every(self) -> int:
        """Number of updates between two contributions of a pipeline."""
        ...

    @property
    def overlap(self) -> bool:
        """Return whether a pipeline continues to train during an average, and applies the result at a later update.

        The result is then applied as a correction: newest weights + (average - contribution).
        """
        ...

    def groups(self, num_pipelines: int, *, seed: int = 0) -> Groups:
        """Return the object that decides for pipelines 0 to `num_pipelines` - 1.

        Raises InputError for unsuitable options.
        """
        ...


def pace(samples: float, seconds: float) -> float:
    """Return samples per second of a pipeline: all of its samples over all of its seconds; 0 if it has none.

    `seconds`: from when the pipeline has its first minibatch until its last is done, and until a bound that keeps it
    from the next is of no more account: till then it waits, though it may get no other. A window in the middle of a run
    would tell the steady state, and nothing of a stop, of a rank that is slow for some minibatches, or of a death that
    comes outside of it: over the whole run such a one costs the same wherever it comes. So does filling and emptying
    the stages, about S - 1 of n + S - 1 minibatches' seconds with n minibatches and S like stages: it is in what a
    simulation says as it is in what real processes take, and a planner's period leaves it out.
    """
    return samples / seconds if seconds > 0 else 0.0


# Minibatches that a loader asks for beyond those that its rank has begun. They are its pipeline's own from then on: a
# rule's bound is asked when they are taken, and a slow pipeline keeps those that it has at the end of an epoch.
READ_AHEAD = 2
