"""The files of a run between its record, on the launching host, and the hosts that work on it."""

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...records import RunRecord
from ...records.run_progress import PROCESSES
from ...runtime.pipelines.journal import RESUME
from ...runtime.plan_fit import FORWARD_ONLY, PREDICTIONS, ForwardOnly
from ...runtime.processes.rank_readings import PATTERN
from ...runtime.training_state.checkpoint_folders import (
    FOLDER,
    INITIAL,
    MANIFEST,
    PARTIAL,
    WHOLE,
    checkpoint_name,
    put_in_place,
    remove,
)
from ...runtime.wire.frames import Frame
from ...runtime.wire.messages import COORDINATOR
from ...util.io.files import read_json, sha256
from ...util.io.functions import functions_of, with_functions
from ...util.text.numbers import number_of
from ...values.plan import Plan
from .connection import Connection
from .facts import files_of, name_of
from .launch_ssh import own_prefix
from .pieces import Arrivals, Copy, FileGrowth, place, send_content, send_file
from .rows import METRICS, RowsOfHosts

if TYPE_CHECKING:
    from ...runtime.training_state.checkpoint import Checkpoint

_OF_HOSTS = (  # what hosts may write in the record
    *("trace-rank*.jsonl", "logs/rank*.log", "logs/rank*.error.json", "logs/launcher.log"),
    *("logs/clock.json", PREDICTIONS, PATTERN),
)
CLOCK = "logs/clock.json"
_PLAN = "plan.json"
SLEPT_BY = ("profile.json", "cluster.toml")  # what a replay sleeps by, and a limit of memory goes by
_OF_CHECKPOINTS = tuple(f"{FOLDER}/{PARTIAL}/*{suffix}" for suffix in (".safetensors", ".json"))


