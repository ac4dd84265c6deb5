"""The checkpoints of a run as its ranks write them together: begun, written, proven by a validation, discarded."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import RunConfig
from ..processes.process import Process
from ..training_state import checkpoint
from ..training_state.async_checkpoint import Snapshots
from ..training_state.checkpoint_folders import folder_of
from .epoch_end import BestEpoch


class RunCheckpoints:
    """Checkpoints in `folder`.

    `unproven`: minibatches of the one whose weights are not validated yet. `best`: knows which one stays for its score.
    """

    def __init__(self, folder: Path, process: Process, config: RunConfig, *, before: "RunCheckpoints | None") -> None:
        """`before`: those of the worker whose place another takes; they continue as they are."""
        self.folder, self.process, self.config = folder, process, config
        self.snapshots: Snapshots = before.snapshots if before else Snapshots(folder, timeout=config.timeout_seconds)
        self.unproven: int | None = None
        self.best: BestEpoch = before.best if before else BestEpoch(config)

    @property
    def keep(self) -> int:
        """Number of checkpoints to keep, plus the one before an unproven checkpoint."""
        return self.config.keep_checkpoints + (self.unproven is not None)

    def begin(self, done: int) -> None:
        """Wait for the last one, and make room for one after `done` minibatches. All ranks come here."""
        self.snapshots.wait()
        if self.process.rank == 0:
            self._prune()
        if self.process.leads_host:
            checkpoint.begin(self.folder, done)
        self.process.barrier("start of a checkpoint")

    def write(
        self,
        done: int,
        shards: Mapping[str, dict[str, Tensor]],
        facts: Mapping[str, Any],
        *,
        num_stages: int,
        last: bool,
    ) -> None:
        """Write this rank's `shards`, and the manifest of `facts` once those of all stages exist."""
        names = {f"stage{k}" for k in range(num_stages)}
        finish = partial(checkpoint.finish, self.folder, done, **facts)
        self.snapshots.write(done, shards=shards, finish=(names, finish) if self.process.rank == 0 else None)
        if last or not self.config.asynchronous_checkpoints:
            self.snapshots.wait()
            self.process.barrier("end of a checkpoint")

    def prove(self) -> None:
        """Let the checkpoint before an epoch's go, once the epoch's weights are known to be of use."""
        self.unproven = None
        if self.process.rank == 0 and self.config.checkpoint_every and not self.snapshots.busy:
            self._prune()

    def _prune(self) -> None:
        checkpoint.prune(self.folder, self.config.keep_checkpoints, best=self.best.minibatches)

    def load_after(self, done: int) -> checkpoint.Checkpoint | None:
        """Return the checkpoint after so many minibatches, once it is whole; None if there is none."""
        self.snapshots.wait()
        folder = folder_of(self.folder, done)
        return checkpoint.load(folder) if folder.exists() else None

    def discard_unproven(self) -> None:
        """Discard the checkpoint of weights that are of no use. All ranks come here."""
        self.snapshots.wait()  # the good one may be under way
        if self.process.rank == 0 and self.unproven is not None:
            checkpoint.discard(self.folder, self.unproven)
        self.process.barrier("end of a checkpoint")
