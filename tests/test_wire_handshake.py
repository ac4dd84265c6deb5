"""The handshake: both ends prove the secret, a recorded one is of no use, and strangers cost a descriptor at most."""

import queue
import socket
import threading
import time
from contextlib import ExitStack, closing, contextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from processes import ENOUGH, until

from sparsepipe.runtime.wire import handshake
from sparsepipe.runtime.wire.handshake import NAME_BYTES, OPENING_BYTES, PROOF_BYTES, Listener, call, new_secret, reply

SECRET = new_secret()
NUMBER = st.integers(-(2**31), 2**31 - 1)


@contextmanager
def listening(**options):
    taken: queue.SimpleQueue = queue.SimpleQueue()
    with closing(Listener("127.0.0.1", SECRET, taken.put, **options)) as listener:
        yield listener, taken
    while not taken.empty():
        taken.get().connection.close()


def called(listener, who=(1, 2, 3), secret=SECRET):
    return closing(call(listener.host, listener.port, secret, who, deadline=time.monotonic() + ENOUGH))


def read(connection, count):
    """What comes, until so many bytes have or the connection ends."""
    connection.settimeout(ENOUGH)
    found = b""
    with suppress(ConnectionError):
        while len(found) < count and (more := connection.recv(count - len(found))):
            found += more
    return found


@settings(max_examples=20, deadline=None)
@given(st.tuples(NUMBER, NUMBER, st.integers(-(2**63), 2**63 - 1)))
def test_who_calls_is_told_as_it_said_and_both_ends_speak(who):
    with listening() as (listener, taken), called(listener, who) as connection:
        caller = taken.get(timeout=ENOUGH)
        with closing(caller.connection) as other:
            assert caller.who == who
            other.sendall(b"there")
            connection.sendall(b"back")
            assert read(connection, 5) == b"there" and read(other, 4) == b"back"


def test_a_secret_of_another_job_and_a_recorded_reply_are_refused():
    with listening() as (listener, taken):
        with pytest.raises(ConnectionError), called(listener, secret=new_secret()):
            pass
        recorded, answers = None, []
        for _ in range(2):  # the second says what the first did, to another opening
            with closing(socket.create_connection((listener.host, listener.port))) as connection:
                opening = read(connection, OPENING_BYTES)
                recorded = recorded or reply(SECRET, opening, (1, 2, 3))
                connection.sendall(recorded)
                answers.append(read(connection, PROOF_BYTES))
        assert [len(answer) for answer in answers] == [PROOF_BYTES, 0]
        taken.get(timeout=ENOUGH).connection.close()
        assert taken.empty()


@pytest.mark.parametrize(
    "opening", [handshake.opening(), b"spw0" + bytes(16), b"HTTP/1.1 400 Bad Request\r\n"], ids=["own", "older", "HTTP"]
)
def test_who_took_a_listeners_port_without_the_secret_is_not_spoken_to(opening):
    heard = bytearray()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.sendall(opening)
                heard.extend(read(connection, NAME_BYTES + PROOF_BYTES) if opening[:4] == handshake.WORD else b"")
                with suppress(ConnectionError):
                    connection.sendall(bytes(PROOF_BYTES))

        thread = threading.Thread(target=answer)
        thread.start()
        host, port = server.getsockname()
        with pytest.raises(ConnectionError):
            call(host, port, SECRET, (1, 2, 3), deadline=time.monotonic() + ENOUGH)
        thread.join()
    assert SECRET not in bytes(heard)


def test_a_call_that_nobody_answers_ends_at_its_deadline():
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(TimeoutError):
        call(*server.getsockname(), SECRET, (1, 2, 3), deadline=time.monotonic() + 0.2)


def test_of_strangers_that_say_nothing_the_oldest_are_shut_at_once():
    with listening() as (listener, taken), ExitStack() as stack:
        address = (listener.host, listener.port)
        strangers = [stack.enter_context(closing(socket.create_connection(address))) for _ in range(200)]
        with called(listener):
            taken.get(timeout=ENOUGH).connection.close()
        for stranger in strangers[: 200 - handshake._MOST_SILENT]:
            assert read(stranger, OPENING_BYTES + 1)[OPENING_BYTES:] == b"" and not stranger.recv(1)
        assert len(listener._silent) <= handshake._MOST_SILENT


def test_who_says_its_reply_byte_by_byte_is_shut_when_its_time_is_over(monkeypatch):
    monkeypatch.setattr(handshake, "SECONDS", 0.5)
    with listening() as (listener, taken), closing(socket.create_connection((listener.host, listener.port))) as slow:
        said = reply(SECRET, read(slow, OPENING_BYTES), (1, 2, 3))
        with pytest.raises(ConnectionError):
            for k in range(len(said)):
                slow.sendall(said[k : k + 1])
                time.sleep(0.1)
        assert taken.empty()


def test_a_listener_that_is_closed_leaves_nothing():
    before = threading.active_count()
    with listening() as (listener, _), closing(socket.create_connection((listener.host, listener.port))) as stranger:
        read(stranger, OPENING_BYTES)
        listener.close()
        assert not read(stranger, 1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((listener.host, listener.port))
        until(lambda: threading.active_count() == before, "its thread has ended")
