"""Records of earlier runs: found again by what they trained, never overwritten."""

from pathlib import Path

from ..record import RunRecord
from ..runtime.config import RunConfig


def newest(runs: Path, name: str, config: RunConfig) -> RunRecord | None:
    """The newest finished run called `name` that trained under `config`; None where there is none."""
    for folder in sorted(_folders(runs, name), reverse=True):
        record = RunRecord.load(folder)
        if record.status["state"] == "finished" and RunConfig.from_json(record.config) == config:
            return record
    return None


def new_folder(runs: Path, name: str) -> Path:
    """NAME-004 after NAME-003."""
    number = max((int(folder.name[-3:]) for folder in _folders(runs, name)), default=0) + 1
    return runs / f"{name}-{number:03d}"


def _folders(runs: Path, name: str) -> list[Path]:
    return [path.parent for path in runs.glob(f"{name}-[0-9][0-9][0-9]/plan.json")]
