"""What a step would have taken: replay a trace by what its operations waited for, and leave out what was slow."""

from .causes import Part, WhatIf, what_if
from .replay import Replay, ReplayedStep, replay

__all__ = ["Part", "Replay", "ReplayedStep", "WhatIf", "replay", "what_if"]
