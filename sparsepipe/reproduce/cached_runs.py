"""Records of earlier runs, found again by what they trained, and runs for those that are not there."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..launchers import Job, launch
from ..launchers.run_folders import folders, new_folder
from ..plan import Plan
from ..provenance import plan_digest
from ..record import RunRecord
from ..record.campaigns import MOST_APART, campaign_began, made_for, new_campaign
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


def kept_campaign(
    runs: Path, asked: Mapping[str, tuple[Plan, RunConfig]], settings: Any
) -> tuple[str | None, dict[str, RunRecord]]:
    """The newest campaign under `settings`, and the runs of `asked` that it has; (None, {}) where there is none.

    A run belongs to it that finished under this very plan and configuration, with no other job at work beside it. A
    campaign that lacks a run, and began longer than `MOST_APART` ago, counts for none: what is missing would be
    trained in another hour.
    """
    campaigns: dict[str, dict[str, RunRecord]] = {}
    for name, (plan, config) in asked.items():
        for folder in folders(runs, name):
            try:
                record = RunRecord.load(folder)
                if made_for(record.campaign, settings) and _fits(record, plan, config):
                    campaigns.setdefault(str(record.campaign), {}).setdefault(name, record)
            except InputError as error:
                print(f"passed over: {error}", flush=True)
    newest_first = sorted(campaigns, key=campaign_began, reverse=True)
    for campaign in newest_first:
        recent = (datetime.now(UTC) - campaign_began(campaign)).total_seconds() <= MOST_APART
        if len(campaigns[campaign]) == len(asked) or recent:
            return campaign, campaigns[campaign]
    return None, {}


def _fits(record: RunRecord, plan: Plan, config: RunConfig) -> bool:
    if record.status["state"] != "finished" or record.beside:
        return False
    return RunConfig.from_json(record.config) == config and plan_digest(record.plan) == plan_digest(plan)


def train(runs: Path, asked: Mapping[str, tuple[Plan, RunConfig]]) -> dict[str, RunRecord]:
    """Train every plan under its configuration, all at once; finished runs of that name and configuration are taken.

    Where one fails or the user interrupts, the others are cancelled.
    """
    found = {name: newest(runs, name, config) for name, (_, config) in asked.items()}
    jobs: dict[str, Job] = {}
    campaign = new_campaign("together", [config for _, config in asked.values()])
    try:
        for name, record in found.items():
            print(f"{name}: from runs/{record.name}" if record else f"{name}: training now", flush=True)
            if record is None:
                jobs[name] = launch(*asked[name], run_dir=new_folder(runs, name), campaign=campaign)
        for job in jobs.values():
            job.wait()
    except BaseException:
        for job in jobs.values():
            job.cancel()
        raise
    return {name: record or jobs[name].record for name, record in found.items()}
