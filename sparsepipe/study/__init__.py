"""What the notebooks share, and the batch that executes them (`reproduce`).

`Workplace` says where data, profiles, runs and figures are kept. `train`, `emulated` and `campaign_of` reuse finished
runs and launch those that are missing; `equal_stages` cuts a network without a profile; `Contention` injects a
co-located workload. The modules in `_FIGURES` hold what one figure alone needs. Executing notebooks imports no torch,
so all names but those of the batch are imported when they are first asked for.
"""

from typing import TYPE_CHECKING

from ..util.lazy_names import lazy_names
from .catalogue import NOTEBOOKS
from .driver import reproduce
from .page import PAGE

if TYPE_CHECKING:
    from .cached_runs import campaign_of, equal_stages, print_epoch, train

_HOME = {
    "Contention": "contention",
    "Claim": "claims",
    "Overview": "overview",
    "Study": "claim_runs",
    "Workplace": "workplace",
    "campaign_of": "cached_runs",
    "emulated": "cached_runs",
    "equal_stages": "cached_runs",
    "explain_prediction": "cached_runs",
    "explain_throughput": "cached_runs",
    "explain_waiting": "cached_runs",
    "print_epoch": "cached_runs",
    "published_profiles": "machines",
    "throughput_markdown": "cached_runs",
    "train": "cached_runs",
}
_FIGURES = (
    *("dense", "foresight", "held_against", "learning", "machines", "moving", "published_dynpipe", "recorded"),
    *("strategy_grid", "unlike_devices"),
)

__all__ = ["NOTEBOOKS", "PAGE", "campaign_of", "equal_stages", "print_epoch", "reproduce", "train"]
__all__ += [name for name in _HOME if name not in __all__]

__getattr__, __dir__ = lazy_names(globals(), _HOME, folders=_FIGURES)
