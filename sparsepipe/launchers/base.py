"""What every launcher gives: a job that runs on its own, whose record grows, to be waited for or cancelled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from ..cluster import Cluster
from ..plan import Plan
from ..profile import Profile
from ..record import RunRecord
from ..runtime import RunConfig

MetricsRow = dict[str, Any]


class Job(Protocol):
    """A run that was launched. Nothing here blocks but `wait`."""

    record: RunRecord

    @property
    def running(self) -> bool:
        """Whether its processes are at work."""
        ...

    @property
    def state(self) -> str:
        """How it stands: "running", then "finished", "failed", "cancelled", or "unknown" for a damaged record."""
        ...

    @property
    def rows(self) -> tuple[MetricsRow, ...]:
        """The rows of metrics seen so far; of a run that resumes, those since (the record has all).

        Of a long run the newest and, of older ones, evenly fewer: what is kept in memory is bounded.
        """
        ...

    def poll(self) -> list[MetricsRow]:
        """Return the rows of metrics that came since the last call."""
        ...

    def wait(self, timeout: float | None = None, on_row: Callable[[MetricsRow], None] | None = None) -> MetricsRow:
        """Wait for the end and return the run's summary; `on_row` is called with each new row meanwhile.

        Raises RunFailed in one line (which rank, what it met, where its traceback is), InputError where the user's
        input was at fault, and TimeoutError after `timeout` seconds. Interrupting the wait leaves the job alone.
        """
        ...

    def cancel(self) -> None:
        """End the job within a second. Its record and checkpoints stay.

        Raises InputError or RunFailed, within ten, where it cannot be ended: who holds its lock, or does not answer.
        """
        ...


class Launcher(Protocol):
    """A way to start worker processes, and to find again those that it started."""

    def launch(
        self,
        plan: Plan,
        config: RunConfig,
        *,
        run_dir: Path | str,
        resume: bool,
        profile: Profile | None,
        cluster: Cluster | None,
        campaign: str | None,
        **options: Any,
    ) -> Job:
        """Start a process for each rank of `plan` and return at once; `options` are this launcher's own.

        Raises InputError, before anything is started, for what cannot run, and RunFailed where the machine refuses.
        """
        ...

    def attach(self, run_dir: Path | str) -> Job:
        """Return the job of a run that another process launched. Raises InputError where the folder holds no run."""
        ...
