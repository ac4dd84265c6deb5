"""`Outcome`: the numbers of one replication rule under one straggler, simulated or of a run; figures compare them.

A rule is judged by what it learns from as much data, and in as much time: the loss by samples and by seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, cycle
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ...errors import InputError
from ...records import RunRecord
from ...records.campaigns import when
from ...records.provenance import Provenance
from ...values.replication import RULES, rule_from_json, rule_text
from ...values.stragglers import Stragglers
from ..markup import TIE, Html, figure_text
from .table import noted_of, of_readable, readable, record_names
from .theme import GREY, RUN_DASHES, finished, resting_on, tied

NOBODY = "no straggler"
# A rule has its colour in every figure; the one that all others are held against is grey. Further rules begin again.
_HUES = ("#004488", "#BB5566", "#DDAA33", "#66A182", "#8C6BB1", "#33BBEE")
_COLORS = dict(zip(RULES, chain([GREY], cycle(_HUES)), strict=False))


@dataclass(frozen=True)
class Outcome:
    """Result of a synchronization scheme under a straggler.

    Throughputs are samples per second of each pipeline replica.
    """

    rule: str  # as the command line takes it
    straggler: str  # in a few words; empty: nothing held anybody up
    source: str  # "simulated", "emulated" or "measured"
    paces: tuple[float, ...]
    own_paces: tuple[float, ...]  # of pipelines that wait for nobody else
    group_sizes: Mapping[int, int] = field(default_factory=dict)  # members of a merge → how many merges
    staleness: Mapping[int, int] = field(default_factory=dict)  # updates until a result is taken → how often
    lost_seconds: Mapping[str, float] = field(default_factory=dict)  # cause → seconds, of all pipelines together
    seed: int = 0
    run: str = ""  # the record it was read from
    counted: str = "samples"  # what paces count; "minibatches" if nobody knows how many samples one has

    @classmethod
    def of(
        cls,
        replication: Mapping[str, Any],
        *,
        rule: str = "",
        stragglers: Stragglers | None = None,
        source: str = "simulated",
        seed: int = 0,
        run: str = "",
    ) -> "Outcome":
        """Read "replication" of a simulation (`PipelinesForecast.to_json`) or of a run's summary."""
        pipelines = replication["pipelines"]
        lost: dict[str, float] = {}
        for one in pipelines:
            for cause, seconds in one.get("lost_seconds", {}).items():
                lost[cause] = lost.get(cause, 0.0) + seconds
        return cls(
            rule or rule_text(rule_from_json(replication)),
            stragglers.note() if stragglers else "",
            source,
            tuple(one["samples_per_second"] for one in pipelines),
            tuple(one["own_pace"] for one in pipelines),
            _counts(replication["group_sizes"]),
            _counts(replication["staleness"]),
            lost,
            seed,
            run,
            replication.get("counted", "samples"),
        )

    @classmethod
    def of_run(cls, record: RunRecord) -> "Outcome":
        """Read a finished run of several pipelines. Raises InputError for another run."""
        summaries = record.metrics("summary")
        rule = record.plan.replication
        if rule is None or not summaries or "replication" not in summaries[-1]:
            raise InputError(
                "run.not_finished",
                f"{record.folder}: is not a finished run of several pipelines ({record.status['state']}); choose "
                "another run",
            )
        found = cls.of(
            summaries[-1]["replication"],
            rule=rule_text(rule),
            source=record.workload.source,
            seed=record.config.get("seed", 0),
            run=record.name,
        )
        return replace(found, straggler=record.straggler_note, counted=record.counted)

    @property
    def samples_per_second(self) -> float:
        """Throughput of all pipelines: the sum of theirs, `sum_of_paces` of a simulation or a run."""
        return sum(self.paces)

    @property
    def own_pace(self) -> float:
        """Standalone throughput of all pipelines: without waiting for each other."""
        return sum(self.own_paces)


def outcomes_table(outcomes: Iterable[Outcome]) -> pd.DataFrame:
    """Return one row for each outcome. Raises InputError without outcomes."""
    rows = [
        {
            "rule": one.rule,
            "straggler": one.straggler or NOBODY,
            "source": one.source,
            "seed": one.seed,
            "run": one.run,
            "samples_per_second": one.samples_per_second,
            "own_pace": one.own_pace,
            "share_of_own_pace": one.samples_per_second / one.own_pace if one.own_pace else None,
            "slowest_pipeline": min(one.paces),
            "fastest_pipeline": max(one.paces),
            "mean_group_size": mean_of(one.group_sizes),
            "mean_staleness": mean_of(one.staleness),
        }
        for one in outcomes
    ]
    if not rows:
        raise InputError("plot.nothing", "no outcomes to draw; give at least one synchronization scheme")
    return pd.DataFrame(rows)


def rule_color(rule: str) -> str:
    """The colour of a rule, the same in every figure, whatever its options."""
    return _COLORS.get(rule.partition(":")[0], GREY)


