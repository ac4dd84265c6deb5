"""What hosts send to each other through TLS: nothing of it passes in clear, and only the job's own take part."""

import itertools
import json
import queue
import shutil
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from coded import raises
from processes import ENOUGH, until
from runtime_jobs import run_ranks

from sparsepipe.runtime.failures import PeerLost
from sparsepipe.runtime.processes.identity import Identity
from sparsepipe.runtime.rendezvous.server import StoreServer
from sparsepipe.runtime.rendezvous.store import KeyedStore
from sparsepipe.runtime.transport import process_groups, sockets
from sparsepipe.runtime.transport.packet import FORWARD, Packet, Slot
from sparsepipe.runtime.transport.sockets import Sockets, SocketTransport, connect
from sparsepipe.runtime.wire.encryption import CERTIFICATE, Encryption, new_certificate, tls_of
from sparsepipe.runtime.wire.handshake import NAME_BYTES, OPENING_BYTES, PROOF_BYTES, Caller, Listener, reply
from sparsepipe.runtime.wire.messages import ListenerAddress
from sparsepipe.runtime.worker.join import joined

SECRET = b"0123456789abcdef"
PATTERN = b"a word that nobody else may read"
SHAPES = ((), (1,), (2,), (7,), (3, 1001), (0,))
SUM = dist.AllreduceOptions()  # a sum, unless it says otherwise

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")


