"""What a run of forwards alone keeps: each minibatch's outputs, row by row, and when it began and was done."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...io.files import write_atomic
from ..processes.process import Process
from ..transport.state_transfer import StateTransfer
from ..workloads.base import Rows

_NO_PLACE = -1  # of a shorter row of predictions: padding
_HALVES = (torch.float16, torch.bfloat16)


class Predictions:
    """The rows of this rank's minibatches, in memory."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[str, NDArray]] = {}

    def add(self, minibatch: int, rows: Rows) -> None:
        """Take the rows of a minibatch: their numbers, of sequences only which is largest at each place."""
        outputs = rows.outputs.detach().cpu()
        outputs = outputs.float() if outputs.dtype in _HALVES else outputs  # which NumPy has one of
        found = {"sample": rows.samples.cpu().numpy()}
        if outputs.dim() <= 2:
            found["outputs"] = outputs.numpy()
        if outputs.dim() > 1 and outputs.shape[-1] > 1:
            found["predictions"] = outputs.argmax(dim=-1).numpy()
        self._rows[minibatch] = found

    def write(
        self,
        path: Path,
        process: Process,
        ranks: Sequence[int],
        count: int,
        addresses: Callable[[], Mapping[str, Any]],
    ) -> None:
        """Write those of all ranks as one file, in the order of `count` minibatches. Every rank comes here.

        `addresses` gives further arrays of the file, which say what the rows stand for. `ranks` have the rows: the
        first of them writes the file. To it come those of the others, by the disk of their host or, where they are on
        several, over the network.
        """
        if process.hosts and not any(set(ranks) <= set(own) for own in process.hosts):
            self._send(process, ranks[0])
        else:
            self._leave(path, process, ranks)
        if process.rank != ranks[0]:
            return
        arrays = _joined([self._rows[m] for m in range(count)])
        file = io.BytesIO()
        np.savez(file, **arrays, **addresses())  # type: ignore[arg-type]
        write_atomic(path, file.getvalue(), make_folder=False)

    def _send(self, process: Process, first: int) -> None:
        own = {key: torch.from_numpy(values) for key, values in self._named().items()}
        transfer = StateTransfer.of(process, {} if process.rank == first else {first: own})
        transfer.make_room()
        self._take({key: tensor.numpy() for key, tensor in transfer.run().items()})

    def _leave(self, path: Path, process: Process, ranks: Sequence[int]) -> None:
        if self._rows and process.rank != ranks[0]:
            parts: dict[str, Any] = self._named()
            np.savez(_part(path, process.rank), **parts)
        process.barrier("end of the predictions")
        for part in (_part(path, rank) for rank in ranks[1:] if process.rank == ranks[0]):
            if part.exists():
                with np.load(part, allow_pickle=False) as found:
                    self._take({key: found[key] for key in found.files})
                part.unlink()

    def _named(self) -> dict[str, NDArray]:
        return {f"{m}/{name}": values for m, own in self._rows.items() for name, values in own.items()}

    def _take(self, named: Mapping[str, NDArray]) -> None:
        for key, values in named.items():
            minibatch, name = key.split("/")
            self._rows.setdefault(int(minibatch), {})[name] = values


def _part(path: Path, rank: int) -> Path:
    return path.with_name(f".{path.stem}-rank{rank}.npz")


def _joined(minibatches: Sequence[dict[str, NDArray]]) -> dict[str, NDArray]:
    """The rows of all minibatches below each other; where they are of unlike lengths they end in −1, or in NaN."""
    joined = {}
    for name in minibatches[0]:
        parts = [own[name] for own in minibatches]
        longest = np.max([part.shape[1:] for part in parts], axis=0).astype(int)
        joined[name] = np.concatenate([_padded(part, longest) for part in parts])
    return joined


def _padded(part: NDArray, shape: NDArray) -> NDArray:
    room = [(0, 0), *((0, int(most) - own) for most, own in zip(shape, part.shape[1:], strict=True))]
    return np.pad(part, room, constant_values=np.nan if part.dtype.kind == "f" else _NO_PLACE)


class Clock:
    """When each minibatch began in the first stage and was done in the last: float64 [minibatches, 2]."""

    def __init__(self, count: int) -> None:
        self.table = torch.zeros(count, 2, dtype=torch.float64)

    def report(self, samples: int) -> dict[str, Any]:
        """Return samples per second from the first beginning to the last end, and minibatches' latencies in seconds,
        from the beginning in the first stage to the end in the last."""
        began, done = self.table.unbind(dim=1)
        latency = (done - began).numpy()
        median, late = np.percentile(latency, [50, 95])
        return {
            "samples_per_second": samples / max(float(done.max() - began.min()), 1e-9),
            "latency_seconds": {"mean": float(latency.mean()), "median": float(median), "p95": float(late)},
        }
