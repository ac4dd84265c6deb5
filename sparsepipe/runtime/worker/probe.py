"""How slow a rank is that the plan leaves out: now and then it is timed over a fixed piece of work, as it has no other.

A row of the run's metrics tells of each time; whoever follows the run holds it against the first ones
(dynamics/drift.py), and so finds out when the rank is itself again. The work has some arithmetic and some traffic to
memory, a hundredth of a second of both on a usual core; where nothing is computed, as in a replay, it is a sleep.
"""

import time

import torch

from ...workload_facts import workload_facts
from .context import WorkerContext

_EVERY = 0.5  # seconds
_SLEEP = 0.01
_SIDE, _PRODUCTS = 256, 10  # of matrices
_NUMBERS, _PASSES = 2_000_000, 4  # over 8 MB


class Probe:
    """The times of this rank. It gets in nobody's way, but for the one hundredth of a second."""

    def __init__(self, context: WorkerContext) -> None:
        self._context, self._due = context, 0.0
        self._computes = workload_facts(context.workload.engine_name).trains
        if self._computes:
            device = context.process.device
            self._matrix = torch.full((_SIDE, _SIDE), 1 / _SIDE, device=device)
            self._numbers = torch.zeros(_NUMBERS, device=device)

    def look(self, first: int) -> None:
        """Take the time if that is due. `first`: a minibatch that the others have begun, maybe long ago."""
        if time.monotonic() < self._due:
            return
        context, minibatch = self._context, self._minibatch(first)
        start = time.monotonic()
        self._work()
        if context.straggler:
            context.straggler.lag(minibatch, time.monotonic() - start)
        seconds = time.monotonic() - start
        context.recorder.metric("left_out", rank=context.rank, minibatch=minibatch, probe_seconds=round(seconds, 6))
        context.recorder.flush()
        self._due = time.monotonic() + _EVERY

    def _minibatch(self, first: int) -> int:
        """The newest minibatch that another rank says it is at."""
        beats = self._context.process.heartbeats
        return max([first, *(beats.of(rank).minibatch for rank in self._context.plan.ranks if beats)])

    def _work(self) -> None:
        if not self._computes:
            time.sleep(_SLEEP)
            return
        for _ in range(_PRODUCTS):
            self._matrix = self._matrix @ self._matrix  # of all 1 / n: it stays as it is
        for _ in range(_PASSES):
            self._numbers += 1.0
        if self._numbers.is_cuda:
            torch.cuda.synchronize(self._numbers.device)
