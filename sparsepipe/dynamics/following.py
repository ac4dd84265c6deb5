"""Follow a running job and change its plan: the loop of replanner.py in a thread of the process that launched it."""

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, Self

from ..cluster import Cluster
from ..errors import InputError, RunFailed
from ..launchers.base import Job
from ..launchers.metrics_tail import Tail
from ..plan import Plan
from ..profile import Profile
from ..record import RunRecord
from ..record.processes import num_processes
from ..runtime import RunConfig
from .decision import Decision
from .drift import Watch
from .drift_file import DriftFile
from .interference.predictor import Predictor
from .of_runs import devices_of, watch_of
from .predictions import Predictions
from .replanner import Replanner
from .run_rows import RunRows
from .variants import LayerFactors, variant

DECISIONS = "decisions.jsonl"  # in a run's folder: what was decided and why, whether it changed anything or not
_SECONDS = 0.1  # between two looks
_STEPS = 20  # the newest so many tell how long a minibatch takes now


def check_replan(name: str | None, plan: Plan, profile: Profile | None, cluster: Cluster | None) -> None:
    """Raise InputError where a run could not change its plan by itself, before it is launched."""
    if name is None:
        return
    variant(name)
    plan.one("several keep theirs: leave out replan")
    if profile is None or cluster is None:
        raise InputError(
            "replan.no_profile",
            "{replan} needs the profile that the plan was made for, and the devices; give {profile}, and {cluster} "
            "where they are not alike",
            setting={"replan": name, "profile": ..., "cluster": ...},
        )
    plan.check(profile.graph, cluster)


def _watch(record: RunRecord, plan: Plan, profile: Profile, cluster: Cluster) -> Watch:
    try:
        return watch_of(record, profile, cluster)
    except InputError:  # a run that is resumed had more devices, of which nothing need be known
        return Watch(profile, cluster, plan)


