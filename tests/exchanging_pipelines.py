"""Pipelines of a few tensors that train in threads of one process, and a coordinator that decides by the real rules."""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import torch
from processes import ENOUGH
from torch import Tensor

from sparsepipe.runtime.failures import DeadlinePassed
from sparsepipe.runtime.pipelines.base import Holder
from sparsepipe.runtime.processes.process import Process
from sparsepipe.runtime.replication.base import Alone, Replication
from sparsepipe.runtime.replication.between_pipelines.opening import open_averagers
from sparsepipe.runtime.stages.base import Position
from sparsepipe.runtime.training_state.optimizer import SGD
from sparsepipe.runtime.training_state.weights import Weights
from sparsepipe.runtime.worker.stage_replica import StageReplica
from sparsepipe.values.plan import Stage
from sparsepipe.values.replication.base import Merge, Rule

TIMEOUT = 20.0


class Board:
    """What a coordinator decides about averages: by a rule's own groups, in one process, on the wall clock."""

    def __init__(self, rule: Rule, num_pipelines: int, *, num_holders: Mapping[int, int] | None = None) -> None:
        self.rule, self.num_pipelines = rule, num_pipelines
        self.changed = threading.Condition()
        self._groups = rule.groups(num_pipelines)
        self._holders: dict[int, list[Holder]] = defaultdict(list)
        self._num_holders = num_holders or {}
        self._told: dict[int, dict[int, int | None]] = defaultdict(dict)
        self._merges: dict[tuple[int, int], Merge] = {}
        self._at_end: set[int] = set()
        self._count = defaultdict(int)
        self._last: Merge | None = None
        self.dead: set[int] = set()
        self.facts: list[tuple[int, Merge, dict]] = []

    def of(self, pipeline: int, rank: int = 0) -> "BoardClient":
        return BoardClient(self, pipeline)

    def kill(self, pipeline: int) -> None:
        """A pipeline is seen dead: nobody waits for it any more."""
        with self.changed:
            self.dead.add(pipeline)
            self._decided(self._groups.leave(pipeline, now=time.monotonic()))
            self._holders.pop(pipeline, None)

    def revive(self, pipeline: int) -> None:
        with self.changed:
            self.dead.discard(pipeline)
            self._told[pipeline].clear()
            self._decided(self._groups.join(pipeline, now=time.monotonic()))

    def merge_after(self, pipeline: int, update: int) -> Merge | None:
        """The merge that a pipeline's contribution after an update is in, if it made one."""
        return self._merges.get((pipeline, self._told[pipeline].get(update)))

    def _decided(self, merges: Sequence[Merge]) -> None:
        for merge in merges:
            for member, contribution in zip(merge.members, merge.contributions, strict=True):
                self._merges[member, contribution] = merge
        self.changed.notify_all()

    def _expire(self) -> None:
        deadline = self._groups.next_deadline()
        if deadline is not None and deadline <= time.monotonic():
            self._decided(self._groups.expire(now=time.monotonic()))


