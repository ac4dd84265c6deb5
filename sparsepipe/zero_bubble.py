"""The zero-bubble order of one step: weight gradients fill the time in which a stage would wait (Qi et al., ICLR 2024).

A backward is cut in two. B, the gradients of what arrived, is what the stage before waits for; W, the gradients of the
weights, is what nobody waits for but the update. Equal stages, F, B and W of one second each:

    stage 0   F0 F1          B0 W0 F2 B1 W1 F3 B2 W2 B3 W3
    stage 1      F0 B0 F1 B1 W0 ...

Stages need not be equal: the order is that of a timed run in which every replica, whenever it is free, does the first
of these that it can: a forward that 1F1B would run by then, a backward, the oldest weight gradient. No replica holds
more minibatches than the first stage does under 1F1B (the paper's ZB-H1).
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Replica:
    """What one rank has to do in a step, how long each part takes, and how far it got."""

    stage: int
    minibatches: Sequence[int]
    seconds: Mapping[str, float]  # of F, B and W
    ahead: int  # minibatches that forwards may be beyond the next backward
    window: int  # and beyond the oldest weight gradient to come: that is what memory holds
    done: dict[str, int] = field(default_factory=lambda: dict.fromkeys("FBW", 0))
    order: list[tuple[str, int]] = field(default_factory=list)
    busy: bool = False

    def candidates(self) -> list[tuple[str, int]]:
        """The parts it may run now as far as it is concerned, the most wanted first."""
        forward, backward, weights = (self._next(part) for part in "FBW")
        late = [("W", weights)] if self.done["W"] < self.done["B"] else []
        if late and not self.seconds["W"]:  # it makes room and takes no time
            return late
        found = []
        if forward <= min(backward + self.ahead, weights + self.window) and self.done["F"] < len(self.minibatches):
            found.append(("F", forward))
        if self.done["B"] < self.done["F"]:
            found.append(("B", backward))
        return found + late

    def _next(self, part: str) -> int:
        done = self.done[part]
        return self.minibatches[done] if done < len(self.minibatches) else self.minibatches[-1] + 1


def filled(
    replicas: Mapping[int, Replica], serving: Callable[[int, int], int], num_stages: int
) -> dict[int, list[tuple[str, int]]]:
    """Return, for each rank, the parts of the step in their order. `serving(stage, minibatch)` names a rank."""
    arrived = {("F", rank, m) for rank, own in replicas.items() if own.stage == 0 for m in own.minibatches}
    arrived |= {
        ("B", rank, m) for rank, own in replicas.items() if own.stage == num_stages - 1 for m in own.minibatches
    }
    running: list[tuple[float, int, str, int]] = []  # heap of (end, rank, part, minibatch)

    def begin(rank: int, now: float) -> None:
        own = replicas[rank]
        for part, m in () if own.busy or not own.minibatches else own.candidates():
            if part == "W" or (part, rank, m) in arrived:
                own.order.append((part, m))
                own.busy = True
                heapq.heappush(running, (now + own.seconds[part], rank, part, m))
                return

    for rank in replicas:
        begin(rank, 0.0)
    while running:
        now = running[0][0]
        while running and running[0][0] == now:  # all that ends now has ended before anything begins
            _, rank, part, m = heapq.heappop(running)
            own = replicas[rank]
            own.busy = False
            own.done[part] += 1
            target = own.stage + {"F": 1, "B": -1, "W": num_stages}[part]
            if 0 <= target < num_stages:
                arrived.add((part, serving(target, m), m))
        for rank in replicas:
            begin(rank, now)
    assert all(own.done["W"] == len(own.minibatches) for own in replicas.values()), "every part has had its turn"
    return {rank: own.order for rank, own in replicas.items()}
