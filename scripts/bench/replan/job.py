"""A job whose plan changes back and forth, and what its rows say of each change."""

import socket
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sparsepipe.launching import launch
from sparsepipe.networks import network
from sparsepipe.runtime import RunConfig
from sparsepipe.values.plan import Plan, Stage

_BYTES = 2**28  # sent to measure a socket
_DEADLINE = 600.0  # seconds for minibatches to come


@dataclass(frozen=True)
class Change:
    """One change of the plan."""

    minibatch: int  # the first under the new plan
    moved_bytes: int
    gap_seconds: float  # the longest from one update to the next, from when it was asked for on
    usual_seconds: float  # the median, before it was asked for
    prepared_seconds: float  # from when it was asked for until it was done
    parts: dict[str, float]

    @property
    def pause_seconds(self) -> float:
        return max(0.0, self.gap_seconds - self.usual_seconds)

    @property
    def steps(self) -> float:
        """The pause in usual steps."""
        return self.pause_seconds / max(self.usual_seconds, 1e-9)

    def as_json(self, rate: float) -> dict[str, Any]:
        limit = self.moved_bytes / rate + max(self.parts["fill"], 0.0)
        return asdict(self) | {"pause_seconds": self.pause_seconds, "steps": self.steps, "limit_seconds": limit}


def plans(model: str, schedule: str, num_microbatches: int, cuts: Sequence[float]) -> list[Plan]:
    """Cut the layers of a model in two, at each of these shares of them."""
    ids = tuple(row.id for row in network(model, num_classes=10).rows)
    places = [round(share * len(ids)) for share in cuts]
    return [
        Plan((Stage(ids[:place], (0,)), Stage(ids[place:], (1,))), schedule=schedule, num_microbatches=num_microbatches)
        for place in places
    ]


def measure(found: Sequence[Plan], config: RunConfig, run_dir: Path, *, moves: int, between: int) -> list[Change]:
    """Train under the first plan, and change to the next and back so often, `between` minibatches apart."""
    with launch(found[0], config, run_dir=run_dir) as job:
        changes: list[Change] = []
        after = between
        for move in range(moves):
            _reached(job, after)
            asked = _last(job)
            started = time.monotonic()
            first = job.replan(found[(move + 1) % len(found)], reason=f"move {move + 1} of {moves}")
            prepared = time.monotonic() - started
            after = first + between
            _reached(job, after)
            row = next(row for row in job.record.metrics("replan") if row["minibatch"] == first)
            steps = job.record.metrics("step")
            changes.append(_change(steps, row, asked=asked, prepared=prepared, update=found[0].num_microbatches))
        job.cancel()
    return changes


def socket_rate() -> float:
    """Return the bytes a second that go through a socket of this machine, from one thread to another."""
    ours, theirs = socket.socketpair()
    data = memoryview(bytearray(_BYTES))

    def read() -> None:
        room, left = memoryview(bytearray(2**20)), _BYTES
        while left:
            left -= theirs.recv_into(room)

    reader = threading.Thread(target=read)
    start = time.perf_counter()
    reader.start()
    ours.sendall(data)
    reader.join()
    ours.close()
    theirs.close()
    return _BYTES / (time.perf_counter() - start)


def _change(
    steps: Sequence[dict[str, Any]], row: dict[str, Any], *, asked: int, prepared: float, update: int
) -> Change:
    """`asked`: the last minibatch before it was asked for. `update`: minibatches from one to the next."""
    ends = {step["minibatch"] // update: step["seconds"] for step in steps}  # of the last minibatch of each
    first, known = row["minibatch"] // update, asked // update

    def gaps(start: int, stop: int) -> list[float]:
        return [ends[k] - ends[k - 1] for k in range(start, stop) if k in ends and k - 1 in ends]

    usual, longest = statistics.median(gaps(max(1, known - 50), known)), max(gaps(known, first + 1))
    return Change(row["minibatch"], row["moved_bytes"], longest, usual, prepared, dict(row["parts"]))


def _last(job: Any) -> int:
    return max((row["minibatch"] for row in job.record.metrics("step")), default=-1)


def _reached(job: Any, minibatch: int) -> None:
    deadline = time.monotonic() + _DEADLINE
    while _last(job) < minibatch:
        if time.monotonic() > deadline or not job.running:
            raise TimeoutError(f"minibatch {minibatch} did not come: the job is {job.state}")
        time.sleep(0.05)