def mean_of(counts: Mapping[int, int]) -> float:
    """The mean of what was counted; 0 of nothing."""
    total = sum(counts.values())
    return sum(value * count for value, count in counts.items()) / total if total else 0.0


def held_up(outcomes: Sequence[Outcome], note: str) -> str:
    """A figure's note with its stragglers, each once."""
    stragglers = dict.fromkeys(one.straggler or NOBODY for one in outcomes)
    return " · ".join([*filter(None, [note]), *stragglers])


def sourced(outcomes: Sequence[Outcome], note: str) -> str:
    """`held_up`, with where the numbers come from if all have one source: legends and names then do not say it."""
    sources = {one.source for one in outcomes}
    return held_up(outcomes, " · ".join(filter(None, [note, *(sources if len(sources) == 1 else ())])))


def in_lines(text: str, width: int) -> Html:
    """A text in lines of about so many characters, for a tick."""
    lines = [""]
    for word in tied(text).split(" "):
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return Html("<br>").join(figure_text(line.replace(TIE, " ")) for line in lines)


def _counts(given: Mapping[Any, int]) -> dict[int, int]:
    """Counts by whole numbers; JSON's keys are text."""
    return {int(value): count for value, count in sorted(given.items(), key=lambda item: int(item[0]))}


_WINDOWS = 15  # a line is a mean over so many-th a part of a run: minibatches differ


def losses_table(*records: RunRecord) -> pd.DataFrame:
    """Return one row for each minibatch of each run, in order of completion, with seconds since the first one.

    `smooth_loss` is the mean of the latest minibatches. A damaged run is omitted, with a warning. Raises InputError for
    a run without a loss.
    """
    found = of_readable(records, _rows)
    kept = [records[place] for place, _ in found]
    tables = []
    for name, record, (_, rows) in zip(_names(kept), kept, found, strict=True):
        table = pd.DataFrame(rows)
        table["seconds"] -= table.seconds.iloc[0]
        table["samples"] = table.samples.cumsum()
        table["smooth_loss"] = table.loss.rolling(max(1, len(table) // _WINDOWS), min_periods=1).mean()
        tables.append(table.assign(rule=name, straggler=straggler_of(record), run=record.name))
    return pd.concat(tables, ignore_index=True)


def losses(*records: RunRecord, note: str = "") -> go.Figure:
    """Draw the loss of each run by samples and by seconds."""
    records, left_out = readable(records, _rows)
    table = losses_table(*records)
    figure = make_subplots(rows=1, cols=2, shared_yaxes=True, horizontal_spacing=0.05)
    for k, (run, part) in enumerate(table.groupby("run", sort=False)):
        name = part.rule.iloc[0]
        looks = {"color": rule_color(name), "dash": RUN_DASHES[k % len(RUN_DASHES)], "width": 2}
        by_samples = Html("{}<br>%{{x:.0f}} samples: %{{y:.3f}}<extra></extra>")
        by_seconds = Html("{}<br>%{{x:.1f}} s: %{{y:.3f}}<extra></extra>")
        for col, x, hover in ((1, part.samples, by_samples), (2, part.seconds, by_seconds)):
            line = go.Scatter(
                x=x,
                y=part.smooth_loss,
                mode="lines",
                name=name,
                legendgroup=run,
                showlegend=col == 1,
                line=looks,
                hovertemplate=hover.format(name),
            )
            figure.add_trace(line, row=1, col=col)
    figure.update_yaxes(title_text="loss", rangemode="tozero", row=1, col=1)
    figure.update_yaxes(rangemode="tozero", row=1, col=2)
    figure.update_xaxes(title_text="samples, of all pipelines", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text="time since the first minibatch (s)", rangemode="tozero", row=1, col=2)
    figure.update_layout(
        showlegend=True, legend={"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top"}, margin={"b": 100}
    )
    text = noted_of(note, records)
    stragglers = dict.fromkeys(straggler_of(record) for record in records)
    told = " · ".join(filter(None, [text, *stragglers, when(records), left_out]))
    figure = finished(figure, "Loss by samples and by time", note=told, height=420)
    return resting_on(figure, Provenance.of(runs=records))


def _rows(record: RunRecord) -> list[dict[str, Any]]:
    rows = [row for row in record.metrics("step") if row.get("loss") is not None]
    if not rows:
        raise InputError(
            "run.no_loss", f"{record.folder}: no minibatch has a loss ({record.status['state']}); omit this run"
        )
    columns = ("minibatch", "seconds", "loss", "samples")
    return [{"pipeline": row.get("pipeline", 0), **{key: row[key] for key in columns}} for row in rows]


def _names(records: Sequence[RunRecord]) -> list[str]:
    """Each run by its rule; one without by its strategy."""
    plans = [record.plan for record in records]
    return [
        name if plan.replication is None else rule_text(plan.replication)
        for plan, name in zip(plans, record_names(records), strict=True)
    ]


def straggler_of(record: RunRecord) -> str:
    """Injected stragglers of a run, in a few words."""
    return record.straggler_note or NOBODY
