"""Contributions and the merges that a rule makes of them: the messages to pipelines, and the counts of the summary."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...values.replication.base import SERVER, Groups, Merge
from .member import MERGES, Changes

_KEPT = 256  # contributions of a pipeline, the latest: its ranks lag each other by fewer


@dataclass
class _Contribution:
    update: int
    rank: int  # that contributed, and says when the result is taken
    since: float = 0.0  # when it came
    merge: Merge | None = None
    decided: float = 0.0  # when its merge was


class Merges:
    """The contributions of every pipeline, in a run with or without a rule, and what became of them.

    A pipeline's contributions are numbered from 0 over all its attempts.
    """

    def __init__(self, changes: Changes, groups: Groups | None, num_pipelines: int) -> None:
        self._changes = changes
        self._groups = groups
        self._in_groups = set(range(num_pipelines))
        self._numbers = [0] * num_pipelines  # the next contribution's
        self._kept: list[dict[int, _Contribution]] = [{} for _ in range(num_pipelines)]
        self._told: list[dict[int, int | None]] = [{} for _ in range(num_pipelines)]  # update → contribution
        self._under_way: list[int | None] = [None] * num_pipelines  # contribution whose result is not taken yet
        self._applied: dict[tuple[Any, ...], None] = {}  # (merge, pipeline, rank, stage) that have said so, the latest
        self._num_merges = 0
        self._came: dict[int, int] = {}  # to the last merge: pipeline → update
        self._have_last: dict[int, set[Any]] = {}  # pipeline → its stages that have the result of the last merge
        self.last: Merge | None = None
        self.sizes: Counter[int] = Counter()
        self.staleness: Counter[int] = Counter()
        self.waited = [0.0] * num_pipelines  # seconds that pipelines stood still for a merge
        self.waited_for_others = [0.0] * num_pipelines  # those of them before it was decided

    # --- who is there ------------------------------------------------------------------------------------------------

    def join(self, pipeline: int) -> None:
        """Count on a pipeline: it trains."""
        if pipeline not in self._in_groups:
            self._in_groups.add(pipeline)
            if self._groups:
                self._take(self._groups.join(pipeline, now=self._changes.now))
            self._changes.note()

    def stand_aside(self, pipeline: int) -> None:
        """Wait for a pipeline no more, as it trains nothing now. What it had contributed continues alone."""
        self._leave(pipeline)
        number = self._under_way[pipeline]
        if number is not None and self._kept[pipeline][number].merge is None:
            self._take([Merge(0, (pipeline,), (number,), (1.0,))], by_rule=False)

    def forget(self, pipeline: int) -> None:
        """A pipeline's attempt has ended: the next has nothing under way, and its updates are counted again."""
        self._leave(pipeline)
        self._under_way[pipeline] = None
        self._told[pipeline].clear()
        self._came.pop(pipeline, None)
        self._have_last.pop(pipeline, None)
        self._changes.note()

    def _leave(self, pipeline: int) -> None:
        if pipeline in self._in_groups:
            self._in_groups.discard(pipeline)
            if self._groups:
                self._take(self._groups.leave(pipeline, now=self._changes.now))
            self._changes.note()

    def may_begin(self, pipeline: int) -> bool:
        """Return whether the rule lets a pipeline train on."""
        return self._groups is None or self._groups.may_begin(pipeline)

    # --- contributions -----------------------------------------------------------------------------------------------

    def contribute(self, pipeline: int, update: int, *, rank: int, samples: int) -> int:
        """Take a contribution; return its number. Raises RuntimeError if the one before is still under way."""
        told = self._told[pipeline]
        if update in told and (number := told[update]) is not None:
            return number
        under_way = self._under_way[pipeline]
        if self._groups is None:
            raise RuntimeError("a run without a rule has no contributions")
        if under_way is not None or pipeline not in self._in_groups:
            why = "does not train" if under_way is None else f"has not taken its contribution {under_way}"
            raise RuntimeError(f"pipeline {pipeline} contributes after update {update} and {why}")
        self._check_order(pipeline, update)
        number = self._numbers[pipeline]
        self._numbers[pipeline] += 1
        self._tell(pipeline, update, number)
        self._kept[pipeline][number] = _Contribution(update, rank, self._changes.now)
        self._kept[pipeline].pop(number - _KEPT, None)
        self._under_way[pipeline] = number
        self._changes.row(
            MERGES, "contribution", pipeline=pipeline, contribution=number, update=update, samples=samples
        )
        self._take(self._groups.contribute(pipeline, now=self._changes.now, samples=samples))
        return number

    def pass_over(self, pipeline: int, update: int) -> None:
        """Note that an update has no contribution."""
        if update not in self._told[pipeline]:
            self._check_order(pipeline, update)
            self._tell(pipeline, update, None)
            self._changes.note()

    def contribution(self, pipeline: int, update: int) -> tuple[bool, int | None]:
        """Return whether it is known what became of an update, and the number of its contribution."""
        told = self._told[pipeline]
        return bool(told) and update <= next(reversed(told)), told.get(update)

    def merge_of(self, pipeline: int, contribution: int) -> Merge | None:
        """Return the merge that has a contribution. Raises RuntimeError for one that is unknown."""
        found = self._kept[pipeline].get(contribution)
        if found is None:
            raise RuntimeError(f"pipeline {pipeline} has no contribution {contribution}, or made it long ago")
        return found.merge

    def merged(self, pipeline: int, merge: int, *, rank: int, facts: Mapping[str, Any]) -> None:
        """Note that a rank has taken the result of a merge."""
        said = (merge, pipeline, rank, facts.get("stage"))  # a rank may have several stages
        if said in self._applied:
            return
        self._applied[said] = None
        if len(self._applied) > _KEPT * len(self._numbers):
            del self._applied[next(iter(self._applied))]
        if self.last and merge == self.last.number:
            self._have_last.setdefault(pipeline, set()).add(facts.get("stage"))
        number = self._under_way[pipeline]
        own = self._kept[pipeline].get(-1 if number is None else number)
        if own and own.merge and own.merge.number == merge and own.rank == rank:
            self._under_way[pipeline] = None
            waited = _number(facts.get("waited"))
            self.waited[pipeline] += waited
            self.waited_for_others[pipeline] += min(waited, own.decided - own.since)
            if isinstance(applied := facts.get("update"), int) and facts.get("applied", True):  # else called off
                self.staleness[applied - own.update] += 1
        self._changes.row(MERGES, "applied", **{**facts, "merge": merge, "pipeline": pipeline, "rank": rank})

    # --- decisions ---------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Time at which `expire` is due; None: nothing waits for a timeout."""
        return self._groups.next_deadline() if self._groups else None

    def expire(self) -> None:
        """Decide what time has run out for."""
        if self._groups:
            self._take(self._groups.expire(now=self._changes.now))

    def come_to_last(self, pipeline: int, update: int) -> None:
        """Note that a pipeline is at the run's last merge, after its `update`; -1: it made none."""
        if self.last is None and pipeline not in self._came:
            self._came[pipeline] = update
            self._changes.note()

    def decide_last(self, live: Sequence[int]) -> None:
        """Make the last merge once all `live` pipelines have come to it.

        All count equally except those that made no update: they have the weights that they began with, and only take.
        """
        if self.last or not self._came or not self._came.keys() >= set(live):
            return
        members = tuple(sorted(self._came))
        contributions = tuple(self._numbers[member] for member in members)
        for member in members:
            self._kept[member][self._numbers[member]] = _Contribution(self._came[member], -1)
            self._numbers[member] += 1
        trained = [member for member in members if self._came[member] >= 0] or members
        weights = tuple((member in trained) / len(trained) for member in members)
        self._take([Merge(0, members, contributions, weights, forced=True)], by_rule=False)
        self.last = self._kept[members[0]][contributions[0]].merge

    def waits_for_last(self, num_stages: Sequence[int]) -> bool:
        """Return whether a stage of a pipeline in the last merge, of `num_stages` each, has not got its result yet.

        Those that have it still answer the others until then.
        """
        members = self.last.members if self.last else ()
        return any(len(self._have_last.get(k, ())) < num_stages[k] for k in members if k in self._came)

    def last_of(self, pipeline: int) -> Merge:
        """Return the last merge as a pipeline sees it: of itself alone, if it came when it had been made."""
        assert self.last is not None
        return self.last if pipeline in self.last.members else Merge(self.last.number, (pipeline,), (0,), (1.0,))

    def _take(self, merges: Sequence[Merge], *, by_rule: bool = True) -> None:
        """Keep merges that are decided. Neither that at a run's end is a group of its rule's, nor a contribution that
        continues alone as its pipeline trains no more; nor are they in simulations.
        """
        for decided in merges:
            merge = replace(decided, number=self._num_merges)
            self._num_merges += 1
            contributed = [self._kept[k][n] for k, n in zip(merge.members, merge.contributions, strict=True)]
            for one in contributed:
                one.merge, one.decided = merge, self._changes.now
            if by_rule:
                self.sizes[len(merge.members) + (merge.partner is not None and merge.partner != SERVER)] += 1
            self._changes.row(
                MERGES,
                "merge",
                merge=merge.number,
                members=list(merge.members),
                contributions=list(merge.contributions),
                updates=[one.update for one in contributed],
                weights=list(merge.weights),
                partner=merge.partner,
                forced=merge.forced,
            )

    def _tell(self, pipeline: int, update: int, number: int | None) -> None:
        told = self._told[pipeline]
        told[update] = number
        if len(told) > _KEPT:
            del told[next(iter(told))]

    def _check_order(self, pipeline: int, update: int) -> None:
        if (newest := next(reversed(self._told[pipeline]), -1)) > update:
            raise RuntimeError(f"pipeline {pipeline} tells of update {update} after {newest}")


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
