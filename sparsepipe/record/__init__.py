"""Records of runs on disk: what each followed and measured, each file checked as it is read; which may be compared."""

from .plans import FollowedPlan
from .run_record import NO_PICTURES, NOTEBOOK, Origin, RunRecord, load_warnings

__all__ = ["FollowedPlan", "NOTEBOOK", "NO_PICTURES", "Origin", "RunRecord", "load_warnings"]
