"""Rows of a run's metrics, which several hosts may write: each sends its own, and the record has them all.

    host1   ── rows of minibatches 0, 2, 4, of the epoch ──┐
    host2   ── rows of minibatches 1, 3, 5 ────────────────┴──► metrics.jsonl of the record, as they come

Each replica of the last stage knows the losses of its own minibatches, and its host reports them. If a run continues
from a checkpoint, every host forgets the minibatches after it, and so does the record, once.

Requests are what a run on hosts is asked for while it is at work, and what became of it.

    record   control/request.json, and the plan that it names  ──►  host of rank 0   the same, in the folder there
             plans/, plan.json, then control/taken.json        ◄──                   control/taken.json
             control/refused.json                              ◄──                   control/refused.json

If the plan leaves rank 0 out, it is the host of the lowest of its ranks. Each of several pipelines is asked for
plans by itself, in its own folder (`pipelines/K/`); they stop together, for which their coordinator is asked.

A plan is the run's once the record has it: if hosts are lost before, the run continues under the plan that it has.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import InputError
from ...records import RunRecord
from ...records.run_progress import begin_plan, keep_processes
from ...runtime import commands
from ...runtime.reporting.recorder import forget_rows
from ...runtime.wire.frames import MOST_PAYLOAD, FrameWriter
from ...values.plan import Plan
from ..followed_job import Tail, row_of
from .connection import Connection
from .pieces import send_content

METRICS = "metrics.jsonl"
_MOST_ROW = 2**24  # bytes


class OwnRows:
    """The rows that one host writes, sent as they come; those that were there before are known."""

    def __init__(self, folder: Path) -> None:
        self._tail = Tail(folder / METRICS)
        self._tail.skip()

    def tell(self, writer: FrameWriter) -> None:
        """Send the rows since the last call. Of a file that a run begins again, they are those that are new in it."""
        while found := self._tail.read_lines():
            data = b"".join(line + b"\n" for _, line in found)
            for start in range(0, len(data), MOST_PAYLOAD):
                writer.send("rows", data[start : start + MOST_PAYLOAD])


class RowsOfHosts:
    """Writes the rows of the hosts to the metrics of a record."""

    def __init__(self, folder: Path, *, several: bool) -> None:
        """`several`: rows of minibatches may come from more than one host, as from those of the last stage's replicas,
        or of the last stages of one plan after another.
        """
        self._path, self._several = folder / METRICS, several
        self._parts: dict[int, bytes] = {}  # of a row that is not whole yet, by host
        self._resumed = False
        self._first, self._known = 0, set[int]()  # minibatches: all before the first have a row, and these

    def begin(self) -> None:
        """Begin an attempt: what hosts have said before is all that they had to say."""
        self._parts.clear()
        self._resumed = False

    def take(self, host: int, data: bytes) -> None:
        """Take up what a host says. Raises InputError for what is no row, and OSError."""
        *lines, rest = (self._parts.get(host, b"") + data).split(b"\n")
        if len(rest) > _MOST_ROW:
            raise InputError("agent.row_too_long", f"received a row of more than {_MOST_ROW} bytes")
        self._parts[host] = rest
        kept: list[bytes] = []
        for line in lines:
            if (row := row_of(line)) is None:
                raise InputError(
                    "agent.row_malformed",
                    f"received {line[:100].decode(errors='replace')!r}, expected a row of metrics",
                )
            if row["event"] == "step":
                self._known.add(int(row["minibatch"]))
            if row["event"] != "resume":
                kept.append(line + b"\n")
            elif not self._resumed:
                self._write(kept)
                kept.clear()
                self._resume(int(row["minibatches"]))
        self._write(kept)

    def has_all(self, minibatches: int) -> bool:
        """Return whether the rows are there of all minibatches that a checkpoint has.

        Those of one host come before its part of the checkpoint. Of several, one that has no part may be behind.
        """
        if not self._several:
            return True
        if not all(m in self._known for m in range(self._first, minibatches)):
            return False
        self._known = {m for m in self._known if m >= minibatches}
        self._first = max(self._first, minibatches)
        return True

    def _resume(self, minibatches: int) -> None:
        forget_rows(self._path.parent, minibatches)
        self._resumed, self._first = True, minibatches
        self._known.clear()

    def _write(self, lines: list[bytes]) -> None:
        if lines:
            with self._path.open("ab") as handle:
                handle.write(b"".join(lines))


ANSWERS = tuple(f"{commands.FOLDER}/{name}" for name in (commands.TAKEN, commands.REFUSED))  # in a host's folder


@dataclass
class HostRequests:
    """Requests to the workers of a session, one at a time."""

    record: RunRecord
    num_processes: int
    prefix: str = ""  # of names in a host's folder, where the record is of one of several pipelines
    _sent: commands.Request | None = None
    _plan: Plan | None = field(default=None, repr=False)  # that it names

    def forward(self, connection: Connection) -> None:
        """Hand on to the host whose rank takes it up what the run is asked for, if that is new. Raises OSError."""
        folder = self.record.folder
        request = commands.request(folder)
        if request is None or request == self._sent or (self.prefix and request.plan is None):
            return
        if request.plan is not None:
            try:
                self._plan = commands.read(folder, request.plan)
            except InputError as error:
                commands.refuse(folder, str(error), plan=request.plan)
                commands.forget(folder, request.plan)
                return
            name = f"{self.prefix}{commands.name_of(request.plan)}"
            send_content(connection.writer, json.dumps(self._plan.to_json()).encode(), name)
        told = {key: value for key, value in request._asdict().items() if value is not None}
        send_content(connection.writer, json.dumps(told).encode(), f"{self.prefix}{commands.FOLDER}/{commands.REQUEST}")
        self._sent = request

    def forget(self) -> None:
        """Ask again for what was not answered: of workers that restart."""
        self._sent = None

    def is_answer(self, name: str) -> bool:
        """Return whether a file of a host, by its name there, says what became of a request."""
        return name.startswith(self.prefix) and name.removeprefix(self.prefix) in ANSWERS

    def take(self, name: str, content: bytes) -> Plan | None:
        """Take up what a host says of a request, in one of `ANSWERS`; return the plan that the run is under now, if
        it is another. Raises InputError for what is no answer.
        """
        refused = name.removeprefix(self.prefix) == ANSWERS[1]
        folder, told = self.record.folder, commands.parsed(content, name)
        token = told.get("plan")
        if refused:
            commands.refuse(folder, told.get("reason", ""), plan=token)
        else:
            command, minibatch = told.get("command"), told.get("minibatch")
            if command is None or minibatch is None:
                raise InputError("request.malformed", f"{name}: the request lacks an action or a time; send it again")
            if token is not None:
                self._begin(token, minibatch)
            commands.take(folder, command, minibatch, plan=token)
        if token is None:
            return None
        commands.forget(folder, token)
        return None if refused else self._plan

    def _begin(self, token: str, minibatch: int) -> None:
        if self._plan is None or self._sent is None or self._sent.plan != token:
            raise InputError("request.plan_unknown", f"{ANSWERS[0]}: the request names an unknown plan; send it again")
        if len(self._plan.ranks) < self.num_processes:
            keep_processes(self.record.folder, self.num_processes)
        begin_plan(self.record.folder, self._plan, minibatch)
