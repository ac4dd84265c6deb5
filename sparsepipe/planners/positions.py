"""Who works on a plan: the devices of each place in the pipeline, and what the estimate says they do a minibatch."""

from dataclasses import dataclass

from ..display.plan_diff import listed
from ..plan import Plan


@dataclass(frozen=True)
class Team:
    """The devices of one place in the pipeline, with their stage, or with all of those that are interleaved there."""

    stages: tuple[int, ...]
    compute: float  # seconds a minibatch
    averaging: float
    memory: float  # bytes on the fullest device

    @property
    def busy(self) -> float:
        """Seconds a minibatch."""
        return self.compute + self.averaging

    @property
    def name(self) -> str:
        """ "stage 1", or "stages 0 and 2"."""
        return f"stage{'s' if len(self.stages) > 1 else ''} {listed(self.stages)}"


def teams(plan: Plan) -> list[Team]:
    """Who works on a plan that has an estimate, in pipeline order."""
    assert plan.estimate is not None
    found = []
    for stages in plan.positions:
        own = [plan.estimate.stages[k] for k in stages]
        sums = (sum(e.compute_seconds for e in own), sum(e.averaging_seconds for e in own))
        found.append(Team(stages, *sums, sum(e.memory_bytes for e in own)))
    return found
