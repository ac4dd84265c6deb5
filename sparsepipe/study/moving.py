"""What disturbed runs say, by their records and in simulations: when an iteration took how long, what changes gave."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import pandas as pd

from ..monitoring.decision import faster_or_slower
from ..monitoring.drift import Watch
from ..monitoring.following import DECISIONS
from ..monitoring.simulated import simulate_replans
from ..monitoring.variants import variant as variant_of
from ..records import RunRecord
from ..util.io.files import read_numbered_rows
from ..util.text.numbers import as_measured, number_of
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from ..values.stragglers import Stragglers
from ..values.trace import WORK
from ..views import Table, table_markdown
from ..views.plots.system_bars import SystemBar
from ..views.tables import TIE
from .contention import came_and_went

_NEWEST = 20  # minibatches before one, with which its loss is drawn as a mean
_LEAST_TOLD = 0.005  # seconds of a gain: less is none
_NAMES = ("before the load", "under the load", "the whole run")
_BESIDE = _NAMES[1]
_SLOWER = 1.1  # times as long before the intruder came: less is not worth a word
Bars = Mapping[str, float]


@dataclass(frozen=True)
class Change:
    """One decision about a run's plan: what was expected of it and, where the plan changed, what it took."""

    variant: str
    minibatch: int  # before which it was decided
    changed_at: int | None  # the first minibatch under the new plan; None where the old one went on
    expected_gain_seconds: float
    expected_cost_seconds: float
    pause_seconds: float | None  # that the change really took
    moved_bytes: float | None
    measured_share: float | None  # by which minibatches became shorter; below 0: longer; None where nobody knows
    why: str


def iterations(record: RunRecord) -> list[tuple[int, float]]:
    """(minibatch, seconds from the end of the one before to its own) of a run, in the order in which they ended.

    Replicas of the last stage end a round of minibatches at about the same time: each has the round's mean. The first
    minibatch, or round, has nothing before it and is left out. Validations between epochs do not count (`_trained`).
    """
    ends = [row["seconds"] for row in _trained(record)]
    plans = record.plans
    begins = [min(first or 0, len(ends)) for first, _ in plans]
    iterations_found: list[tuple[int, float]] = []
    for (_, plan), begin, end in zip(plans, begins, [*begins[1:], len(ends)], strict=True):
        size = 1 if plan.members else plan.stages[-1].round
        for first in range(begin, end, size):
            last = min(first + size, end)
            if first:
                iterations_found += [
                    (k, (ends[last - 1] - ends[first - 1]) / (last - first)) for k in range(first, last)
                ]
    return iterations_found


def _trained(record: RunRecord) -> list[dict[str, Any]]:
    """Rows of a run's minibatches in the order in which they ended, by a clock that stands while the run validates.

    It stands from the last minibatch of an epoch that is validated to the row of the epoch, which is written after it:
    what earlier stages still do of that minibatch then, less than one iteration, does not count either.
    """
    return _by_training_clock(record)[0]


