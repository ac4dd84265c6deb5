"""What every workload offers the worker: minibatches, who runs a stage on them, and what its loss reports."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ...networks.losses import Loss, Tally
from ...records.run_progress import WorkloadFacts
from ...values.plan import Plan
from ..stages.base import Position, StageRunner
from ..training_state.checkpoint import Checkpoint
from ..training_state.initial_weights import StateNames


class Samples(Protocol):
    """One split of a workload's data: samples by index, from 0."""

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> Any:
        """Read samples as the first stage takes them. `epoch` decides how they are augmented.

        A thread calls it while the worker computes. Raises InputError for a file that cannot be read.
        """
        ...


class Rows(NamedTuple):
    """The network's output for a minibatch, in the order of the data."""

    outputs: Tensor  # [rows, …]: a row a sample, or a voxel; classes last
    samples: Tensor  # int64 [rows]: the sample that each is of
    others: Mapping[str, Tensor] = {}  # further outputs of the network by name, [rows, …] each


class Workload(Protocol):
    """A run's data and network. Every rank opens it in the same way; samples are read by the first stage, labels by the
    last.

    A minibatch is a tuple of sample indices. Its *size* is what its costs grow with, in `size_unit`: the stage's runner
    reports it, and it travels with the minibatch.
    """

    @property
    def model(self) -> str:
        """Name of the network in the run's record."""
        ...

    @property
    def facts(self) -> WorkloadFacts:
        """Facts that identify the workload."""
        ...

    @property
    def engine_name(self) -> str:
        """Name of the engine in the run's record."""
        ...

    @property
    def synthetic(self) -> bool:
        """Return whether the samples were made, not measured: their speed is real, their accuracy tells nothing."""
        ...

    @property
    def size_unit(self) -> str:
        """Unit of a minibatch's size: one of SIZE_UNITS (util/text/numbers.py)."""
        ...

    @property
    def num_classes(self) -> int: ...

    @property
    def state_names(self) -> StateNames | None:
        """The tensors of the network's state_dict; None if there are no weights."""
        ...

    @property
    def num_samples(self) -> int:
        """Samples of the training split."""
        ...

    def sample_name(self, index: int) -> str:
        """Return the name of a sample of the training split in messages."""
        ...

    @property
    def data_digest(self) -> str:
        """A hash of the splits in use, by which hosts find out whether they have the same."""
        ...

    @property
    def epoch_minibatches(self) -> int:
        """Minibatches of an epoch."""
        ...

    @property
    def mean_samples(self) -> float | None:
        """Samples of a mean minibatch, over which each weighs its gradient; None: each minibatch weighs the same."""
        ...

    @property
    def total_minibatches(self) -> int:
        """Minibatches of the whole run."""
        ...

    @property
    def training(self) -> Samples: ...

    @property
    def validation(self) -> Samples | None:
        """None if the settings ask for no validation."""
        ...

    def check(self, plan: Plan) -> None:
        """Raise InputError if the plan is not one for these layers."""
        ...

    def order(self, epoch: int) -> Sequence[Sequence[int]]:
        """Return the samples of each training minibatch of an epoch: the same on every rank."""
        ...

    def validation_order(self) -> Sequence[Sequence[int]]:
        """Return the samples of each minibatch of the validation split. Only if there is one."""
        ...

    @property
    def loss(self) -> Loss:
        """Loss function of the network's outputs."""
        ...

    @property
    def labels_are_read(self) -> bool:
        """Return whether `labels` reads files, so that a thread had better call it ahead of time."""
        ...

    @property
    def reading_processes(self) -> int:
        """Processes that read minibatches ahead, of each rank that reads samples."""
        ...

    def parts(self, samples: Any, indices: Sequence[int]) -> Sequence[Sequence[int]]:
        """Return the samples of each part in which a minibatch of a split passes: all in one, unless memory is limited.

        The same on every rank.
        """
        ...

    def begin_batch(self, samples: Any, indices: Sequence[int], epoch: int) -> Any:
        """Return what a split's `batch` does, or a Future of it if other processes read it."""
        ...

    def labels(self, samples: Any, indices: Sequence[int], epoch: int) -> Tensor:
        """Return the labels of samples of a split, as the last stage's loss takes them."""
        ...

    def rows(self, samples: Any, indices: Sequence[int], output: Any) -> Rows:
        """Return what the last stage's runner gives as `result` for samples of a split, row by row.

        Raises InputError if the network has no row for each.
        """
        ...

    def addresses(self) -> dict[str, Any]:
        """Return arrays that say what the rows of the validation split stand for, by name; see `Predictions.write`."""
        ...

    def runner(self, plan: Plan, position: Position) -> StageRunner:
        """Return what runs the layers of this process's stage at `position`, warmed up."""
        ...

    @property
    def score_names(self) -> tuple[str, ...]:
        """Names of `scores`, equal on every rank; () if there are none."""
        ...

    def scores(self, found: Checkpoint) -> dict[str, float | None]:
        """Return what a validation reports of the network in one piece, as a checkpoint has it; most often nothing."""
        ...

    def tally(self) -> Tally:
        """Return an empty sum of outcomes, for a validation."""
        ...
