"""The template: a process that has imported all that launchers and workers need, and waits for jobs to fork.

The first launcher that a process (a notebook's kernel, say) starts forks it, before it does anything else, and gives it
one end of a socket whose other end that process keeps (warm_start.py). For each job that is asked for there the
template forks a supervisor, which forks a launcher, which forks its workers: all is as it is elsewhere, but that no one
imports torch. The template ends with the process that it serves, however that ends.
"""

import json
import os
import select
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ...util.host.forked import Forked, fork, show_command
from ...util.host.imports import python_command
from .. import supervisor

READY = b"ready"
STARTED, REFUSED = "started", "refused"
MOST_BYTES = 2**17  # of a request: an environment, mostly
_IDLE_SECONDS = 1800.0  # without a job, after which its memory is given back

Launch = Callable[[Sequence[str]], int]  # the launcher: its options → its exit code


@dataclass(frozen=True)
class Request:
    """A job to be started. With it come descriptors: the run's lock, the lifeline, standard output and error."""

    run_dir: str
    options: list[str]  # of the launcher
    folder: str  # where the launcher is to stand
    environment: dict[str, str]
    number: int = 0  # which its answer repeats

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def answer(word: str, request: Request) -> bytes:
    """Return the answer to a request: STARTED, sent with the supervisor's process, or REFUSED."""
    return f"{word} {request.number}".encode()


def fork_template(launch: Launch) -> None:
    """Fork the template where this launcher was given the end of a socket for it."""
    if not (named := os.environ.pop(supervisor.TEMPLATE, None)):
        return
    with socket.socket(fileno=int(named)) as end, suppress(OSError):  # without it the next job starts as this one did
        fork(lambda: _serve(end, launch), command=python_command("sparsepipe.launching.local.template"))


def _serve(end: socket.socket, launch: Launch) -> int:
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # the first job's are let go
        os.dup2(nothing, stream)
    own = os.pidfd_open(os.getpid())
    socket.send_fds(end, [READY], [own])
    os.close(own)
    supervisors: dict[int, Forked] = {}  # by descriptors that can be read from when they have ended
    asked = end.fileno()
    while ready := select.select([asked, *supervisors], [], [], None if supervisors else _IDLE_SECONDS)[0]:
        for descriptor in supervisors.keys() & set(ready):
            supervisors.pop(descriptor).wait()
            os.close(descriptor)
        if asked in ready and not _serve_one(end, launch, supervisors):
            break
    return 0


def _serve_one(end: socket.socket, launch: Launch, supervisors: dict[int, Forked]) -> bool:
    """Start the job that is asked for. Returns whether there is anybody to ask."""
    told, descriptors, _, _ = socket.recv_fds(end, MOST_BYTES, 4)
    asks = select.poll()
    asks.register(end, 0)
    if not told or asks.poll(0):  # it has hung up: whoever asked is gone
        return False
    request = Request(**json.loads(told))
    try:
        child = fork(lambda: _supervise(request, descriptors, launch), closing=[end.fileno(), *supervisors])
    except OSError:
        end.send(answer(REFUSED, request))
        return True
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    descriptor = os.pidfd_open(child.pid)
    supervisors[descriptor] = child
    socket.send_fds(end, [answer(STARTED, request)], [descriptor])
    return True


def _supervise(request: Request, descriptors: Sequence[int], launch: Launch) -> int:
    """Be the job's supervisor, whose launcher is forked."""
    lock, lifeline, out, log = descriptors
    os.dup2(out, 1)
    os.dup2(log, 2)
    os.close(out)
    os.close(log)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    command = python_command("sparsepipe.launching.local", *request.options)
    show_command(supervisor.command(lifeline, request.run_dir, command))

    def start(environment: dict[str, str], others: Sequence[int]) -> Forked:
        def work() -> int:
            os.environ.update(environment)
            return launch(request.options)

        return fork(work, command=command, closing=[lock, *others])

    return supervisor.supervise(lifeline, Path(request.run_dir), start)
