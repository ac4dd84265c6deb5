"""A checkpoint written alongside the training: tensors are copied where it stands, a thread brings them to disk."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor

from ..failures import DeadlinePassed
from . import checkpoint
from .checkpoint_folders import partial_folder

_GRACE = 1.0  # seconds for a thread that waited in vain to say for whom, before it is called stuck itself


class Snapshots:
    """At most one checkpoint of this rank under way. Errors of its thread are raised by the call that waits for it."""

    def __init__(self, run_dir: Path, *, timeout: float) -> None:
        self._run_dir, self._timeout = run_dir, timeout
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def write(
        self,
        minibatches: int,
        *,
        shards: Mapping[str, Mapping[str, Tensor]],
        finish: tuple[set[str], Callable[[], object]] | None,
    ) -> None:
        """Begin to write this rank's `shards` (name → tensors), if it has any.

        With `finish` (names of all shards, what makes the checkpoint whole) it goes on to do so once all exist.
        """
        copies = {
            name: {key: tensor.detach().clone() for key, tensor in tensors.items()} for name, tensors in shards.items()
        }
        self._thread = threading.Thread(target=self._work, args=(minibatches, copies, finish), name="checkpoint")
        self._thread.daemon = True
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Say whether a checkpoint is under way."""
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the checkpoint under way is on disk. Raises what writing it raised."""
        if self._thread is not None:
            self._thread.join(self._timeout + _GRACE)
            if self._thread.is_alive():
                raise DeadlinePassed(f"writing a checkpoint took more than {self._timeout:g} s", peer=None)
            self._thread = None
        if self._error is not None:
            raise self._error

    def _work(
        self,
        minibatches: int,
        shards: Mapping[str, Mapping[str, Tensor]],
        finish: tuple[set[str], Callable[[], object]] | None,
    ) -> None:
        deadline = time.monotonic() + self._timeout
        try:
            for name, tensors in shards.items():
                checkpoint.write_shard(self._run_dir, minibatches, name, tensors)
            if finish is not None:
                names, make_whole = finish
                self._await(minibatches, names, deadline)
                make_whole()
        except BaseException as error:  # handed to the worker, who raises it
            self._error = error

    def _await(self, minibatches: int, names: set[str], deadline: float) -> None:
        """Look until every shard's description exists: it is written when the shard is."""
        folder = partial_folder(self._run_dir, minibatches)
        while missing := {name for name in names if not (folder / f"{name}.json").exists()}:
            if time.monotonic() > deadline:
                raise DeadlinePassed(f"a checkpoint waited {self._timeout:g} s for {min(missing)}", peer=-1)
            time.sleep(0.02)
