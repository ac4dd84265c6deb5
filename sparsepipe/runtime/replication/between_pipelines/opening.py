"""Open the part of a rank's stages in the averages between pipelines: what a rule's arithmetic needs, and a port."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from ....values.replication.base import Arithmetic, Merge, Rule
from ...failures import DeadlinePassed
from ...pipelines.base import Averager, Coordinator, Holder, Settled
from ...wire.encryption import Encryption
from .mean import Contribution, Mean, MeanExchange, MeanWeights, Merging, distance
from .messages import CalledOff, EightBits, Encoding, Exact
from .outer_step import VERSION, Exchanging, Held, OuterDesk, OuterOptions, OuterStep, Replica, Waited, outer_state
from .pair import Offer, Pair
from .parameter_server import Handler, Server, ServerStep
from .peers import Peers
from .reduction import Contributions, Reductions
from .state import Outcome, StateDesk, UnderWay

_ASK_SECONDS = 0.5


@dataclass(eq=False)
class ExchangingGradients:
    """Gradient exchange with other pipelines by the first replica of a stage, for all its replicas."""

    gradients: MeanExchange
    last: MeanExchange  # of weights, where a run ends
    desk: StateDesk
    server: Server
    peers: Peers
    lasts: Callable[[Merge], float]  # by how many seconds a merge lasts longer than it takes here

    def close(self) -> None:
        self.desk.close()
        for exchange in (self.gradients, self.last):
            exchange.reductions.close()
        self.server.close()
        self.peers.close()


class GradientAverager:
    """Each update waits for the mean of all pipelines' gradients: all-reduce.

    So all pipelines have the same weights and optimizer state at the same update. Buffers are averaged with the
    gradients. A member that dies takes its gradients with it: the others step with their own, and would stay apart;
    whoever starts the job ends it then.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        held: Held,
        contributions: Contributions,
        exchanging: ExchangingGradients | None,
        *,
        timeout: float,
    ) -> None:
        """`exchanging`: of the first replica of the stage alone."""
        self._coordinator, self._held, self._contributions = coordinator, held, contributions
        self._exchanging, self._timeout = exchanging, timeout
        self._waited = Waited()
        self._update = self._version = -1  # the last step, and the merge that it was of

    def before_step(self, gradients: list[Tensor | None], update: int, *, samples: int) -> list[Tensor | None]:
        found: Tensor | None = None
        if self._exchanging is not None:
            number = self._contributions.number(update, samples=samples)
            if number is not None:
                found = self._mean(self._exchanging, number, update, gradients)
        told = self._held.told(found)
        return gradients if told is None else self._held.gradients(told)

    def _mean(
        self, exchanging: ExchangingGradients, number: int, update: int, gradients: list[Tensor | None]
    ) -> Tensor | None:
        own, waited = self._held.snapshot_of(gradients), self._waited.seconds
        mean: Mean | None = None
        facts: dict[str, Any] = {"update": update, "contributed": update, "staleness": 0, "stage": self._held.stage}
        with self._waited:
            merge = self._merge(number, update)
            self._version = merge.number
            try:
                if len(merge.members) > 1:
                    mean = exchanging.gradients.mean(merge, own)
                    time.sleep(exchanging.lasts(merge))
            except CalledOff as error:
                facts["why"] = str(error)
        facts |= {"applied": mean is not None, "waited": self._waited.seconds - waited, "distance": 0.0, "bytes": 0}
        if mean is not None:
            weights = self._held.layout.weights
            away = distance((mean.values - own)[weights], mean.values[weights])
            facts |= {"distance": away, "bytes": mean.bytes}
        self._coordinator.merged(merge, facts)
        return None if mean is None else mean.values

    def _merge(self, number: int, update: int) -> Merge:
        deadline = time.monotonic() + self._timeout
        while (merge := self._coordinator.merge_of(number, wait=_ASK_SECONDS)) is None:
            if time.monotonic() >= deadline:
                what = f"the gradients of update {update} waited {self._timeout:g} s for other pipelines"
                raise DeadlinePassed(what, peer=None)
        return merge

    def after_step(self, update: int, *, samples: int) -> None:
        self._update = update
        if self._exchanging is not None:
            self._exchanging.desk.boundary(update)

    def finish(self) -> None:
        """End with the weights that all have, or with their mean, if some made their last steps without others."""
        with self._waited:
            merge = self._coordinator.last_merge(self._update)
        own, found = self._exchanging, None
        if own is not None:
            facts: dict[str, Any] = {"update": self._update, "contributed": self._update, "staleness": 0, "last": True}
            facts |= {"applied": False, "stage": self._held.stage, "distance": 0.0, "bytes": 0}
            if len(merge.members) > 1:
                try:
                    mean = own.last.mean(merge, self._held.snapshot(), version=self._version)
                    found = mean.values if len(set(mean.versions.values())) > 1 else None
                    facts |= {"applied": True, "bytes": mean.bytes}
                except CalledOff as error:
                    facts["why"] = str(error)
            self._coordinator.merged(merge, facts)
        self._held.apply(found, in_place_of=True)
        if own is not None:
            own.desk.final()

    def close(self) -> None:
        if self._exchanging is not None:
            self._exchanging.close()

    def take_waited(self) -> float:
        """Return the seconds that this rank waited for other pipelines since the last call."""
        return self._waited.take()

    def state(self) -> dict[str, Tensor]:
        """It keeps nothing besides weights and optimizer."""
        return {}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """It keeps nothing."""

    def settle(self) -> dict[str, Tensor]:
        """Answer others no more. Nothing is under way after an update."""
        self.close()
        self._exchanging = None
        return {}

    @property
    def settled(self) -> Settled:
        """Averaging state of this stage."""
        return Settled(self._update, self._version, self._contributions.samples)

    def go_on(self, settled: Settled) -> None:
        """Count updates on from where the averages of the ranks stood that had these layers before."""
        self._update, self._version, _ = settled
        self._contributions.go_on(settled.samples)
        if self._exchanging is not None:
            self._exchanging.desk.boundary(self._update)


