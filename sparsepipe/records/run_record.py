"""One run on disk: the plans it followed, what it measured, and where it came from.

runs/<name>/plan.json config.json origin.json   the plan, the settings, and the code and data behind them
            plans/000.json …                    every plan it followed, and the minibatch each began at: run_progress.py
            labels.json                         tags and a note that a user gave it: see record_files.py
            beside.json                            runs that shared the machine with it, if there were any
            status.json                         its state: running, finished, stopped, failed, refused (and why)
            metrics.jsonl                       rows of the run, in the order in which they were written.
            metrics-before-1.jsonl …            those of a run that ended before its first checkpoint and started over.
            trace-rank0.jsonl …                 spans, a file for each rank; `RunRecord.trace` puts them together
            pipelines/0 …               of several pipelines, each as a run of one; minibatches.jsonl (who took which)
                                        and merges.jsonl (who averaged with whom) are theirs together
            drift.jsonl                         lasting changes of ranks and links, found by whoever followed the run
            control/                            what a running job was asked for: see runtime/commands.py
            hosts.toml                          the cluster that a run was launched on, if that is beyond one host
            checkpoints/ logs/
"""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DamagedRecord, InputError
from ..util.host import cpu
from ..util.host.background_load import BackgroundLoad
from ..util.host.git import git
from ..util.io.fields import shown
from ..util.io.files import expanded, write_json
from ..util.io.functions import short_name
from ..util.text.numbers import SIZE_UNITS
from ..values.plan import Plan
from ..values.stragglers import Stragglers
from ..values.trace import Span, Trace
from .record_files import (
    CONFIG,
    EVENTS,
    ORIGIN,
    STATUS,
    flat_frame,
    read_beside,
    read_drifts,
    read_fields,
    read_merges,
    read_metrics,
    stage_frame,
)
from .run_progress import (
    FollowedPlan,
    WorkloadFacts,
    begin_plan,
    followed_plans,
    in_minibatches,
    knows_samples,
    newest_plan,
    plan_at,
    workload_facts,
)
from .trace_file import bytes_of_rank, merged, put_together, read_spans

_ROOT = Path(__file__).parents[2]


def commit(root: Path = _ROOT) -> str | None:
    """Return the commit of the checkout `root` with "+" when changed since; None outside a checkout.

    Of notebooks only what their cells say counts: opening and running one writes outputs, counts and metadata into it.
    """
    if not (root / ".git").exists():
        return None
    try:
        head = git(root, "rev-parse", "HEAD").decode().strip()
        rows = git(root, "status", "--porcelain", "-z", "-uno", "--no-renames", "--ignore-submodules=all").split(b"\0")
        changed = [(row[:2].decode(), row[3:].decode(errors="surrogateescape")) for row in rows if row]
        return head + ("+" if any(_differs(root, state, name) for state, name in changed) else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _differs(root: Path, state: str, name: str) -> bool:
    """Return whether a file that git calls changed says something else than in the commit."""
    if not name.endswith(".ipynb") or set(state) - {"M", " "}:
        return True
    try:
        return _cells(git(root, "cat-file", "blob", f"HEAD:{name}")) != _cells((root / name).read_bytes())
    except (ValueError, KeyError, TypeError, AttributeError):
        return True  # no notebook


def _cells(text: bytes) -> list[Any]:
    """The kinds and sources of a notebook's cells."""
    cells = json.loads(text)["cells"]
    return [(cell["cell_type"], "".join(cell["source"]), cell["metadata"].get("tags", [])) for cell in cells]


if TYPE_CHECKING:
    import pandas as pd

_LONGEST = 1e9  # seconds of a run, 31 years: more would be no date
NO_PICTURES = "SPARSEPIPE_NO_PICTURES"  # says why no notebook of a batch can draw, so that none looks again
PAPER = "SPARSEPIPE_PAPER"  # says, as JSON, how a batch wants all its figures printed
NOTEBOOK = "SPARSEPIPE_NOTEBOOK"  # names, for provenance, the notebook that a kernel runs


@dataclass(frozen=True)
class Origin:
    """Origin of a result (command, commit, versions, machine, data), so that it can be reproduced."""

    command: tuple[str, ...] = ()
    commit: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: str = ""
    created: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)  # seed, data checksum, engine, …
    campaign: str | None = None  # names the runs that were made to be compared, see campaigns.py
    provenance: Mapping[str, Any] | None = None  # what the run rests on: a Provenance, as JSON

    @classmethod
    def here(
        cls, *, campaign: str | None = None, provenance: Mapping[str, Any] | None = None, **facts: Any
    ) -> "Origin":
        """Describe this process: command, commit, versions, machine, and `facts`."""
        versions = {"python": platform.python_version()}
        for name in ("sparsepipe", "torch", "numpy", "plotly", "MinkowskiEngine"):
            with suppress(PackageNotFoundError):  # whether a process has imported it or not
                versions[name] = version(name)
        machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, {cpu.name()}"
        created = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(_command(), commit(), versions, machine, created, facts, campaign, provenance)

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "command": list(self.command), "facts": dict(self.facts)}


