"""What a run on hosts is asked for while it is at work, and what became of it.

    record   control/request.json, and the plan that it names  ──►  host of rank 0   the same, in the folder there
             plans/, plan.json, then control/taken.json        ◄──                   control/taken.json
             control/refused.json                              ◄──                   control/refused.json

If the plan leaves rank 0 out, it is the host of the lowest of its ranks. Each of several pipelines is asked for
plans by itself, in its own folder (`pipelines/K/`); they stop together, for which their coordinator is asked.

A plan is the run's once the record has it: if hosts are lost before, the run continues under the plan that it has.
"""

import json
from dataclasses import dataclass, field

from ...errors import InputError
from ...records import RunRecord
from ...records.run_progress import begin_plan, keep_processes
from ...runtime import commands, replan_request
from ...values.plan import Plan
from .connection import Connection
from .pieces import send_content

ANSWERS = tuple(f"{commands.FOLDER}/{name}" for name in (commands.TAKEN, commands.REFUSED))  # in a host's folder


@dataclass
class Requests:
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
                self._plan = replan_request.read(folder, request.plan)
            except InputError as error:
                commands.refuse(folder, str(error), plan=request.plan)
                replan_request.forget(folder, request.plan)
                return
            name = f"{self.prefix}{replan_request.name_of(request.plan)}"
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
        replan_request.forget(folder, token)
        return None if refused else self._plan

    def _begin(self, token: str, minibatch: int) -> None:
        if self._plan is None or self._sent is None or self._sent.plan != token:
            raise InputError("request.plan_unknown", f"{ANSWERS[0]}: the request names an unknown plan; send it again")
        if len(self._plan.ranks) < self.num_processes:
            keep_processes(self.record.folder, self.num_processes)
        begin_plan(self.record.folder, self._plan, minibatch)
