"""Records of earlier runs, found again by what they trained, and runs for those that are not there."""

from collections.abc import Mapping
from pathlib import Path

from ..errors import InputError
from ..launchers import Job, launch
from ..launchers.folders import folders, new_folder
from ..plan import Plan
from ..record import RunRecord
from ..runtime.config import RunConfig


def newest(runs: Path, name: str, config: RunConfig) -> RunRecord | None:
    """The newest finished run called `name` that trained under `config`; None where there is none.

    A damaged one is passed over, which is said.
    """
    for folder in folders(runs, name):
        try:
            record = RunRecord.load(folder)
            if record.status["state"] == "finished" and RunConfig.from_json(record.config) == config:
                return record
        except InputError as error:
            print(f"passed over: {error}", flush=True)
    return None


def train(runs: Path, asked: Mapping[str, tuple[Plan, RunConfig]]) -> dict[str, RunRecord]:
    """Train every plan under its configuration, all at once; finished runs of that name and configuration are taken.

    Where one fails or the user interrupts, the others are cancelled.
    """
    found = {name: newest(runs, name, config) for name, (_, config) in asked.items()}
    jobs: dict[str, Job] = {}
    try:
        for name, record in found.items():
            print(f"{name}: from runs/{record.name}" if record else f"{name}: training now", flush=True)
            if record is None:
                jobs[name] = launch(*asked[name], run_dir=new_folder(runs, name))
        for job in jobs.values():
            job.wait()
    except BaseException:
        for job in jobs.values():
            job.cancel()
        raise
    return {name: record or jobs[name].record for name, record in found.items()}
