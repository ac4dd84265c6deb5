"""A co-located workload that comes and goes at given minibatches of a job, the same ones for every variant."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..launching import Job
from ..launching.followed_job import Tail
from ..launching.probes.measure import loopback_link
from ..monitoring.interference.intruding import check_kind, check_share, intruding
from ..records import RunRecord
from ..records.provenance import plan_digest
from ..runtime.config import RunConfig
from ..util.host.background_load import processors_of
from ..util.host.imports import python_command, python_environment
from ..util.io.fields import each, fields, integer, number, shown, text
from ..util.io.files import read_json, write_json
from ..values.cluster import Link
from ..values.plan import Plan
from .cached_runs import newest

FILE = "intruder.json"  # in a run's folder: what disturbed it, and when it really came and went
_LOOK = 0.02  # seconds between two looks at how far the job is: less than a minibatch of a small network
_FIELDS = fields({"kind": text, "visits": each(each(number)), "came_and_went": each(each(integer)), "share": number})


@dataclass(frozen=True)
class Contention:
    """Run a co-located workload on the processor of the last rank during parts of a training.

    Each rank is pinned to its own processor, which is a device here.

    Args:
        kind: The workload, such as "matrix-products" (`sparsepipe interference run --help` lists them).
        visits: (Start, end) of each visit, in order, as shares of the run's minibatches.
        share: Maximum share of the processor's time that the workload takes. 1: no limit, which gives it about half.

    Raises:
        InputError: An unknown kind, a share outside its range, or visits that are not in order.

    Example:
        `Contention.of("matrix-products", [[0.1, 0.9]]).inject(job, minibatches=400)`
    """

    kind: str
    visits: tuple[tuple[float, float], ...]
    share: float = 1.0

    def __post_init__(self) -> None:
        check_kind(self.kind)
        check_share(self.share)
        moments = [0.0, *(moment for visit in self.visits for moment in visit), 1.0]
        if any(len(visit) != 2 for visit in self.visits) or moments != sorted(moments):
            raise InputError(
                "visits.malformed",
                f"visits {shown(self.visits)} given, expected ordered pairs (from, to) of fractions of a run",
            )

    @classmethod
    def of(cls, kind: str, visits: Sequence[Sequence[float]], *, share: float = 1.0) -> "Contention":
        """Read the parameters of a notebook: visits are lists of two shares of a run."""
        return cls(kind, tuple(tuple(map(float, visit)) for visit in visits), share)  # type: ignore[misc]

    def inject(self, job: Job, *, minibatches: int) -> None:
        """Pin each rank of a job to a processor, and run the workload during its visits. Returns after the last visit.

        The workload is a child process and ends with this process. The run's intruder.json contains its times. If the
        job ends early, the method returns. With fewer processors than ranks, ranks share processors.
        """
        folder, ranks = job.record.folder, len(job.record.plan.ranks)
        processor_numbers = sorted(processors_of()) or list(range(os.cpu_count() or 1))
        cores = [processor_numbers[rank % len(processor_numbers)] for rank in range(ranks)]
        reached, seen = Reached(job), list[tuple[int, int]]()
        # It starts while the job does, which takes both a second, and rests until its moment.
        with intruding([self.kind], cores=cores[-1:], share=self.share, resting=True) as (intruder,):
            reached.wait(0)
            _keep_on(folder, cores)
            for first, last in self.visits:
                if not reached.wait(round(first * minibatches)) or not job.running:
                    break
                came = reached.minibatch
                intruder.begin()
                reached.wait(round(last * minibatches))
                intruder.rest()
                seen.append((came, reached.minibatch))
                facts = {"kind": self.kind, "visits": self.visits, "share": self.share, "came_and_went": seen}
                write_json(folder / FILE, facts)

    def finished_run(self, runs: Path, name: str, plan: Plan, config: RunConfig) -> RunRecord | None:
        """Newest finished run of this name with the same plan and the same contention. None: there is none."""
        record = newest(runs, name, config)
        if record is None or not (record.folder / FILE).exists():
            return None
        _, first = record.plans[0]
        same = plan_digest(first) == plan_digest(plan) and _read(record)[0] == self
        print(f"{name}: {f'from runs/{record.name}' if same else 'training now'}", flush=True)
        return record if same else None


def came_and_went(record: RunRecord) -> list[tuple[int, int]]:
    """Minibatches at which the intruder of a run came and went; empty without an intruder.

    Raises InputError for a file that says something else.
    """
    return _read(record)[1] if (record.folder / FILE).exists() else []


def _read(record: RunRecord) -> tuple[Contention, list[tuple[int, int]]]:
    """The intruder of a run with its visits; share 1 if the file names none."""
    path = record.folder / FILE
    visits = _FIELDS(read_json(path, what="intruder's visits"), str(path))
    if missing := sorted({"kind", "visits", "came_and_went"} - visits.keys()):
        raise InputError("visits.missing", f"{path}: has no {', '.join(missing)}")
    pairs = [tuple(pair) for pair in (*visits["visits"], *visits["came_and_went"])]
    if any(len(pair) != 2 for pair in pairs):
        raise InputError("visits.malformed", f"{path}: expected pairs (from, to)")
    count = len(visits["visits"])
    try:
        what = Contention.of(visits["kind"], pairs[:count], share=visits.get("share", 1.0))
    except InputError as error:
        raise error.within(f"{path}: ") from None
    return what, pairs[count:]


class Reached:
    """Progress of a job, read from its metrics at each look: `Job.rows` may be some minibatches behind."""

    def __init__(self, job: Job) -> None:
        self._job, self._newest = job, -1
        self._tail = Tail(job.record.folder / "metrics.jsonl")

    @property
    def minibatch(self) -> int:
        """The newest minibatch that is done; -1 before the first. A job that starts again is back at its checkpoint."""
        while rows := self._tail.read():
            for row in rows:
                if row["event"] == "resume":
                    self._newest = row.get("minibatches", 0) - 1
                elif row["event"] == "step" and "minibatch" in row:
                    self._newest = max(self._newest, row["minibatch"])
        return self._newest

    def wait(self, minibatch: int, *, over: Callable[[], bool] = lambda: False) -> bool:
        """Wait until a minibatch is done; return whether it is, and not the job or, as `over` says, the wait."""
        while self.minibatch < minibatch:
            if over() or not self._job.running:
                return False
            time.sleep(_LOOK)
        return True


def _keep_on(run_dir: Path, cores: Sequence[int]) -> None:
    """Keep each rank's threads on its own processor, and those that they will start, where the system can."""
    for rank, core in enumerate(cores):
        with suppress(OSError, ValueError, AttributeError):
            pid = int((run_dir / "logs" / f"rank{rank}.pid").read_text())
            for thread in Path(f"/proc/{pid}/task").iterdir():
                with suppress(OSError):  # one that has just ended
                    os.sched_setaffinity(int(thread.name), {core})


