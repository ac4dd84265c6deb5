"""A probe on each host: the program of probe.py as a process there, asked in frames, and ended with its input."""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ...errors import InputError
from ...runtime.wire import frames, handshake
from ...runtime.wire.frames import FrameReader, FrameWriter
from ...util.host.imports import python_on_host, this_python
from ...util.host.ssh import command_failure, ssh_command, ssh_failure
from ...util.io.fields import complaint
from ...values.cluster import Cluster, Node
from ...values.profile import Profile

TORCH_SECONDS = 300.0  # for torch to begin and compute there, on a cold disk
_SSH_FAILED = 255  # ssh's own exit code
_MOST_ERRORS = 1 << 20  # bytes of what it says on standard error that are looked at
_TO_END = 10.0  # seconds
_AT_ONCE = 64  # hosts asked at a time
_FILES = (Path(frames.__file__), Path(handshake.__file__), Path(__file__).with_name("probe.py"))
_PROGRAM = "\n".join(f"exec({path.read_text()!r})" for path in _FILES)  # one behind the other
T = TypeVar("T")


class HostProbe:
    """The program on one host. Use as a context: at its end nothing of it is left there."""

    def __init__(self, node: Node, *, before: Sequence[str] = ()) -> None:
        """`before`: words of a command that starts another one there; without them the node says how it is reached."""
        self.node = node
        self.interpreter = node.interpreter or this_python()
        words = [*python_on_host(node.interpreter, node.environment), "-c", _PROGRAM]
        direct = [*before, *words] if before or node.is_local else None
        command = direct or ssh_command(node.ssh_destination, words)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0
            )
        except OSError as error:
            self._errors.close()
            raise InputError(
                "probe.not_startable", f"{node.name}: {command[0]}: {error.strerror}; install it (openssh-client)"
            ) from None
        assert self._process.stdin and self._process.stdout
        self._writer = FrameWriter(self._process.stdin.fileno())
        self._reader = FrameReader(self._process.stdout.fileno())
        self._num_asked = 0

    def ask(self, what: str, *, timeout: float = 60.0, **facts: Any) -> dict[str, Any]:
        """Ask one question. Raises InputError in one line that names the host if it fails, or takes too long."""
        self._num_asked += 1
        deadline = time.monotonic() + timeout
        with suppress(OSError):  # why it ended is told where its answer is read
            self._writer.send(what, json.dumps(facts).encode(), number=self._num_asked)
        try:
            while True:
                frame = self._reader.read(seconds=max(0.0, deadline - time.monotonic()))
                if frame is None:
                    raise InputError("probe.ended", self._why_it_ended())
                if frame.head.get("number") == self._num_asked:
                    break  # others are late answers, to a question whose time was over
            answer = json.loads(frame.payload)
        except TimeoutError:
            raise InputError(
                "probe.timeout",
                f"{self.node.name}: did not answer within {timeout:.0f} s; check the load of that host",
            ) from None
        except InputError:
            raise
        except ValueError as error:
            raise InputError(
                "probe.answer_malformed",
                f"{self.node.name}: sent an invalid answer to the probe ({error}); check its sparsepipe version",
            ) from None
        if not isinstance(answer, dict):
            raise InputError(
                "probe.answer_malformed",
                f"{self.node.name}: sent an invalid answer to the probe; check its sparsepipe version",
            )
        if "error" in answer:
            raise InputError("probe.failed", f"{self.node.name}: {complaint(answer['error'])}")
        return answer

    def close(self) -> None:
        """End the program: its input ends, and with it the process."""
        assert self._process.stdin and self._process.stdout
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(_TO_END)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _why_it_ended(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read(_MOST_ERRORS).decode(errors="replace")
        if code == _SSH_FAILED and not self.node.is_local:
            return f"{self.node.name}: {ssh_failure(self.node.ssh_destination, said)}"
        if why := command_failure(code, self.interpreter, said):
            return f"{self.node.name}: {complaint(why, 500)}"
        last = ([line for line in said.splitlines() if line.strip()] or [f"code {code}"])[-1]
        return f"{self.node.name}: {self.interpreter} ended ({complaint(last)}); is it a Python that runs there?"


@contextmanager
def probes(nodes: Sequence[Node]) -> Iterator[list[HostProbe]]:
    """Start a probe on each host, and end them all with the block, however it is left."""
    begun: list[HostProbe] = []
    try:
        for node in nodes:
            begun.append(HostProbe(node))
        yield begun
    finally:
        for_each(HostProbe.close, begun)


def for_each(act: Callable[..., T], *each: Sequence[Any]) -> list[T]:
    """Call `act` for all hosts at a time, and return what it returned in their order."""
    count = len(each[0])
    with ThreadPoolExecutor(max_workers=max(1, min(count, _AT_ONCE))) as pool:
        return list(pool.map(act, *each))


def with_unmeasured(profile: Profile, cluster: Cluster) -> tuple[Profile, tuple[str, ...]]:
    """Return the profile with the unmeasured types of the cluster that can be estimated, and a line for each of these.

    A type that was not measured on the cluster's reference layer stays unknown, which planners tell.
    """
    seconds = {kind.name: kind.reference_seconds for kind in cluster.device_types if kind.reference_seconds}
    known = [name for name in seconds if name in profile.costs]
    told = []
    for name in seconds:
        if name in profile.costs or not known:
            continue
        like = min(known, key=lambda one: abs(seconds[one] / seconds[name] - 1))
        factor = seconds[name] / seconds[like]
        profile = profile.with_device_type(name, like=like, factor=factor)
        told.append(
            f"device type {name!r} has no profile: its times are estimated as {factor:.2f} times those of {like!r}, "
            f"as for the reference layer; give its profile by --profile {name}=FILE"
        )
    return profile, tuple(told)
