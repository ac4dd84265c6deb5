"""`python -m sparsepipe.runtime.pipelines.service --run-dir RUN --pipelines P`: the coordinator's process.

It has no torch, no weights and no threads of work: it answers one request after the other. It ends when it is asked to
(SIGTERM), or when its parent ends. Killed, it is started again with the same `--launch`, and continues.
"""

import argparse
import asyncio
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.files import read_json
from ...values.replication import rule_from_json
from .. import commands
from ..processes.run_folder import RunFolder
from ..processes.signs_of_life import watch
from ..wire.encryption import Encryption, tls_of
from ..wire.messages import COORDINATOR, ListenerAddress
from ..wire.switchboard import Peer, Switchboard
from .journal import Journal
from .messages import GIVEN_UP, INPUT, REFUSED, check_caller, encoded, read_given, read_request
from .minibatch_queue import read_progress
from .state import GivenUp, Request, RunOfPipelines, RunState
from .work import WAIT

_GRACE = 0.5  # seconds for a rank whose connections have ended to come back: else its pipeline is given up
_LOOK_EVERY = 0.2  # seconds between two looks for commands, and two writes of the record


@dataclass(frozen=True)
class _Parked:
    """A request that has no answer yet."""

    peer: Peer
    id: int
    call: str
    given: dict[str, Any]


class Service:
    """Answers requests from the state, in order, and keeps the journal."""

    def __init__(self, run_dir: Path, journal: Journal, state: RunState, *, origin: float) -> None:
        self._run_dir, self._journal, self._state, self._origin = run_dir, journal, state, origin
        self._parked: list[_Parked] = []
        self._connections: Counter[tuple[int, int, int]] = Counter()
        self._expiry: asyncio.TimerHandle | None = None
        self._said_stopped = False

    def now(self) -> float:
        return time.monotonic() - self._origin

    # --- requests ----------------------------------------------------------------------------------------------------

    def connected(self, peer: Peer) -> None:
        check_caller(*peer.who)
        self._connections[peer.who] += 1

    def said(self, peer: Peer, message: dict[str, Any]) -> None:
        told = read_request(message)
        before = self._state.changes.version
        for given in told["done"]:
            found = self._ask(peer, "done", given)
            if "error" in found:
                break
        else:
            found = self._ask(peer, told["call"], told["given"])
        if found:
            peer.send(encoded({"id": told["id"], **found}))
        else:
            parked = _Parked(peer, told["id"], told["call"], told["given"])
            self._parked.append(parked)
            asyncio.get_running_loop().call_later(told["wait"], self._let_go, parked)
        self._after_change(before)

    def disconnected(self, peer: Peer) -> None:
        self._parked = [parked for parked in self._parked if parked.peer is not peer]
        self._connections[peer.who] -= 1
        if not self._connections[peer.who]:
            del self._connections[peer.who]
            asyncio.get_running_loop().call_later(_GRACE, self._give_up, peer.who)

    def _ask(self, peer: Peer, call: str, given: Any) -> dict[str, Any]:
        """Ask the state; return its answer or error, empty if there is none yet. What changed is in the journal."""
        pipeline, rank, attempt = peer.who
        try:
            request = Request(call, pipeline, rank, attempt, read_given(call, given))
        except InputError as error:
            return {"error": REFUSED, "message": str(error)}
        before, now, found = self._state.changes.version, self.now(), {}
        try:
            answer = self._state.ask(request, now=now)
            if answer is not WAIT:
                found = {"answer": answer}
        except GivenUp as error:
            found = {"error": GIVEN_UP, "message": str(error)}
        except InputError as error:
            found = {"error": INPUT, "message": str(error), "code": error.code}
        except RuntimeError as error:
            found = {"error": REFUSED, "message": str(error)}
        row = {"now": now, "call": call, "pipeline": pipeline, "rank": rank, "attempt": attempt, "given": given}
        self._keep(before, row)
        return found

    def _answered(self, parked: _Parked) -> bool:
        """Ask again for one that waits, and answer it where that can be done now."""
        found = self._ask(parked.peer, parked.call, parked.given)
        if found:
            parked.peer.send(encoded({"id": parked.id, **found}))
        return bool(found)

    def _keep(self, before: int, row: dict[str, Any]) -> None:
        if self._state.changes.version != before:
            self._journal.add(row)
            self._journal.take_rows(self._state.changes, now=time.monotonic())
            self._journal.shorten(self._state)

    def _after_change(self, before: int) -> None:
        """Answer those that waited for a change, as long as answers change more."""
        while self._state.changes.version != before:
            before = self._state.changes.version
            self._parked = [parked for parked in self._parked if not self._answered(parked)]
        self._set_expiry()

    def _let_go(self, parked: _Parked) -> None:
        """Tell who has waited as long as it wanted to that there is nothing yet."""
        if any(one is parked for one in self._parked):
            self._parked = [one for one in self._parked if one is not parked]
            parked.peer.send(encoded({"id": parked.id, "wait": True}))

    def _give_up(self, who: tuple[int, int, int]) -> None:
        """Give a pipeline's attempt up, one of whose ranks has been gone for a while; not at its end."""
        pipeline, rank, attempt = who
        if who not in self._connections and rank >= 0 and not self._state.through(pipeline):
            self._do({"call": "leave", "pipeline": pipeline, "rank": rank, "attempt": attempt, "given": {}})

    def _do(self, row: dict[str, Any]) -> None:
        """Change the state without being asked to."""
        before, now = self._state.changes.version, self.now()
        if row["call"] == "expire":
            self._state.expire(now=now)
        elif row["call"] == "stop":
            self._state.stop(now=now)
        else:
            with suppress(RuntimeError):
                self._state.ask(Request(row["call"], row["pipeline"], row["rank"], row["attempt"], {}), now=now)
        self._keep(before, {"now": now, **row})
        self._after_change(before)

    # --- time --------------------------------------------------------------------------------------------------------

    def _set_expiry(self) -> None:
        deadline = self._state.next_deadline()
        if self._expiry:
            self._expiry.cancel()
            self._expiry = None
        if deadline is not None:
            delay = max(0.0, deadline - self.now())
            self._expiry = asyncio.get_running_loop().call_later(delay, self._do, {"call": "expire"})

    async def keep_looking(self) -> None:
        """Take up commands, and write the record, every now and then. Ends by being cancelled."""
        while True:
            self.look()
            await asyncio.sleep(_LOOK_EVERY)

    def look(self) -> None:
        """Take up what the run is asked for, say what it has done of it, and write the record."""
        work = self._state.work
        if work and not work.stopped and commands.requested(self._run_dir) == commands.STOP:
            self._do({"call": "stop"})
        asked = commands.requested(self._run_dir) == commands.STOP  # else it ended early by itself
        if work and work.stopped and work.run_closed and asked and not self._said_stopped:
            commands.take(self._run_dir, commands.STOP, work.queue.num_done)
            self._said_stopped = True
        self._journal.flush()