SIZES = (2**12, 2**24)  # bytes of gradients: the smaller tells the latency, the larger the bandwidth
SECONDS = "seconds.json"  # the medians for both sizes, where the two processes leave them
TIMEOUT = 120.0  # seconds for both processes to start, meet and measure


def local_link() -> Link:
    """Measure now the link between two processes of a local run: what planners may count on, whatever goes over it.

    Its latency is that of a packet's header, its bandwidth the lower one of packets and of averaging.
    Raises InputError if two processes cannot run.
    """
    packets, gradients = loopback_link(), averaging_link()
    return Link(min(packets.bandwidth, gradients.bandwidth), packets.latency)


def averaging_link() -> Link:
    """Measure now the link by which `costs.averaging_time` says what averaging between two processes takes.

    Raises InputError if two processes cannot run.
    """
    with tempfile.TemporaryDirectory(prefix="sparsepipe-averaging-") as folder:
        environment = python_environment(WORLD_SIZE="2", LOCAL_WORLD_SIZE="2")
        command = python_command("sparsepipe.study.averaging_ranks", folder)
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as both:  # they end where stdin closes
            try:
                code = both.wait(timeout=TIMEOUT)
            except subprocess.TimeoutExpired:
                raise InputError(
                    "averaging.timeout", f"two averaging processes did not end within {TIMEOUT:g} s; try again"
                ) from None
        if code:
            raise InputError(
                "averaging.failed", f"two averaging processes ended with exit code {code}; see their output above"
            )
        small, large = read_json(Path(folder) / SECONDS)["seconds"]
    latency = small / 2  # two messages of half the bytes
    return Link(SIZES[1] / max(large - small, 1e-9), latency)