class Wire:
    """A stretch of network between callers and a port: everything that passes is heard.

    Of what passes one way, the byte after `bends_after` others is changed.
    """

    def __init__(self) -> None:
        self.heard = bytearray()
        self.bends_after: int | None = None
        self._open: list[socket.socket] = []

    def to(self, port: int) -> int:
        """Return the port of the wire's other end."""
        server = socket.create_server(("127.0.0.1", 0))
        self._open.append(server)
        threading.Thread(target=self._answer, args=(server, port), daemon=True).start()
        return server.getsockname()[1]

    def close(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _answer(self, server: socket.socket, port: int) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = server.accept()
                far = socket.create_connection(("127.0.0.1", port))
                self._open += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        passed = 0
        with suppress(OSError):
            while data := source.recv(2**16):
                self.heard += data
                if self.bends_after is not None and 0 <= (place := self.bends_after - passed) < len(data):
                    data = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
                passed += len(data)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


class WiredStore:
    """A store, in which the ports that ranks tell each other are those of a wire."""

    def __init__(self, store: dist.Store, wire: Wire) -> None:
        self._store, self._wire = store, wire
        self.wait, self.get = store.wait, store.get

    def set(self, key: str, value: str) -> None:
        host, port, secret = json.loads(value)
        self._store.set(key, json.dumps([host, self._wire.to(port), secret]))


@pytest.fixture(scope="module")
def encryption(tmp_path_factory):
    return Encryption.write(tmp_path_factory.mktemp("job"), new_certificate())


@pytest.fixture(scope="module")
def another(tmp_path_factory):
    """That of another job."""
    return Encryption.write(tmp_path_factory.mktemp("other"), new_certificate())


@pytest.fixture
def wire():
    with closing(Wire()) as found:
        yield found


def test_a_certificate_is_for_its_owner_alone_and_one_that_cannot_be_used_is_refused(encryption, tmp_path):
    assert encryption.path.stat().st_mode & 0o077 == 0
    with raises("encryption.no_certificate"):
        Encryption.of_run(tmp_path)
    (tmp_path / CERTIFICATE).parent.mkdir()
    whole = encryption.path.read_text()
    for damaged in ("", whole[:100], whole.replace("CERTIFICATE", "NOTHING"), "\0\n"):
        (tmp_path / CERTIFICATE).write_text(damaged)
        with raises("encryption.no_certificate") as told:
            Encryption.of_run(tmp_path)
        assert "\n" not in str(told.value)


def test_without_openssl_nothing_is_encrypted(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with raises("encryption.no_openssl"):
        new_certificate()
    (tmp_path / "openssl").write_text("#!/bin/sh\necho no such curve >&2; exit 1\n")
    (tmp_path / "openssl").chmod(0o755)
    with raises("encryption.no_certificate", "no such curve"):
        new_certificate()


def test_ranks_that_meet_in_a_store_of_torchs_own_are_refused(tmp_path):
    identity = Identity(0, 2, store=("10.0.0.1", 29500))
    told = {"device": "cpu", "threads": torch.get_num_threads(), "timeout": ENOUGH}
    (tmp_path / "logs").mkdir()
    with raises("encryption.store_in_clear", "10.0.0.1"):
        with joined(identity, run_dir=tmp_path, encrypt=True, **told):
            raise AssertionError("it has joined")


# --- the store -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encrypts", [True, False])
def test_what_is_said_to_a_store_passes_in_clear_only_where_it_is_not_encrypted(encryption, wire, encrypts):
    used = encryption if encrypts else None
    with closing(StoreServer("127.0.0.1", SECRET, encryption=used)) as server:
        where = ListenerAddress("127.0.0.1", wire.to(server.port), SECRET)
        with ExitStack() as stack:
            first, second = (
                stack.enter_context(closing(KeyedStore(where, rank=k, timeout=ENOUGH, encryption=used)))
                for k in range(2)
            )
            first.set("key", b"\0" * 3 + PATTERN * 10_000)  # of base 64: a whole number of threes
            assert second.get("key")[3:] == PATTERN * 10_000
            with closing(first.again()) as third:
                assert third.check(["key"])
    assert (b"AAAA" in wire.heard) is not encrypts
    assert (b'"op"' in wire.heard) is not encrypts


def test_a_store_hears_nobody_in_clear_and_nobody_with_another_certificate(encryption, another):
    with closing(StoreServer("127.0.0.1", SECRET, encryption=encryption)) as server:
        where = ListenerAddress("127.0.0.1", server.port, SECRET)
        with closing(KeyedStore(where, rank=0, timeout=ENOUGH)) as in_clear:
            with pytest.raises(OSError):  # noqa: PT011, whatever is said of it
                in_clear.check(["key"])
        with pytest.raises(OSError, match="certificate"):
            KeyedStore(where, rank=0, timeout=ENOUGH, encryption=another)
        with closing(_proved(where, more=bytes(NAME_BYTES))) as hasty:
            until(lambda: _ended(hasty), "what was said in clear is none of what is said within TLS")
        with closing(_proved(where)) as silent, closing(_proved(where)) as noisy:
            assert len(noisy.recv(PROOF_BYTES)) == PROOF_BYTES
            noisy.sendall(b"no handshake" * 100)
            until(lambda: _ended(noisy), "it is shut out")
            with closing(KeyedStore(where, rank=0, timeout=ENOUGH, encryption=encryption)) as store:
                store.set("key", "1")  # while another has shaken no hands yet
                assert store.check(["key"])
            silent.close()


def test_who_answers_in_the_place_of_a_store_learns_nothing(encryption, another):
    with closing(StoreServer("127.0.0.1", SECRET, encryption=another)) as server:
        where = ListenerAddress("127.0.0.1", server.port, SECRET)
        with pytest.raises(OSError, match="certificate"):
            KeyedStore(where, rank=0, timeout=ENOUGH, encryption=encryption)


def _proved(where, *, more=b""):
    """A connection that has proved to have the secret, with `more` behind that."""
    return _named(where, more)[0]


def _named(where, more=b""):
    """Such a connection, and the name that it gave."""
    connection = socket.create_connection((where.host, where.port), ENOUGH)
    heard = b""
    while len(heard) < OPENING_BYTES:
        heard += connection.recv(OPENING_BYTES - len(heard))
    said = reply(where.secret, heard, (0, 0, 0))
    connection.sendall(said + more)
    return connection, said[:NAME_BYTES]


def _ended(connection):
    connection.settimeout(0.05)
    try:
        return connection.recv(2**16) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


# --- packets ---------------------------------------------------------------------------------------------------------


def _joining(pool, wire, *encryptions):
    """Begin to connect ranks with each other, each of which goes by its own of the encryptions."""
    store, ranks = dist.HashStore(), range(len(encryptions))

    def joined(rank):
        ways = {(peer, 0) for peer in ranks if peer != rank}
        return connect(WiredStore(store, wire), rank, ways, ways, timeout=ENOUGH, encryption=encryptions[rank])

    return [pool.submit(joined, rank) for rank in ranks]


def _joined(wire, *encryptions) -> list[Sockets]:
    with ThreadPoolExecutor(len(encryptions)) as pool:
        return [one.result() for one in _joining(pool, wire, *encryptions)]


def _message() -> Packet:
    repeated = torch.frombuffer(bytearray(PATTERN * 20_000), dtype=torch.uint8)
    return Packet(FORWARD, 0, 0, (Slot(repeated),))


@pytest.mark.parametrize("encrypts", [True, False])
def test_packets_arrive_as_they_are_and_pass_in_clear_only_where_they_are_not_encrypted(encryption, wire, encrypts):
    used = encryption if encrypts else None
    first, second = _joined(wire, used, used)
    for sender, receiver, own, theirs in ((first, second, 0, 1), (second, first, 1, 0)):
        out, into = SocketTransport(sender), SocketTransport(receiver)
        deadline = time.monotonic() + ENOUGH
        sending = out.send(_message(), theirs, 0, deadline=deadline, message="sending")
        _, payload = into.receive(own, 0, deadline=deadline, message="receiving")
        sending.wait(deadline, "sending")
        assert payload.numpy().tobytes() == PATTERN * 20_000
    first.close()
    second.close()
    assert (PATTERN in wire.heard) is not encrypts


def test_a_rank_without_the_jobs_certificate_gets_nothing(encryption, another, wire):
    with ThreadPoolExecutor(2) as pool:
        failures = [one.exception() for one in _joining(pool, wire, encryption, another)]
    assert all(isinstance(one, PeerLost) for one in failures)
    assert any("certificate" in str(one) for one in failures), "the other may only see that this one has gone"


def test_whose_connection_it_is_cannot_be_changed_between_the_hosts(encryption):
    """Who carries bytes between hosts could put one rank's handshake before another's TLS: it is said again within."""
    taken: queue.SimpleQueue[Caller] = queue.SimpleQueue()
    with closing(Listener("127.0.0.1", SECRET, taken.put, tls=tls_of(encryption, server_side=True))) as listener:
        where = ListenerAddress("127.0.0.1", listener.port, SECRET)
        for other in (True, False):
            connection, name = _named(where)
            with closing(connection) as proved:
                heard = b""
                while len(heard) < PROOF_BYTES:
                    heard += proved.recv(PROOF_BYTES - len(heard))
                with tls_of(encryption, server_side=False).wrap_socket(proved) as within:
                    within.sendall(bytes(NAME_BYTES) if other else name)
                    if other:
                        assert not within.recv(1)
                    else:
                        caller = taken.get(timeout=ENOUGH)
                        caller.connection.close()
                        assert caller.who == (0, 0, 0)
        assert taken.empty()


# --- sums ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def groups(encryption, wire):
    """Three ranks of a group, in threads of this process."""
    own = [process_groups.EncryptedGroup(k, 3, one) for k, one in enumerate(_joined(wire, *[encryption] * 3))]
    yield own
    for group in own:
        group.shutdown()


def test_sums_are_those_in_the_order_of_ranks_on_all_of_them(groups):
    torch.manual_seed(0)
    for shape, dtype in itertools.product(SHAPES, (torch.float32, torch.float64, torch.int64)):
        given = [(torch.randn(shape) * 1000).to(dtype) for _ in groups]
        expected = given[0] + given[1] + given[2]
        twice = [[each.clone() for each in given] for _ in range(2)]  # the second is begun before the first has ended
        works = [group.allreduce([own], SUM) for found in twice for group, own in zip(groups, found, strict=True)]
        for work in works:
            assert work.wait(timedelta(seconds=ENOUGH)) and work.is_completed()
        assert all(torch.equal(own, expected) for found in twice for own in found), (shape, dtype)


def test_tensors_that_do_not_lie_in_one_piece_are_summed_in_place(groups):
    wholes = [torch.full((4, 6), 1.0 + k) for k in range(3)]
    works = [group.allreduce([own[:, ::2]], SUM) for group, own in zip(groups, wholes, strict=True)]
    for work in works:
        work.wait(timedelta(seconds=ENOUGH))
    for k, own in enumerate(wholes):
        assert (own[:, ::2] == 6).all() and (own[:, 1::2] == 1 + k).all()


def test_each_ranks_own_a_part_for_each_and_that_of_a_root_come_to_all(groups):
    given = [torch.full((2, 3), float(k)) for k in range(3)]
    rows = [[torch.empty(2, 3) for _ in range(3)] for _ in groups]
    works = [group.allgather([row], [own]) for group, row, own in zip(groups, rows, given, strict=True)]
    parts, found = ([torch.arange(6) + 6 * k for k in range(3)] for _ in range(2))
    works += [group.alltoall_base(*pair, [], []) for group, *pair in zip(groups, found, parts, strict=True)]
    options = dist.BroadcastOptions()
    options.rootRank = 1
    works += [group.broadcast([own], options) for group, own in zip(groups, given, strict=True)]
    for work in works:
        work.wait(timedelta(seconds=ENOUGH))
    for row, own in zip(rows, given, strict=True):
        assert [float(each[0, 0]) for each in row] == [0.0, 1.0, 2.0] and (own == 1).all()
    assert [own.tolist() for own in found] == [
        [2 * k, 2 * k + 1, 2 * k + 6, 2 * k + 7, 2 * k + 12, 2 * k + 13] for k in range(3)
    ]


def test_what_one_rank_sends_another_comes_to_it_between_what_all_do_together(groups):
    """Each begins its sends first; the third has nothing to do with it."""
    ways = {(0, 1): 100_000, (1, 0): 7, (2, 0): 3}
    sums, begun, found = [[torch.ones(4) for _ in groups] for _ in range(2)], [], {}
    begun += [group.allreduce([own], SUM) for group, own in zip(groups, sums[0], strict=True)]
    for (source, target), size in ways.items():
        begun.append(groups[source].send([torch.full((size,), 10 + source, dtype=torch.uint8)], target, 0))
    for (source, target), size in ways.items():
        found[source, target] = torch.zeros(size, dtype=torch.uint8)
        begun.append(groups[target].recv([found[source, target]], source, 0))
    begun += [group.allreduce([own], SUM) for group, own in zip(groups, sums[1], strict=True)]
    for work in begun:
        assert work.wait(timedelta(seconds=ENOUGH))
    assert all((came == 10 + source).all() for (source, _), came in found.items())
    assert all((own == 3).all() for own in (*sums[0], *sums[1]))


@pytest.fixture
def largest(monkeypatch):
    """The most bytes that a rank had for one thing that it received."""
    found, empty = [0], torch.empty

    def noted(*size, **options):
        if options.get("dtype") is torch.uint8 and len(size) == 1 and isinstance(size[0], int):
            found[0] = max(found[0], size[0])
        return empty(*size, **options)

    monkeypatch.setattr(sockets.torch, "empty", noted)
    return found


def test_messages_longer_than_what_is_read_ahead_cross_and_come_in_pieces(groups, largest):
    """Each rank has a few pieces of a message beside the message itself, whatever it is that they do together."""
    size = 12 * process_groups._PIECE_BYTES + 5
    given = [torch.randint(0, 100, (size,), dtype=torch.uint8) for _ in groups]
    found = [torch.zeros(size, dtype=torch.uint8) for _ in groups]
    begun = [groups[source].send([given[source]], target, 0) for source, target in ((0, 1), (1, 0))]
    begun += [groups[target].recv([found[target]], 1 - target, 0) for target in range(2)]
    copies, summed = ([own.clone() for own in given] for _ in range(2))
    begun += [group.allreduce([own], SUM) for group, own in zip(groups, summed, strict=True)]
    begun += [group.broadcast([own], dist.BroadcastOptions()) for group, own in zip(groups, copies, strict=True)]
    for work in begun:
        assert work.wait(timedelta(seconds=ENOUGH))
    assert torch.equal(found[0], given[1]) and torch.equal(found[1], given[0])
    assert all(torch.equal(own, given[0] + given[1] + given[2]) for own in summed)
    assert all(torch.equal(own, given[0]) for own in copies)
    assert 0 < largest[0] <= process_groups._PIECE_BYTES + 64, "a piece with what aligns it"


def test_a_message_that_is_changed_on_its_way_ends_the_connection(groups, wire):
    """Of its pieces those before the change have come, and nothing else is in its place."""
    given = torch.randint(1, 255, (6 * process_groups._PIECE_BYTES,), dtype=torch.uint8)
    found = torch.zeros_like(given)
    wire.bends_after = 3 * process_groups._PIECE_BYTES
    groups[0].send([given], 1, 0)
    with pytest.raises(ConnectionError, match="closed"):
        groups[1].recv([found], 0, 0).wait(timedelta(seconds=ENOUGH))
    come = int((found != 0).sum())
    assert come in (2 * process_groups._PIECE_BYTES, 3 * process_groups._PIECE_BYTES)
    assert torch.equal(found[:come], given[:come]) and not found[come:].any()


def test_sums_pass_encrypted_and_the_end_of_a_rank_is_told_to_the_others(groups, wire):
    repeated = torch.frombuffer(bytearray(PATTERN * 1000), dtype=torch.uint8)
    zeros = [torch.zeros_like(repeated) for _ in range(2)]
    works = [group.allreduce([own], SUM) for group, own in zip(groups, (repeated, *zeros), strict=True)]
    for work in works:
        work.wait(timedelta(seconds=ENOUGH))
    assert zeros[1].numpy().tobytes() == PATTERN * 1000 and PATTERN not in wire.heard
    waits = groups[1].allreduce([torch.ones(5)], SUM)
    with pytest.raises(TimeoutError):
        waits.wait(timedelta(seconds=0.1))
    groups[0].shutdown()
    with pytest.raises(ConnectionError, match="closed"):
        waits.wait(timedelta(seconds=ENOUGH))


def _grouped(folder: Path, rank: int) -> None:
    """What a rank does of the test below, in a process of its own."""
    process_groups.use(Encryption.of_run(folder), address="127.0.0.1")
    limit = timedelta(seconds=ENOUGH)
    store = dist.FileStore(str(folder / "store"), 3)
    dist.init_process_group(process_groups.BACKEND, store=store, rank=rank, world_size=3, timeout=limit)
    for _ in range(2):  # opened and closed as a plan's are
        group = dist.new_group([0, 2], timeout=limit)
        values = torch.full((3,), 1.0 + rank)
        dist.all_reduce(values, async_op=True).wait(limit)
        assert values.tolist() == [6.0] * 3
        if rank != 1:
            dist.broadcast(values.add_(rank), 2, group=group)
            dist.all_reduce(values, group=group)
            assert values.tolist() == [16.0] * 3
            parts = torch.empty(2)
            dist.all_to_all_single(parts, torch.tensor([rank, rank + 10.0]), group=group)
            assert parts.tolist() == ([0.0, 2.0] if rank == 0 else [10.0, 12.0])
            rows = [torch.empty(1) for _ in range(dist.get_world_size(group))]
            dist.all_gather(rows, torch.full((1,), float(rank)), group=group)
            assert [float(row) for row in rows] == [0.0, 2.0]
            dist.destroy_process_group(group)
    dist.destroy_process_group()


def test_groups_of_torch_distributed_are_made_of_them(encryption, tmp_path):
    Encryption.write(tmp_path, encryption.path.read_text())
    run_ranks(_grouped, 3, tmp_path, logs=tmp_path, limit=2 * ENOUGH, more={})
