"""A split whose minibatches are read once for all threads of a process, by itself or by further processes.

    rank ─┬─ thread of the first stage ──► ReadOnce ──► data set
          └─ thread of the targets ───────┘   └──────► reading processes, forked at the first minibatch

What a minibatch holds depends on its samples, its epoch and the seed alone, so any number of processes reads the same.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from typing import Any

import torch

from ...errors import InputError
from ...util.derived import SHARED_GENERATORS
from .base import Samples

KEPT = 8  # minibatches that a process keeps for those of its readers that come later


class ReadOnce:
    """A split whose minibatches are read once, though several threads of a process ask for them.

    The thread that reads for the first stage, the one for targets, and those of stages that read inputs themselves.
    """

    def __init__(self, samples: Samples, processes: int = 0) -> None:
        """`processes`: that read minibatches meanwhile; 0: the thread that asks first reads."""
        self._samples, self._room = samples, KEPT + 2 * processes
        self._lock = threading.Lock()
        self._read: dict[tuple[tuple[int, ...], int], Future[Any]] = {}  # the oldest first
        self._processes = ReadingProcesses(samples, processes) if processes else None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._samples, name)

    def __len__(self) -> int:
        return len(self._samples)  # type: ignore[arg-type]  # a data set's split has a length

    def keep(self, minibatches: int) -> None:
        """Keep so many minibatches more: for a reader that goes ahead of the others by whole steps."""
        self._room += minibatches

    def begin(self, indices: Sequence[int], *, epoch: int = 0) -> "Future[Any]":
        """Have a minibatch read, here and now if there are no reading processes."""
        key = (tuple(indices), epoch)
        with self._lock:
            future = self._read.get(key)
            mine = future is None
            if future is None:
                future = self._read[key] = (
                    Future() if self._processes is None else self._processes.begin(tuple(indices), epoch)
                )
                while len(self._read) > self._room:
                    del self._read[next(iter(self._read))]
        if mine and self._processes is None:
            try:
                future.set_result(self._samples.batch(indices, epoch=epoch))
            except BaseException as error:
                future.set_exception(error)
        return future

    def batch(self, indices: Sequence[int], *, epoch: int = 0) -> Any:
        return self.begin(indices, epoch=epoch).result()


class ReadingProcesses:
    """Processes that read minibatches of a split. They are forks, so what is open is open there too."""

    def __init__(self, samples: Samples, count: int) -> None:
        self._samples, self._count = samples, count
        self._pool: ProcessPoolExecutor | None = None

    def begin(self, indices: tuple[int, ...], epoch: int) -> "Future[Any]":
        """Have a process read a minibatch. The future raises what reading raises."""
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self._count, multiprocessing.get_context("fork"), _begin_process, (self._samples,)
            )
        minibatch: Future[Any] = Future()
        with warnings.catch_warnings():  # other threads of this process are no harm to what the forks do: see below
            warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)
            packed = self._pool.submit(_read, indices, epoch)
        packed.add_done_callback(lambda done: _unpack(done, minibatch))
        return minibatch


_SAMPLES: list[Samples] = []  # of this process, if it is one that reads


def _begin_process(samples: Samples) -> None:
    """Make a fork one that only reads: one thread for torch, no lock that another thread held, no life of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the rank hears it
    SHARED_GENERATORS._at_fork_reinit()  # type: ignore[attr-defined]  # as threading does with its own
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    _SAMPLES[:] = [samples]


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(0)


def _read(indices: tuple[int, ...], epoch: int) -> bytes:
    """Read a minibatch as bytes: shared memory, which torch would take, is a few MB in containers."""
    return pickle.dumps(_SAMPLES[0].batch(indices, epoch=epoch), protocol=pickle.HIGHEST_PROTOCOL)


def _unpack(packed: "Future[bytes]", minibatch: "Future[Any]") -> None:
    try:
        minibatch.set_result(pickle.loads(packed.result()))
    except BrokenProcessPool:
        text = "a data worker process ended unexpectedly, perhaps because memory ran out; use fewer {num_workers}"
        minibatch.set_exception(InputError("data.reader_died", text, setting="num_workers"))
    except BaseException as error:
        minibatch.set_exception(error)
