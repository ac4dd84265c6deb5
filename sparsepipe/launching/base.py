"""The protocols of launchers: `Launcher` starts a plan as processes, `Job` is the run that it started."""

from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, Required, Self, TypedDict

from ..records import RunRecord
from ..runtime.workloads.resolved import ResolvedRun
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile

MetricsRow = dict[str, Any]


class Job(Protocol):
    """A run that was launched: follow its metrics, wait for it, cancel it. Only `wait` blocks.

    `with launch(plan, config, run_dir=...) as job: job.wait()` cancels it where the block is left by an exception, an
    interrupted wait among them.
    """

    record: RunRecord

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: Any) -> None: ...

    @property
    def running(self) -> bool:
        """Return whether its processes are alive."""
        ...

    @property
    def state(self) -> str:
        """Return how it stands: "running", then "finished", "stopped", "failed", "cancelled", or "unknown" if damaged.

        "refused" is a run that a host could not begin: nothing was trained.
        """
        ...

    @property
    def rows(self) -> tuple[MetricsRow, ...]:
        """The rows of metrics.jsonl seen so far; of a run that resumed, those since it did (the record has all).

        Memory is bounded: of a long run all newest rows are here and, evenly spaced, some of the older ones.
        """
        ...

    def poll(self) -> list[MetricsRow]:
        """Return the rows of metrics that came since the last call."""
        ...

    def wait(self, timeout: float | None = None, on_row: Callable[[MetricsRow], None] | None = None) -> MetricsRow:
        """Wait for the end and return the run's summary; `on_row` is called with each new row meanwhile.

        Raises RunFailed in one line (which rank, what it met, where its traceback is), InputError if the user's
        input was at fault, and TimeoutError after `timeout` seconds. Interrupting the wait leaves the job alone.
        """
        ...

    def wait_for(self, watcher: Thread) -> None:
        """Have `wait` return once a thread has ended, too, which watches the job and ends by itself when that does.

        What it writes of the job in the record is whole then. It is waited for so many seconds as a busy machine takes.
        """
        ...

    def stop(self) -> None:
        """Ask the run to end soon with a checkpoint, at a minibatch that its ranks agree on, and return at once.

        `wait` for its end: the summary says after how many minibatches it was; resuming continues as if it never had
        ended. A run that is about to finish may do so first. Raises InputError if it cannot be asked.
        """
        ...

    def replan(
        self, plan: Plan, *, reason: str = "", predicted_gain_seconds: float | None = None, wait: bool = True
    ) -> int | None:
        """Switch to another plan from a minibatch on that the ranks agree on; the job's processes stay.

        Layers change hands with all that training has made of them, and each minibatch is trained once. Returns the
        first minibatch under the plan or, without `wait`, None at once. Of several pipelines those whose plans differ
        change theirs, each by itself, while the others train; on one machine.

        The memory that it needs is estimated by the profile that the run was launched with; without one a warning says
        so. Raises InputError if the plan cannot be this job's or its devices', another change is under way, or a rank
        cannot prepare it: then the job continues as before.
        """
        ...

    def cancel(self) -> None:
        """End the job within a second. Its record and checkpoints stay.

        Raises InputError or RunFailed, within ten seconds, if it cannot be ended: another process holds its lock, or
        its supervisor does not answer.
        """
        ...


class Asked(TypedDict, total=False):
    """Options of every launcher besides plan and settings, which it passes to the preparation of the run."""

    run_dir: Required[Path | str]
    resume: bool  # go on from the newest checkpoint there
    profile: Profile | None
    cluster: Cluster | None
    campaign: str | None  # names the runs that this one is made to be compared with


class Launcher(Protocol):
    """Starts the worker processes of a run, and finds them again later."""

    def launch(
        self,
        plan: Plan,
        run: ResolvedRun,
        *,
        run_dir: Path | str,
        resume: bool,
        profile: Profile | None,
        cluster: Cluster | None,
        campaign: str | None,
        **options: Any,
    ) -> Job:
        """Start a process for each rank of `plan` and return at once; `options` are this launcher's own.

        Raises InputError, before anything is started, for what cannot run, and RunFailed if the machine refuses.
        """
        ...

    def attach(self, run_dir: Path | str) -> Job:
        """Return the job of a run that another process launched. Raises InputError if the folder holds no run."""
        ...