class BoardClient:
    """The board as the ranks of one pipeline see it: the part of `Coordinator` that averagers ask."""

    def __init__(self, board: Board, pipeline: int) -> None:
        self._board, self.pipeline, self.num_pipelines = board, pipeline, board.num_pipelines

    def register(self, holder: Holder) -> None:
        with self._board.changed:
            self._board._holders[holder.pipeline].append(holder)
            self._board.changed.notify_all()

    def holders(self, pipeline: int) -> Sequence[Holder]:
        with self._board.changed:
            found = list(self._board._holders.get(pipeline, []))
        return found if len(found) == self._board._num_holders.get(pipeline, len(found)) else []

    def live(self) -> Sequence[int]:
        others = set(range(self.num_pipelines)) - {self.pipeline} - self._board.dead
        return [pipeline for pipeline in sorted(others) if self.holders(pipeline)]

    def contribute(self, update: int, *, samples: int) -> int:
        board = self._board
        with board.changed:
            number = board._count[self.pipeline]
            board._count[self.pipeline] += 1
            board._told[self.pipeline][update] = number
            board._decided(board._groups.contribute(self.pipeline, now=time.monotonic(), samples=samples))
            return number

    def pass_over(self, update: int) -> None:
        with self._board.changed:
            self._board._told[self.pipeline][update] = None
            self._board.changed.notify_all()

    def contribution(self, update: int) -> int | None:
        told = self._board._told[self.pipeline]
        with self._board.changed:
            if not self._board.changed.wait_for(lambda: any(one >= update for one in told), TIMEOUT):
                raise DeadlinePassed(f"nobody told of update {update}", peer=None)
            return told.get(update)

    def merge_of(self, contribution: int, *, wait: float) -> Merge | None:
        board, deadline = self._board, time.monotonic() + wait
        with board.changed:
            while (self.pipeline, contribution) not in board._merges and time.monotonic() < deadline:
                board._expire()
                due = board._groups.next_deadline()
                until = deadline if due is None else min(deadline, due)
                board.changed.wait(max(until - time.monotonic(), 0.0005))
            board._expire()
            return board._merges.get((self.pipeline, contribution))

    def merged(self, merge: Merge, facts: Mapping) -> None:
        with self._board.changed:
            self._board.facts.append((self.pipeline, merge, dict(facts)))

    def last_merge(self, update: int) -> Merge:
        board = self._board
        with board.changed:
            if self.pipeline not in board._at_end:
                board._at_end.add(self.pipeline)
                board._decided(board._groups.leave(self.pipeline, now=time.monotonic()))
            everybody = lambda: board._at_end >= set(range(self.num_pipelines)) - board.dead  # noqa: E731
            if not board.changed.wait_for(everybody, TIMEOUT):
                raise DeadlinePassed("not all came to the end", peer=None)
            if board._last is None:
                members = tuple(sorted(board._at_end - board.dead))
                contributions = tuple(board._count[member] for member in members)
                weights = (1 / len(members),) * len(members)
                board._last = Merge(10**6, members, contributions, weights)
            return board._last


class Tensors:
    """The runner of a stage that is a few tensors: no layers, no forward."""

    def __init__(self, weights: Mapping[str, Tensor], buffers: Mapping[str, Tensor], *, is_last: bool) -> None:
        self._weights, self._buffers, self.is_last = dict(weights), dict(buffers), is_last

    def parameters(self) -> dict[str, Tensor]:
        return self._weights

    def merge_seconds(self, merge: Merge) -> float:
        return 0.0

    def buffers(self) -> dict[str, Tensor]:
        return self._buffers

    def constants(self) -> dict[str, Tensor]:
        return {}


def stage(
    layers: Sequence[str],
    weights: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    *,
    rank: int = 0,
    is_last: bool = True,
    momentum: float = 0.0,
    ranks: tuple[int, ...] | None = None,
    replication: Replication | None = None,
) -> StageReplica:
    """A stage replica of some tensors, which it copies."""
    process = Process(rank, 1, torch.device("cpu"), TIMEOUT)
    here = [name for name in weights if name.rpartition(".")[0] in layers]
    runner = Tensors(
        {name: weights[name].clone() for name in here},
        {name: buffer.clone() for name, buffer in buffers.items() if name.rpartition(".")[0] in layers},
        is_last=is_last,
    )
    chosen = SGD(momentum=momentum, weight_decay=0.0)
    position = Position(process, rank, replication or Alone())
    return StageReplica(Stage(tuple(layers), ranks or (rank,)), position, runner, Weights(runner.parameters(), chosen))  # type: ignore[arg-type]


