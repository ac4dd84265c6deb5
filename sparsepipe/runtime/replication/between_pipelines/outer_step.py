"""An outer optimizer's step, whose gradient is what the members' weights changed by: DiLoCo."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from ....values.replication.base import Merge
from ...failures import PacketMismatch, seconds_left
from .layout import WEIGHT
from .mean import MeanExchange
from .merging import Contribution, Merged, distance
from .messages import NO_PAYLOAD, CalledOff, Message
from .packing import packed, packed_bytes, unpacked
from .peers import Peers, called_off

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
