"""Reuse finished runs that trained the same plan under the same settings, and launch those that are missing.

Emulations are reused, too: real processes that sleep for the profiled times.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import DamagedRecord, InputError
from ..launching import Job, launch
from ..launching.run_folders import folders, new_folder
from ..networks import network
from ..records import RunRecord
from ..records.campaigns import MOST_APART, campaign_began, made_for, new_campaign, when
from ..records.provenance import in_few_words, plan_digest
from ..runtime.config import RunConfig
from ..util.io.fields import integer
from ..util.text.numbers import alike, as_measured, duration, number_of, pace_text, rate_text, validation_text
from ..values.cluster import Cluster
from ..values.plan import Plan, Stage
from ..values.profile import Profile
from ..values.schedule import compile_until_steady
from ..views import Table, table_markdown
from ..views.markup import TIE, markdown_text
from ..views.plots import throughput_table
from ..views.plots.table import ONE_PROCESS
from ..views.tables import EXACT
from .executed import report

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
    force: bool = False,
) -> tuple[str, dict[str, RunRecord | None]]:
    """Find the newest experiment (comparable runs) under these settings, and its finished run of each plan.

    Args:
        runs: Folder of the run directories, such as `Workplace.runs`.
        plans: Name → plan. Runs are called MODEL-NAME.
        config: Settings that all runs share.
        rests_on: Profiles and clusters that the plans were made from.
        force: Whether to begin a new experiment, in which all plans are trained again.

    Returns:
        The experiment's name, for `launch(…, campaign=…)`, and the record of each plan. None: no finished run.
    """
    settings = [config.to_json(), *(value.digest for value in rests_on)]
    asked = {f"{config.model}-{name}": (plan, config) for name, plan in plans.items()}
    campaign, campaign_found = (None, {}) if force else kept_campaign(runs, asked, settings)
    began = campaign is not None
    campaign = campaign or new_campaign(config.model, settings)
    print(f"campaign {campaign}: {when(campaign_found.values()) if began else 'begins now'}", flush=True)
    for record in campaign_found.values():
        print(f"from runs/{record.name}", flush=True)
    return campaign, dict(zip(plans, map(campaign_found.get, asked), strict=True))


def print_epoch(row: Mapping[str, Any]) -> None:
    """Print throughput and validation accuracy at the end of each epoch: `job.wait(on_row=print_epoch)`.

    The batch that executes a notebook receives the rows as well, to show "epoch 3 of 4".

    Args:
        row: A row of the run's metrics, as `Job.wait` passes it. Only the ends of epochs are printed.
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
    """Train every plan under its configuration, all at the same time. Finished runs are reused.

    If a run fails, or the cell is interrupted, the others are cancelled. Each run has its own folder. Loss and accuracy
    are printed after each epoch.

    Args:
        runs: Folder of the run directories, such as `Workplace.runs`.
        asked: Name of the run → its plan and its settings. A finished run of this name and these settings is reused.

    Returns:
        The record of each run, by name.

    Raises:
        InputError: A plan that does not fit its network, or contradictory settings.
        RunFailed: A run that ended with an error.

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


_NEAR = 0.1  # a share of what was predicted: a pace that is nearer needs no reason
_IDLE = 0.1  # a share of the time of the stage that works longest: less is not worth a word


def minibatches_in_flight(plan: Plan) -> int:
    """Return how many minibatches the first stage has begun and not ended at most, all its replicas together."""
    program = compile_until_steady(plan)
    return sum(program.in_flight(0, rank) for rank in plan.stages[0].ranks)


def explain_waiting(plans: Sequence[Plan], seconds: Mapping[str, float]) -> str:
    """Name the plans that are slower than estimated when simulated, because too few minibatches are in flight.

    A plan is named if its simulated time per minibatch (`seconds`, by planner) exceeds its estimate by more than 10 %.
    In addition, another plan of the same stages and devices must have more minibatches in flight and be at least 5 %
    faster. Empty: there is none.
    """
    texts = []
    for plan in plans:
        if plan.estimate is None or seconds[plan.planner] <= (1 + _NEAR) * plan.estimate.period_seconds:
            continue
        in_flight = minibatches_in_flight(plan)
        alike = (other for other in plans if _shape(other) == _shape(plan))
        faster = [pair for pair in alike if seconds[pair.planner] < seconds[plan.planner] / (1 + _NEAR / 2)]
        deeper = [(count, pair.planner) for pair in faster if (count := minibatches_in_flight(pair)) > in_flight]
        if deeper:
            most, who = max(deeper)
            texts.append(
                f"Simulated, **{markdown_text(plan.planner)}** takes {duration(seconds[plan.planner])} in place of "
                f"{duration(plan.estimate.period_seconds)}: it has at most {number_of(in_flight, 'minibatch')} in "
                f"flight, too few to hide averaging and transfers, where {markdown_text(who)} has {most} with the same "
                "stages."
            )
    return " ".join(texts)


def _shape(plan: Plan) -> tuple[object, ...]:
    return plan.schedule, tuple((stage.layers, stage.ranks, stage.shares) for stage in plan.stages)


def throughput_markdown(speeds: pd.DataFrame) -> str:
    """Return a `throughput_table` as a Markdown table: measured and predicted throughput by strategy, in samples/s.

    It also contains the speed-up over the first strategy, and `validation_accuracy` if the table has it.
    """
    measured, predicted = speeds.samples_per_second, speeds.predicted_samples_per_second.astype(float)
    form = alike([*measured, *predicted], 3)
    columns = {
        "strategy": speeds.strategy,
        "measured (samples/s)": map(form, measured),
        "predicted (samples/s)": ("–" if pace != pace else form(pace) for pace in predicted),
        f"over {speeds.strategy.iloc[0]}": (f"{times:.2f} ×" for times in speeds.speedup_over_first),
    }
    if "validation_accuracy" in speeds:
        reached = speeds.validation_accuracy.astype(float)
        columns["validation accuracy"] = ("–" if share != share else f"{share:.1%}" for share in reached)
    return table_markdown(Table([*columns], [*zip(*columns.values(), strict=True)]))


def explain_prediction(speeds: pd.DataFrame) -> str:
    """Name the plan whose predicted speed-up is above its number of processes, and the reason.

    The profile of a plan was measured while other processes ran, that of one process alone, and the two differ. The
    sentence contains both throughputs and follows other sentences. Empty: there is no such plan.
    """
    alone = speeds[speeds.processes == 1].predicted_samples_per_second.dropna()
    if alone.empty:
        return ""
    alone_pace = float(alone.iloc[0])
    times = speeds.predicted_samples_per_second.astype(float) / alone_pace
    above = (times / speeds.processes).where(speeds.processes > 1)
    if not above.max() > 1 + EXACT:
        return ""
    row = speeds.loc[above.idxmax()]
    predicted = rate_text(row.predicted_samples_per_second)
    return (
        f" For {markdown_text(row.strategy)} {predicted} are predicted, more than {row.processes} times the "
        f"{as_measured(alone_pace)} of {ONE_PROCESS}: layers were measured beside other processes for it and alone for "
        f"{ONE_PROCESS}, and took less time beside others."
    )


def explain_throughput(record: RunRecord) -> str:
    """Compare the throughput of a run with the prediction of its plan, and list the recorded causes of a difference.

    The result is Markdown: "1,769 samples/s, 54% of the 3,279 that its plan predicts: …". Other load of the machine is
    reported for every run: as a cause if the run is too slow, else as a doubt. Raises InputError for a run without a
    summary.
    """
    row = throughput_table(record).iloc[0]
    measured, predicted = row.samples_per_second, row.predicted_samples_per_second
    measured_text = rate_text(measured)
    if predicted is None or predicted != predicted:
        return f"{measured_text}; its plan predicts nothing"
    measured_text += f", {measured / predicted:.0%} of the {as_measured(predicted)} that its plan predicts"
    explained = len(record.pipelines) == 1 and measured and abs(measured / predicted - 1) > _NEAR
    loads = record.background_load.doubts()
    if loads and not (explained and measured < predicted):  # load explains a slow run, and makes others doubtful
        measured_text += f" (doubtful: while it ran, {' and '.join(loads)})"
    if not explained:
        return measured_text
    return f"{measured_text}: {'; '.join(_reasons(record, record.config['batch_size'] / measured))}"


def _reasons(record: RunRecord, period: float) -> list[str]:
    """Causes in a record of an unpredicted `period` (seconds per minibatch), the largest share first."""
    plan, stages = record.plan.one(), record.metrics("summary")[-1].get("stages", ())
    reasons = []
    if stages and plan.estimate is not None:
        worked = {row["stage"]: row["busy_fraction"] + row.get("average_fraction", 0.0) for row in stages}
        longest = max(worked, key=lambda stage: worked[stage])
        expected = plan.estimate.stages[longest]
        predicted, took = expected.compute_seconds + expected.averaging_seconds, worked[longest] * period
        times = f" ({took / predicted:.2f}{TIE}×)" if predicted else ""
        which = f"stage {longest}, which works longest," if len(plan.stages) > 1 else "its only stage"
        reasons.append(f"{which} takes {duration(took)} per minibatch where its plan says {duration(predicted)}{times}")
        together = next(position for position in plan.positions if longest in position)  # on the same devices
        if (idle := 1 - sum(worked.get(stage, 0.0) for stage in together)) > _IDLE:
            reasons.append(f"{idle:.0%} of the time it waits, sends or loads")
    if plan.estimate is None or period > plan.estimate.period_seconds:  # load explains no run that is too fast
        loads = record.background_load.doubts()
        reasons += [f"while it ran, {' and '.join(loads)}"] if loads else ["no other load was noticed while it ran"]
    return [*reasons, *(markdown_text(in_few_words(warning)) for warning in plan.warnings)]


def digest(settings: Sequence[Any]) -> str:
    """A short name for settings: the same ones give the same name."""
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:10]


def _finished(folder: Path) -> bool:
    """Return whether a finished emulation exists; a damaged one is reported and ignored."""
    try:
        return (folder / "status.json").exists() and RunRecord(folder).status["state"] == "finished"
    except DamagedRecord as error:
        print(f"passed over: {error}", flush=True)
        return False


def emulated(
    runs: Path,
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    minibatches: int,
    *,
    stragglers: str = "",
    seed: int = 0,
) -> RunRecord:
    """Run a plan by real processes that sleep for the profiled times instead of computing.

    Messages, averages and waits are real, and many devices fit on few cores. A finished emulation of the same plan,
    costs, cluster, stragglers and seed is reused.

    Args:
        runs: folder of the run directories, such as `Workplace.runs`.
        plan: a plan of one pipeline or of pipeline replicas.
        profile: seconds and bytes of each layer, for the device types of `cluster`.
        cluster: the devices and links that are emulated.
        minibatches: how many go through the pipeline.
        stragglers: injected slowdowns, as `sparsepipe train --inject` takes them; "": none.
        seed: of random choices of the synchronization scheme and of the stragglers.

    Returns:
        The record of the finished run.

    Raises:
        InputError: a plan that does not fit profile and cluster.
        RunFailed: a process that ended with an error.

    Example:
        `emulated(place.runs, plan, profile, cluster, 40).metrics("summary")[-1]`
    """
    facts = [plan_digest(plan), profile.digest, cluster.digest, minibatches]
    called, samples = plan.planner, profile.batch_size or 1
    said = called if len(plan.stages) == 1 else f"{called} ({plan.schedule})"
    if plan.replication is not None:
        called = said = plan.replication.name
        samples = max(1, int(plan.samples or 1))
    facts += [samples, stragglers, seed]
    folder = runs / f"replay-{called}-{len(plan.ranks)}-{digest(facts)}"
    if _finished(folder):
        print(f"emulation of {said} on {number_of(len(plan.ranks), 'device')}: from runs/{folder.name}")
        return RunRecord.load(folder)
    number = 0
    while folder.exists():  # one that did not finish stays as it is
        number += 1
        folder = folder.with_name(f"{folder.name.split('+')[0]}+{number}")
    sleep = "sleeps" if len(plan.ranks) == 1 else "sleep"
    print(
        f"emulation of {said}: {number_of(len(plan.ranks), 'process')} {sleep} through "
        f"{number_of(minibatches, 'minibatch')}"
    )
    config = RunConfig("replay", "replay", engine="replay", batch_size=samples, minibatches=minibatches, seed=seed)
    config = config.replace(stragglers=stragglers or None)
    job = launch(plan, config, run_dir=folder, profile=profile, cluster=cluster)
    job.wait()
    return job.record
