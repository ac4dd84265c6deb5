"""The controller's end of the connection to a host: what its agent receives and sends, and why the connection
ended.
"""

import codecs
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from ...errors import InputError
from ...records.record_files import CLOCK, read_fields
from ...runtime.wire.frames import Frame, FrameReader, FrameWriter
from ...util.host.imports import python_on_host, this_python
from ...util.host.ssh import command_failure, ssh_command, ssh_failure
from ...util.io.fields import Check, fields, flag, integer, maybe, shown, text
from ...values.cluster import Node
from .launch_ssh import HostedRanks

AGENT = ("-m", "sparsepipe.launching.ssh.agent")  # of a Python on a host
_SSH_FAILED = 255  # the exit code of ssh itself, not of the command there
_MOST_LINES = 20
_MOST_LINE = 4096  # characters
_MOST_PRINTED = 2**24  # characters of a host's standard error that are printed here
_READ_BYTES = 2**16
_TO_END = 10.0  # seconds
_ALIVE_SECONDS = 1.0
_CAUSE = {"reason": text, "rank": maybe(integer), "stage": maybe(integer), "precedence": integer}
_STATUS = fields({"state": text, **_CAUSE, "exit_code": integer, "lasting": flag, "limit": flag, "code": maybe(text)})
_NEEDED: Mapping[str, Mapping[str, Check]] = {  # by the kind of what a host says: the facts that it must have
    "hello": {"folder": text, "address": text, "has_data": flag, "facts": fields({})},
    "store": {"host": text, "port": integer},
    "coordinator": {"host": text, "port": integer, "secret": text},
    "status": {"status": lambda value, what: _STATUS(value, what)["state"]},
    "refused": {"reason": text},
    "grown": {"name": text},
    "shard": {"name": text, "sha256": text},
    "gone": {"name": text},
}


class AgentProcess(Protocol):
    """An agent on a host, as `subprocess.Popen` has a process, with the three pipes."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None
    stderr: IO[bytes] | None

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class Reach(Protocol):
    """A way to hosts."""

    def begin(self, node: Node) -> AgentProcess:
        """Start an agent there. Raises InputError if that is known to fail at once."""
        ...

    def failure(self, node: Node, code: int, said: str) -> str | None:
        """Return in a line why the way failed, given how the agent's process ended; None if it did not."""
        ...


