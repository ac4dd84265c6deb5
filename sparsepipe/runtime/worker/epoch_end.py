"""What follows the validation of an epoch: which is the best, whether training stops, and a function of the user's own.

    validation ──► BestEpoch: better than all before? ──► its checkpoint is kept beside the newest ones
                              `early_stopping` validations without one that is better ──► the run ends
               ──► on_epoch(EpochEnd): the user's function, with scores and weights, in the rank that writes metrics

All ranks have the same scores, so each knows the best epoch without asking the others.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ...errors import CODE_FAILURES, InputError
from ...networks.losses.metrics import unknown_best
from ...util.io.fields import complaint
from ...util.io.functions import UserFunction
from ..config import RunConfig
from ..processes.process import Process
from ..reporting.recorder import Recorder
from ..training_state.checkpoint_folders import folder_of
from ..training_state.initial_weights import module_state
from ..training_state.weights import AVERAGE
from ..transport.state_transfer import StateTransfer
from .control import WorkerContext
from .stage_replica import StageReplica

_LOWER_IS_BETTER = ("loss", "perplexity", "error")  # how names of such scores end


@dataclass(frozen=True)
class Best:
    """The epoch with the best value of a score: the checkpoint of its weights has them after `minibatches`."""

    metric: str
    value: float
    epoch: int
    minibatches: int

    def row(self) -> dict[str, object]:
        """Return it as records have it."""
        return asdict(self) | {"checkpoint": folder_of(Path(), self.minibatches).name}


class BestEpoch:
    """Compares validations by one of their scores: higher is better, but of losses, errors and perplexity."""

    def __init__(self, config: RunConfig) -> None:
        """The score is `config.best`, the loss if only early stopping is asked for."""
        self.metric = config.best or ("loss" if config.early_stopping else None)
        self._patience, self._keeps = config.early_stopping, config.best is not None
        self.best: Best | None = None
        self.since = 0  # validations since the best one

    @property
    def minibatches(self) -> int | None:
        """After how many minibatches the checkpoint stands that is to be kept; None: there is none."""
        return self.best.minibatches if self.best and self._keeps else None

    @property
    def is_over(self) -> bool:
        """Return whether the run ends early."""
        return self._patience is not None and self.since >= self._patience

    def compare(self, epoch: int, minibatches: int, scores: Mapping[str, float | None]) -> bool:
        """Take note of a validation. Return whether it is better than all before.

        Raises InputError if it has no such score.
        """
        if self.metric is None:
            return False
        if self.metric not in scores:
            raise unknown_best(self.metric, scores)
        value = scores[self.metric]
        sign = -1.0 if self.metric.endswith(_LOWER_IS_BETTER) else 1.0
        is_better = (
            value is not None and math.isfinite(value) and (self.best is None or sign * value > sign * self.best.value)
        )
        if is_better and value is not None:
            self.best = Best(self.metric, value, epoch, minibatches)
        self.since = 0 if is_better else self.since + 1
        return is_better

    def resume(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Go on after the validations of a run that resumes, by its rows of epochs."""
        for row in rows:
            if (scores := row.get("validation")) and self.metric in scores:
                self.compare(row["epoch"], row["minibatches"], scores)

    def share(self, process: Process, *, source: int) -> None:
        """Go on, on every rank, from what rank `source` knows. All ranks come here."""
        values = torch.zeros(5, dtype=torch.float64)
        if process.rank == source:
            best = self.best or Best("", 0.0, 0, 0)
            known = float(self.best is not None)
            values[:] = torch.tensor([known, best.value, best.epoch, best.minibatches, self.since], dtype=values.dtype)
        known, value, epoch, minibatches, since = process.sum(values, what="resume").tolist()
        self.since = int(since)
        if known and self.metric:
            self.best = Best(self.metric, value, int(epoch), int(minibatches))


@dataclass(frozen=True)
class EpochEnd:
    """An epoch that was validated: the argument of a function `on_epoch`.

    Attributes:
        epoch: Its number, from 0.
        minibatches: Minibatches trained so far, in all epochs.
        train: Loss and the like over the epoch.
        validation: Scores of the validation; None: the run does not validate.
        is_best: Whether it is the best epoch so far by the setting `best`.
        weights: Copies of the network's weights and buffers on the CPU, by their names in its state_dict: the moving
            averages if the run keeps them (`ema`).
        run_dir: The run directory.

    Example:
        >>> def on_epoch(end):
        ...     return {"weight_norm": sum(float(w.norm()) for w in end.weights.values() if w.is_floating_point())}
    """

    epoch: int
    minibatches: int
    train: Mapping[str, float | None]
    validation: Mapping[str, float | None] | None
    is_best: bool
    weights: Mapping[str, Tensor]
    run_dir: Path


def call_on_epoch(reference: str, end: EpochEnd, recorder: Recorder) -> None:
    """Call a function of the user's own, and record the numbers that it returns. Raises InputError if it raises."""
    try:
        result = UserFunction.parse(reference).load()(end)
        numbers = {str(name): float(value) for name, value in dict(result or {}).items()}
    except CODE_FAILURES as error:  # whatever the user's function raises: it is told in a line
        raise InputError(
            "callback.raises",
            f"on_epoch {reference} raises {type(error).__name__} ({complaint(error, None)}) after epoch {end.epoch}; "
            "the function must return None or a dict of numbers",
            kind=type(error).__name__,
        ) from error
    if numbers:
        recorder.metric("callback", epoch=end.epoch, minibatches=end.minibatches, numbers=numbers)


def gather_weights(context: WorkerContext, replicas: Iterable[StageReplica]) -> Mapping[str, Tensor]:
    """Return the weights and buffers of all stages by name, on the rank that writes metrics; nothing on the others.

    All ranks come here. Raises InputError if there is no room for them.
    """
    process, target = context.process, context.plan.stages[-1].ranks[0]
    state: dict[str, Tensor] = {}
    for replica in replicas:
        if replica.writes:
            state |= replica.tensors()
    held = {key: tensor for key, tensor in state.items() if key.startswith(("weight:", AVERAGE, "buffer:"))}
    transfer = StateTransfer.of(process, {} if process.rank == target else {target: held})
    transfer.make_room()
    received = {key: tensor.clone() for key, tensor in transfer.run().items()}
    if process.rank != target:
        return {}
    tensors = {key: tensor.detach().cpu().clone() for key, tensor in held.items()} | received
    names = context.workload.state_names
    weights = module_state(tensors, {} if names is None else names.to_json())
    return MappingProxyType(dict(sorted(weights.items())))  # the same order under every plan