@dataclass
class RunFiles:
    """Parts of a run's record on its hosts, and the files that they send back.

    Of one of several pipelines both have the folder of the whole run, with the pipeline's own within (`pipelines/K/`).
    """

    record: RunRecord
    connections: Sequence[Connection]  # that of rank 0's host first
    rows: RowsOfHosts
    pipeline: int | None = None  # which of several it is
    allowed: tuple[str, ...] = _OF_HOSTS  # what hosts may write
    _copies: dict[int, Copy] = field(default_factory=dict)
    _sent: set[tuple[int, str, str]] = field(default_factory=set)  # host, name, SHA-256
    _plan_written: int = 0  # when the plan of all pipelines was that hosts have
    _arrived: dict[Path, str] = field(default_factory=dict)  # shards of checkpoints that are not whole yet → SHA-256
    _finishing: list[tuple[Path, str]] = field(default_factory=list)  # checkpoints that wait for rows

    def __post_init__(self) -> None:
        self._root = self.record.folder if self.pipeline is None else self.record.folder.parents[1]
        self._arrivals = Arrivals(self._root)

    @property
    def _own(self) -> str:
        return own_prefix(self.pipeline)

    @property
    def needs_data(self) -> bool:
        """Return whether the run reads a data set."""
        return self.record.workload.trains

    def begin(self) -> None:
        """Begin an attempt: what hosts have written before has come, and what waits for more is not finished."""
        self.rows.begin()
        self._finishing.clear()

    # --- to the hosts ------------------------------------------------------------------------------------------------

    def bring(self, connection: Connection, plan: Plan, *, resume: bool, first: bool) -> None:
        """Send a host what its workers begin with; what it has is not sent again. Raises OSError.

        `first`: they begin there for the first time in this session.
        """
        folder, ranks, own = self.record.folder, connection.hosted.ranks, self._own
        for name in (_PLAN, PROCESSES):
            if (folder / name).exists():
                self._send_content(connection, (folder / name).read_bytes(), f"{own}{name}")
        if first:
            self._send_content(connection, self._config_of(connection), f"{own}config.json")
            for name in SLEPT_BY:
                if (folder / name).exists():
                    self._send_file(connection, folder / name, f"{own}{name}")
            if (folder / INITIAL).exists():
                self._send_file(connection, folder / INITIAL, f"{own}{INITIAL}")
            if forwards := ForwardOnly.of_run(folder):
                self._bring_weights(connection, plan, forwards)
            if own:
                self._bring_of_all(connection)
        if own:
            self._bring_start(connection, plan, first=first)
        if not resume:
            return
        clock = () if own else (CLOCK,)  # of several it was brought
        of_first = (*clock, *(f"trace-rank{rank}.jsonl" for rank in ranks)) if first else ()
        for name in (METRICS, *of_first):  # rows of metrics may have been written on another host
            if (folder / name).exists():
                send_file(connection.writer, folder / name, f"{own}{name}")
        self._bring_checkpoint(connection, plan)

    def _bring_checkpoint(self, connection: Connection, plan: Plan) -> None:
        """Send a host the newest checkpoint, as far as its ranks need it; rank 0's has all of it."""
        from ...runtime.training_state import checkpoint  # it brings torch, for which no new run waits

        if found := checkpoint.latest(self.record.folder):  # several pipelines have none of their own
            needed = set(found.manifest["files"]) if connection.number == 0 else _needed(found, connection, plan)
            self._send_checkpoint(connection, found, needed, f"checkpoints/{checkpoint_name(found.folder)}")

    def _bring_of_all(self, connection: Connection) -> None:
        """Send a host what its pipeline shares with others: all plans and the coordinator's address."""
        root, clock = self._root, f"{self._own}{CLOCK}"
        for name in (_PLAN, str(COORDINATOR)):
            self._send_content(connection, (root / name).read_bytes(), name)
        self._send_content(connection, connection.clock_there(root / clock), clock)

    def bring_plan_of_all(self) -> None:
        """Send the hosts of a pipeline the plan of all where another pipeline has changed its own. Raises OSError."""
        if not self._own or self._plan_written == (written := (self._root / _PLAN).stat().st_mtime_ns):
            return
        for connection in self.connections:
            self._send_content(connection, (self._root / _PLAN).read_bytes(), _PLAN)
        self._plan_written = written

    def _bring_start(self, connection: Connection, plan: Plan, *, first: bool) -> None:
        """Send a host the checkpoint that all pipelines go on from, as far as its ranks need it under their plan now.

        Newer ones may have taken its place: then a pipeline has its weights from others.
        """
        root = self._root
        if not (root / RESUME).exists():
            return
        from ...runtime.training_state import checkpoint  # it brings torch, for which no new run waits

        self._send_file(connection, root / RESUME, str(RESUME))
        name = f"{FOLDER}/{read_json(root / RESUME)['checkpoint']}"
        if (root / name).exists():
            found = checkpoint.load(root / name)
            self._send_checkpoint(connection, found, _needed(found, connection, plan), name)
        elif not first:
            connection.send("forget", checkpoint=name)

    def _bring_weights(self, connection: Connection, plan: Plan, forwards: ForwardOnly) -> None:
        """Send a host the weights that its ranks compute outputs with, and where they exist."""
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
        """The settings as a host has them: files of the user's own code, and data that it lacks, are where they were
        brought.
        """
        config: dict[str, Any] = dict(self.record.config)
        if not connection.has_data and (found := list(files_of(config["data"]))):
            size = sum(file.path.stat().st_size for file in found)
            told = f"{self._named(connection.number)}: lacks {config['data']}, which is copied from this machine"
            print(f"{told}: {number_of(len(found), 'file')}, {size / 1e6:.1f} MB", file=sys.stderr, flush=True)
            for file in found:
                self._send_file(connection, file.path, file.name)
            config["data"] = f"{connection.folder}/{name_of(config['data'])}"
        for name, function in functions_of(config).items():
            if files := function.files_for_hosts():
                folder = f"code/{function.sha256()[:16]}"
                for inner, path in files.items():
                    self._send_file(connection, path, f"{folder}/{inner}")
                reference = f"{connection.folder}/{folder}/{next(iter(files))}:{function.name}"
                config |= with_functions(config, {name: reference})
        return json.dumps(config, indent=2).encode()

    # --- from the hosts ----------------------------------------------------------------------------------------------

    def take(self, host: int, frame: Frame) -> None:
        """Take up what a host has written. Raises InputError for what none should, and OSError."""
        name = str(frame.head.get("name"))
        if frame.kind == "rows":
            self._take_rows(host, frame.payload)
        elif frame.kind == "grown":
            path, own = place(self._root, name), name.removeprefix(self._own)
            if not name.startswith(self._own) or not _matches(own, self.allowed):
                raise InputError(
                    "agent.file_not_its_own",
                    f"{self._named(host)} sent {name[:100]!r}, a file that does not belong to it",
                )
            if own == "logs/launcher.log":
                path = path.with_name(f"launcher-{self.connections[host].hosted.node.name}.log".replace("/", "-"))
            growth = FileGrowth(name, frame.payload, bool(frame.head.get("anew")), bool(frame.head.get("more")))
            self._copies.setdefault(host, Copy()).take(growth, path)
        elif not _matches(name, _OF_CHECKPOINTS if frame.kind == "shard" else (f"{FOLDER}/{WHOLE}",)):
            raise InputError(
                "agent.file_unknown",
                f"{self._named(host)} sent the file {name[:100]!r}, which does not belong to a checkpoint",
            )
        elif frame.kind == "shard":
            self._take_shard(host, frame, name)
        else:
            remove(place(self._root, name))

    def _take_rows(self, host: int, data: bytes) -> None:
        try:
            self.rows.take(host, data)
        except InputError as error:
            raise error.within(f"{self._named(host)} ") from None
        waiting, self._finishing = self._finishing, []
        for partial, name in waiting:
            self._finish(partial, name)

    def _take_shard(self, host: int, frame: Frame, name: str) -> None:
        if host != 0:  # rank 0 makes the checkpoint whole
            with suppress(OSError):
                self.connections[0].writer.send("file", frame.payload, **_facts(frame.head))
        path = self._arrivals.take(Frame({**frame.head, "name": self._gathered(name)}, frame.payload))
        if path is None:
            return
        self._arrived[path] = str(frame.head["sha256"])
        if path.name == MANIFEST:
            self._finish(path.parent, PurePosixPath(name).parent.name)

    def _gathered(self, name: str) -> str:
        """Return the path of a shard in an incomplete checkpoint: two pipelines may write the same name at a time."""
        if self.pipeline is None:
            return name
        folder, _, file = name.rpartition("/")
        return f"{folder}-of-{self.pipeline}/{file}"

    def _finish(self, partial: Path, name: str) -> None:
        """Make a checkpoint of the record whole, whose manifest has come last, once the rows are there that it has.

        `name` is that of its folder while it is not whole.
        """
        manifest = read_json(partial / MANIFEST)
        files = manifest["files"]
        if any(self._arrived.get(partial / file) != facts["sha256"] for file, facts in files.items()):
            return  # a host was lost meanwhile, or another of the same name is on its way
        if not self.rows.has_all(int(manifest["minibatches"])):
            self._finishing.append((partial, name))  # of a host that has none of its files
            return
        staged, whole = partial.with_name(f"{partial.name}-whole"), partial.with_name(name.lstrip("."))
        shutil.rmtree(staged, ignore_errors=True)
        staged.mkdir()
        for file in (*files, MANIFEST):
            (partial / file).replace(staged / file)
            self._arrived.pop(partial / file, None)
        put_in_place(staged, whole)
        for path in partial.glob("*.json"):
            path.unlink()
        with suppress(OSError):  # of another of the same name something has come
            partial.rmdir()
        for connection in self.connections[1:]:
            connection.send("forget", checkpoint=name)

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
