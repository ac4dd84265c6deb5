"""live: the best plan for the devices as they are now, where a change is sure to pay (decision.py)."""

from dataclasses import dataclass
from typing import ClassVar

from ..decision import Decision, decide
from .base import Situation


@dataclass(frozen=True)
class Live:
    """Changes cuts, replication, shares and the order of devices, leaves devices out and takes them back, if that
    gains more than it costs.
    """

    name: ClassVar[str] = "live"
    summary: ClassVar[str] = "the optimal plan for the devices as they are now, if the change pays"
    at_epochs: ClassVar[bool] = False
    looks_back: ClassVar[bool] = True
    asks_predictor: ClassVar[bool] = False
    needs_predictor: ClassVar[bool] = False

    def decide(self, now: Situation) -> Decision:
        return decide(
            now.plan,
            now.profile,
            now.cluster,
            now.factors,
            also=now.also,
            minibatches_left=now.minibatches_left,
            seconds_per_minibatch=now.seconds_per_minibatch,
            known=(now.first_plan,),
            caution=now.caution,
            believed=now.believed,
        )
