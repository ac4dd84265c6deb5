"""One of several pipelines, as its processes find themselves: where the whole run is, and who coordinates it.

RUN/                     plan.json (all pipelines and their rule), metrics.jsonl, checkpoints/
RUN/pipelines/K/         the run of pipeline K, as a run of one pipeline has it
RUN/logs/resume.json     the checkpoint that the run goes on from, where it does
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...io.files import read_json
from ...pipelines import Pipelines
from ...replication.base import Rule
from ..encryption import Encryption
from ..pipelines.base import Coordinator
from ..pipelines.client import connect
from ..processes.identity import Identity
from ..training_state import checkpoint
from ..training_state.checkpoint_folders import FOLDER

RESUME = Path("logs", "resume.json")  # in the folder of the whole run


@dataclass(frozen=True)
class Member:
    """A process's pipeline among the others."""

    run_of_all: Path
    identity: Identity
    rule: Rule
    coordinator: Coordinator
    first_stage: int  # of this pipeline, among those of all

    @classmethod
    def of(cls, identity: Identity, run_dir: Path, *, timeout: float, encryption: Encryption | None = None) -> "Member":
        """Find the run that `run_dir` is a pipeline of, and its coordinator. Raises DeadlinePassed where none comes."""
        assert identity.pipeline is not None, "it is one of several"
        folder = run_dir.parent.parent
        plan = Pipelines.load(folder / "plan.json")
        coordinator = connect(
            folder,
            pipeline=identity.pipeline,
            rank=identity.rank,
            attempt=identity.attempt,
            timeout=timeout,
            encryption=encryption,
        )
        return cls(folder, identity, plan.replication, coordinator, plan.first_stage(identity.pipeline))

    def checkpoint(self) -> checkpoint.Checkpoint | None:
        """Return what the whole run goes on from; None where it began anew.

        None, too, where this pipeline was started again and newer checkpoints have taken that one's place: a live
        pipeline has weights to give then.
        """
        path = self.run_of_all / RESUME
        if not path.exists():
            return None
        folder = self.run_of_all / FOLDER / read_json(path)["checkpoint"]
        return None if self.identity.attempt and not folder.exists() else checkpoint.load(folder)

    def parts(self) -> dict[str, Any]:
        """What a worker of this pipeline needs besides what any worker does."""
        return {
            "run_of_all": self.run_of_all,
            "rule": self.rule,
            "coordinator": self.coordinator,
            "attempt": self.identity.attempt,
            "ranks": self.identity.ranks,
            "first_stage": self.first_stage,
        }