def _by_training_clock(record: RunRecord) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of minibatches (see `_trained`), and of the epochs that were validated, by the same clock."""
    steps = sorted(record.metrics("step"), key=lambda row: row["seconds"])
    epochs = [row for row in record.metrics("epoch") if row.get("validation")]
    stands = [
        (max((row["seconds"] for row in steps if row["seconds"] <= epoch["seconds"]), default=0.0), epoch["seconds"])
        for epoch in epochs
    ]

    def trained(row: dict[str, Any]) -> dict[str, Any]:
        return row | {"seconds": row["seconds"] - sum(end - begin for begin, end in stands if end <= row["seconds"])}

    return [trained(row) for row in steps], [trained(row) for row in epochs]


def moments(record: RunRecord) -> list[tuple[int, str]]:
    """(minibatch, what happened): an intruder that comes or goes, and each new plan as the layers of its stages.

    Shares of a stage's replicas stand in brackets: "37 (2:1)".
    """
    moments_found = [
        told for came, went in came_and_went(record) for told in ((came, "workload starts"), (went, "workload ends"))
    ]
    moments_found += [(first or 0, _stages(plan)) for first, plan in record.plans[1:]]
    return sorted(moments_found, key=lambda moment: moment[0])


def _stages(plan: Plan) -> str:
    if plan.members:
        return number_of(len(plan.pipelines), "pipeline")
    shares = [f" ({':'.join(map(str, stage.shares))})" if len(stage.ranks) > 1 else "" for stage in plan.stages]
    return ", ".join(f"{len(stage.layers)}{share}" for stage, share in zip(plan.stages, shares, strict=True))


def changes(variant: str, record: RunRecord) -> list[Change]:
    """Every decision about a run's plan, in order. Raises InputError for a file of them that is damaged."""
    path = record.folder / DECISIONS
    rows = [row for _, row in read_numbered_rows(path)] if path.exists() else []
    made: dict[int, Mapping[str, Any]] = {row["minibatch"]: row for row in record.metrics("replan")}
    gave = {row["minibatch"]: row["measured_share"] for row in rows if row.get("event") == "outcome"}
    changes_found: list[Change] = []
    for k, row in enumerate(rows):
        if row.get("event") != "decision":
            continue
        then = rows[k + 1] if k + 1 < len(rows) else {}
        first = then.get("minibatch") if row["changes"] and then.get("event") == "changed" else None
        real = made.get(first, {}) if first is not None else {}
        costs = row["predicted_cost"]["seconds"]
        changes_found.append(
            Change(
                variant,
                row["minibatch"],
                first,
                row["predicted_gain_seconds"],
                costs,
                real.get("pause_seconds"),
                real.get("moved_bytes"),
                gave.get(first),
                row["reason"],
            )
        )
    return changes_found


def changes_table(records: Mapping[str, RunRecord]) -> pd.DataFrame:
    """One row for each decision of each variant's run."""
    rows = [asdict(change) for variant, record in records.items() for change in changes(variant, record)]
    return pd.DataFrame(rows, columns=list(Change.__dataclass_fields__))


def changes_told(records: Mapping[str, RunRecord]) -> list[dict[str, str]]:
    """Considered repartitionings: one row of texts per decision, all with the same columns.

    "faster" and "slower" say by which share minibatches are shorter or longer, as the decisions' own words do.
    """
    every = (change for variant, record in records.items() for change in changes(variant, record))
    return [_told(change) for change in every if change.expected_cost_seconds > 0]


def changes_markdown(records: Mapping[str, RunRecord]) -> str:
    """The rows of `changes_told` as a table in Markdown, with what is foreign escaped."""
    rows = changes_told(records)
    if not rows:
        return "No other plan was considered."
    return table_markdown(Table([*rows[0]], [[*row.values()] for row in rows]))


def _told(change: Change) -> dict[str, str]:
    if change.changed_at is None:
        pause, measured = "not made", "–"
    else:
        pause = "not told" if change.pause_seconds is None else f"{as_measured(change.pause_seconds)} s"
        measured = "not known" if change.measured_share is None else faster_or_slower(change.measured_share)
    gains = change.expected_gain_seconds >= _LEAST_TOLD
    return {
        "replan": change.variant,
        "before minibatch": str(change.minibatch),
        "expected gain": f"{as_measured(change.expected_gain_seconds)} s" if gains else "none",
        "expected cost": f"{as_measured(change.expected_cost_seconds)} s" if gains else "–",  # of what nobody wants
        "pause": pause,
        "measured": measured,
        "why": change.why,
    }


