"""An outer optimizer's step, whose gradient is what the members' weights changed by: DiLoCo."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ....values.plan import Stage
from ....values.replication.base import Merge
from ...failures import PacketMismatch, seconds_left
from ...processes.process import Process
from ...training_state.weights import Weights
from ..base import Replication
from .mean import Contribution, MeanExchange, MeanWeights, Merged, Merging, distance
from .messages import BUFFER, NO_PAYLOAD, REACHED, WEIGHT, CalledOff, Layout, Message
from .pair import Offer
from .parameter_server import Server
from .peers import Peers, called_off
from .reduction import Contributions, Reductions, packed, packed_bytes, unpacked
from .state import StateDesk, UnderWay

OUTER, VELOCITY, VERSION = "outer:", "outer_velocity:", "outer_version:all"


class OuterOptions(Protocol):
    """The options of a rule with an outer step."""

    @property
    def outer_rate(self) -> float: ...

    @property
    def momentum(self) -> float: ...

    @property
    def nesterov(self) -> bool: ...

    @property
    def bits(self) -> int:
        """Of each number that is sent."""
        ...

    @property
    def error_feedback(self) -> bool: ...


class OuterStep:
    """The member of `Merging` for Arithmetic.OUTER_STEP (Douillard et al., "DiLoCo", 2023).

    Outer parameters and their velocity are kept alongside the weights, identical in all pipelines: each steps for
    itself, by the same mean. One whose own are older than another member's, since it joined or missed a merge, takes
    them from that member. Buffers have no gradient: their mean is taken as it is.
    """

    def __init__(
        self,
        exchange: MeanExchange,
        optimizer: OuterOptions,
        weights: Tensor,
        *,
        take_state: Callable[[int, int], dict[str, Tensor]],
    ) -> None:
        """`weights`: the vector that training begins with. `take_state(pipeline, version)` returns that pipeline's
        state, once it has stepped with the merge `version`.
        """
        self._exchange, self._optimizer, self._take_state = exchange, optimizer, take_state
        self._outer, self._velocity = weights.clone(), torch.zeros_like(weights)
        self._version = -1  # the merge that was stepped with last
        self._stepped = threading.Condition()

    def contribute(self, number: int, update: int, snapshot: Tensor) -> Contribution:
        return Contribution(number, update, snapshot)

    def merge(self, merge: Merge, contribution: Contribution) -> Merged:
        own, weights = contribution.snapshot, self._exchange.layout.weights
        change = own.clone()
        change[weights] = self._outer[weights] - own[weights]
        found = self._exchange.mean(merge, change, version=self._version)
        newest = max(found.versions.values())
        mean = self._outer[weights] - found.values[weights]
        facts = {"bytes": found.bytes, "distance": distance(own[weights] - mean, mean)}
        if newest > self._version:
            ahead = min(member for member, version in found.versions.items() if version == newest)
            self.load(self._take_state(ahead, merge.number))
            facts["outer_from"] = ahead
        else:
            self._step(found.values[weights], merge.number)
        result = found.values
        result[weights] = self._outer[weights]
        return Merged(result - own, result, facts)

    def _step(self, gradient: Tensor, version: int) -> None:
        """Step as torch.optim.SGD does, with the momentum's first step undamped."""
        options, weights = self._optimizer, self._exchange.layout.weights
        with self._stepped:
            velocity, outer = self._velocity.clone(), self._outer.clone()
            velocity[weights] = velocity[weights] * options.momentum + gradient
            step = gradient + options.momentum * velocity[weights] if options.nesterov else velocity[weights]
            outer[weights] -= options.outer_rate * step
            self._velocity, self._outer, self._version = velocity, outer, version
            self._stepped.notify_all()

    def applied(self, contribution: Contribution, merged: Merged | None) -> None:
        """The outer parameters were stepped when it came."""

    def state(self) -> dict[str, Tensor]:
        with self._stepped:
            outer, velocity, version = self._outer, self._velocity, self._version
        layout = self._exchange.layout
        found = {VERSION: torch.tensor(float(version), dtype=torch.float64)}
        for kind, flat in ((OUTER, outer), (VELOCITY, velocity)):
            parts = layout.parts(flat).items()
            found |= {f"{kind}{name.removeprefix(WEIGHT)}": part for name, part in parts if name.startswith(WEIGHT)}
        return found

    def kept(self) -> dict[str, Tensor]:
        return self.state()

    def load(self, state: dict[str, Tensor]) -> None:
        layout = self._exchange.layout
        outer, velocity = self._outer.clone(), self._velocity.clone()
        for kind, flat in ((OUTER, outer), (VELOCITY, velocity)):
            for name, part in layout.parts(flat).items():
                key = f"{kind}{name.removeprefix(WEIGHT)}"
                if name.startswith(WEIGHT) and key in state:
                    part.copy_(state[key])
        with self._stepped:
            self._outer, self._velocity = outer, velocity
            if VERSION in state:
                self._version = int(state[VERSION])
            self._stepped.notify_all()

    def awaited_state(self, version: int, *, timeout: float) -> dict[str, Tensor]:
        """Return the state once this has stepped with a merge, as it will in a moment. Raises CalledOff."""
        deadline = time.monotonic() + timeout
        with self._stepped:
            while self._version < version:
                if time.monotonic() >= deadline:
                    raise CalledOff(f"no outer step of merge {version} within {timeout:g} s")
                self._stepped.wait(seconds_left(deadline))
            return self.state()


