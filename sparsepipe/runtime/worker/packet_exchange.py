"""Packets between this rank's stages and the stages next to them: sent, and received in the order of the action
list.
"""

from collections import defaultdict
from collections.abc import Sequence

from ...values.schedule import Action, Op
from ..reporting.recorder import Recorder
from ..transport.channel import Inbox, JoinedSource, LocalQueue, Outbox, PacketSource
from ..transport.packet import BACKWARD, FORWARD, Packet
from .connections import Connections
from .feed import Feed
from .stage_replica import StageReplica

_OPERATION = {FORWARD: Op.FORWARD, BACKWARD: Op.BACKWARD}  # whose results go in a direction


class PacketExchange:
    """Sends and receives packets: the program names the stages next to a stage, the connections carry packets there.

    A packet for a stage of this same rank waits in a queue, and nothing is sent. Tensors that this rank keeps for one
    that is no neighbour are packets of their own.
    """

    def __init__(self, connections: Connections, recorder: Recorder, *, timeout: float) -> None:
        self._recorder, self._timeout = recorder, timeout
        self._program, self._rank = connections.program, connections.process.rank
        program, rank = self._program, self._rank
        stages = program.plan.stages_of(rank)
        # Enough that ranks which send to each other never wait for each other to take: only evaluation is slowed.
        most = len(stages) * (sum(program.in_flight(k, rank) for k in stages) + 2)
        most *= max((len(own.ranks) for own in program.plan.stages if own.shares_scenes), default=1)
        self._transports = connections.transports
        self._outbox = Outbox(self._transports, limit=most)
        self._local: defaultdict[tuple[int, int], LocalQueue] = defaultdict(lambda: LocalQueue(rank))
        self._kept: defaultdict[tuple[int, int], LocalQueue] = defaultdict(lambda: LocalQueue(rank))  # from, to stage
        self.sent_bytes = 0  # to other ranks since the epoch began

    def send(self, packet: Packet, action: Action) -> None:
        """Send what `action` made to the stage that needs it. Raises DeadlinePassed or PeerLost.

        Of ranks that share scenes, all have the same packet and the first sends it; each of them receives one.
        """
        target = self._program.target(action.stage, action.op)
        assert target is not None, "stages at the ends send nothing outwards"
        cut = max(action.stage, target)
        for stage, staying in packet.kept:
            self._kept[action.stage, stage].put(staying)
        if self._rank != self._program.rank_of(action.stage, action.minibatch):
            return
        for peer in self._program.receivers(target, action.minibatch):
            if peer == self._rank:
                self._local[packet.direction, cut].put(packet)
                continue
            self.sent_bytes += packet.num_bytes
            start, name = self._recorder.now(), str(action)
            self._outbox.send(packet, peer, timeout=self._timeout, action=name, cut=cut)
            self._recorder.span("send", name, start, self._recorder.now(), minibatch=packet.minibatch, peer=peer)

    def inbox(self, replica: StageReplica, places: Sequence[int], feed: Feed, *, direction: int) -> PacketSource:
        """Return where a stage receives the packets of the minibatches at these places of a feed."""
        source = self._program.source(replica.stage, _OPERATION[direction])
        assert source is not None, "a stage at an end of the pipeline has nobody beyond it"
        cut = max(source, replica.stage)
        forward = direction == FORWARD
        neighbour: PacketSource
        if self._program.plan.stages[source].ranks == replica.own.ranks:
            neighbour = self._local[direction, cut]
        else:
            neighbour = Inbox(
                [(self._program.rank_of(source, place), place) for place in places],
                direction=direction,
                boundary=replica.runner.id_before if forward else replica.runner.id_after,
                cut=cut,
                transports=self._transports,
                number=feed.number,
            )
        stages = replica.runner.kept_from if forward else replica.runner.kept_for
        queues = [(stage, self._kept[stage, replica.stage]) for stage in stages]
        return JoinedSource(neighbour, queues) if queues else neighbour

    def finish(self) -> None:
        """Wait until everything sent has been taken. Raises DeadlinePassed or PeerLost."""
        self._outbox.finish(timeout=self._timeout)