class OverSsh:
    """Hosts are reached by the system's `ssh`."""

    def begin(self, node: Node) -> AgentProcess:
        words = [*python_on_host(node.interpreter, node.environment), *AGENT]
        return subprocess.Popen(
            ssh_command(node.ssh_destination, words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )

    def failure(self, node: Node, code: int, said: str) -> str | None:
        return ssh_failure(node.ssh_destination, said) if code == _SSH_FAILED else None


@dataclass(frozen=True)
class Event:
    """Event from a host: a frame, or None at the end of its connection."""

    host: int
    frame: Frame | None


class Connection:
    """An agent on a host, begun at once. A thread puts what it says into `events`."""

    def __init__(self, number: int, hosted: HostedRanks, events: "queue.Queue[Event]", reach: Reach) -> None:
        self.number, self.hosted, self._events, self._reach = number, hosted, events, reach
        self._process = reach.begin(hosted.node)
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._input, self._output = self._process.stdin, self._process.stdout
        self._said: deque[str] = deque(maxlen=_MOST_LINES)
        self._fault = ""  # what it said that is no message
        self._threads = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._keep_errors, args=(self._process.stderr,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self.alive = True
        self.folder = ""  # of the run, there
        self.has_data = True  # whether those that the settings name are there
        self.ahead = 0.0  # seconds by which its clock is ahead of the one here, to what a word from there takes
        self._writer = FrameWriter(self._input.fileno())
        self._ending = threading.Event()
        self._keeping = threading.Thread(target=self._keep_alive, daemon=True)
        self._keeping.start()

    @property
    def writer(self) -> FrameWriter:
        return self._writer

    def send(self, kind: str, **facts: Any) -> None:
        """Send a message; if the host is gone, its end is an event of its own."""
        with suppress(OSError):
            self._writer.send(kind, **facts)

    def clock_there(self, path: Path) -> bytes:
        """Return a run's clock.json, kept in `path` by the clock of this machine, by that of the host."""
        return json.dumps({"started": read_fields(path, CLOCK, what="run's clock")["started"] + self.ahead}).encode()

    def why_it_ended(self) -> str:
        """Return in a line why the connection ended, with the remedy. It has."""
        if refusal := self.refusal():
            return refusal
        last = self._fault or (self._said[-1][:300] if self._said else f"code {self._wait()}")
        return f"{self.hosted.node.name}: the agent ended ({last})"

    def why_it_did_not_begin(self) -> str:
        """Return in a line why the connection ended before the agent said who it is, with the remedy. It has."""
        if refusal := self.refusal():
            return refusal
        python = self.hosted.node.interpreter or this_python()
        return f"{self.why_it_ended()} before the handshake; check that {python} is a working Python on that host"

    def refusal(self) -> str | None:
        """Return in a line why `ssh`, or the Python there, did not do what it was called for, with the remedy.

        None if the agent ended for another reason. The connection has ended.
        """
        node, code = self.hosted.node, self._wait()
        said = "\n".join(self._said)
        if why := self._reach.failure(node, code, said):
            return f"{node.name}: {why}"
        interpreter = node.interpreter or this_python()
        if why := command_failure(code, interpreter, said):
            return f"{node.name}: {why}"
        if "No module named" in said and "sparsepipe" in said:
            return f"{node.name}: {interpreter} has no sparsepipe; install it there, or name an interpreter that has it"
        return None

    def end(self) -> None:
        """Ask the agent to end, and see that the connection does."""
        self._ending.set()
        self.send("end")
        self._keeping.join(1.0)  # its next word would be written to whatever has the number of this pipe then
        with suppress(OSError):
            self._input.close()
        self._wait()
        self.alive = False

    def _wait(self) -> int:
        try:
            code = self._process.wait(_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        for thread in self._threads:
            thread.join(1.0)
        return code

    def _listen(self) -> None:
        reader = FrameReader(self._output.fileno())
        try:
            while (frame := reader.read()) is not None:
                _check(frame)
                if isinstance(now := frame.head.get("now"), float):
                    self.ahead = now - time.time()
                self._events.put(Event(self.number, frame))
        except ValueError as error:
            self._fault = f"it said {error}"
            self._process.kill()
        self._output.close()
        self._events.put(Event(self.number, None))

    def _keep_alive(self) -> None:
        """Tell the agent now and then that this process is alive, whatever else is being sent to other hosts."""
        while not self._ending.wait(_ALIVE_SECONDS):
            self.send("alive")

    def _keep_errors(self, stream: IO[bytes]) -> None:
        decoded, line, printed = codecs.getincrementaldecoder("utf-8")("replace"), "", 0
        while data := os.read(stream.fileno(), _READ_BYTES):
            *lines, line = (line + decoded.decode(data)).split("\n")
            if len(line) > _MOST_LINE:
                lines, line = [*lines, line], ""
            printed = self._keep_lines(lines, printed)
        self._keep_lines([line], printed)
        stream.close()

    def _keep_lines(self, lines: list[str], printed: int) -> int:
        """Keep and print lines of a host's standard error; return how many characters were printed so far."""
        for one in lines:
            if not (said := one.rstrip()[:_MOST_LINE]):
                continue
            self._said.append(said)
            if printed < _MOST_PRINTED:
                printed += len(said)
                left_out = " […] the rest of what it prints is left out here" if printed >= _MOST_PRINTED else ""
                print(f"{self.hosted.node.name}: {said}{left_out}", file=sys.stderr, flush=True)
        return printed


def _check(frame: Frame) -> None:
    """Raise InputError for a message that lacks a fact that its kind must have, or has another kind of value there."""
    for name, check in _NEEDED.get(frame.kind, {}).items():
        if name not in frame.head:
            raise InputError("agent.fact_missing", f"{shown(frame.kind)}: {name!r} is missing")
        check(frame.head[name], f"{frame.kind}: {name}")