@dataclass(frozen=True, eq=False)
class OuterDesk:
    """Hands out outer parameters to a pipeline whose own are older. It answers "outer"."""

    step: OuterStep
    timeout: float

    def payload_bytes(self, facts: Mapping[str, Any]) -> int:
        if not isinstance(facts.get("version"), int):
            raise PacketMismatch("outer_step.no_version", "a request for outer parameters without their version")
        return 0

    def answer(self, request: Message) -> tuple[Mapping[str, Any], Tensor]:
        return packed(self.step.awaited_state(request.facts["version"], timeout=self.timeout))


def outer_state(
    peers: Peers, names: Sequence[str], pipeline: int, version: int, *, timeout: float
) -> dict[str, Tensor]:
    """Return the outer parameters of some tensors from another pipeline, once it has stepped with the merge `version`.

    Raises CalledOff.
    """
    deadline, found = time.monotonic() + timeout, dict[str, Tensor]()
    for route in peers.routes(pipeline, names, deadline=deadline):
        with called_off(pipeline):
            route.link.ask({"what": "outer", "version": version}, NO_PAYLOAD, deadline=deadline)
            found |= unpacked(route.link.answer(packed_bytes, deadline=deadline))
    return found


@dataclass(eq=False)
class Exchanging:
    """Exchange with other pipelines by the first replica of a stage, for all its replicas."""

    contributions: Contributions
    merging: Merging
    final: MeanWeights  # what a run ends with, whatever its rule
    under_way: UnderWay
    desk: StateDesk
    server: Server
    peers: Peers
    offer: Offer | None  # of a rule whose merges take partners by surprise
    reductions: Sequence[Reductions]

    def close(self) -> None:
        self.under_way.close()
        for reductions in self.reductions:
            reductions.close()
        self.server.close()
        self.peers.close()


class Waited:
    """Counts the seconds that training waits for other pipelines, within it."""

    def __init__(self) -> None:
        self.seconds = 0.0  # since the beginning
        self._since = self._taken = 0.0

    def __enter__(self) -> None:
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._since

    def take(self) -> float:
        """Return the seconds since the last call."""
        found, self._taken = self.seconds - self._taken, self.seconds
        return found


class Runner(Protocol):
    """Interface of the runner of a stage's layers."""

    @property
    def is_last(self) -> bool: ...

    def buffers(self) -> dict[str, Tensor]: ...

    def merge_seconds(self, merge: Merge) -> float: ...


class Place(Protocol):
    """Interface of a replica's position."""

    @property
    def stage(self) -> int: ...

    @property
    def process(self) -> Process: ...

    @property
    def replication(self) -> Replication: ...


class Replica(Protocol):
    """A stage on one rank, as the worker has it."""

    @property
    def own(self) -> Stage: ...

    @property
    def position(self) -> Place: ...

    @property
    def runner(self) -> Runner: ...

    @property
    def weights(self) -> Weights: ...

    @property
    def writes(self) -> bool:
        """Return whether it is the first of its stage's replicas, which exchanges for all of them."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint keeps of it."""
        ...


