"""never: the plan stays as it is, as PipeDream's does."""

from dataclasses import dataclass
from typing import ClassVar

from ..decision import Decision, stay
from .base import Situation


@dataclass(frozen=True)
class Never:
    """Goes on as before, whatever happens."""

    name: ClassVar[str] = "never"
    summary: ClassVar[str] = "the plan stays as it is"
    at_epochs: ClassVar[bool] = False
    looks_back: ClassVar[bool] = False
    asks_predictor: ClassVar[bool] = False
    needs_predictor: ClassVar[bool] = False

    def decide(self, now: Situation) -> Decision:
        return stay(now.plan, "the plan never changes")