async def serve(
    run_dir: Path, journal: Journal, state: RunState, *, host: str, port: int, encryption: Encryption | None = None
) -> None:
    """Serve until SIGTERM. The address is in the run's folder, for its owner alone to read, before anybody is served.

    `encryption`: what follows the handshake goes through TLS. Raises OSError where the address cannot be had.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    loop.set_exception_handler(_fail)
    service = Service(run_dir, journal, state, origin=journal.origin())
    tls = tls_of(encryption, server_side=True)
    board = Switchboard(host, journal.secret, service, loop, port=port, tls=tls)
    address = ListenerAddress(*board.address, journal.secret, state.run.num_pipelines)
    address.write(run_dir / COORDINATOR)
    looking = loop.create_task(service.keep_looking())
    ending = loop.create_task(ended.wait())
    await asyncio.wait((looking, ending), return_when=asyncio.FIRST_COMPLETED)
    if looking.done():
        looking.result()  # raises what went wrong
    looking.cancel()
    service.look()


def _fail(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """End the process where a request could not be kept, or there is a mistake of ours: another takes its place."""
    loop.default_exception_handler(context)
    if "socket" not in context:  # else too many connect at once: the loop accepts them a second later
        sys.exit(1)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sparsepipe.runtime.pipelines.service", description=__doc__)
    parser.add_argument("--run-dir", type=Path, required=True, help="folder of the whole run")
    parser.add_argument("--pipelines", type=int, required=True, help="how many there are")
    parser.add_argument("--replication", type=json.loads, help="rule and options as JSON, as plans have them")
    parser.add_argument("--seed", type=int, default=0, help="of what the rule draws")
    parser.add_argument("--launch", default=os.environ.get("SPARSEPIPE_LAUNCH", "0"), help="names this launch")
    parser.add_argument("--resume", type=Path, help="JSON of what an earlier launch left to do")
    parser.add_argument("--host", default="127.0.0.1", help="the interface to listen at")
    parser.add_argument("--port", type=int, default=0, help="0: any")
    parser.add_argument("--encrypt", action="store_true", help="by the certificate in the run's folder")
    arguments = parser.parse_args()
    watch()
    try:
        _run(arguments)
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    return 0


def _run(arguments: argparse.Namespace) -> None:
    run_dir: Path = arguments.run_dir
    RunFolder(run_dir).watch(lambda error: os._exit(1))
    progress = read_progress(read_json(arguments.resume), str(arguments.resume)) if arguments.resume else None
    rule = rule_from_json(arguments.replication) if arguments.replication else None
    run = RunOfPipelines(arguments.pipelines, rule, arguments.seed, progress)
    journal, state = Journal.open(run_dir, arguments.launch, run)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    encryption = Encryption.of_run(run_dir) if arguments.encrypt else None
    try:
        asyncio.run(serve(run_dir, journal, state, host=arguments.host, port=arguments.port, encryption=encryption))
    finally:
        journal.close()


if __name__ == "__main__":
    sys.exit(main())