@dataclass(frozen=True)
class RunRecord:
    """Read the run directory of a run. Each file is read on first access; `DamagedRecord` names a damaged file.

    Attributes:
        folder: The run directory.

    Example:
        >>> record = sp.RunRecord.load(run_dir)
        >>> record.status["state"], len(record.plan.stages)
        ('finished', 2)
        >>> [row["minibatches"] for row in record.metrics("epoch")]
        [4, 8]

    See also:
        guides/resume_and_recover, `load_trace`, `attach`
    """

    folder: Path
    _read_plans: dict[tuple[int, int], Plan] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def create(cls, folder: Path | str, plan: Plan, config: Mapping[str, Any], origin: Origin) -> "RunRecord":
        """Create a record. Raises InputError if the folder already contains a run or cannot be created."""
        folder = expanded(folder)
        check_free(folder)
        try:
            for name in ("checkpoints", "logs"):
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            text = f"{folder}: cannot contain a run ({error.strerror}); choose another {{run_dir}}"
            raise InputError("run_dir.unusable", text, setting="run_dir") from None
        write_json(folder / "config.json", dict(config))
        write_json(folder / "origin.json", origin.to_json())
        begin_plan(folder, plan, 0)
        return cls(folder)

    @classmethod
    def load(cls, folder: Path | str) -> "RunRecord":
        """Open a record. Raises InputError if the folder contains none."""
        folder = expanded(folder)
        if folder.is_file():
            raise InputError("run.is_file", f"{folder}: is a file, expected a run's folder")
        if not (folder / "plan.json").exists():
            raise InputError(
                "run.not_found", f"{folder}: is not a run (it has no plan.json); `sparsepipe runs list` lists the runs"
            )
        return cls(folder)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def plan(self) -> Plan:
        """Newest plan; for several pipelines all, with their synchronization scheme. It may change during the run."""
        try:
            status = (self.folder / "plan.json").stat()
            stamp = status.st_mtime_ns, status.st_ino
        except OSError:
            stamp = 0, 0  # why it cannot be read is told where it is
        if stamp not in self._read_plans:
            self._read_plans.clear()
            self._read_plans[stamp] = newest_plan(self.folder)
        return self._read_plans[stamp]

    @property
    def plans(self) -> tuple[FollowedPlan, ...]:
        """Every plan of the run as (first minibatch, plan), the newest last.

        The minibatch is None in records of earlier versions.
        """
        return followed_plans(self.folder)

    def plan_of_epoch(self, epoch: int) -> Plan:
        """Return the plan of an epoch's last minibatch, or the newest plan if none was trained."""
        minibatches = [row["minibatch"] for row in self.metrics("step") if row["epoch"] == epoch]
        return plan_at(self.plans, max(minibatches)) if minibatches else self.plan

    def sizes_of_epoch(self, epoch: int) -> tuple[float, ...]:
        """Return the size of each minibatch of an epoch, in the run's unit, such as voxels.

        Raises InputError if its metrics lack it.
        """
        rows = [row for row in self.metrics("step") if row.get("epoch") == epoch]
        if any(row.keys().isdisjoint(SIZE_UNITS) for row in rows):
            raise InputError(
                "run.no_sizes",
                f"{self.folder / 'metrics.jsonl'}: a step lacks its {', '.join(SIZE_UNITS)}; choose another run",
            )
        return tuple(float(next(row[unit] for unit in SIZE_UNITS if unit in row)) for row in rows)

    @cached_property
    def config(self) -> dict[str, Any]:
        return read_fields(self.folder / "config.json", CONFIG, what="run's settings")

    @property
    def model(self) -> str:
        """Name of the network. For a user's function: file name and function name, such as "net.py:build"."""
        return short_name(self.config.get("model", ""))

    @cached_property
    def origin(self) -> dict[str, Any]:
        return read_fields(self.folder / "origin.json", ORIGIN, what="run's origin")

    @property
    def workload(self) -> WorkloadFacts:
        """Workload of the workers: training, or emulation of a profile."""
        return workload_facts(self.config.get("engine", ""))

    @property
    def campaign(self) -> str | None:
        """Id of the experiment that the run belongs to (campaigns.py). None for a single run."""
        campaign_id = self.origin.get("campaign")
        return campaign_id if isinstance(campaign_id, str) else None

    @property
    def beside(self) -> tuple[str, ...]:
        """Names of concurrent runs in the same folder."""
        path = self.folder / "beside.json"
        return read_beside(path) if path.exists() else ()

    def note_beside(self, *names: str) -> None:
        """Add names of concurrent runs."""
        write_json(self.folder / "beside.json", sorted({*self.beside, *names}))

    @property
    def ran(self) -> tuple[datetime, datetime] | None:
        """Times of the launch and of the last row of metrics. None if the origin does not contain them."""
        try:
            began = datetime.fromisoformat(self.origin["created"])
        except (KeyError, TypeError, ValueError):
            return None
        began = began if began.tzinfo else began.replace(tzinfo=UTC)
        seconds = [row["seconds"] for row in self.metrics() if isinstance(row.get("seconds"), int | float)]
        return began, began + timedelta(seconds=min(max(seconds, default=0.0), _LONGEST))

    @property
    def other_load(self) -> Any:
        """Load by other processes during the run, from its summary. None if it was not measured."""
        summaries = self.metrics("summary")
        return summaries[-1].get("load") if summaries else None

    @property
    def status(self) -> dict[str, Any]:
        """`{"state": "running", …}`, then finished, stopped, failed, refused or cancelled.

        "started" is the state before the first message of a worker.
        """
        path = self.folder / "status.json"
        if not os.path.lexists(path):  # a link to nothing is damaged
            return {"state": "started"}
        return read_fields(path, STATUS, what="run's status")

    def write_status(self, state: str, **facts: Any) -> None:
        write_json(self.folder / "status.json", {"state": state, **facts}, make_folder=False)

    def metrics(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of metrics.jsonl, or those of one `event` ("step", "epoch", "validation", …).

        If the samples per minibatch are unknown, rows contain `minibatches_per_second` as throughput. Raises
        DamagedRecord that names file and row if one of them is damaged.
        """
        path = self.folder / "metrics.jsonl"
        return [self.rated(row) for row in read_metrics(path, event)] if path.exists() else []

    @cached_property
    def knows_samples(self) -> bool:
        """Return whether the samples per minibatch are known. An emulation may have a profile without them."""
        try:
            return knows_samples(self.folder, self.config)
        except DamagedRecord:  # told of where the settings are asked for
            return True

    @property
    def counted(self) -> str:
        """Unit of the throughput: "samples", or "minibatches" if the samples per minibatch are unknown."""
        return "samples" if self.knows_samples else "minibatches"

    def rated(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return a worker's row of metrics, with the throughput in the known unit."""
        return row if self.knows_samples else in_minibatches(row)

    def frame(self, event: str = "step") -> "pd.DataFrame":
        """Return the rows of one `event` as a flat pandas table: "step", "epoch" or "stage" (of epochs and summary).

        Each number has a column: "train.loss", "validation.accuracy". Raises InputError for another event, and
        DamagedRecord that names file and row if one of them is damaged.
        """
        if event not in EVENTS:
            raise InputError(
                "event.unknown", f"event {event!r} given, expected one of {', '.join(EVENTS)}", event=event
            )
        return stage_frame(self.metrics()) if event == "stage" else flat_frame(self.metrics(event))

    def merges(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of merges.jsonl, or those of one `event` ("contribution", "merge", "applied").

        Raises DamagedRecord that names file and row if one of them is damaged.
        """
        path = self.folder / "merges.jsonl"
        return [*read_merges(path, event)] if path.exists() else []

    def drift(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return the rows of drift.jsonl: an "alarm" for each lasting change of a rank or a link during the run.

        None if the run was not compared with its profile; `monitoring.drift_of` computes drift from the trace. Raises
        DamagedRecord that names file and row if one of them is damaged.
        """
        path = self.folder / "drift.jsonl"
        return [*read_drifts(path, event)] if path.exists() else []

    @property
    def background_load(self) -> BackgroundLoad:
        """Largest load by other processes on the hosts. Unknown during the run, and for runs of earlier versions."""
        return BackgroundLoad.from_json(self.other_load)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Reasons why the measured throughput is unreliable, as sentences: warnings of the plan, other load."""
        return (*self.plan.warnings, *load_warnings(self.background_load))

    @property
    def straggler_note(self) -> str:
        """Short text on injected delays and kills. Empty if there were none."""
        given = self.config.get("stragglers")
        try:
            return Stragglers.parse(given).note() if given else ""
        except InputError:  # its file of times is gone, or is no longer one
            return shown(given)

    def __str__(self) -> str:
        return f"run {self.name} in {self.folder}"

    def trace(self) -> Trace:
        """Return the measured (or emulated) trace: all ranks on one clock, in time order.

        The trace of a long run contains only some of its minibatches; `left_out` describes the omitted ones. `held_up`
        names injected stragglers. Raises DamagedRecord that names file and row if one of them is damaged.
        """
        config = self.config if (self.folder / "config.json").exists() else {}  # spans may be there before it
        source = workload_facts(config.get("engine", "")).source
        held_up = {"held_up": note} if config and (note := self.straggler_note) else {}
        if (self.folder / "pipelines").is_dir() and self.plan.members:
            whole = trace_of_all(self.plan, [pipeline.trace() for pipeline in self.pipelines], source)
            return replace(whole, facts=whole.facts | held_up)
        paths = sorted(self.folder.glob("trace-rank*.jsonl"))
        most_bytes = bytes_of_rank(max(1, len(paths)))
        begun = self.metrics("start") if any(path.stat().st_size > most_bytes for path in paths) else []
        epoch = begun[-1].get("epoch_minibatches") if begun else None
        ranks = [read_spans(path, most_bytes=most_bytes, epoch_minibatches=epoch) for path in paths]
        spans, facts = put_together(ranks)
        return Trace(tuple(spans), source, facts | held_up)

    @property
    def pipelines(self) -> tuple["RunRecord", ...]:
        """Record of each pipeline by its number. For a run of one pipeline, the record itself."""
        several = tuple(RunRecord(self.folder / "pipelines" / str(k)) for k in range(len(self.plan.members)))
        return several or (self,)


def check_free(folder: Path) -> None:
    """Raise InputError if a new run cannot be recorded in `folder`: it holds a run already, or is a file."""
    if (folder / "plan.json").exists():
        text = f"{folder}: already contains a run; choose another {{run_dir}}, or resume it"
        raise InputError("run_dir.taken", text, setting="run_dir")
    if folder.exists() and not folder.is_dir():
        text = f"{folder}: cannot contain a run (not a directory); choose another {{run_dir}}"
        raise InputError("run_dir.unusable", text, setting="run_dir")


def load_warnings(load: BackgroundLoad) -> tuple[str, ...]:
    """Return sentences that say why a speed measured under this load is doubtful; none on a quiet machine."""
    doubts = load.doubts()
    return (f"during the run {' and '.join(doubts)}; its throughput is unreliable",) if doubts else ()


def _command() -> tuple[str, ...]:
    """The typed command. A kernel's command names a temporary connection file, so its notebook is named instead."""
    name = Path(sys.argv[0]).name
    if "ipykernel" in name:
        return ("jupyter", os.environ.get(NOTEBOOK, "notebook"))
    return (name, *sys.argv[1:])


def trace_of_all(plan: Plan, traces: Sequence[Trace], source: Any) -> Trace:
    """Return the traces of all pipelines as one, in time order: all have the same clock.

    Stages are numbered over all pipelines, pipeline 0's first, as they stand in the plan's file. If a pipeline had
    more stages under a plan before, those after it have higher numbers.
    """
    pairs = list(zip(plan.pipelines, traces, strict=True))
    most = [
        max([len(pipeline_number.stages), *(1 + span.stage for span in trace.spans)])
        for pipeline_number, trace in pairs
    ]
    first = [sum(most[:k]) for k in range(len(most))]
    spans = [span for k, trace in enumerate(traces) for span in _renumbered(plan, k, trace, first[k])]
    spans.sort(key=lambda span: (span.start, span.rank))
    missing = [trace.left_out for trace in traces if trace.left_out]
    facts = plan.trace_facts
    if sum(most) > len(plan.stages):
        number = {
            plan.first_stage(k) + s: first[k] + s
            for k, (pipeline_number, _) in enumerate(pairs)
            for s in range(len(pipeline_number.stages))
        }
        like = {number[stage]: number[other] for stage, other in enumerate(facts["like_stages"])}
        facts["like_stages"] = [like.get(stage, stage) for stage in range(sum(most))]
    if missing:
        ranges = merged((first, last) for missing_range in missing for first, last in missing_range["minibatches"])
        facts["left_out"] = {
            "minibatches": [list(missing_range) for missing_range in ranges],
            "spans": sum(missing_range["spans"] for missing_range in missing),
            "seconds": max(missing_range["seconds"] for missing_range in missing),
        }
    return Trace(tuple(spans), source, facts)


def _renumbered(plan: Plan, k: int, trace: Trace, before: int) -> Iterator[Span]:
    for span in trace.spans:
        stage_text = str(span.stage)
        stage = span.stage + before
        name = f"{stage}{span.name.removeprefix(stage_text)}" if span.name.startswith(stage_text) else span.name
        rank, peer = plan.among_all(k, span.rank), plan.among_all(k, span.peer)
        yield span._replace(rank=rank, name=name, stage=stage, peer=peer)
