"""What ranks of several hosts say to all: each host has it in its own memory, as if it had been said there."""

import threading
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from processes import ENOUGH, until

from sparsepipe.runtime.failures import PeerLost
from sparsepipe.runtime.processes.ballot import Announcement, Answer, SpreadAnnouncement, SpreadBallot
from sparsepipe.runtime.processes.process import Process
from sparsepipe.runtime.rendezvous.server import StoreServer
from sparsepipe.runtime.rendezvous.store import KeyedStore
from sparsepipe.runtime.wire.messages import ListenerAddress

SECRET = b"0123456789abcdef"
HOSTS = ((0, 2), (1,), (3, 4))


@dataclass
class Ranks:
    """The ranks of a job on three hosts, in threads of this process; each host has a folder."""

    folder: Path
    stores: list
    stack: ExitStack

    def process(self, rank):
        return Process(rank, 5, torch.device("cpu"), ENOUGH, store=self.stores[rank], hosts=HOSTS)

    def all(self, kind):
        return [self.one(kind, rank) for rank in range(5)]

    def one(self, kind, rank):
        host = next(number for number, own in enumerate(HOSTS) if rank in own)
        path = self.folder / f"host{host}-{kind.__name__}"
        aside = self.stack.enter_context(closing(self.stores[rank].again()))
        return kind(path, self.process(rank), aside, name="told")


@pytest.fixture
def ranks(tmp_path):
    with closing(StoreServer("127.0.0.1", SECRET)) as server, ExitStack() as stack:
        where = ListenerAddress("127.0.0.1", server.port, SECRET)
        stores = [stack.enter_context(closing(KeyedStore(where, rank=rank, timeout=ENOUGH))) for rank in range(5)]
        yield Ranks(tmp_path, stores, stack)


def test_announcements_of_any_rank_are_on_all_hosts_before_it_goes_on_one_after_the_other(ranks):
    own = ranks.all(SpreadAnnouncement)
    for number, maker in enumerate((0, 4, 2, 1, 0)):
        own[maker].make(1, 10 * number)
        assert [each.read() for each in own] == [(1, 10 * number)] * 5
        for each in reversed(own):  # all have met
            each.clear()
        assert [each.read() for each in own] == [None] * 5


def test_what_a_ballot_says_comes_to_all_hosts_and_is_seen_at_once_on_its_own(ranks):
    own = ranks.all(SpreadBallot)
    for number, leader in ((1, 0), (2, 4)):  # a plan may leave out rank 0
        own[leader].propose(number)
        until(lambda number=number: all(each.stands(number) for each in own), "it is proposed everywhere")
        for rank, each in enumerate(own):
            each.answer(rank, number, Answer.CHECKED)
            assert each.answers(number)[rank] is Answer.CHECKED
        for answer in (Answer.READY, Answer.FAILED, Answer.CHECKED, Answer.READY):
            own[3].answer(3, number, answer)
            assert own[4].answers(number)[3] is answer, "of the same host"
        expected = [Answer.CHECKED] * 3 + [Answer.READY, Answer.CHECKED]
        for each in own:
            until(lambda: each.answers(number) == expected, "answers are everywhere")  # noqa: B023 - at once
        own[leader].withdraw(number)
        until(lambda number=number: not any(each.stands(number) for each in own), "it is withdrawn")
        assert all(each.proposed == number for each in own)


def test_the_last_that_a_rank_says_is_what_hosts_end_with_whichever_thread_said_it(ranks):
    """A rank answers from the thread that trains, and from the one that prepares."""
    own = ranks.all(SpreadBallot)
    threads = [
        threading.Thread(target=lambda answer=answer: [own[1].answer(1, 1, answer) for _ in range(20)])
        for answer in (Answer.READY, Answer.FAILED)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own[1].propose(1)  # the same rank: what it said before has come where this has
    until(lambda: all(each.stands(1) for each in own), "all that was said before is there")
    assert len({tuple(each.answers(1)) for each in own}) == 1


def test_a_host_that_does_not_answer_is_named(ranks):
    """Nobody listens on the second host."""
    for rank in (2, 3):
        ranks.one(SpreadAnnouncement, rank)
    own = ranks.one(SpreadAnnouncement, 0)
    own._process = Process(0, 5, torch.device("cpu"), 0.2, store=ranks.stores[0], hosts=HOSTS)
    with pytest.raises(PeerLost, match="lost rank 1"):
        own.make(0, 1)
    assert Announcement.read(own) is None
