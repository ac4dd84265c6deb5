"""A run on one of its hosts: a folder of its own, the supervisor with the workers of this host, and what they write."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...errors import InputError
from ...records import RunRecord
from ...runtime import RunConfig, commands
from ...runtime.plan_fit import PREDICTIONS
from ...runtime.processes import rank_readings
from ...runtime.processes.rank_readings import RankWatches
from ...runtime.training_state.checkpoint_folders import FOLDER, MANIFEST, PARTIAL, WHOLE
from ...runtime.wire.frames import FrameWriter
from ...runtime.wire.messages import STORE, ListenerAddress
from ...util.host.imports import python_command
from ...util.io.files import cut_torn_row, read_whole
from .. import supervisor
from ..failure_cause import KILLED
from ..local.launch_local import environment_of
from ..lock import hold, is_held
from .launch_ssh import own_prefix
from .pieces import FolderMirror, send_file
from .rows import ANSWERS, METRICS, OwnRows

_TO_END = 5.0  # seconds for a supervisor whose lifeline was closed
_STALE_SECONDS = 60.0
_OF_EACH = ("trace-rank*.jsonl", "logs/rank*.log", "logs/rank*.error.json", "logs/launcher.log", rank_readings.PATTERN)
_OF_ONE = ANSWERS  # of the lowest rank of the plan, which may change with it
_OF_RANK_0 = ("logs/clock.json",)  # of several pipelines it was brought
_NONE = (-1, -1)
_MOMENT = 0.05  # seconds: whoever removes a tree removes the next entry within
_OF_WRITER = (PREDICTIONS,)  # where the last stage's first rank is


def runs_folder() -> Path:
    """Return where this user's runs that were launched from elsewhere lie on this host, while they are at work."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "sparsepipe" / "hosted"


class FoundFile(NamedTuple):
    """A file to be sent, by its name in the run's folder; or, without a path, a checkpoint that is gone."""

    name: str
    path: Path | None


class Shards:
    """Shards of checkpoints that a host has written, found as they become whole, to be sent to the run's record.

    On the host of rank 0, which makes checkpoints whole, they are sent with the manifest, and removals are reported.
    Two may have one name, as of a pipeline that has nothing more to train and averages before it closes the run: each
    is sent, since what describes it is another file. `leads`: rank 0 is of this host.
    """

    def __init__(self, folder: Path, *, leads: bool) -> None:
        self._folder, self._leads = folder, leads
        self._told: dict[str, tuple[int, int]] = {}  # names of files and of whole checkpoints, with which they were
        self.arrived: set[str] = set()  # names of shards that other hosts wrote

    def skip(self) -> None:
        """Take what is there now for known."""
        for _ in self.news():
            pass

    def news(self) -> Iterator[FoundFile]:
        """Yield what is new since the last call, in the order in which it is to be sent."""
        place = self._folder / FOLDER
        if self._leads:
            whole = {path.name: path for path in sorted(place.glob(WHOLE))}
            for name, path in whole.items():
                if self._is_new(name, path / MANIFEST):
                    yield from self._whole(path)
            removed = sorted(self._told.keys() - whole.keys())
            for name in removed if removed and _stays(place) else ():
                del self._told[name]
                yield FoundFile(f"{FOLDER}/{name}", None)
        else:
            for path in sorted(place.glob(f"{PARTIAL}/*.json")):
                name = f"{FOLDER}/{path.parent.name}/{path.name}"
                if path.name != MANIFEST and self._is_new(name, path):
                    yield from self._partial(path, name)

    def forget(self, checkpoint: str) -> None:
        """Remove what is left of a checkpoint that is whole elsewhere; another of its name that is begun stays."""
        folder = self._folder / FOLDER / checkpoint
        own = {name for name in self._told if f"/{checkpoint}/" in name}
        if all(_which(self._folder / name) == self._told[name] for name in own):
            shutil.rmtree(folder, ignore_errors=True)
        self._told = {name: which for name, which in self._told.items() if name not in own}

    def _is_new(self, name: str, path: Path) -> bool:
        """Return whether what a file describes was not told yet; from now on it was."""
        which = _which(path)
        if which == _NONE or self._told.get(name) == which:
            return False
        self._told[name] = which
        return True

    def _whole(self, folder: Path) -> Iterator[FoundFile]:
        """A checkpoint's own shards, then what makes it whole."""
        with suppress(OSError, ValueError):  # it was removed again, as older ones are
            files = json.loads(read_whole(folder / MANIFEST))["files"]
            hidden = f"{FOLDER}/.{folder.name}"
            for file in sorted(files):
                if f"{hidden}/{file}" not in self.arrived:
                    yield FoundFile(f"{hidden}/{file}", folder / file)
            yield FoundFile(f"{hidden}/{MANIFEST}", folder / MANIFEST)

    def _partial(self, description: Path, name: str) -> Iterator[FoundFile]:
        with suppress(OSError, ValueError):
            for file in json.loads(read_whole(description)):
                yield FoundFile(f"{FOLDER}/{description.parent.name}/{Path(file).name}", description.parent / file)
            yield FoundFile(name, description)