class Trained:
    """One pipeline: its stages, cut at some layers, with an averager each, in the thread of whoever trains it.

    Its stages are updated in the order of a pipeline's: the last first.
    """

    def __init__(
        self,
        board: Any,
        pipeline: int,
        layers: Sequence[str],
        weights: Mapping[str, Tensor],
        buffers: Mapping[str, Tensor] | None = None,
        *,
        cuts: Sequence[int] = (),
        momentum: float = 0.0,
        timeout: float = TIMEOUT,
        state: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`board`: a Board, or another way to a coordinator. `state`: what `fetch_state` gave."""
        bounds = [0, *cuts, len(layers)]
        self.clients = [board.of(pipeline, rank) for rank in range(len(bounds) - 1)]
        self.stages = [
            stage(
                layers[first:last],
                weights,
                buffers or {},
                rank=rank,
                is_last=last == len(layers),
                momentum=momentum,
            )
            for rank, (first, last) in enumerate(zip(bounds, bounds[1:], strict=False))
        ]
        for one in self.stages if state else []:
            one.load_tensors(state)
        self.averagers = []
        for client, one in zip(self.clients, self.stages, strict=True):  # each is a rank
            self.averagers += open_averagers(client, board.rule, [one], timeout=timeout)
        for averager in self.averagers if state else []:
            averager.load_state(state)
        self.update = 0

    def step(self, gradient: Callable[[str, Tensor], Tensor | None], *, samples: int = 4, rate: float = 0.1) -> None:
        """One update of every stage. `gradient(name, weight)` is a weight's. Each stage has a thread, as it has a rank:
        one that waits for other pipelines keeps nobody else waiting."""
        with ThreadPoolExecutor(len(self.stages)) as ranks:
            list(ranks.map(lambda k: self._step(k, gradient, samples, rate), reversed(range(len(self.stages)))))
        self.update += 1

    def _step(self, k: int, gradient: Callable[[str, Tensor], Tensor | None], samples: int, rate: float) -> None:
        replica, averager = self.stages[k], self.averagers[k]
        tensors = replica.weights.newest.tensors
        gradients = [gradient(name, tensor.detach()) for name, tensor in tensors.items()]
        replica.weights.update(averager.before_step(gradients, self.update, samples=samples), rate)
        averager.after_step(self.update, samples=samples)

    def finish(self) -> None:
        with ThreadPoolExecutor(len(self.stages)) as ranks:
            list(ranks.map(lambda averager: averager.finish(), self.averagers))

    def close(self) -> None:
        for averager in self.averagers:
            averager.close()

    @property
    def client(self) -> Any:
        """The last stage's, which leads."""
        return self.clients[-1]

    def weights(self) -> dict[str, Tensor]:
        return {name: t.detach().clone() for one in self.stages for name, t in one.weights.newest.tensors.items()}

    def buffers(self) -> dict[str, Tensor]:
        return {name: t.clone() for one in self.stages for name, t in one.runner.buffers().items()}


def at_once(*calls: Callable[[], object]) -> list:
    """Make calls in threads of their own; return what they return, raise what the first that fails raises.

    A call that waits with `until` says itself what does not come: it has its time first.
    """
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        for future in as_completed(futures, ENOUGH + TIMEOUT):
            future.result()
        return [future.result() for future in futures]


class Together:
    """The replicas of a stage in threads of one process, and what one of them says to all."""

    def __init__(self, num_replicas: int) -> None:
        self.num_replicas = num_replicas
        self._all_here, self._said = threading.Barrier(num_replicas, timeout=TIMEOUT), None

    def of(self, rank: int) -> "OneOfThem":
        return OneOfThem(self, rank)

    def meet(self) -> None:
        """All ranks of a pipeline are through with a task before any begins the next."""
        self._all_here.wait()

    def share(self, rank: int, values: Tensor, source: int) -> None:
        if rank == source:
            self._said = values.clone()
        self._all_here.wait()
        values.copy_(self._said)
        self._all_here.wait()


class OneOfThem(Alone):
    """One of them: the part of `Replication` that averages between pipelines need."""

    def __init__(self, together: Together, rank: int) -> None:
        self._together, self._rank, self.num_replicas = together, rank, together.num_replicas

    def broadcast(self, values: Tensor, source: int, *, what: str) -> None:
        self._together.share(self._rank, values, source)


SIZES = ((3, 5), (7,), (2, 3, 4), (1,), (11, 13))


def network(seed, sizes=SIZES):
    """Layers a, b, …: a weight each, and the running mean of a batch norm of every other."""
    draw = torch.Generator().manual_seed(seed)
    layers = [chr(ord("a") + k) for k in range(len(sizes))]
    weights = {f"{layer}.w": torch.randn(size, generator=draw) for layer, size in zip(layers, sizes, strict=True)}
    buffers = {f"{layer}.running_mean": torch.randn(4, generator=draw) for layer in layers[::2]}
    buffers |= {f"{layer}.num_batches_tracked": torch.tensor(3) for layer in layers[::2]}
    return layers, weights, buffers


def same_bits(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)
