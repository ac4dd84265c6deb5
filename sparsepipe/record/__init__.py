"""Records of runs on disk: plans, settings, metrics and traces, checked as they are read; and which are comparable."""

from .opening import load_trace
from .plans import FollowedPlan
from .run_record import NO_PICTURES, NOTEBOOK, PAPER, Origin, RunRecord, load_warnings

__all__ = ["FollowedPlan", "NOTEBOOK", "NO_PICTURES", "Origin", "PAPER", "RunRecord", "load_trace", "load_warnings"]