class Following:
    """Watches a job until it ends, and changes its plan as a variant says.

    The job is asked by `Job.replan`, and goes on as before where it refuses. Whatever happens here ends no job: `fault`
    tells what ended the watching before the job; `thread` ends with it. What was decided is in the run's
    decisions.jsonl too.

    >>> with Following(job, "live") as following:
    ...     job.wait()
    >>> following.decisions
    """

    def __init__(
        self,
        job: Job,
        name: str = "live",
        *,
        profile: Profile | None = None,
        cluster: Cluster | None = None,
        tell: Callable[[str], None] = lambda text: None,
        predict: Callable[[int], LayerFactors | None] | None = None,
        predictor: Predictor | None = None,
    ) -> None:
        """Profile and cluster are those that the run was launched with, where they are not given.

        `tell` is called with a line for each decision. What variants ask of a rank's layers `predict` answers, or a
        `predictor` of this machine. Raises InputError for a job that cannot be followed.
        """
        record: RunRecord = job.record
        plan = record.plan
        profile, cluster = devices_of(record, profile, cluster)
        check_replan(name, plan, profile, cluster)
        # The devices that a job of so many processes has.
        cluster = cluster.part(range(min(num_processes(record.folder, plan), len(cluster.devices))))
        self.fault = ""
        self._job, self._tell = job, tell
        self._rows, self._metrics = RunRows(record.folder), Tail(record.folder / "metrics.jsonl")
        self._config = RunConfig.from_json(record.config)
        self._predictions = (
            Predictions(predictor, record.folder, profile, cluster, device=self._config.device) if predictor else None
        )
        self._watch, self._drift = _watch(record, plan, profile, cluster), DriftFile(record.folder)
        self._replanner = Replanner(
            plan,
            profile,
            cluster,
            self._watch,
            variant(name),
            num_minibatches=0,
            predict=predict or (self._predictions.of if self._predictions else None),
        )
        self._known = {first for first, _ in record.plans}  # first minibatches of plans that the replanner knows of
        self._next = 0  # the minibatch that begins next
        self._ends: list[float] = []  # of the newest minibatches, in seconds
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._follow, name=f"replan {record.name}", daemon=True)
        self.thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def decisions(self) -> tuple[tuple[int, Decision], ...]:
        """What was decided so far, and before which minibatch."""
        return tuple(self._replanner.decisions)

    @property
    def plan(self) -> Plan:
        """The plan that the job follows, whoever asked for it."""
        return self._replanner.plan

    def close(self) -> None:
        """Stop watching. The job goes on."""
        self._over.set()
        self.thread.join()

    def _follow(self) -> None:
        try:
            while self._job.running and not self._over.is_set():
                self._look()
                self._over.wait(_SECONDS)
        except (InputError, RunFailed, OSError) as error:
            self.fault = str(error)
            self._tell(f"the plan is followed no longer: {error}")
        finally:
            self._drift.close()
            if self._predictions:
                self._predictions.close()

    def _look(self) -> None:
        if self._predictions:
            self._predictions.look()
        ends_epoch = False
        while rows := self._metrics.read():
            for row in rows:
                ends_epoch |= row["event"] == "epoch"
                self._take(row)
        spans, sizes = self._rows.read()
        self._next = max([self._next, *(span.minibatch + 1 for span in spans if span.kind == "forward")])
        if not self._replanner.num_minibatches:
            return  # it has not begun
        known, judged = len(self._replanner.decisions), len(self._replanner.outcomes.told)
        alarms = len(self._watch.alarms)
        decision = self._replanner.see(
            spans,
            sizes,
            self._next,
            left_out=self._rows.left_out(),
            ends_epoch=ends_epoch,
            seconds_per_minibatch=self._pace(),
        )
        self._drift.add(self._watch.alarms[alarms:])
        for outcome in self._replanner.outcomes.told[judged:]:
            self._note({"event": "outcome", **outcome.to_json()})
            self._tell(str(outcome))
        for minibatch, made in self._replanner.decisions[known:]:
            self._note({"event": "decision", "minibatch": minibatch, **made.to_json()})
            self._tell(f"minibatch {minibatch}, {'another plan' if made.changes else 'the plan stays'}: {made.why}")
        if decision is not None:
            self._change(decision)

    def _pace(self) -> float | None:
        """What a minibatch takes now; None where too few were seen under this plan."""
        seconds, count = (self._ends[-1] - self._ends[0], len(self._ends) - 1) if self._ends else (0.0, 0)
        return seconds / count if seconds > 0 and count >= _STEPS // 2 else None

    def _take(self, row: Mapping[str, Any]) -> None:
        """Take what a row of metrics tells of how far the run is."""
        if row["event"] == "start" and "epoch_minibatches" in row:
            self._replanner.num_minibatches = self._config.total_minibatches(row["epoch_minibatches"])
        elif row["event"] == "resume":  # after a crash: it goes on from its checkpoint
            self._next, self._ends = row.get("minibatches", 0), []
        elif row["event"] == "step" and "seconds" in row:
            self._ends = [*self._ends[1 - _STEPS :], row["seconds"]]
        elif row["event"] == "replan" and row.get("minibatch") not in self._known:
            self._changed_by_others(row["minibatch"])

    def _changed_by_others(self, first: int) -> None:
        """Somebody, as at the launch board, had the job go on under another plan from minibatch `first` on."""
        self._known.add(first)
        plan = next((plan for begins, plan in self._job.record.plans if begins == first), None)
        if plan is not None:
            self._ends = []
            self._replanner.follow(plan, first)
            self._note({"event": "followed", "minibatch": first})
            self._tell(f"from minibatch {first} on, as somebody else asked: {plan.summary()}")

    def _change(self, decision: Decision) -> None:
        gain = max(0.0, decision.gain_seconds)
        try:
            first = self._job.replan(decision.plan, reason=decision.why, predicted_gain_seconds=gain)
        except InputError as error:  # the old plan goes on
            self._replanner.refused()
            self._note({"event": "refused", "reason": str(error)})
            self._tell(f"the plan stays: {error}")
            return
        assert first is not None
        self._ends = []
        self._known.add(first)
        self._replanner.begin(decision, first)
        self._note({"event": "changed", "minibatch": first})
        self._tell(f"from minibatch {first} on: {decision.plan.summary()}")

    def _note(self, row: Mapping[str, Any]) -> None:
        with (self._job.record.folder / DECISIONS).open("a") as file:
            file.write(json.dumps(row) + "\n")
