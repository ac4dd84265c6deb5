"""A run that computes outputs alone, from a checkpoint: how its folder says so, to workers and to who reads it later.

RUN/forward_only.json      the checkpoint
RUN/predictions.npz        what came out, once it is there
"""

from pathlib import Path

from ..errors import InputError
from ..fields import text
from ..files import read_json, write_json

FORWARD_ONLY = "forward_only.json"
PREDICTIONS = "predictions.npz"


def write_forward_only(run_dir: Path, checkpoint: Path) -> None:
    """Make a run one of forwards alone. Its workers are not started yet."""
    write_json(run_dir / FORWARD_ONLY, {"checkpoint": str(checkpoint)})


def checkpoint_of(run_dir: Path) -> Path | None:
    """Return the checkpoint whose weights a run of forwards alone uses; None for one that trains."""
    path = run_dir / FORWARD_ONLY
    if not path.exists():
        return None
    document = read_json(path, what="run of forwards alone")
    if not isinstance(document, dict) or "checkpoint" not in document:
        raise InputError(f"{path}: names no checkpoint; start the run anew")
    return Path(text(document["checkpoint"], "checkpoint"))
