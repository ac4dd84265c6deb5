"""What a rank of one pipeline asks of the others: a coordinator for words, and an averager for weights.

    coordinator process     who takes which minibatch, which merges there are, who is alive: control messages alone
    averager in each rank   weights, straight from the ranks that hold a layer to those that hold it elsewhere

A run of one pipeline has neither.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ...values.replication.base import Merge

if TYPE_CHECKING:  # the coordinator's process has no need of it, and starts in a fraction of the time
    from torch import Tensor


class Address(NamedTuple):
    """Address at which a rank of another pipeline takes weights, and the required secret."""

    host: str
    port: int
    secret: str  # hexadecimal


@dataclass(frozen=True)
class Holder:
    """A rank that exchanges the weights of some layers: one replica of a stage in each pipeline does it for all."""

    pipeline: int  # SERVER for a parameter server
    rank: int  # within its pipeline
    layers: tuple[str, ...]
    address: Address


class Kind(Enum):
    """Kind of a pipeline's task."""

    TRAIN = "train"  # minibatches of an epoch, from an empty pipeline to an empty one
    CLOSE_EPOCH = "close epoch"  # checkpoint it where that is due, validate, and say so by `closed`
    FINISH = "finish"  # average with all others for the last time
    CLOSE_RUN = "close run"  # validate, and write the last checkpoint
    END = "end"


class Task(NamedTuple):
    """One entry of the list of what a pipeline does: all its ranks get the same list.

    `epoch` is -1 where it is of none. Of TRAIN, `most` is how many minibatches it has at most, and `update` how many
    whole units (see `Coordinator.begin`) the pipeline has taken before, over all its attempts.
    """

    number: int  # in the list of this attempt of the pipeline, from 0
    kind: Kind
    epoch: int = -1
    most: int = 0
    update: int = 0


class Coordinator(Protocol):
    """The coordinator as a rank sees it. Every call is a short message to another process and back.

    It may be replaced while the run continues: calls wait for the new one. They raise DeadlinePassed where none comes,
    PeerLost if this pipeline was given up, because one of its ranks ended or a later attempt has begun, and
    RuntimeError for what must not be asked. To ask the same again changes nothing and has the same answer. Several
    threads may ask at once; one that waits keeps no other waiting.
    """

    pipeline: int
    num_pipelines: int

    def begin(
        self, *, whole: int, epoch_minibatches: int, total_minibatches: int, num_holders: int, data: str = ""
    ) -> None:
        """Say what is to be trained, first of all: each rank does. The run's numbers must be the same in all.

        `whole`: minibatches of a unit, after which every update is complete (Horizon.whole). `num_holders`: how many
        times this pipeline's ranks are going to `register`, all together. `data`: a digest of the training data, which
        must be the same in all as well.
        Raises InputError if a pipeline has other data, or minibatches, than those before it.
        """
        ...

    def register(self, holder: Holder) -> None:
        """Say where this rank takes weights. What a rank registers in one attempt of its pipeline adds up."""
        ...

    def holders(self, pipeline: int) -> Sequence[Holder]:
        """Return the ranks of a pipeline (SERVER: the parameter server) that exchange weights.

        None while it is not alive, or has not registered all of them.
        """
        ...

    def live(self) -> Sequence[int]:
        """Return the other pipelines that have weights to give: alive, and past the beginning of their list."""
        ...

    def next_task(self, number: int) -> Task:
        """Return entry `number` of this pipeline's list, from 0 in each attempt. Waits until there is one.

        To ask for an entry is to say that those before it are done. Entry 0 makes a restarted pipeline one of those
        that average: it has taken weights before.
        """
        ...

    def take_minibatch(self, task: int, place: int) -> int | None:
        """Return which minibatch of its epoch's order comes at `place`, from 0, of a task TRAIN.

        All ranks of a pipeline get the same answer; the first to ask takes it from the queue, in whole units but for
        what is left of an epoch. Waits where the rule bounds how far a pipeline may be ahead. None: the task ends
        before this place.
        """
        ...

    def end_task(self, task: int) -> None:
        """End a task TRAIN after the minibatches that this pipeline has taken of it: the next one trains the others.

        One rank of a pipeline, before it moves layers from one of its ranks to another.
        """
        ...

    def move(self) -> None:
        """Say that layers of this pipeline change hands: no one holds any until each rank says `begin` and `register`.

        One rank of a pipeline, between two tasks, once none of its ranks answers others any more. Others train on.
        """
        ...

    def done(self, task: int, place: int, row: Mapping[str, Any]) -> None:
        """Say that an update contains a minibatch, with its row for the run's metrics. One rank of a pipeline."""
        ...

    def measured(self, task: int, row: Mapping[str, Any]) -> None:
        """Say what this pipeline measured of a task TRAIN, before the next entry is asked for. One rank of a pipeline.

        `{"trained": minibatches, "sent_bytes", "stages": as in an epoch's row, numbered with their ranks among those
        of all pipelines, "load", "run": {"engine", "stages", "load"} over all that it trained}`.
        """
        ...

    def closed(self, epoch: int, row: Mapping[str, Any]) -> None:
        """Say that an epoch is checkpointed and validated, with its row for the run's metrics. One rank.

        The row gets what all pipelines measured of the epoch, and is written once no one trains on it any more.
        With the run, at CLOSE_RUN, its last epoch is closed: of one that has minibatches left there is no row. If the
        row "ends" the run, by its scores, no more minibatches are handed out.
        """
        ...

    def tell(self, event: str, row: Mapping[str, Any]) -> None:
        """Add a row of another event to the run's metrics: each event once in an attempt. One rank.

        Of "replan" there is one for each minibatch that a plan began at; the row gets the pipeline's number.

        A "summary" gets what all pipelines did together: minibatches, pace, the "train" of the latest epoch, stages,
        engine and load of all, and, as "replication", what is known of the averages.
        """
        ...

    def progress(self) -> Mapping[str, Any]:
        """Return what a run that resumes here has still to do, for a checkpoint's manifest.

        `{"done": minibatches done, "left": {epoch: [minibatches that are not]}, "closed": whether the run is,
        "scored": [{"epoch", "minibatches", "validation"}]}`: epochs that are not named and come after those are whole.
        """
        ...

    def contribute(self, update: int, *, samples: int) -> int:
        """Contribute after `update` (numbers of updates of the pipeline): the number of the contribution. One rank of
        a pipeline; the others see it by `contribution`.
        """
        ...

    def pass_over(self, update: int) -> None:
        """Say that an update at which a contribution is due has none: the last merge is still under way."""
        ...

    def contribution(self, update: int) -> int | None:
        """Return the number of the pipeline's contribution after an update; None if it made none then.

        Waits until `contribute` or `pass_over` has told of that update or of a later one.
        """
        ...

    def merge_of(self, contribution: int, *, wait: float) -> Merge | None:
        """Return the merge that a contribution of this pipeline is in, None while undecided after `wait` seconds."""
        ...

    def merged(self, merge: Merge, facts: Mapping[str, Any]) -> None:
        """Say that this rank has taken the result of a merge: update, distance from the mean, bytes, seconds waited."""
        ...

    def last_merge(self, update: int) -> Merge:
        """Return the merge at the end of the run: of all live pipelines that come here, after their `update`.

        Waits for them. Those that made an update count equally; one that made none, `update` -1, only takes the
        mean. All ranks of all pipelines get the same answer.
        """
        ...

    def leave(self) -> None:
        """Say that this pipeline's attempt has ended. What it took and did not do goes back to the queue."""
        ...


