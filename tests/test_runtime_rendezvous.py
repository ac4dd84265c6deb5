"""The keyed store: what torch.distributed asks of a store, and that nobody without the secret is heard."""

import json
import socket
import threading
import time
from contextlib import ExitStack, closing, suppress
from datetime import timedelta

import pytest
import torch.distributed as dist
from coded import raises

from sparsepipe.runtime.rendezvous.server import StoreServer
from sparsepipe.runtime.rendezvous.store import KeyedStore
from sparsepipe.runtime.wire.frames import lengths
from sparsepipe.runtime.wire.handshake import OPENING_BYTES, opening, reply
from sparsepipe.runtime.wire.messages import STORE, ListenerAddress

SECRET = b"0123456789abcdef"


@pytest.fixture
def where():
    server = StoreServer("127.0.0.1", SECRET)
    yield ListenerAddress("127.0.0.1", server.port, SECRET)
    server.close()
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), 1)


@pytest.fixture
def store_at(where):
    """What connects to the store; it is closed at the end."""
    with ExitStack() as stack:

        def connect(rank=0, where=where, **more):
            return stack.enter_context(closing(KeyedStore(where, rank=rank, timeout=30, **more)))

        yield connect


def test_it_does_what_torch_asks_of_a_store(store_at):
    first, second = store_at(), store_at(1)
    prefixed = dist.PrefixStore("a", dist.PrefixStore("b", first))
    prefixed.set("x", b"\0\xff")
    assert dist.PrefixStore("a", dist.PrefixStore("b", second)).get("x") == b"\0\xff"
    assert [first.add("n", 2), second.add("n", -5)] == [2, -3]
    assert second.check(["n"]) and not second.check(["n", "m"])
    assert second.delete_key("n") and not first.delete_key("n")
    assert abs(first.ahead_of_here()) < 1 and abs(first.ahead_of_here(monotonic=True)) < 1


def test_what_one_has_at_a_time_is_had_in_turn(store_at):
    first, second, before = store_at(), store_at(1), time.monotonic()
    ends = [one.occupy(keys, 10.0) for one, keys in ((first, ["a", "b"]), (second, ["b", "c"]), (first, ["c"]))]
    assert ends[0] >= before + 10 and ends == pytest.approx([ends[0], ends[0] + 10, ends[0] + 20])
    assert second.occupy(["d"], 0.0) <= time.monotonic()


def test_a_wait_ends_when_the_key_comes_or_the_time_is_over(store_at):
    first, second = store_at(), store_at(1)
    late = threading.Timer(0.2, lambda: second.set("late", "1"))
    late.start()
    first.wait(["late"], timedelta(seconds=60))
    late.join()
    with pytest.raises(RuntimeError, match=r"0\.1 s"):
        first.wait(["late", "never"], timedelta(seconds=0.1))
    first.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(RuntimeError, match="never"):
        dist.PrefixStore("", first).get("never")


def test_attempts_and_connections_of_one_rank_are_told_apart(store_at):
    first, second = store_at(prefix="attempt-0/"), store_at(prefix="attempt-1/")
    first.set("x", "1")
    with closing(first.again()) as again:
        assert not second.check(["x"]) and again.get("x") == b"1"


def test_who_does_not_have_the_secret_is_not_heard(where, store_at):
    store_at().set("x", "1")
    with pytest.raises(OSError):
        store_at(where=ListenerAddress(where.host, where.port, b"another secret 0"))
    for said in (b"", b"\0" * 4096, b"GET / HTTP/1.0\r\n\r\n", reply(b"wrong", opening(), (0, 0, 0))):
        with socket.create_connection((where.host, where.port), 10) as stranger:
            stranger.recv(OPENING_BYTES, socket.MSG_WAITALL)
            asked = b'{"id": 0, "op": "get", "keys": ["x"], "seconds": 0}'
            stranger.sendall(said + lengths(len(asked), 0) + asked)
            with suppress(OSError):  # it is shut already
                stranger.shutdown(socket.SHUT_WR)
            with suppress(ConnectionResetError):
                assert not stranger.recv(1024)
    assert store_at().get("x") == b"1"


@pytest.mark.parametrize(
    "message",
    [
        {"id": 0, "op": "exec", "keys": ["x"]},
        {"id": 0, "op": "set", "keys": ["x"], "value": "not base 64 !"},
        {"id": 0, "op": "set", "keys": []},
        {"id": 0, "op": "add", "keys": ["x"], "amount": 1e300},
        {"id": 0, "op": "get", "keys": "x", "seconds": 1},
        ["id"],
    ],
)
def test_what_is_no_request_ends_the_connection_that_made_it_alone(store_at, message):
    kept, broken = store_at(), store_at(1)
    said = json.dumps(message).encode()
    broken._connection._socket.sendall(lengths(len(said), 0) + said)
    assert broken._connection._socket.recv(1024) == b""
    kept.set("x", "1")


def test_its_address_is_for_its_owner_alone(tmp_path):
    (tmp_path / "control").mkdir()
    ListenerAddress("10.0.0.1", 99, SECRET).write(tmp_path / STORE)
    assert (tmp_path / STORE).stat().st_mode & 0o777 == 0o600
    assert ListenerAddress.read(tmp_path / STORE) == ListenerAddress("10.0.0.1", 99, SECRET)
    (tmp_path / STORE).write_text('{"host": "10.0.0.1", "port": 99, "secret": "xyz"}')
    with raises("address.secret_damaged"):
        ListenerAddress.read(tmp_path / STORE)