def moving_text(
    still: Bars, moved: Bars, pauses: Sequence[float], *, names: tuple[str, str], early: bool = False
) -> str:
    """Gain of a repartitioned run compared with an unchanged one, in sentences of Markdown.

    `still`, `moved`: mean seconds of an iteration by the cases of `seconds_bars`; `pauses`: seconds of each change;
    `names`: of the two runs; `early`: whether the plan changed before the intruder came. Whether moving paid is
    reported for the whole run. Numbers that follow from others are those that a reader works out from what is shown.
    """
    base, other = (f"`{name}`" for name in names)
    before, beside, whole = _NAMES
    share = f"{moved[whole] / still[whole]:.0%}"
    text = f"Over the whole run {other} took **{share}** of the time of {base}"
    if not pauses:
        return f"{text}; its plan never changed."
    sign = (int(share[:-1]) > 100) - (int(share[:-1]) < 100)
    met = beside in still and beside in moved
    first, then = (round(each.get(beside, 0.0) * 1e3, 1) for each in (still, moved))
    helped = met and first - then > TIE * first
    verdict = (
        "repartitioning neither gained nor cost time here",
        "repartitioning did not pay off here",
        "repartitioning paid off here",
    )[sign]
    if sign < 0 and met and not helped:
        verdict = "repartitioning does not explain this difference"
    text += f", with {number_of(len(pauses), 'change')} of the plan: **{verdict}**."
    if met:
        pause = round(fmean(max(each, 0.0) for each in pauses) * 1e3)
        mean = " on average" if len(pauses) > 1 else ""
        text += f" Under the injected load a minibatch took {then:,.1f} ms instead of {first:,.1f} ms"
        if helped:
            count = max(1, round(pause / round(first - then, 1)))
            text += (
                f". A change of the plan took {pause:,} ms{mean}, as much time as {number_of(count, 'minibatch', ',')} "
            )
            text += "under the load save. Minibatches that are slow until the load is detected also cost time, and "
            text += "so does the change back."
            text += f" Without the load, {other} lost more than it saved under the load." if sign > 0 else ""
        else:
            little = "almost nothing" if first > then else "nothing"
            gained = f"; {other} was faster without the load, although repartitioning cannot gain there."
            lost = f": this saved {little}, and a change of the plan took {pause:,} ms{mean}."
            text += (".", lost, gained)[sign]
    if before in still and before in moved and moved[before] > _SLOWER * still[before]:
        text += f" Before the load, {other} took {moved[before] * 1e3:,.1f} ms per minibatch instead of "
        text += f"{still[before] * 1e3:,.1f} ms: the machine was slower in that run"
        text += ", or its plan, which had already changed." if early else "."
    return text


def samples_per_second(record: RunRecord) -> float:
    """Samples per second from the first minibatch's end to the last: with changes of the plan, not validations."""
    first, *rest = _trained(record)
    return sum(row["samples"] for row in rest) / (rest[-1]["seconds"] - first["seconds"]) if rest else 0.0


def devices_in_use(record: RunRecord) -> float:
    """Per cent of all processes' time in which they compute, by the trace, validations among it.

    Spans are of wall-clock time: what an intruder takes of a processor meanwhile counts as the process's own.
    """
    trace = record.trace()
    computed = sum(trace.seconds(rank, (*WORK, "evaluate")) for rank in trace.ranks)
    whole = len(trace.ranks) * trace.shown_seconds
    return 100 * computed / whole if whole else 0.0


def bars_of_runs(
    case: str, records: Mapping[str, Sequence[RunRecord]], value: Callable[[RunRecord], float]
) -> list[SystemBar]:
    """One bar for each variant; of several runs it is the mean of theirs, and knows the least and the most."""
    every = {variant: [value(record) for record in runs] for variant, runs in records.items() if runs}
    return [_bar(case, variant, values) for variant, values in every.items()]


def losses_by_seconds(records: Mapping[str, Sequence[RunRecord]]) -> dict[str, list[tuple[float, float]]]:
    """The training loss of each variant's first run, by seconds of training since its first minibatch's end.

    A point is the mean over a minibatch and those before it, some twenty at the most.
    """
    losses = {}
    for variant, (record, *_) in records.items():
        rows = [row for row in _trained(record) if row["loss"] is not None]
        means = (fmean(row["loss"] for row in rows[max(0, k - _NEWEST) : k + 1]) for k in range(len(rows)))
        losses[variant] = list(zip((row["seconds"] - rows[0]["seconds"] for row in rows), means, strict=True))
    return losses


