"""Records of earlier runs, found again by what they trained."""

from pathlib import Path

from ..launchers.folders import folders
from ..record import RunRecord
from ..runtime.config import RunConfig


def newest(runs: Path, name: str, config: RunConfig) -> RunRecord | None:
    """The newest finished run called `name` that trained under `config`; None where there is none."""
    for folder in folders(runs, name):
        record = RunRecord.load(folder)
        if record.status["state"] == "finished" and RunConfig.from_json(record.config) == config:
            return record
    return None
