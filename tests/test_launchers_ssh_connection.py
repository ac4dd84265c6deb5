"""The controller's end of a connection: what a host may say, print and leave out, and what comes of it."""

import queue
import subprocess
import sys
from contextlib import contextmanager
from subprocess import PIPE

import pytest

from sparsepipe.launching.ssh.connection import Connection
from sparsepipe.launching.ssh.launch_ssh import HostedRanks
from sparsepipe.util.host.imports import python_environment
from sparsepipe.values.cluster import DeviceType, Node


class Started:
    """A way to a host: these words, with three pipes."""

    def __init__(self, *words):
        self.words = words

    def begin(self, node):
        return subprocess.Popen(self.words, stdin=PIPE, stdout=PIPE, stderr=PIPE, bufsize=0, env=python_environment())

    def failure(self, node, code, said):
        return None


@contextmanager
def connected(*words):
    """A connection to an agent that is begun with these words, and its events."""
    events = queue.Queue()
    connection = Connection(0, HostedRanks(Node("far", (DeviceType("cpu"),)), (0,)), events, Started(*words))
    try:
        yield connection, events
    finally:
        connection.end()


NOISY = """
echo 'Welcome!'; printf 'without a line break'
(for k in $(seq 60); do echo 'You have new mail in /var/mail/me'; sleep 0.02; done) &
exec "$@"
"""


def test_an_agent_is_heard_though_its_login_shell_goes_on_printing():
    """A line that a program of the shell's start printed was read as the length of a message and ended the run."""
    agent = (sys.executable, "-m", "sparsepipe.launching.ssh.agent")
    with connected("sh", "-c", NOISY, "sh", *agent) as (connection, events):
        connection.send("open", silence=30.0, alone=True, certificate="", address="127.0.0.1")
        hello = events.get(timeout=60).frame
        assert hello.kind == "hello" and hello.head["address"] == "127.0.0.1"
        connection.send("store", secret="00" * 32)
        assert events.get(timeout=60).frame.head["port"] > 0
        for _ in range(20):
            connection.send("stop")
            assert events.get(timeout=60).frame.kind == "stopped"


SAYING = "from sparsepipe.runtime.wire.frames import FrameWriter; FrameWriter(1).send(**{!r}); input()"
HELLO = {"kind": "hello", "folder": "/f", "address": "10.0.0.1", "has_data": True, "facts": {}}
WRONG = {
    "no folder": ({key: value for key, value in HELLO.items() if key != "folder"}, "folder"),
    "no facts": ({key: value for key, value in HELLO.items() if key != "facts"}, "facts"),
    "facts": (HELLO | {"facts": 3}, "facts"),
    "has_data": (HELLO | {"has_data": "yes"}, "has_data"),
    "port": ({"kind": "store", "host": "10.0.0.1", "port": "22"}, "port"),
    "status": ({"kind": "status", "status": "failed"}, "status"),
    "state": ({"kind": "status", "status": {"reason": "x"}}, "state"),
    "precedence": ({"kind": "status", "status": {"state": "failed", "precedence": "first"}}, "precedence"),
    "refused": ({"kind": "refused"}, "reason"),
    "grown": ({"kind": "grown", "name": None}, "name"),
    "shard": ({"kind": "shard", "name": "a"}, "sha256"),
}


@pytest.mark.parametrize("message", WRONG)
def test_a_message_of_a_host_without_its_facts_ends_its_connection_in_a_line(message):
    said, named = WRONG[message]
    with connected(sys.executable, "-c", SAYING.format(said)) as (connection, events):
        assert events.get(timeout=60).frame is None
        why = connection.why_it_ended()
    assert why.startswith("far: ") and named in why and said["kind"] in why and "\n" not in why


FLOOD = "import os\nfor _ in range(200): os.write(2, b'x' * 50_000 + {!r})"


@pytest.mark.parametrize("end", ["", "\n"])
def test_what_a_host_prints_is_bounded(monkeypatch, capsys, end):
    """Line by line a byte at a time, and a line without end, which filled the memory."""
    monkeypatch.setattr("sparsepipe.launching.ssh.connection._MOST_PRINTED", 20_000)
    with connected(sys.executable, "-c", FLOOD.format(end.encode())) as (connection, events):
        assert events.get(timeout=60).frame is None
        assert len(connection.why_it_ended()) < 400
    said = capsys.readouterr().err
    assert 20_000 <= len(said) < 30_000 and "left out" in said.splitlines()[-1]