_LAST = "last"  # the request for a part of the mean that a run ends with


def open_averagers(
    coordinator: Coordinator,
    rule: Rule,
    replicas: Sequence[Replica],
    *,
    timeout: float,
    encryption: Encryption | None = None,
) -> list[Averager]:
    """Open the averagers of all stages of this rank, which have the weights they begin with.

    All replicas of a stage have one. The first exchanges for all of them: it listens for the ranks of other pipelines,
    and the coordinator knows it from here on as the holder of its stage's layers. `timeout`: seconds, the longest wait
    for another rank. `encryption`: what ranks of different pipelines say to each other goes through TLS.
    """
    contributions = Contributions(coordinator, rule.every, leads=any(map(_leads, replicas)))
    return [_Opening(coordinator, rule, replica, contributions, timeout, encryption).open() for replica in replicas]


def _leads(replica: Replica) -> bool:
    return replica.runner.is_last and replica.writes


class _Opening:
    """The parts of an averager, put together."""

    def __init__(
        self,
        coordinator: Coordinator,
        rule: Rule,
        replica: Replica,
        contributions: Contributions,
        timeout: float,
        encryption: Encryption | None,
    ) -> None:
        self._coordinator, self._rule, self._replica, self._timeout = coordinator, rule, replica, timeout
        self._contributions, self._encryption = contributions, encryption
        self._held = Held(replica, of_gradients=rule.arithmetic is Arithmetic.MEAN_GRADIENTS)
        self._layout = self._held.layout
        self._peers = Peers(coordinator, self._layout.sizes, encryption)
        self._handlers: dict[str, Handler] = {}
        self._reductions: list[Reductions] = []

    def open(self) -> Averager:
        if self._rule.arithmetic is Arithmetic.MEAN_GRADIENTS:
            return self._of_gradients()
        exchanging = self._exchanging() if self._replica.writes else None
        return StageAverager(
            self._coordinator,
            self._held,
            self._contributions,
            exchanging,
            overlap=self._rule.overlap,
            timeout=self._timeout,
        )

    def _of_gradients(self) -> GradientAverager:
        exchanging: ExchangingGradients | None = None
        if self._replica.writes:
            gradients, last = self._mean_exchange("reduce", Exact()), self._mean_exchange(_LAST, Exact())
            desk = self._desk(self._replica.tensors)
            lasts = self._replica.runner.merge_seconds
            exchanging = ExchangingGradients(gradients, last, desk, self._listen(), self._peers, lasts)
        return GradientAverager(self._coordinator, self._held, self._contributions, exchanging, timeout=self._timeout)

    def _exchanging(self) -> Exchanging:
        final = MeanWeights(self._mean_exchange(_LAST, Exact()))
        merging, offer = self._merging()
        desk = self._desk(lambda: self._replica.tensors() | merging.state())
        server = self._listen()
        under_way = UnderWay(self._coordinator, merging, lasts=self._replica.runner.merge_seconds)
        if _leads(self._replica):
            self._contributions.busy = lambda: under_way.any
        return Exchanging(
            self._contributions, merging, final, under_way, desk, server, self._peers, offer, self._reductions
        )

    def _merging(self) -> tuple[Merging, Offer | None]:
        """Return what a merge does by this rule, and what is offered to those who take this rank by surprise."""
        arithmetic, snapshot = self._rule.arithmetic, self._held.snapshot()
        if arithmetic is Arithmetic.PAIR:
            offer = Offer(self._layout, snapshot)
            self._handlers["pair"] = offer
            return Pair(self._layout, self._peers, self._timeout), offer
        if arithmetic is Arithmetic.SERVER:
            return ServerStep(self._layout, self._peers, snapshot, timeout=self._timeout), None
        if arithmetic is Arithmetic.OUTER_STEP:
            return self._outer_step(snapshot), None
        assert arithmetic is Arithmetic.MEAN_WEIGHTS
        return MeanWeights(self._mean_exchange("reduce", Exact())), None

    def _outer_step(self, snapshot: Tensor) -> OuterStep:
        options = cast(OuterOptions, self._rule)
        encoding: Encoding = Exact()
        if options.bits == EightBits.bits:
            encoding = EightBits(self._layout.num_elements, error_feedback=options.error_feedback)
        exchange = self._mean_exchange("reduce", encoding)
        take_state = partial(outer_state, self._peers, self._layout.names, timeout=self._timeout)
        step = OuterStep(exchange, options, snapshot, take_state=take_state)
        self._handlers["outer"] = OuterDesk(step, self._timeout)
        return step

    def _mean_exchange(self, what: str, encoding: Encoding) -> MeanExchange:
        reductions = Reductions(self._layout, encoding, timeout=self._timeout)
        self._handlers[what] = reductions
        self._reductions.append(reductions)
        pipeline = self._coordinator.pipeline
        return MeanExchange(pipeline, self._layout, encoding, self._peers, reductions, self._timeout, what)

    def _desk(self, state: Callable[[], Mapping[str, Tensor]]) -> StateDesk:
        desk = StateDesk(state, timeout=self._timeout)
        self._handlers["state"] = desk
        return desk

    def _listen(self) -> Server:
        process = self._replica.position.process
        options: dict[str, Any] = {"timeout": self._timeout, "encryption": self._encryption}
        server = Server(process.address, self._layout.sizes, self._handlers, **options)
        holder = Holder(self._coordinator.pipeline, process.rank, tuple(self._replica.own.layers), server.address)
        self._coordinator.register(holder)
        return server


