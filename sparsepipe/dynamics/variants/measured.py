"""measured: DynPipe's Simple, whose planner multiplies a disturbed stage by the ratio measured of it."""

from dataclasses import dataclass
from typing import ClassVar

from ..decision import Decision
from .base import Situation, dynpipe_decision, measured_factors


@dataclass(frozen=True)
class Measured:
    """Cuts anew with DynPipe's planner at an alarm; the measured ratio holds for every layer on that device."""

    name: ClassVar[str] = "measured"
    summary: ClassVar[str] = "DynPipe's planner, a stage's measured ratio for each of its layers (Simple)"
    at_epochs: ClassVar[bool] = False
    looks_back: ClassVar[bool] = False
    asks_predictor: ClassVar[bool] = False
    needs_predictor: ClassVar[bool] = False

    def decide(self, now: Situation) -> Decision:
        return dynpipe_decision(now, measured_factors(now))