def _stays(place: Path) -> bool:
    """Return whether a folder in which something was removed is there still once nothing more is removed from it.

    A run removes single checkpoints. Somebody who takes the whole folder away, as a host's disk is cleared or dies,
    takes nothing away from the record, where the last checkpoints are then.
    """
    there = None
    while there != (there := {*place.glob(WHOLE)}):
        time.sleep(_MOMENT)
    return place.is_dir()


def _which(path: Path) -> tuple[int, int]:
    """Distinguish a file from others of its name before and after it; no file: _NONE."""
    try:
        status = path.stat()
    except OSError:
        return _NONE
    return status.st_ino, status.st_mtime_ns


class HostedRun:
    """The folder is there from the beginning; workers are from `start` to `end`. Nothing is left after `close`.

    Of one of several pipelines the folder is that of the whole run, in which `run_dir` is the pipeline's.
    """

    def __init__(self, pipeline: int | None = None) -> None:
        """`pipeline`: which of several it is of. Raises InputError if the host has no room for it."""
        self._own = own_prefix(pipeline)
        try:
            runs_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
            _remove_stale()
            self.folder = Path(tempfile.mkdtemp(prefix="run-", dir=runs_folder())).resolve()
            self.run_dir = self.folder / self._own
            for name in ("logs", FOLDER, "control"):
                (self.run_dir / name).mkdir(mode=0o700, parents=True)
            (self.folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
            self._lock = hold(self.folder)
        except OSError as error:
            raise InputError("disk.full", f"{error.filename}: {error.strerror}; free disk space") from None
        self.shards = Shards(self.folder, leads=False)
        self._mirror = FolderMirror(self.folder, ())
        self._rows: OwnRows | None = None  # of workers
        self.reads = False  # what the machine says of them
        self._watches: RankWatches | None = None
        self._ranks: tuple[int, ...] = ()
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self, job: Mapping[str, Any], *, interface: str) -> None:
        """Start this host's workers of a job, as the controller describes it. Raises OSError or InputError."""
        hosts = [tuple(map(int, ranks)) for ranks in job["hosts"]]
        ranks = hosts[int(job["host"])]
        store = job["store"]
        address = ListenerAddress(store["host"], int(store["port"]), bytes.fromhex(store["secret"]))
        address.write(self.run_dir / STORE, make_folder=True)
        config = RunConfig.from_json(RunRecord.load(self.run_dir).config)
        others = job.get("pipeline")
        num_here = int(others["of_all"]) if others else len(ranks)
        environment = environment_of(config, num_here, interface=interface) | {
            "SPARSEPIPE_HOSTS": ";".join(",".join(map(str, own)) for own in hosts),
            "SPARSEPIPE_FIRST_ATTEMPT": str(int(job["attempt"])),
            "SPARSEPIPE_RECORD": str(job["record"]),
            **(_among_pipelines(others) if others else {}),
        }
        options = ["--run-dir", str(self.run_dir), "--ranks", ",".join(map(str, ranks))]
        options += ["--resume"] if job["resume"] else []
        of_rank_0 = _OF_RANK_0 if 0 in ranks and not others else ()
        patterns = _OF_EACH + _OF_ONE + of_rank_0 + (_OF_WRITER if job["writer"] in ranks else ())
        if others and (self.run_dir / METRICS).exists():
            cut_torn_row(self.run_dir / METRICS)  # of workers that were killed: its ranks do no minibatch again
        self.shards, self._rows = Shards(self.folder, leads=0 in ranks), OwnRows(self.run_dir)
        self._watches, self._ranks = RankWatches(self.run_dir / "logs", on_gpus=config.device != "cpu"), ranks
        self.shards.skip()
        commands.clear(self.run_dir)  # what was not answered is asked again
        self.begin(python_command("sparsepipe.launching.local", *options), environment, patterns)

    def begin(self, command: list[str], environment: dict[str, str], patterns: tuple[str, ...]) -> None:
        """Start a command under a supervisor. What grows from now on and matches any of `patterns` is reported."""
        self._mirror = FolderMirror(self.folder, tuple(f"{self._own}{pattern}" for pattern in patterns))
        self._mirror.skip()
        (self.run_dir / supervisor.STATUS).unlink(missing_ok=True)
        reading, self._lifeline = os.pipe()
        try:
            with (self.run_dir / "logs" / "launcher.log").open("ab") as log:
                self._process = subprocess.Popen(
                    supervisor.command(reading, str(self.run_dir), command),
                    pass_fds=[self._lock, reading],
                    start_new_session=True,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                )
        finally:
            os.close(reading)

    def ended(self) -> dict[str, Any] | None:
        """Return how it ended, once it has; None before."""
        if self._process is None or (code := self._process.poll()) is None:
            return None
        self._process = None
        self._close_lifeline()
        try:
            status = supervisor.read_status(self.run_dir)
            if status["state"] not in supervisor.GOING_ON:
                return status
            if code < 0:
                return {"state": "failed", "reason": "the supervisor was killed", "precedence": KILLED}
            told = f"the result could not be written to {self.run_dir}; free disk space"
            return {"state": "failed", "reason": told, "precedence": KILLED, "lasting": True, "limit": True}
        except (OSError, ValueError) as error:
            return {"state": "failed", "reason": f"the result cannot be read ({error})"}

    def tell(self, writer: FrameWriter) -> None:
        """Send what has been written since the last call: rows before the checkpoint that has what they report."""
        if self._rows is not None:
            self._rows.tell(writer)
        if self.reads and self._watches is not None and self._watches.look(self._ranks):
            for rank, metrics in self._watches.metrics.items():
                rank_readings.write(self.run_dir / "logs", rank, metrics)
        for growth in self._mirror.changes():
            facts = growth._asdict()
            writer.send("grown", facts.pop("data"), **facts)
        for found in self.shards.news():
            if found.path is None:
                writer.send("gone", name=found.name)
                continue
            with suppress(OSError):  # a checkpoint that was removed again: a newer one follows
                send_file(writer, found.path, found.name, kind="shard")

    def ask(self, command: str) -> None:
        """Leave a command for the coordinator of several pipelines."""
        commands.ask(self.run_dir, command)

    def forget(self, checkpoint: str) -> None:
        """Remove what is left here of a checkpoint that is whole elsewhere."""
        self.shards.forget(Path(checkpoint).name)

    def end(self) -> None:
        """End the workers, and see that they have."""
        self._close_lifeline()
        if self._watches is not None:
            self._watches.close()
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_TO_END)
            if self._process.poll() is None:
                self._process.kill()  # the launcher and the workers see its end
                self._process.wait()
            self._process = None

    def wait(self, seconds: float) -> None:
        """Wait until what was started has ended, so many seconds at most."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)

    def close(self) -> None:
        """End the workers and remove the folder."""
        self.end()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def _among_pipelines(told: Mapping[str, Any]) -> dict[str, str]:
    """Return what workers need to know of their pipeline, as the controller describes it, in the environment."""
    return {
        "SPARSEPIPE_PIPELINE": str(int(told["number"])),
        "SPARSEPIPE_RANKS": ",".join(str(int(rank)) for rank in told["ranks"]),
        "SPARSEPIPE_NUM_RANKS": str(int(told["of_all"])),
        "SPARSEPIPE_FIRST_RANK": str(int(told["before"])),
    }


def _remove_stale() -> None:
    """Remove what is left of runs whose host lost power: no one holds their locks."""
    for path in runs_folder().glob("run-*"):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _STALE_SECONDS and not is_held(path):
                shutil.rmtree(path, ignore_errors=True)
