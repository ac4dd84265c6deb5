"""An oracle's real run: who knows when an intruder comes and goes has the plan changed at those very moments."""

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple, Self

from ..errors import InputError, RunFailed
from ..launching import Job
from ..monitoring.factors import Factors, WorkOfRanks
from ..monitoring.simulated import Stretch, best_plans
from ..records import RunRecord
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from .contention import Contention, Reached, came_and_went

ORACLE = "oracle"  # what such a run is called beside the variants of `--replan`
AHEAD = 16  # minibatches that it takes to prepare a plan, before a job has shown how many
_SETTLED = 20  # first minibatches of a run, which are slow whatever disturbs it


class Wanted(NamedTuple):
    """A plan that is to be followed from a minibatch on."""

    minibatch: int
    plan: Plan


def slowed_by(record: RunRecord) -> Factors:
    """By how much each rank took longer alongside the intruder than without it, in a run whose plan never changed.

    Mean seconds of forward and backward over both. Raises InputError for a run whose plan changed, that no one
    disturbed, or that was always disturbed.
    """
    if len(record.plans) != 1 or len(record.pipelines) != 1:
        raise InputError(
            "run.plan_changed",
            f"{record.folder}: its plan changed during the run; measure interference in a run without --replan",
        )
    visits, work = came_and_went(record), WorkOfRanks(record.plan)
    seconds: dict[tuple[int, bool], list[float]] = {}
    for done in filter(None, map(work.take, record.trace().spans)):
        beside = any(came < done.minibatch <= went for came, went in visits)
        if done.minibatch >= _SETTLED or beside:
            seconds.setdefault((done.rank, beside), []).append(done.seconds)
    try:
        return Factors(
            tuple(max(1.0, fmean(seconds[rank, True]) / fmean(seconds[rank, False])) for rank in record.plan.ranks)
        )
    except (KeyError, ZeroDivisionError):
        raise InputError(
            "run.no_intruder",
            f"{record.folder}: needs minibatches both with and without a co-located workload; measure such a run",
        ) from None


def foreseen(
    intrusion: Contention, plan: Plan, profile: Profile, cluster: Cluster, factors: Factors, *, minibatches: int
) -> tuple[Wanted, ...]:
    """The plans that an oracle wants and when, where ranks take `factors` times as long alongside the intruder.

    They are `best_plans` of the run's stretches, whose changes cost what the planner says; none if no change pays.
    """
    moments = [0, *(round(share * minibatches) for visit in intrusion.visits for share in visit), minibatches]
    usual = Factors.none(len(factors.ranks))
    parts = [
        Stretch(first, end, factors if moment_index % 2 else usual)
        for moment_index, (first, end) in enumerate(pairwise(moments))
        if end > first
    ]
    return tuple(Wanted(*best) for best in best_plans(plan, profile, cluster, parts) if best != (0, plan))


class Foresight:
    """Asks a job for each of some plans, as long before its minibatch as it takes to prepare, while the block runs.

    `fault` says why a plan was not followed, which is passed to `tell`, too; the job continues.
    """

    def __init__(self, job: Job, plans: Sequence[Wanted], *, tell: Callable[[str], None] = lambda text: None) -> None:
        self.fault = ""
        self._job, self._plans, self._tell = job, plans, tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, name=f"oracle of {job.record.name}", daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        lead, reached = AHEAD, Reached(self._job)
        for wanted in self._plans:
            at = max(0, wanted.minibatch - lead)
            if not reached.wait(at, over=self._over.is_set) or not self._job.running:
                return
            try:
                first = self._job.replan(wanted.plan, reason="who knows what comes asks for it")
            except (InputError, RunFailed) as error:
                self.fault = str(error)
                self._tell(f"the plan stays: {error}")
                continue
            assert first is not None, "it was waited for"
            lead = first - at
            self._tell(f"from minibatch {first} on, asked for after {at}: {wanted.plan.summary()}")
