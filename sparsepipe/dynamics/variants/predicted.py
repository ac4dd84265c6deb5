"""predicted: DynPipe, whose predictor says what the intruder costs the layers that another cut would bring."""

from dataclasses import dataclass
from typing import ClassVar

from ..decision import Decision
from .base import Situation, dynpipe_decision, predicted_factors


@dataclass(frozen=True)
class Predicted:
    """Cuts anew with DynPipe's planner at an alarm, for each layer as the predictor expects it beside the intruder.

    Without a predictor, as in simulations and replays, it is `measured`; a run that trains is refused without one.
    """

    name: ClassVar[str] = "predicted"
    summary: ClassVar[str] = "DynPipe's planner, each layer as a predictor expects it beside the intruder (DynPipe)"
    at_epochs: ClassVar[bool] = False
    looks_back: ClassVar[bool] = False
    asks_predictor: ClassVar[bool] = True
    needs_predictor: ClassVar[bool] = True

    def decide(self, now: Situation) -> Decision:
        return dynpipe_decision(now, predicted_factors(now))