class StageAverager:
    """The member of `Averager` for rules that change weights after the step: the mean of weights, pairs, a server, an
    outer step.

    If they overlap, what a merge changes is added right after a later update: weights that a forward has met stay as
    they are. If they do not, an update at which the pipeline contributes waits for the result. All replicas of a
    stage come to each call; the first exchanges, the others have None instead of `exchanging`.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        held: Held,
        contributions: Contributions,
        exchanging: Exchanging | None,
        *,
        overlap: bool,
        timeout: float,
    ) -> None:
        self._coordinator, self._held, self._exchanging = coordinator, held, exchanging
        self._contributions, self._overlap, self._timeout = contributions, overlap, timeout
        self._waited = Waited()
        self._told = 0.0  # seconds waited of which a merge has told
        self._update = self._version = -1  # the last, and once settled the merge that the rule's state is of

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
        """Return what the rule keeps besides weights and optimizer, named as in checkpoints; of a first replica."""
        found = {} if self._exchanging is None else self._exchanging.merging.state()
        return {name: tensor for name, tensor in found.items() if name != VERSION}  # of the merges of this run alone

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from the state of a checkpoint, or of another pipeline."""
        if self._exchanging is not None:
            self._exchanging.merging.load(dict(tensors))

    def settle(self) -> dict[str, Tensor]:
        """Bring the merges under way into the weights, answer others no more, and return what the rule keeps.

        An encoding's error feedback starts afresh, as in a run that resumes.
        """
        own, self._exchanging = self._exchanging, None
        if own is None:
            self._held.apply(None)
            return {}
        with self._waited:
            outcomes = own.under_way.wait(seconds=self._timeout, what="the average before layers move")
        own.desk.close()
        own.server.close()  # whoever takes this rank by surprise has done so
        self._take(own, outcomes)
        own.close()
        found = own.merging.kept()
        self._version = int(found.pop(VERSION, -1))
        return found

    @property
    def settled(self) -> Settled:
        """Averaging state of this stage, once it is settled."""
        return Settled(self._update, self._version, self._contributions.samples)

    def go_on(self, settled: Settled) -> None:
        """Count updates on from where the averages of the ranks stood that had these layers before."""
        self._update = settled.update
        self._contributions.go_on(settled.samples)
        if (own := self._exchanging) is not None:
            own.merging.load({VERSION: torch.tensor(float(settled.version), dtype=torch.float64)})
            own.desk.boundary(self._update)
            if own.offer is not None:
                own.offer.renew(self._held.snapshot(), self._update)

    def _contribute(self, own: Exchanging, samples: int) -> bool:
        number = own.contributions.number(self._update, samples=samples)
        if number is not None:
            own.under_way.begin(own.merging.contribute(number, self._update, self._held.snapshot()))
        return number is not None

    def _take(self, own: Exchanging, outcomes: Sequence[Outcome], *, at_end: bool = False) -> None:
        """Bring outcomes into the weights, and what others' merges took this rank by surprise for.

        `at_end`: not after the last update, but before the run's last average; the record distinguishes them,
        whose sums are taken in another order.
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
