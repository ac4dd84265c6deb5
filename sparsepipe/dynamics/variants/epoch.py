"""epoch: DynPipe-Re, DynPipe's planner at the ends of epochs alone."""

from dataclasses import dataclass
from typing import ClassVar

from ..decision import Decision
from .base import Situation, dynpipe_decision, predicted_factors


@dataclass(frozen=True)
class Epoch:
    """Cuts anew with DynPipe's planner after an epoch, for the devices as they are then; nothing in between."""

    name: ClassVar[str] = "epoch"
    summary: ClassVar[str] = "DynPipe's planner at the ends of epochs (DynPipe-Re)"
    at_epochs: ClassVar[bool] = True
    looks_back: ClassVar[bool] = False
    asks_predictor: ClassVar[bool] = True
    needs_predictor: ClassVar[bool] = False

    def decide(self, now: Situation) -> Decision:
        return dynpipe_decision(now, predicted_factors(now))
