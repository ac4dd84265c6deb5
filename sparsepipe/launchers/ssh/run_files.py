"""The files of a run between its record, on the launching host, and the hosts that work on it."""

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...files import read_json, sha256
from ...functions import UserFunction, is_function
from ...plan import Plan
from ...record import RunRecord
from ...record.processes import PROCESSES
from ...runtime.forward_only import FORWARD_ONLY, PREDICTIONS, ForwardOnly
from .connection import Connection
from .frames import Frame
from .mirror import Copy, Growth
from .pieces import Arrivals, place, send_content, send_file
from .rows import METRICS, RowsOfHosts
from .shards import MANIFEST

if TYPE_CHECKING:
    from ...runtime.training_state.checkpoint import Checkpoint

_FUNCTIONS = ("model", "data", "loss")  # settings that may name a function of the user's own
_OF_HOSTS = (  # what hosts may write in the record
    *("trace-rank*.jsonl", "logs/rank*.log", "logs/rank*.error.json", "logs/launcher.log"),
    *("logs/clock.json", PREDICTIONS),
)
_OF_CHECKPOINTS = ("checkpoints/.minibatch-*/*.safetensors", "checkpoints/.minibatch-*/*.json")


@dataclass
class RunFiles:
    """What hosts have of the record of a run, and what comes back from them."""

    record: RunRecord
    connections: Sequence[Connection]  # that of rank 0's host first
    rows: RowsOfHosts
    _copies: dict[int, Copy] = field(default_factory=dict)
    _sent: set[tuple[int, str, str]] = field(default_factory=set)  # host, name, SHA-256

    _finishing: list[Path] = field(default_factory=list)  # checkpoints that wait for rows

    def __post_init__(self) -> None:
        self._arrivals = Arrivals(self.record.folder)

    def begin(self) -> None:
        """Begin an attempt: what hosts have written before has come, and what waits for more is not finished."""
        self.rows.begin()
        self._finishing.clear()

    # --- to the hosts ------------------------------------------------------------------------------------------------

    def bring(self, connection: Connection, plan: Plan, *, resume: bool, first: bool) -> None:
        """Send a host what its workers begin with; what it has is not sent again. Raises OSError.

        `first`: they begin there for the first time in this session.
        """
        folder, ranks = self.record.folder, connection.hosted.ranks
        for name in ("plan.json", PROCESSES):
            if (folder / name).exists():
                self._send_content(connection, (folder / name).read_bytes(), name)
        if first:
            self._send_content(connection, self._config_of(connection), "config.json")
            if forwards := ForwardOnly.of_run(folder):
                self._bring_weights(connection, plan, forwards)
        if not resume:
            return
        own = ("logs/clock.json", *(f"trace-rank{rank}.jsonl" for rank in ranks)) if first else ()
        for name in (METRICS, *own):  # rows of metrics may have been written on another host
            if (folder / name).exists():
                send_file(connection.writer, folder / name, name)
        self._bring_checkpoint(connection, plan)

    def _bring_checkpoint(self, connection: Connection, plan: Plan) -> None:
        """Send a host the newest checkpoint, as far as its ranks need it; rank 0's has all of it."""
        from ...runtime.training_state import checkpoint  # it brings torch, for which no new run waits

        if found := checkpoint.latest(self.record.folder):
            needed = set(found.manifest["files"]) if connection.number == 0 else _needed(found, connection, plan)
            self._send_checkpoint(connection, found, needed, f"checkpoints/{found.folder.name.lstrip('.')}")

    def _bring_weights(self, connection: Connection, plan: Plan, forwards: ForwardOnly) -> None:
        """Send a host the weights that its ranks compute outputs with, and where they are there."""
        from ...runtime.training_state import checkpoint  # it brings torch, for which no new run waits

        found, folder = checkpoint.load(forwards.checkpoint), f"weights/{forwards.checkpoint.name}"
        self._send_checkpoint(connection, found, _needed(found, connection, plan), folder)
        there = replace(forwards, checkpoint=Path(connection.folder) / folder)
        self._send_content(connection, json.dumps(there.to_json()).encode(), FORWARD_ONLY)

    def _send_checkpoint(self, connection: Connection, found: "Checkpoint", files: Iterable[str], folder: str) -> None:
        for name in (*sorted(files), MANIFEST):
            self._send_file(connection, found.folder / name, f"{folder}/{name}")

    def _send_file(self, connection: Connection, path: Path, name: str) -> None:
        key = (connection.number, name, sha256(path))
        if key not in self._sent:
            send_file(connection.writer, path, name)
            self._sent.add(key)

    def _send_content(self, connection: Connection, content: bytes, name: str) -> None:
        send_content(connection.writer, content, name)

    def _config_of(self, connection: Connection) -> bytes:
        """The settings as a host has them: files of the user's own code are where they were brought."""
        config: dict[str, Any] = dict(self.record.config)
        for name in _FUNCTIONS:
            given = config.get(name)
            if given and is_function(given) and (function := UserFunction.parse(given)).is_file:
                path = function.file()
                brought = f"code/{sha256(path)[:16]}/{path.name}"
                self._send_file(connection, path, brought)
                config[name] = f"{connection.folder}/{brought}:{function.name}"
        return json.dumps(config, indent=2).encode()

    # --- from the hosts ----------------------------------------------------------------------------------------------

    def take(self, host: int, frame: Frame) -> None:
        """Take up what a host has written. Raises InputError for what none should, and OSError."""
        name = str(frame.head.get("name"))
        if frame.kind == "rows":
            self._take_rows(host, frame.payload)
        elif frame.kind == "grown":
            path = place(self.record.folder, name)
            if not _matches(name, _OF_HOSTS):
                raise InputError(f"{self._named(host)} wrote {name[:100]!r}, which is not its own")
            if name == "logs/launcher.log":
                path = path.with_name(f"launcher-{self.connections[host].hosted.node.name}.log".replace("/", "-"))
            growth = Growth(name, frame.payload, bool(frame.head.get("anew")), bool(frame.head.get("more")))
            self._copies.setdefault(host, Copy()).take(growth, path)
        elif not _matches(name, _OF_CHECKPOINTS if frame.kind == "shard" else ("checkpoints/minibatch-*",)):
            raise InputError(f"{self._named(host)} sent {name[:100]!r}, which is no checkpoint's")
        elif frame.kind == "shard":
            self._take_shard(host, frame, name)
        else:
            shutil.rmtree(place(self.record.folder, name), ignore_errors=True)

    def _take_rows(self, host: int, data: bytes) -> None:
        try:
            self.rows.take(host, data)
        except InputError as error:
            raise InputError(f"{self._named(host)} {error}") from None
        waiting, self._finishing = self._finishing, []
        for partial in waiting:
            self._finish(partial)

    def _take_shard(self, host: int, frame: Frame, name: str) -> None:
        if host != 0:  # rank 0 makes the checkpoint whole
            with suppress(OSError):
                self.connections[0].writer.send("file", frame.payload, **_facts(frame.head))
        path = self._arrivals.take(frame)
        if path is not None and path.name == MANIFEST:
            self._finish(path.parent)

    def _finish(self, partial: Path) -> None:
        """Make a checkpoint of the record whole, whose manifest has come last, once the rows are there that it has."""
        manifest = read_json(partial / MANIFEST)
        missing = [name for name in manifest["files"] if not (partial / name).exists()]
        if missing:
            return  # a host was lost meanwhile
        if not self.rows.has_all(int(manifest["minibatches"])):
            self._finishing.append(partial)  # of a host that has none of its files
            return
        for path in partial.glob("*.json"):
            if path.name != MANIFEST:
                path.unlink()
        whole = partial.with_name(partial.name.lstrip("."))
        shutil.rmtree(whole, ignore_errors=True)
        partial.rename(whole)
        for connection in self.connections[1:]:
            connection.send("forget", checkpoint=partial.name)

    def _named(self, host: int) -> str:
        return self.connections[host].hosted.named


def _needed(found: "Checkpoint", connection: Connection, plan: Plan) -> set[str]:
    """The files of a checkpoint that have layers of a host's ranks."""
    layers = {id for stage in plan.stages if set(stage.ranks) & set(connection.hosted.ranks) for id in stage.layers}
    places = found.manifest["layers"]
    return {places[id] for id in layers if id in places} & set(found.manifest["files"])


def _matches(name: str, patterns: Iterable[str]) -> bool:
    path = PurePosixPath(name)
    return any(len(path.parts) == pattern.count("/") + 1 and path.match(pattern) for pattern in patterns)


def _facts(head: Mapping[str, Any]) -> dict[str, Any]:
    return {key: head[key] for key in ("name", "first", "last", "sha256") if key in head}
