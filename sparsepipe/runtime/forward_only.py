"""A run that computes outputs alone, from a checkpoint: how its folder says so, to workers and to who reads it later.

RUN/forward_only.json      the checkpoint
RUN/predictions.npz        what came out, once it exists
"""

from dataclasses import dataclass
from pathlib import Path

from ..errors import InputError
from ..util.io.fields import text
from ..util.io.files import read_json, write_json

FORWARD_ONLY = "forward_only.json"
PREDICTIONS = "predictions.npz"


@dataclass(frozen=True)
class ForwardOnly:
    """The folder of the checkpoint whose weights a run of forwards alone uses, and what its summary calls that."""

    checkpoint: Path
    named: str

    @classmethod
    def of_run(cls, run_dir: Path) -> "ForwardOnly | None":
        """Read what a run's folder says; None for one that trains. Raises InputError if it is damaged."""
        path = run_dir / FORWARD_ONLY
        if not path.exists():
            return None
        document = read_json(path, what="run of forwards alone")
        if not isinstance(document, dict) or "checkpoint" not in document:
            raise InputError("run.checkpoint_unnamed", f"{path}: does not name a checkpoint; start a new run")
        checkpoint = text(document["checkpoint"], "checkpoint")
        return cls(Path(checkpoint), text(document.get("named", checkpoint), "named"))

    def to_json(self) -> dict[str, str]:
        """Return the file's content: on another host the checkpoint lies elsewhere than where it is called from."""
        return {"checkpoint": str(self.checkpoint), "named": self.named}


def write_forward_only(run_dir: Path, checkpoint: Path) -> None:
    """Make a run one of forwards alone. Its workers are not started yet."""
    write_json(run_dir / FORWARD_ONLY, ForwardOnly(checkpoint, str(checkpoint)).to_json())
