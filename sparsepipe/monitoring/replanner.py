"""The loop that changes plans, without a job: spans come in, a decision comes out. The same in runs and simulations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.trace import Span
from .decision import CAUTION, Caution, Decision
from .drift_file import Alarm
from .factors import Factors, LeftOutWork
from .outcomes import Outcomes
from .variants import LayerFactors, Situation, Variant

_SAME = 0.1  # share by which a device's factor may differ and be the same
_AT_ONCE = 8  # minibatches within which several changes are one
_FURTHER = 1.2  # times as long as when it was last decided about: devices are not what they were then
_SETTLES = 6  # minibatches after an alarm in which others may come that belong to it
_CLEARLY = 1.65  # times as long as before, or as short, by an alarm: it is asked soon after it
_SETTLES_CLEARLY = 2
_SURER = 20  # minibatches after an alarm, by which more is known of what it told
_LEAST_KNOWN, _REMEMBERED = 2, 3  # times between changes, before they tell anything; of the newest


class ChangeWatcher(Protocol):
    """Tells lasting changes of devices and links from what a run measures."""

    @property
    def factors(self) -> Factors: ...

    def see(
        self, spans: Sequence[Span], sizes: Mapping[int, float], left_out: Sequence[LeftOutWork] = ()
    ) -> Sequence[Alarm]:
        """Take what ended since the last call and sizes of further minibatches; return the alarms that this raises."""
        ...

    def also(self, made_for: Factors) -> tuple[Factors, ...]:
        """Return another possible state of the devices, if the present plan was `made_for` others."""
        ...

    def follow(self, plan: Plan, *, first_minibatch: int) -> None:
        """From `first_minibatch` on the job follows another plan; what is known of devices stays known."""
        ...


class Replanner:
    """Watches one job and says when, and to what, its plan is to change.

    The gain of a change counts over all that is left, until devices have changed three times: from then on over twice
    the longest of the last three times, and of the present one, that they stayed as they were. An intruder that comes
    and goes faster than moving pays is so left alone; what was not worth it is asked again when devices have
    stayed as they are for twice as long. What a change gave is looked at when its plan was seen at work: one that gave
    less than it was to give lets the next be believed less, and one that cost time is taken back (outcomes.py). Each
    change in a row that was in vain doubles what the next must gain compared with its cost.
    """

    def __init__(
        self,
        plan: Plan,
        profile: Profile,
        cluster: Cluster,
        watcher: ChangeWatcher,
        variant: Variant,
        *,
        num_minibatches: int,
        caution: Caution = CAUTION,
        predict: Callable[[int], LayerFactors | None] | None = None,
    ) -> None:
        self.profile, self.cluster, self.watcher, self.variant = profile, cluster, watcher, variant
        self.num_minibatches, self.caution, self.predict = num_minibatches, caution, predict
        self.decisions: list[tuple[int, Decision]] = []  # (minibatch, what was decided there)
        self.outcomes = Outcomes(profile, cluster, plan)
        none = Factors.none(len(cluster.devices))
        self._questions, self._history, self._current = Questions(none), DeviceHistory(), CurrentPlan(plan, none, plan)

    @property
    def plan(self) -> Plan:
        """The plan that the job follows."""
        return self._current.plan

    def see(
        self,
        spans: Sequence[Span],
        sizes: Mapping[int, float],
        minibatch: int,
        *,
        left_out: Sequence[LeftOutWork] = (),
        ends_epoch: bool = False,
        seconds_per_minibatch: float | None = None,
    ) -> Decision | None:
        """Take what ended since the last call; `minibatch` is the next that has not begun.

        `left_out`: times of ranks that the plan leaves out.
        The answer is a change to be made, or None. No other comes until `begin` or `refused` says what became of it.
        """
        alarms = self.watcher.see(spans, sizes, left_out)
        judged = self.outcomes.see(spans, sizes, minibatch, alarms=alarms, factors=self.watcher.factors)
        factors, looks_back = self.watcher.factors, self.variant.looks_back
        self._history.note(minibatch, factors)
        if looks_back:
            self._questions.note(minibatch, alarms, factors, judged=judged is not None)
        elif alarms:
            self._questions.ask(minibatch)
        # Not while a plan has just begun of which it is not known what it gives.
        due = self._questions.due(minibatch) and not (looks_back and self.outcomes.judging)
        asked = ends_epoch if self.variant.at_epochs else due
        lead = self._current.lead
        left = self._history.expected_to_last(minibatch, self.num_minibatches - minibatch - lead)
        if self._current.pending or not asked or left <= 0:
            return None
        decision = self.variant.decide(
            Situation(
                self.plan,
                self._current.first,
                self.profile,
                self.cluster,
                factors,
                left,
                seconds_per_minibatch,
                self._cautious(),
                self.predict,
                lambda plan, share: self.outcomes.believed(plan, share, minibatch),
                self.watcher.also(self._current.made_for),
            )
        )
        again = looks_back and not decision.changes and decision.gain_seconds > decision.cost_seconds
        after = minibatch + max(_SURER, self._history.lasted(minibatch)) if again else None
        self._questions.decided(minibatch, factors, again=after)
        self.decisions.append((minibatch, decision))
        self._current.pending = decision.changes
        return decision if decision.changes else None

    def begin(self, decision: Decision, first_minibatch: int) -> None:
        """The change was made: `first_minibatch` is the first under the new plan."""
        self.outcomes.begin(
            decision.plan, first_minibatch=first_minibatch, predicted=decision.simulated, expected=decision.share
        )
        lead = first_minibatch - self.decisions[-1][0]
        self._current = CurrentPlan(decision.plan, self._questions.last, self._current.first, lead)
        self.watcher.follow(decision.plan, first_minibatch=first_minibatch)

    def follow(self, plan: Plan, first_minibatch: int) -> None:
        """Somebody else changed the plan: `first_minibatch` is the first under the new one."""
        self.outcomes.follow(plan, first_minibatch=first_minibatch)
        self._current.plan, self._current.made_for = plan, self.watcher.factors
        self.watcher.follow(plan, first_minibatch=first_minibatch)

    def refused(self) -> None:
        """The change was not made; the old plan continues."""
        self._current.pending = False

    def _cautious(self) -> Caution:
        """Return the gain that a change needs now, based on earlier outcomes."""
        return replace(self.caution, margin=self.caution.margin * self.outcomes.patience)


@dataclass
class CurrentPlan:
    """The plan that a job follows, and the devices that it was `made_for`."""

    plan: Plan
    made_for: Factors
    first: Plan  # that the job began with
    lead: int = 0  # minibatches from the decision for it to its first
    pending: bool = False  # whether another is under way


class Questions:
    """Decides when a decision is due. `last`: state of the devices at the last decision."""

    def __init__(self, devices: Factors) -> None:
        self.last = devices
        self._to_ask: set[int] = set()  # minibatches
        self._again: int | None = None  # the minibatch at which what was not worth it is asked again

    def ask(self, minibatch: int) -> None:
        """Ask from this minibatch on."""
        self._to_ask.add(minibatch)

    def note(self, minibatch: int, alarms: Sequence[Alarm], factors: Factors, *, judged: bool) -> None:
        """Ask soon after an alarm, and again when more is known of it; when a plan is `judged`, too."""
        if alarms:
            clear = any(max(one.factor, one.before) > _CLEARLY * min(one.factor, one.before) for one in alarms)
            self._to_ask |= {minibatch + (_SETTLES_CLEARLY if clear else _SETTLES), minibatch + _SURER}
        pairs = zip(factors.ranks, self.last.ranks, strict=True)
        further = any(max(now, then) > _FURTHER * min(now, then) for now, then in pairs)
        if judged or further and not self._to_ask or self._again is not None and self._again <= minibatch:
            self._to_ask.add(minibatch)

    def due(self, minibatch: int) -> bool:
        """Return whether it is time to decide."""
        return any(at <= minibatch for at in self._to_ask)

    def decided(self, minibatch: int, factors: Factors, *, again: int | None) -> None:
        """Note what was decided about; `again`: the minibatch at which to ask the same once more."""
        self._to_ask = {at for at in self._to_ask if at > minibatch}
        self._again, self.last = again, factors


class DeviceHistory:
    """Since when devices are as they are."""

    def __init__(self) -> None:
        self._changed: list[tuple[int, Factors]] = []  # (minibatch, devices from there on)

    def note(self, minibatch: int, factors: Factors) -> None:
        """Remember a change: small differences and the first minibatches are none."""
        since, before = self._changed[-1] if self._changed else (0, Factors.none(len(factors.ranks)))
        if all(abs(now / then - 1) < _SAME for now, then in zip(factors.ranks, before.ranks, strict=True)):
            return
        if self._changed and minibatch - since < _AT_ONCE:  # one change, seen on one rank after the other
            self._changed[-1] = since, factors
        else:
            self._changed.append((minibatch, factors))

    def expected_to_last(self, minibatch: int, left: int) -> int:
        """For how many of the minibatches `left` devices are expected to be as they are."""
        lasted = [after - before for (before, _), (after, _) in pairwise(self._changed[-_REMEMBERED - 1 :])]
        return left if len(lasted) < _LEAST_KNOWN else min(left, 2 * max(*lasted, self.lasted(minibatch)))

    def lasted(self, minibatch: int) -> int:
        """For how many minibatches devices have been as they are now."""
        return minibatch - (self._changed[-1][0] if self._changed else 0)
