"""Open the part of a rank's stages in the averages between pipelines: what a rule's arithmetic needs, and a port."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

from torch import Tensor

from ....replication.base import Arithmetic, Rule
from ...encryption import Encryption
from ...pipelines.base import Averager, Coordinator, Holder
from .contributions import Contributions
from .encodings import EightBits, Encoding, Exact
from .exchanging import Exchanging
from .gradient_averager import ExchangingGradients, GradientAverager
from .held import Held, Replica
from .mean import MeanExchange
from .mean_weights import MeanWeights
from .merging import Merging
from .outer_step import OuterDesk, OuterOptions, OuterStep, outer_state
from .pair import Offer, Pair
from .parameter_server import ServerStep
from .peers import Peers
from .reduction import Reductions
from .server import Handler, Server
from .stage_averager import StageAverager
from .state import StateDesk
from .under_way import UnderWay

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
    shared = (contributions, timeout, encryption)
    return [_Opening(coordinator, rule, replica, *shared).open() for replica in replicas]


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
            self._coordinator, self._held, exchanging, overlap=self._rule.overlap, timeout=self._timeout
        )

    def _of_gradients(self) -> GradientAverager:
        exchanging: ExchangingGradients | None = None
        if self._replica.writes:
            gradients, last = self._mean_exchange("reduce", Exact()), self._mean_exchange(_LAST, Exact())
            desk = self._desk(self._replica.tensors)
            lasts = self._replica.runner.merge_seconds
            exchanging = ExchangingGradients(gradients, last, desk, self._listen(), self._peers, lasts)
        parts = (self._coordinator, self._held, self._contributions, exchanging)
        return GradientAverager(*parts, timeout=self._timeout)

    def _exchanging(self) -> Exchanging:
        final = MeanWeights(self._mean_exchange(_LAST, Exact()))
        merging, offer = self._merging()
        desk = self._desk(lambda: self._replica.tensors() | merging.state())
        server = self._listen()
        under_way = UnderWay(self._coordinator, merging, lasts=self._replica.runner.merge_seconds)
        if _leads(self._replica):
            self._contributions.busy = lambda: under_way.any
        own = (self._contributions, merging, final, under_way)
        return Exchanging(*own, desk, server, self._peers, offer, self._reductions)

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