class Settled(NamedTuple):
    """Averaging state of a pipeline between two tasks, for the next owners of its layers."""

    update: int  # the last that the pipeline made, -1 where it made none
    version: int  # the merge that the layers are of, where the rule has such
    samples: int  # that the pipeline trained on since its last contribution; of the rank that decides on them alone


class Averager(Protocol):
    """One stage replica's part in the averages between pipelines, called by the executor around each update."""

    def before_step(self, gradients: "list[Tensor | None]", update: int, *, samples: int) -> "list[Tensor | None]":
        """Return the gradients to step with: the mean over the pipelines where the rule averages gradients."""
        ...

    def after_step(self, update: int, *, samples: int) -> None:
        """Contribute the newest weights where one is due, and take the results that have come.

        Raises DeadlinePassed if the rule waits and no one answers.
        """
        ...

    def finish(self) -> None:
        """Average with all live pipelines, at the end of the run: they end with the same weights."""
        ...

    def take_waited(self) -> float:
        """Return the seconds that this rank waited for other pipelines since the last call."""
        ...

    def state(self) -> "dict[str, Tensor]":
        """Return what the rule keeps alongside weights, buffers and optimizer state, by names as in checkpoints.

        Empty for most rules, and of all but the first replica of a stage.
        """
        ...

    def load_state(self, tensors: "Mapping[str, Tensor]") -> None:
        """Go on from what `state` gave, here or in another pipeline; tensors that are not the rule's are left alone."""
        ...

    def settle(self) -> "dict[str, Tensor]":
        """Bring what is under way into the weights, and answer others no more: layers are to change hands.

        Returns what the rule keeps alongside weights, buffers and optimizer state, by names as in checkpoints. All
        replicas of a stage come here, between two tasks. Raises DeadlinePassed if another pipeline does not answer.
        """
        ...

    @property
    def settled(self) -> Settled:
        """Averaging state of this stage."""
        ...

    def go_on(self, settled: Settled) -> None:
        """Count updates on from where the averages of the ranks stood that had these layers before."""
        ...

    def close(self) -> None:
        """Stop serving weights."""
        ...
