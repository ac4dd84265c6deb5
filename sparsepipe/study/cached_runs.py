"""Reuse finished runs that trained the same plan under the same settings, and launch those that are missing."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..launching import Job, launch
from ..launching.run_folders import folders, new_folder
from ..networks import network
from ..records import RunRecord
from ..records.campaigns import MOST_APART, campaign_began, made_for, new_campaign, when
from ..records.provenance import plan_digest
from ..runtime.config import RunConfig
from ..util.io.fields import integer
from ..util.text.numbers import pace_text, validation_text
from ..values.cluster import Cluster
from ..values.plan import Plan, Stage
from ..values.profile import Profile
from ..views.plots.table import ONE_PROCESS
from .report import report

_OF_PROGRESS = ("event", "epoch", "epoch_minibatches", "minibatches")


def newest(runs: Path, name: str, config: RunConfig) -> RunRecord | None:
    """The newest finished run called `name` that trained under `config`; None if there is none.

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
    runs: Path, asked: Mapping[str, tuple[Plan, RunConfig]], settings: object
) -> tuple[str | None, dict[str, RunRecord]]:
    """The newest campaign under `settings`, and the runs of `asked` that it has; (None, {}) if there is none.

    A run belongs to it that finished under this very plan and configuration, with no other job at work meanwhile. A
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


def campaign_of(
    runs: Path,
    plans: Mapping[str, Plan],
    config: RunConfig,
    rests_on: Iterable[Profile | Cluster],
    *,
    anew: bool = False,
) -> tuple[str, dict[str, RunRecord | None]]:
    """Find the newest experiment (comparable runs) under these settings, and its finished run of each plan.

    Args:
        runs: folder of the run directories, such as `Workplace.runs`.
        plans: name: plan. Runs are called MODEL-NAME.
        config: the settings that all runs share.
        rests_on: the profiles and clusters that the plans were made from.
        anew: begin a new experiment, in which all plans are trained again.

    Returns:
        The experiment's name, for `launch(…, campaign=…)`, and the record of each plan; None for one without a run.
    """
    settings = [config.to_json(), *(value.digest for value in rests_on)]
    asked = {f"{config.model}-{name}": (plan, config) for name, plan in plans.items()}
    campaign, campaign_found = (None, {}) if anew else kept_campaign(runs, asked, settings)
    began = campaign is not None
    campaign = campaign or new_campaign(config.model, settings)
    print(f"campaign {campaign}: {when(campaign_found.values()) if began else 'begins now'}", flush=True)
    for record in campaign_found.values():
        print(f"from runs/{record.name}", flush=True)
    return campaign, dict(zip(plans, map(campaign_found.get, asked), strict=True))


def print_epoch(row: Mapping[str, Any]) -> None:
    """Print throughput and validation accuracy at the end of each epoch: `job.wait(on_row=print_epoch)`.

    Args:
        row: one row of the run's metrics, as `Job.wait` gives it; others than ends of epochs print nothing.

    The batch that executes a notebook gets the rows as well, to show "epoch 3 of 4".
    """
    if row.get("event") in ("start", "epoch"):
        report(run={key: row[key] for key in _OF_PROGRESS if key in row})
    if row.get("event") == "epoch":
        text = ", ".join(filter(None, [pace_text(row), validation_text(row)]))
        print(f"  epoch {row['epoch'] + 1}: {text}", flush=True)


def _fits(record: RunRecord, plan: Plan, config: RunConfig) -> bool:
    if record.status["state"] != "finished" or record.beside:
        return False
    return RunConfig.from_json(record.config) == config and plan_digest(record.plan) == plan_digest(plan)


def equal_stages(model: str, num_stages: int = 1) -> Plan:
    """Cut a sparse network into stages of equally many layers, one process each. No profile is needed.

    Args:
        model: name of a network of `sparsepipe.networks.NETWORKS`.
        num_stages: number of stages; 1 is the whole network in one process.

    Returns:
        The plan, without an estimate.

    Raises:
        InputError: unknown network, or more stages than layers.

    >>> [len(stage.layers) for stage in equal_stages("minkvgg11bn-narrow", 2).stages]
    [18, 18]
    """
    layers = tuple(layer.id for layer in network(model, num_classes=2).graph().layers)
    integer(num_stages, "num_stages", least=1, most=len(layers))
    ends = [len(layers) * k // num_stages for k in range(num_stages + 1)]
    stages = (Stage(layers[begin:end], (rank,)) for rank, (begin, end) in enumerate(pairwise(ends)))
    return Plan(tuple(stages), planner=ONE_PROCESS if num_stages == 1 else f"{num_stages} equal stages")


def train(runs: Path, asked: Mapping[str, tuple[Plan, RunConfig]]) -> dict[str, RunRecord]:
    """Train every plan under its configuration, all at the same time; reuse finished runs.

    If one fails, or the cell is interrupted, the others are cancelled. Each is a `launch` in a folder of its own.

    Args:
        runs: folder of the run directories, such as `Workplace.runs`.
        asked: name of the run: its plan and its settings. A finished run of that name and those settings is reused.

    Returns:
        The record of each run, by name. Loss and accuracy by epoch are printed.

    Raises:
        InputError: a plan that does not fit its network, or settings that do not fit together.
        RunFailed: a run that ended with an error.

    Example:
        `records = train(place.runs, {"small": (equal_stages(model), RunConfig(model, data, voxel_size=0.05))})`
    """
    newest_runs = {name: newest(runs, name, config) for name, (_, config) in asked.items()}
    jobs: dict[str, Job] = {}
    campaign = new_campaign("together", [config for _, config in asked.values()])
    try:
        for name, record in newest_runs.items():
            print(f"{name}: from runs/{record.name}" if record else f"{name}: training now", flush=True)
            if record is None:
                jobs[name] = launch(*asked[name], run_dir=new_folder(runs, name), campaign=campaign)
        for name, job in jobs.items():
            if len(jobs) > 1:  # one after the other is told, all train at once
                print(f"{name}:", flush=True)
            job.wait(on_row=print_epoch)
    except BaseException:
        for job in jobs.values():
            job.cancel()
        raise
    return {name: record or jobs[name].record for name, record in newest_runs.items()}
