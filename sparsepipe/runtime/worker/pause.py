"""What a change of the plan cost: the gap between two updates that it made, part by part.

last minibatch under the old plan  ─ drain ─ transfer ─ reconnect ─ fill ─►  first update under the new one

drain      until all ranks have met, each with an empty pipeline
transfer   until every rank has its layers
reconnect  until the plan is written down and the old connections are closed (the new ones were open before)
fill       until the new pipeline has made its first update

The pause is the time from that last minibatch to that first update, less the usual time from one update to the next: 0
where the update came no later than usual. What is usual is taken out of the fill and, where that was shorter, out of
the part before it, and so on: no part is below 0, and they add up to the pause.
"""

from dataclasses import dataclass
from statistics import median
from typing import Any

from torch import Tensor

from .replanning import Moment


@dataclass(frozen=True)
class Pause:
    """The pause before a plan, while it lasts."""

    moment: Moment
    since: float  # when the last minibatch before it was done in the last stage, in the run's seconds
    usual: float  # seconds from one update of the last stage to the next, under the plan before
    ahead: float  # by how many seconds this process's clock is ahead of the run's

    def row(self, now: float) -> dict[str, Any]:
        """Return the row for the run's metrics when the first update is made: parts add up to the pause."""
        began, given, made = (told - self.ahead for told in self.moment.seconds)
        ends = (self.since, began, given, made, now)
        names = ("drain", "transfer", "reconnect", "fill")
        parts, usual = dict.fromkeys(names, 0.0), self.usual
        for name, start, end in reversed(list(zip(names, ends[:-1], ends[1:], strict=True))):
            lasted = max(0.0, end - start)  # clocks of two processes differ by some microseconds
            parts[name] = round(max(0.0, lasted - usual), 6)
            usual = max(0.0, usual - lasted)
        request = self.moment.request
        return {
            "minibatch": self.moment.minibatch,
            "pause_seconds": round(sum(parts.values()), 6),
            "moved_bytes": self.moment.moved_bytes,
            "reason": request.reason,
            "predicted_gain_seconds": request.predicted_gain_seconds,  # null where whoever asked did not say
            "usual_seconds": round(self.usual, 6),
            "parts": parts,
        }


def last_end(table: Tensor) -> float:
    """Return when the last minibatch of a part was done in the last stage: see EpochExecutor.table."""
    return float(table[:, 0].max())


def usual_gap(table: Tensor, round_minibatches: int) -> float:
    """Return the median time from one update of the last stage to the next; 0 where a part has one update."""
    ends = table[:, 0][round_minibatches - 1 :: round_minibatches].sort().values
    return float(median((ends[1:] - ends[:-1]).tolist())) if len(ends) > 1 else 0.0
