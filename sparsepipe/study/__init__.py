"""Reproduce the figures: execute the notebooks in order; what they share is on disk, so that each also runs alone.

Notebooks import `workplace` and `cached_runs`, which need torch; to execute them it is not needed.
"""

from .catalogue import NOTEBOOKS
from .driver import reproduce
from .page import PAGE

__all__ = ["NOTEBOOKS", "PAGE", "reproduce"]
