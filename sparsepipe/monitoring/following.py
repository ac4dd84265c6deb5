"""Follow a running job and change its plan: the loop of replanner.py in a thread of the process that launched it.

Of several pipelines there is a thread for each: it watches that pipeline's devices and changes its plan, while the
others train on under theirs.

RUN/decisions.jsonl                of one pipeline: what was decided and why, whether it changed anything or not
RUN/pipelines/K/decisions.jsonl    of each of several
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from ..errors import InputError, RunFailed
from ..launching.base import Job
from ..launching.followed_job import Tail
from ..launching.replan import replanned, request_of_pipeline
from ..records import RunRecord
from ..records.run_progress import num_processes
from ..runtime import RunConfig
from ..runtime.plan_fit import check_next_of_several
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.replication.base import Rule
from .decision import Caution, Decision
from .drift import Watch
from .drift_file import Alarm, DriftFile
from .interference.predictor import Predictor
from .of_runs import PipelineRows, RunRows, TakenMinibatches, devices_of, watch_of
from .predictions import Predictions
from .replanner import Replanner
from .variants import LayerFactors, Variant, variant

DECISIONS = "decisions.jsonl"  # in a run's folder: what was decided and why, whether it changed anything or not
_SECONDS = 0.1  # between two looks
_TO_BE_WRITTEN = 5.0  # seconds, within which rows of who took which minibatch have come, from hosts too
_STEPS = 20  # the newest so many tell how long a minibatch takes now


def check_replan(name: str | None, plan: Plan, profile: Profile | None, cluster: Cluster | None) -> None:
    """Raise InputError if a run could not change its plan by itself, before it is launched."""
    if name is None:
        return
    variant(name)
    if profile is None or cluster is None:
        raise InputError(
            "replan.no_profile",
            "{replan} needs the profile of the plan and its devices; give {profile}, and {cluster} for heterogeneous "
            "devices",
            setting={"replan": name, "profile": ..., "cluster": ...},
        )
    plan.check(profile.graph, cluster)


def _watch(record: RunRecord, plan: Plan, profile: Profile, cluster: Cluster) -> Watch:
    try:
        return watch_of(record, profile, cluster)
    except InputError:  # a run that is resumed had more devices, of which nothing need be known
        return Watch(profile, cluster, plan)


class Following:
    """Watches a job until it ends, and changes its plan as a variant says, of each pipeline by itself.

    The job is asked by `Job.replan`, and continues as before where it refuses. Whatever happens here ends no job:
    `fault` says what ended the watching before the job; `threads` end with it. What was decided is in the run's
    decisions.jsonl too, or in that of each pipeline.

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
        """Profile and cluster are those that the run was launched with, if they are not given.

        `tell` is called with a line for each decision. What variants ask of a rank's layers `predict` answers, or a
        `predictor` of this machine. Raises InputError for a job that cannot be followed.
        """
        plan: Plan = job.record.plan
        profile, cluster = devices_of(job.record, profile, cluster)
        check_replan(name, plan, profile, cluster)
        drift, self._over = DriftFile(job.record.folder), threading.Event()
        self._pipelines = [
            FollowedPipeline(
                job,
                k,
                variant(name),
                profile,
                cluster,
                drift=drift,
                over=self._over,
                tell=tell,
                predict=predict,
                predictor=predictor,
            )
            for k in range(len(plan.pipelines))
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def threads(self) -> tuple[threading.Thread, ...]:
        """Return the monitoring threads, one per pipeline."""
        return tuple(own.thread for own in self._pipelines)

    @property
    def fault(self) -> str:
        """Return why monitoring ended before the job; empty if it did not."""
        return "; ".join(filter(None, (own.fault for own in self._pipelines)))

    @property
    def decisions(self) -> tuple[tuple[int, Decision], ...]:
        """Decisions so far, each with its first minibatch; for several pipelines one after the other."""
        return tuple((own.number(at), made) for own in self._pipelines for at, made in own.replanner.decisions)

    @property
    def plan(self) -> Plan:
        """The plan that the job follows, whoever asked for it."""
        first, *others = self._pipelines
        plan = first.whole.with_local(0, first.replanner.plan)
        for k, own in enumerate(others, 1):
            plan = plan.with_local(k, own.replanner.plan)
        return plan

    def close(self) -> None:
        """Stop watching. The job continues."""
        self._over.set()
        for thread in self.threads:
            thread.join()


class FollowedPipeline:
    """One pipeline of a followed job, or its only one: what it does now, and what is decided of it.

    One of several counts its minibatches as it takes them, as a job of its own would: see `TakenMinibatches`.
    """

    def __init__(
        self,
        job: Job,
        k: int,
        chosen: Variant,
        profile: Profile,
        cluster: Cluster,
        *,
        drift: DriftFile,
        over: threading.Event,
        tell: Callable[[str], None],
        predict: Callable[[int], LayerFactors | None] | None,
        predictor: Predictor | None,
    ) -> None:
        """`over` is set when no one wants it any more."""
        self.whole, self.fault, self._k = job.record.plan, "", k
        record, plan = job.record.pipelines[k], self.whole.local(k)
        # The devices that a job of so many processes has.
        several = bool(self.whole.members)
        ranks = (
            self.whole.ranks_of(k) if several else range(min(num_processes(record.folder, plan), len(cluster.devices)))
        )
        cluster = cluster.part(ranks)
        self._job, self._record, self._tell, self._drift, self._over = job, record, tell, drift, over
        taken = TakenMinibatches(job.record.folder, k) if several else None
        self._rows: RunRows | PipelineRows = PipelineRows(record.folder, taken) if taken else RunRows(record.folder)
        self._taken, self._metrics = taken, Tail(record.folder / "metrics.jsonl")
        self._config = RunConfig.from_json(record.config)
        self._predictions = (
            Predictions(predictor, record.folder, profile, cluster, device=self._config.device) if predictor else None
        )
        self._watch = Watch(profile, cluster, plan) if several else _watch(record, plan, profile, cluster)
        rule = self.whole.replication
        self.replanner = Replanner(
            plan,
            profile,
            cluster,
            self._watch,
            chosen,
            num_minibatches=0,
            predict=predict or (self._predictions.of if self._predictions else None),
            caution=Caution(follows=lambda new: rule is None or _follows(new, len(ranks), rule)),
        )
        self._known = {first for first, _ in record.plans}  # first minibatches of plans that the replanner knows of
        self._next = 0  # the minibatch that begins next
        self._total = 0  # minibatches of the run
        self._ends: list[float] = []  # of the newest minibatches, in seconds
        self.thread = threading.Thread(target=self._follow, name=f"replan {job.record.name} {k}", daemon=True)
        self.thread.start()

    def number(self, own: int) -> int:
        """Return the number in the run of a minibatch that this pipeline counts as `own`."""
        return self._taken.number(own) if self._taken else own

    def _follow(self) -> None:
        try:
            while self._job.running and not self._over.is_set():
                self._look()
                self._over.wait(_SECONDS)
        except (InputError, RunFailed, OSError) as error:
            self.fault = self.whole.prefix(self._k) + str(error)
            self._say(f"monitoring for changes ended: {error}")
        finally:
            del self._drift  # it closes when the last pipeline lets it go
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
        if not self._total:
            return  # it has not begun
        self.replanner.num_minibatches = self._taken.expected(self._total) if self._taken else self._total
        known, judged = len(self.replanner.decisions), len(self.replanner.outcomes.told)
        alarms = len(self._watch.alarms)
        decision = self.replanner.see(
            spans,
            sizes,
            self._next,
            left_out=self._rows.left_out(),
            ends_epoch=ends_epoch,
            seconds_per_minibatch=self._pace(),
        )
        self._drift.add(map(self._among_all, self._watch.alarms[alarms:]))
        for one in self.replanner.outcomes.told[judged:]:
            outcome = replace(one, first_minibatch=self.number(one.first_minibatch))
            self._note({"event": "outcome", **outcome.to_json()})
            self._say(str(outcome))
        for own, made in self.replanner.decisions[known:]:
            minibatch = self.number(own)
            self._note({"event": "decision", "minibatch": minibatch, **made.to_json()})
            self._say(f"minibatch {minibatch}, {'another plan' if made.changes else 'the plan stays'}: {made.why}")
        if decision is not None:
            self._change(decision)

    def _pace(self) -> float | None:
        """Return the current seconds per minibatch; None if too few were seen under this plan."""
        seconds, count = (self._ends[-1] - self._ends[0], len(self._ends) - 1) if self._ends else (0.0, 0)
        return seconds / count if seconds > 0 and count >= _STEPS // 2 else None

    def _take(self, row: Mapping[str, Any]) -> None:
        """Take the run's progress from a row of metrics."""
        if row["event"] == "start" and "epoch_minibatches" in row:
            self._total = self._config.total_minibatches(row["epoch_minibatches"])
            if self._taken:
                self._taken.epoch_minibatches = row["epoch_minibatches"]
        elif row["event"] == "resume":  # after a crash: it goes on from its checkpoint
            self._next, self._ends = row.get("minibatches", 0), []
        elif row["event"] == "step" and "seconds" in row:
            self._ends = [*self._ends[1 - _STEPS :], row["seconds"]]
        elif row["event"] == "replan" and row.get("minibatch") not in self._known:
            self._changed_by_others(row["minibatch"])

    def _changed_by_others(self, first: int) -> None:
        """Somebody, as at the launch board, had the job switch to another plan from minibatch `first` on."""
        self._known.add(first)
        plan = next((plan for begins, plan in self._record.plans if begins == first), None)
        if plan is not None:
            self._ends = []
            self.replanner.follow(plan, self._own(first))
            self._note({"event": "followed", "minibatch": first})
            self._say(f"from minibatch {first} on, requested manually: {plan.summary()}")

    def _change(self, decision: Decision) -> None:
        gain = max(0.0, decision.gain_seconds)
        try:
            first = self._ask(decision.plan, reason=decision.why, predicted_gain_seconds=gain)
        except InputError as error:  # the old plan goes on
            self.replanner.refused()
            self._note({"event": "refused", "reason": str(error)})
            self._say(f"the plan is unchanged: {error}")
            return
        self._ends = []
        self._known.add(first)
        self.replanner.begin(decision, self._own(first))
        self._note({"event": "changed", "minibatch": first})
        self._say(f"from minibatch {first} on: {decision.plan.summary()}")

    def _ask(self, plan: Plan, *, reason: str, predicted_gain_seconds: float) -> int:
        """Have this pipeline switch to a plan; return the first minibatch under it. Raises InputError."""
        if not self.whole.members:
            first = self._job.replan(plan, reason=reason, predicted_gain_seconds=predicted_gain_seconds)
            assert first is not None, "it was waited for"
            return first
        record, gain = self._job.record, predicted_gain_seconds
        asked = request_of_pipeline(record, self._k, plan, reason=reason, predicted_gain_seconds=gain)
        return replanned(record.folder, asked.token, running=lambda: self._job.running)

    def _own(self, first: int) -> int:
        """Return how this pipeline counts the first minibatch of a plan, which the run has as `first`."""
        if self._taken is None:
            return first
        deadline = time.monotonic() + _TO_BE_WRITTEN
        while self._taken.own(first - 1) is None and time.monotonic() < deadline:  # its last under the plan before
            if self._over.wait(_SECONDS):
                break
            self._taken.read()
        return self._taken.first_from(first)

    def _among_all(self, alarm: Alarm) -> Alarm:
        """Return an alarm with ranks and minibatches as the whole run has them."""
        if not self.whole.members:
            return alarm
        rank, link = alarm.rank, alarm.link
        if rank is not None:
            rank = self.whole.among_all(self._k, rank)
        if link is not None:
            link = self.whole.among_all(self._k, link[0]), self.whole.among_all(self._k, link[1])
        at, began = self.number(alarm.minibatch), self.number(alarm.began)
        return replace(alarm, minibatch=at, began=began, rank=rank, link=link, pipeline=self._k)

    def _say(self, text: str) -> None:
        self._tell(self.whole.prefix(self._k) + text)

    def _note(self, row: Mapping[str, Any]) -> None:
        with (self._record.folder / DECISIONS).open("a") as file:
            file.write(json.dumps(row) + "\n")


def _follows(plan: Plan, num_processes: int, rule: Rule) -> bool:
    try:
        check_next_of_several(plan, num_processes, rule)
    except InputError:
        return False
    return True
