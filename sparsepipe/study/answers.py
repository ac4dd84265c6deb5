"""What answers of several notebooks say of a pace that is not the one that was predicted."""

from collections.abc import Mapping, Sequence

import pandas as pd

from ..records import RunRecord
from ..records.provenance import in_few_words
from ..util.text.counting import number_of
from ..util.text.numbers import alike, as_measured, duration, rate_text
from ..values.plan import Plan
from ..values.schedule import compile_until_steady
from ..views import Table, table_markdown
from ..views.markup import markdown_text
from ..views.names import TIE
from ..views.plots import throughput_table
from ..views.plots.table import ONE_PROCESS
from ..views.ties import EXACT

_NEAR = 0.1  # a share of what was predicted: a pace that is nearer needs no reason
_IDLE = 0.1  # a share of the time of the stage that works longest: less is not worth a word


def minibatches_in_flight(plan: Plan) -> int:
    """Return how many minibatches the first stage has begun and not ended at most, all its replicas together."""
    program = compile_until_steady(plan)
    return sum(program.in_flight(0, rank) for rank in plan.stages[0].ranks)


def explain_waiting(plans: Sequence[Plan], seconds: Mapping[str, float]) -> str:
    """Say which plans do not keep their period when simulated as they have too few minibatches in flight.

    `seconds`: of a minibatch of each planner's plan as simulated. A plan waits where it is slower than its period by
    more than a tenth, and another plan, of the same stages on the same devices, is faster by a twentieth or more and
    has more in flight. Empty if none does.
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
    """Return a `throughput_table` as a table in Markdown: paces by strategy, measured and predicted, in samples/s.

    And how many times as fast as the first each is, and the `validation_accuracy` where the table has one.
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
    """Say which plan of a `throughput_table` is predicted more than as many times as fast as one process as it has.

    No plan is by itself: its profile was measured with other processes at work, that of one process alone, and they
    differ. The plan that is farthest above is reported, with both paces, in a sentence that follows others; empty if
    none is.
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
    """Say how fast a run was compared with its plan's prediction and, if they differ, what its record knows of why.

    As Markdown: "1,769 samples/s, 54% of the 3,279 that its plan predicts: …". Other load of the machine is reported
    for every run that had some: as a reason of one that is too slow, as a doubt of any other. Raises InputError for a
    run without a summary.
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