class Held:
    """The averaged tensors of a replica, as one vector.

    A version of the weights that a forward has met is never changed: calls come right after an update.
    """

    def __init__(self, replica: Replica, *, of_gradients: bool = False) -> None:
        """`of_gradients`: vectors have gradients in the weights' places, and say which weights have one."""
        self._replica = replica
        self.stage = replica.position.stage
        self._group = replica.position.replication
        layers = replica.own.layers
        self._buffers = [
            name
            for name, buffer in replica.runner.buffers().items()
            if buffer.is_floating_point() and not _of_an_earlier_call(name, layers)
        ]
        weights = replica.weights.newest.tensors if of_gradients else {}
        self._all_reached = {f"{REACHED}{name}": torch.ones(1, device=w.device) for name, w in weights.items()}
        self.layout = Layout(self.tensors() | self._all_reached)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors themselves, named as in checkpoints."""
        buffers = self._replica.runner.buffers()
        found = {f"{WEIGHT}{name}": tensor for name, tensor in self._replica.weights.newest.tensors.items()}
        return found | {f"{BUFFER}{name}": buffers[name] for name in self._buffers}

    def snapshot(self) -> Tensor:
        """Return a copy as they are."""
        return self.layout.flat(self.tensors() | self._all_reached)

    def snapshot_of(self, gradients: list[Tensor | None]) -> Tensor:
        """Return a copy with gradients in the weights' places: zeros if the loss does not reach a weight (None)."""
        tensors = self.tensors()
        for name, gradient in zip(self._replica.weights.names, gradients, strict=True):
            weight = tensors[f"{WEIGHT}{name}"]
            tensors[f"{WEIGHT}{name}"] = torch.zeros_like(weight) if gradient is None else gradient
            tensors[f"{REACHED}{name}"] = torch.tensor([float(gradient is not None)], device=weight.device)
        return self.layout.flat(tensors)

    def gradients(self, flat: Tensor) -> list[Tensor | None]:
        """Return the gradients that a vector has in the weights' places; its buffers become this replica's.

        None for a weight that the loss reaches in no pipeline.
        """
        parts, tensors = self.layout.parts(flat), self.tensors()
        self.layout.copy({name: tensor for name, tensor in tensors.items() if name.startswith(BUFFER)}, flat)
        weights = {name: tensors[f"{WEIGHT}{name}"] for name in self._replica.weights.names}
        return [
            parts[f"{WEIGHT}{name}"].to(weight.device, weight.dtype) if float(parts[f"{REACHED}{name}"]) else None
            for name, weight in weights.items()
        ]

    def apply(self, change: Tensor | None, *, in_place_of: bool = False) -> None:
        """Add a vector to the tensors, or replace them by it, in all replicas of the stage: all come here, and the
        first says what. None: nothing. Raises DeadlinePassed or PeerLost.
        """
        change, in_place_of = self._told(change, in_place_of=in_place_of)
        if change is not None:
            (self.layout.copy if in_place_of else self.layout.add)(self.tensors(), change)

    def told(self, values: Tensor | None) -> Tensor | None:
        """Return what the first replica gives, in all replicas."""
        return self._told(values, in_place_of=False)[0]

    def _told(self, values: Tensor | None, *, in_place_of: bool) -> tuple[Tensor | None, bool]:
        if self._group.num_replicas == 1:
            return values, in_place_of
        device, what = self._replica.position.process.device, "the average between pipelines"
        first = self._replica.own.ranks[0]
        kind = torch.tensor([0 if values is None else 1 + in_place_of], device=device)
        self._group.broadcast(kind, first, what=what)
        if not int(kind):
            return None, False
        values = torch.empty(self.layout.num_elements) if values is None else values
        values = values.to(device)
        self._group.broadcast(values, first, what=what)
        return values, int(kind) == 1 + True


def _of_an_earlier_call(name: str, layers: Collection[str]) -> bool:
    """Return whether a buffer is of a module that is called again here, and for the first time in another stage.

    Then that stage's is averaged: "norm-2" holds "norm.running_mean" alongside "norm".
    """
    place = name.rpartition(".")[0]
    return place not in layers and any(layer.rpartition("-")[0] == place for layer in layers)
