"""A rank's way to the coordinator: requests over connections that are opened when they are needed, and opened again.

A coordinator that was killed is looked for until another has taken its place, which answers a repeated request as the
first would have done.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...values.replication.base import Merge
from ..failures import DeadlinePassed, PacketMismatch, PeerLost
from ..wire.encryption import Encryption, tls_of
from ..wire.messages import COORDINATOR, ListenerAddress, Requests
from .base import Holder, Task
from .messages import GIVEN_UP, INPUT, encoded, read_answer

_LONGEST_WAIT = 5.0  # seconds that one request stays unanswered; then it is made again
_DONE_LATEST = 0.2  # seconds for which what is done is kept to go with another request
_PAUSE = 0.05  # before the coordinator is looked for again


class CoordinatorClient:
    """The coordinator (see `base.Coordinator`) of the run in `run_dir`, for a rank of one attempt of a pipeline.

    A request takes a connection that no other thread uses, or a new one.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        pipeline: int,
        rank: int,
        attempt: int,
        timeout: float,
        encryption: Encryption | None = None,
    ) -> None:
        """`timeout`: seconds for which a coordinator is looked for. `rank` -1 is a pipeline's launcher. `encryption`:
        what is said goes through TLS.

        Raises DeadlinePassed if none is found.
        """
        self.pipeline, self._rank = pipeline, rank
        self._tls = tls_of(encryption, server_side=False)
        self._run_dir, self._timeout = run_dir, timeout
        self._who = (pipeline, rank, attempt)
        self._lock = threading.Lock()
        self._idle: list[Requests] = []
        self._requests = 0
        self._places: dict[tuple[int, int], int] = {}  # (task, place) → minibatch, as far as it was told
        self._done: list[dict[str, Any]] = []  # not said yet
        self._done_since = 0.0
        self._closed = False
        self.num_pipelines = self._first_look()

    def close(self) -> None:
        """Ask no more. The coordinator takes it for the rank's end."""
        with self._lock:
            self._closed = True
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    # --- the calls ---------------------------------------------------------------------------------------------------

    def begin(
        self, *, whole: int, epoch_minibatches: int, total_minibatches: int, num_holders: int, data: str = ""
    ) -> None:
        given: dict[str, Any] = {"whole": whole, "num_holders": num_holders, "data": data}
        self._ask("begin", **given, epoch_minibatches=epoch_minibatches, total_minibatches=total_minibatches)

    def register(self, holder: Holder) -> None:
        self._ask("register", holder=holder)

    def holders(self, pipeline: int) -> Sequence[Holder]:
        found: Sequence[Holder] = self._ask("holders", pipeline=pipeline)
        return found

    def live(self) -> Sequence[int]:
        found: Sequence[int] = self._ask("live")
        return found

    def next_task(self, number: int) -> Task:
        found: Task = self._ask("next_task", number=number)
        return found

    def take_minibatch(self, task: int, place: int) -> int | None:
        with self._lock:
            known = self._places.get((task, place))
        if known is not None:
            return known
        found: list[int] = self._ask("take_minibatch", task=task, place=place)
        with self._lock:
            for old in [key for key in self._places if key[0] < task - 1]:
                del self._places[old]
            self._places |= {(task, place + k): minibatch for k, minibatch in enumerate(found)}
        return found[0] if found else None

    def done(self, task: int, place: int, row: Mapping[str, Any]) -> None:
        """As `Coordinator.done`; it is said with the next request of any kind, soon at the latest."""
        given = {"task": task, "place": place, "row": row}
        with self._lock:
            if not self._done:
                self._done_since = time.monotonic()
            soon = time.monotonic() - self._done_since < _DONE_LATEST
            if soon:
                self._done.append(given)
        if not soon:
            self._ask("done", task=task, place=place, row=row)

    def measured(self, task: int, row: Mapping[str, Any]) -> None:
        self._ask("measured", task=task, row=row)

    def closed(self, epoch: int, row: Mapping[str, Any]) -> None:
        self._ask("closed", epoch=epoch, row=row)

    def tell(self, event: str, row: Mapping[str, Any]) -> None:
        self._ask("tell", event=event, row=row)

    def end_task(self, task: int) -> None:
        self._ask("end_task", task=task)

    def move(self) -> None:
        self._ask("move")

    def progress(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self._ask("progress")
        return found

    def contribute(self, update: int, *, samples: int) -> int:
        found: int = self._ask("contribute", update=update, samples=samples)
        return found

    def pass_over(self, update: int) -> None:
        self._ask("pass_over", update=update)

    def contribution(self, update: int) -> int | None:
        found: int | None = self._ask("contribution", update=update)
        return found

    def merge_of(self, contribution: int, *, wait: float) -> Merge | None:
        until = time.monotonic() + wait
        found: Merge | None = self._ask("merge_of", until=until, contribution=contribution)
        return found

    def merged(self, merge: Merge, facts: Mapping[str, Any]) -> None:
        self._ask("merged", merge=merge.number, facts=facts)

    def last_merge(self, update: int) -> Merge:
        found: Merge = self._ask("last_merge", update=update)
        return found

    def leave(self) -> None:
        self._ask("leave")

    # --- asking ------------------------------------------------------------------------------------------------------

    def _ask(self, call: str, *, until: float | None = None, **given: Any) -> Any:
        """Return the answer to a call; None if there is none at `until`, for calls that wait no longer."""
        while True:
            left = _LONGEST_WAIT if until is None else min(_LONGEST_WAIT, max(0.0, until - time.monotonic()))
            answer = self._request(call, left, given)
            if "error" in answer:
                if answer["error"] == INPUT:
                    raise InputError(answer["code"], answer["message"])
                raise (PeerLost if answer["error"] == GIVEN_UP else RuntimeError)(answer["message"])
            if "wait" not in answer:
                return read_answer(call, answer["answer"])
            if until is not None and time.monotonic() >= until:
                return None

    def _request(self, call: str, wait: float, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Make a request until a coordinator answers it. Raises DeadlinePassed if none is found in time."""
        with self._lock:
            self._requests += 1
            number = self._requests
            message = encoded({"id": number, "call": call, "wait": wait, "given": given, "done": self._done})
            self._done = []
        searched: float | None = None  # until when another is looked for
        while True:
            try:
                connection = self._take(searched or time.monotonic() + self._timeout)
                try:
                    answer = connection.request(number, message, deadline=time.monotonic() + wait + self._timeout)
                except BaseException:
                    connection.close()
                    raise
                self._give_back(connection)
                return answer
            except (OSError, InputError, PacketMismatch) as error:  # it was killed, or is not there yet
                searched = searched or time.monotonic() + self._timeout
                self._pause(searched, call, error)

    def _take(self, deadline: float) -> Requests:
        with self._lock:
            if self._closed:
                raise RuntimeError("the way to the coordinator is closed")
            if self._idle:
                return self._idle.pop()
        address = ListenerAddress.read(self._run_dir / COORDINATOR)
        return Requests(address, self._who, deadline=deadline, tls=self._tls)

    def _give_back(self, connection: Requests) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _first_look(self) -> int:
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return ListenerAddress.read(self._run_dir / COORDINATOR).num_pipelines
            except InputError as error:
                self._pause(deadline, "first look", error)

    def _pause(self, deadline: float, call: str, error: Exception) -> None:
        """Wait a moment before the next attempt. Raises DeadlinePassed if there is no time for one."""
        if time.monotonic() + _PAUSE >= deadline:
            who = f"rank {self._rank} of pipeline {self.pipeline}"
            message = f"{call} of {who} waited {self._timeout:g} s for the coordinator ({error})"
            raise DeadlinePassed(message, peer=-1) from error
        time.sleep(_PAUSE)


def connect(
    run_dir: Path, *, pipeline: int, rank: int, attempt: int, timeout: float, encryption: Encryption | None = None
) -> CoordinatorClient:
    """Return the coordinator of the run in `run_dir` as a rank sees it. Raises DeadlinePassed if there is none."""
    return CoordinatorClient(
        run_dir, pipeline=pipeline, rank=rank, attempt=attempt, timeout=timeout, encryption=encryption
    )
