"""Losses: what a network's output costs against its target, and what is reported of it. One family of losses a file.

A new loss is a file here with a member of `Loss` (base.py) and a row in LOSSES.
"""

from .base import Loss, Outcome, Tally
from .classes import CrossEntropy, Segmentation

__all__ = ["CrossEntropy", "Loss", "Outcome", "Segmentation", "Tally"]
