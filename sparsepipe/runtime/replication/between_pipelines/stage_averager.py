"""The member of `Averager` for rules that change weights after the step."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ...pipelines.base import Coordinator
from .exchanging import Exchanging, Waited
from .held import Held
from .merging import Contribution
from .messages import CalledOff
from .outer_step import VERSION
from .under_way import Outcome


class StageAverager:
    """The member of `Averager` for rules that change weights after the step: the mean of weights, pairs, a server, an
    outer step.

    Where they overlap, what a merge changes is added right after a later update: weights that a forward has met stay as
    they are. Where they do not, an update at which the pipeline contributes waits for the result. All replicas of a
    stage come to each call; the first exchanges, the others have None in place of `exchanging`.
    """

    def __init__(
        self, coordinator: Coordinator, held: Held, exchanging: Exchanging | None, *, overlap: bool, timeout: float
    ) -> None:
        self._coordinator, self._held, self._exchanging = coordinator, held, exchanging
        self._overlap, self._timeout = overlap, timeout
        self._waited = Waited()
        self._told = 0.0  # seconds waited of which a merge has told
        self._update = -1

    def before_step(self, gradients: list[Tensor | None], update: int, *, samples: int) -> list[Tensor | None]:
        return gradients

    def after_step(self, update: int, *, samples: int) -> None:
        self._update = update
        own = self._exchanging
        if own is None:
            self._held.apply(None)
        elif self._overlap:
            self._take(own, own.under_way.take())
            self._contribute(own, samples)
        elif self._contribute(own, samples):
            with self._waited:
                outcomes = own.under_way.wait(seconds=self._timeout, what=f"the average of update {update}")
            self._take(own, outcomes)
        else:
            self._take(own, [])
        if own is not None:
            if own.offer is not None:
                own.offer.renew(self._held.snapshot(), update)
            own.desk.boundary(update)

    def finish(self) -> None:
        with self._waited:
            merge = self._coordinator.last_merge(self._update)
        own = self._exchanging
        if own is None:
            self._held.apply(None)  # what was under way
            self._held.apply(None)
            return
        own.under_way.drop_undecided()
        outcomes = own.under_way.wait(seconds=self._timeout, what="the last average")
        self._take(own, outcomes, at_end=True)
        contribution = Contribution(merge.contributions[0], self._update, self._held.snapshot())
        merged, why, start = None, None, time.monotonic()
        if len(merge.members) > 1:
            try:
                merged = own.final.merge(merge, contribution)
            except CalledOff as error:
                why = str(error)
        self._held.apply(merged.result if merged else None, in_place_of=True)
        self._tell(Outcome(contribution, merge, merged, why, time.monotonic() - start), last=True)
        own.desk.final()

    def close(self) -> None:
        if self._exchanging is not None:
            self._exchanging.close()

    def take_waited(self) -> float:
        """Return the seconds that this rank waited for other pipelines since the last call."""
        return self._waited.take()

    def state(self) -> dict[str, Tensor]:
        """Return what the rule keeps beside weights and optimizer, named as in checkpoints; of a first replica."""
        found = {} if self._exchanging is None else self._exchanging.merging.state()
        return {name: tensor for name, tensor in found.items() if name != VERSION}  # of the merges of this run alone

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from the state of a checkpoint, or of another pipeline."""
        if self._exchanging is not None:
            self._exchanging.merging.load(dict(tensors))

    def _contribute(self, own: Exchanging, samples: int) -> bool:
        number = own.contributions.number(self._update, samples=samples)
        if number is not None:
            own.under_way.begin(own.merging.contribute(number, self._update, self._held.snapshot()))
        return number is not None

    def _take(self, own: Exchanging, outcomes: Sequence[Outcome], *, at_end: bool = False) -> None:
        """Bring outcomes into the weights, and what others' merges took this rank by surprise for.

        `at_end`: not after the last update, but before the run's last average; the record tells them apart, whose sums
        are taken in another order.
        """
        surprise, served = own.offer.take() if own.offer is not None else (None, [])
        results = [outcome.merged for outcome in outcomes if outcome.merged is not None]
        exact = not self._overlap and own.offer is None and len(results) == 1
        if exact:
            self._held.apply(results[0].result, in_place_of=True)
        else:
            self._held.apply(_sum([*(one.correction for one in results), *([surprise] if served else [])]))
        more = {"at_end": True} if at_end else {}
        for outcome in outcomes:
            own.merging.applied(outcome.contribution, outcome.merged)
            self._tell(outcome, **more)
        for one in served:
            facts = {"role": "partner", "contributed": one.update, "place": one.place, "distance": one.distance}
            facts |= {"update": self._update, "staleness": self._update - one.update, "applied": True}
            self._coordinator.merged(one.merge, {**facts, "stage": self._held.stage, **more})

    def _tell(self, outcome: Outcome, **more: Any) -> None:
        since = outcome.contribution.update
        facts: dict[str, Any] = {"update": self._update, "contributed": since, "staleness": self._update - since}
        facts |= {"stage": self._held.stage, "applied": outcome.merged is not None, "seconds": outcome.seconds, **more}
        facts["waited"], self._told = self._waited.seconds - self._told, self._waited.seconds
        facts |= outcome.merged.facts if outcome.merged else {"distance": 0.0, "bytes": 0}
        if outcome.why is not None:
            facts["why"] = outcome.why
        self._coordinator.merged(outcome.merge, facts)


def _sum(changes: Sequence[Tensor | None]) -> Tensor | None:
    found = [change for change in changes if change is not None]
    return None if not found else sum(found[1:], start=found[0])