def accuracies_by_seconds(records: Mapping[str, Sequence[RunRecord]]) -> dict[str, list[tuple[float, float]]]:
    """Validation accuracy (%) after each epoch of each variant's first run, by seconds as `losses_by_seconds` has them.

    Nothing of a run that validates nothing, or whose validations have no accuracy.
    """
    accuracies = {}
    for variant, (record, *_) in records.items():
        steps, epochs = _by_training_clock(record)
        accuracies[variant] = [
            (row["seconds"] - steps[0]["seconds"], 100 * row["validation"]["accuracy"])
            for row in epochs
            if row["validation"].get("accuracy") is not None
        ]
    return accuracies


def learning_by_seconds(
    loads: Mapping[str, Mapping[str, Sequence[RunRecord]]],
) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """Panels of `plots.learning_curves`: accuracies under each intruder, and losses under the last of them."""
    *_, last = loads
    panels = {
        f"{load} workload (validation accuracy, %)": accuracies_by_seconds(records) for load, records in loads.items()
    }
    return panels | {f"{last} workload (training loss)": losses_by_seconds(loads[last])}


def seconds_bars(records: Mapping[str, Sequence[RunRecord]]) -> list[SystemBar]:
    """Mean seconds of an iteration of each variant: before the first visit, during visits, and over the whole run.

    Of several runs of a variant each bar is the mean of theirs, and knows the least and the most.
    """
    bars = []
    for variant, runs in records.items():
        every = [_mean_seconds(record) for record in runs]
        for name in _NAMES:
            if seconds := [bar[name] for bar in every if name in bar]:
                bars.append(_bar(name, variant, seconds))
    return bars


def bars_by_load(loads: Mapping[str, Mapping[str, Sequence[RunRecord]]]) -> list[SystemBar]:
    """Mean seconds of an iteration while each intruder ran: a case a load, a bar a variant (`seconds_bars`)."""
    return [
        replace(bar, case=f"{load} workload")
        for load, records in loads.items()
        for bar in seconds_bars(records)
        if bar.case == _BESIDE
    ]


def _bar(case: str, variant: str, values: Sequence[float]) -> SystemBar:
    ends = (min(values), max(values)) if len(values) > 1 else (None, None)
    return SystemBar(case, variant, fmean(values), "ours", *ends)


def _mean_seconds(record: RunRecord) -> dict[str, float]:
    """Mean seconds of an iteration of a run, by the parts of it that there are."""
    series, visits = iterations(record), came_and_went(record)
    first = visits[0][0] if visits else len(series) + 1
    groups = (
        [seconds for at, seconds in series if at <= first],
        [seconds for at, seconds in series if any(came < at <= went for came, went in visits)],
        [seconds for _, seconds in series],
    )
    return {name: fmean(group) for name, group in zip(_NAMES, groups, strict=True) if group}


def whole_run_seconds(record: RunRecord) -> float:
    """Mean seconds of an iteration over the whole run, from the first minibatch's end to the last one's."""
    return _mean_seconds(record)[_NAMES[-1]]


def simulated_stays(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    stays: Sequence[int],
    *,
    minibatches: int,
    factor: float = 2.0,
    variants: Sequence[str] = ("never", "live"),
) -> pd.DataFrame:
    """Simulate runs whose last rank takes `factor` times as long for so many minibatches, from a quarter of a run on.

    One row for each stay and variant: the run's seconds, and how often its plan changed. Raises InputError for a
    variant or a factor that is none.
    """
    first, rank = minibatches // 4, max(plan.ranks)
    sizes = [profile.typical_sizes[k % len(profile.typical_sizes)] for k in range(minibatches)]
    rows = []
    for stay in stays:
        slow = Stragglers.parse(f"slow:rank={rank},factor={factor},from={first},to={first + stay}")
        for name in variants:
            watch = Watch(profile, cluster, plan, simulated=True)
            forecast = simulate_replans(
                plan, profile, cluster, sizes, variant=variant_of(name), watcher=watch, stragglers=slow
            )
            rows.append({"stay": stay, "variant": name, "seconds": forecast.seconds, "changes": len(forecast.changes)})
    return pd.DataFrame(rows, columns=["stay", "variant", "seconds", "changes"])
