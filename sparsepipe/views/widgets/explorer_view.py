"""The right side of the partition explorer: pictures of a plan, and of the plan that it is compared with."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ...errors import InputError
from ...planning.simulator import PipelinePace, PipelinesForecast
from ...records.provenance import Provenance
from ...util.text.numbers import duration, gap_text, number_of, rate_text
from ...values.profile import Profile
from ...values.replication import rule_text
from ...values.stragglers import Stragglers
from ...values.trace import Trace
from .. import plots
from ..glossary import definitions
from ..plots.table import noted
from . import looks
from .exporter import Export, Figures
from .html_view import HtmlView, Messages, explained
from .partition_view import PartitionView, SettledButton, graph_text
from .picture import explorer_export, in_lines, picture
from .pipelines_planning import PipelinesAnswer
from .plan_picture import plan_figure, scene_of
from .planning import Answer
from .settings import MINIBATCHES
from .sizes import (
    AskedSizes,
    SizesForecasts,
    Superseded,
    refused_scene,
    sizes_figure,
    sizes_scene,
    sizes_settings,
    sizes_text,
)
from .stop_slider import StopSlider
from .view_model import bottleneck, chips, fullest_device, gap_tiles, layers, stages, timeline, with_words
from .waiting_figures import Compared, WaitingFigures, part_text

_HINT = "one strip per pipeline, layers in order, height proportional to time"
_WITHOUT = "as planned, without the straggler"


def pipelines_picture(answer: PipelinesAnswer, *, note: str) -> dict[str, Any]:
    """Return each pipeline's stages, the numbers of all together, and what each rank does."""
    pipelines, plans = answer.plan, answer.plan.pipelines
    drawn = [layers(plan, answer.problem) for plan in plans]
    return {
        "tiles": _tiles(answer),
        "why": _whys(answer),
        "notes": [*pipelines.all_warnings, *([note] if note else [])],
        "layers": drawn[0],
        "pipelines": [{"name": _name(answer, k), "layers": strip} for k, strip in enumerate(drawn)],
        "stages": with_words(row for k in range(len(plans)) for row in _stages(answer, k)),
        "try": None,
        "chips": chips(plans, answer.cluster),
        "names": {device.rank: device.type.name for device in answer.cluster.devices},
        "devices": len(answer.cluster.devices),
        "sized": any(answer.problem.profile.typical_sizes),
        "period": pipelines.estimate.period_seconds if pipelines.estimate else None,
        "bound": None,  # of all together: no line among the stages of one
        "before": None,
        "cuts": {"at": [], "movable": False, "blocked": [], "reasons": []},
        "hint": _HINT,
        "stages_are": f"bars without the straggler, {answer.forecast.counted}/s with it"
        if answer.stragglers.parts
        else "",
        "code": answer.as_code(),
        **_timeline(answer.forecast, len(plans)),
    }


def compared(answer: PipelinesAnswer, *, note: str) -> Compared:
    """Return the outcome of the rule with the straggler and without, to be drawn."""
    rule = rule_text(answer.plan.rule)
    whole = " · ".join(filter(None, [note, f"{number_of(len(answer.plan.pipelines), 'pipeline')}, simulated"]))
    free = (_outcome(answer.undisturbed, rule, Stragglers()),) if answer.stragglers.parts else ()
    return Compared(free, (_outcome(answer.forecast, rule, answer.stragglers),), rule, answer.forecast, whole)


def pipelines_export(answer: PipelinesAnswer, *, profile: Profile, note: str) -> Export:
    """Return the figures on screen, with the stages of each pipeline, and what their numbers rest on."""
    named = [replace(plan, planner=f"pipeline {k}") for k, plan in enumerate(answer.plan.pipelines)]
    whole = noted(note, profile.origin)
    told = in_lines(whole, answer.told())
    planned = f"{answer.settings.told(answer.cluster)} · {_WITHOUT}"
    of_stages = in_lines(whole, planned) if answer.stragglers.parts else told
    figures: Figures = {
        **compared(answer, note=note).figures(),
        "explorer_stages": (plots.stages(*named, note=of_stages), plots.stages_table(*named)),
        "explorer_timeline": (plots.timeline(answer.trace, note=told), plots.timeline_table(answer.trace)),
    }
    settings = answer.settings.to_json() | {"stragglers": str(answer.stragglers), "minibatches": len(answer.sizes)}
    return Export(figures, Provenance.of(profile, answer.cluster, answer.plan.pipelines, settings))


def _outcome(forecast: PipelinesForecast, rule: str, stragglers: Stragglers) -> plots.Outcome:
    return plots.Outcome.of(forecast.to_json()["replication"], rule=rule, stragglers=stragglers)


def _tiles(answer: PipelinesAnswer) -> list[list[str]]:
    """[what, value, explanation] of each number of all pipelines together."""
    told, free = answer.forecast, answer.undisturbed
    rule, who = rule_text(told.rule), answer.stragglers.clause()
    run = f"{number_of(len(answer.sizes), 'minibatch')}, including filling and draining"
    how = f"simulated, by {rule}, while {who or 'there is no straggler'}: {run}"
    found = [["together", rate_text(told.sum_of_paces, told.counted), how]]
    if who:
        paced = rate_text(free.sum_of_paces, free.counted)
        found.append(["without the straggler", paced, "same settings, no straggler"])
    alone = "throughput with this straggler, without synchronization stalls"
    found.append(["standalone", rate_text(told.own_pace, told.counted), alone])
    found += _promised(answer)
    sizes = ", ".join(f"{count} of {size}" for size, count in sorted(told.group_sizes.items()))
    mean = f"{told.mean_group_size:.1f} pipelines" if sizes else "no average yet"
    found.append(["group size", mean, f"number of averages by group size: {sizes or 'none'}"])
    late = ", ".join(f"{count} after {updates}" for updates, count in sorted(told.staleness.items()))
    what = "updates between a contribution and its average"
    mean = f"{told.mean_staleness:.1f} updates" if late else "no average yet"
    found.append(["staleness", mean, f"{what}: {late or 'none'}"])
    return [*found, fullest_device(answer.plan.pipelines, answer.cluster)]


def _promised(answer: PipelinesAnswer) -> list[list[str]]:
    """Predicted total throughput, and its optimality gap."""
    pipelines, found = answer.plan, []
    expected, rate = pipelines.estimate, pipelines.minibatches_per_second
    if expected and rate:
        what = f"default cost model, no straggler, no synchronization stalls: {duration(1 / rate)} per minibatch of all"
        found.append(["as predicted", rate_text(rate * (pipelines.samples or 1.0), pipelines.counted), what])
        if seconds := expected.data_parallel_seconds:
            what = "predicted, no straggler; data parallelism: all layers on every device, equal shares: "
            what += f"{duration(seconds)} per minibatch"
            found.append(["as predicted, over data parallelism", f"{seconds * rate:.2f} ×", what])
    if expected and expected.gap is not None:
        told = "predicted throughput compared with the bound; 0%: provably optimal for this number of pipelines"
        found.append(["optimality gap", gap_text(expected.gap), told])
    return found


def _whys(answer: PipelinesAnswer) -> str:
    told = " ".join(_why(answer, k) for k in range(len(answer.plan.pipelines)))
    return f"{told} These times are {_WITHOUT}." if answer.stragglers.parts else told


def _why(answer: PipelinesAnswer, k: int) -> str:
    """A sentence on the slowest stage of a pipeline."""
    plan = answer.plan.pipelines[k]
    cause, place, seconds = bottleneck(plan, answer.problem)
    name = plan.position_estimates[place].name
    what = {
        "compute": "its layers take",
        "averaging": "its gradient all-reduce takes",
        "transfer": "its transfers take",
    }
    return f"Pipeline {k}: {name} is the slowest: {what[cause]} {duration(seconds)} per minibatch."


def _name(answer: PipelinesAnswer, k: int) -> str:
    ranks = answer.plan.ranks_of(k)
    return f"pipeline {k} on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _paced(one: PipelinePace, counted: str) -> str:
    share = f", {one.samples_per_second / one.own_pace:.0%} of its standalone throughput" if one.own_pace else ""
    return f"{number_of(one.minibatches, 'minibatch')}, {part_text(one.samples_per_second)} {counted}/s{share}"


def _stages(answer: PipelinesAnswer, k: int) -> list[dict[str, Any]]:
    rows = stages(answer.plan.pipelines[k], answer.problem)
    head = f"{_name(answer, k)}: {_paced(answer.forecast.pipelines[k], answer.forecast.counted)}"
    return [{**row, **({"head": head} if place == 0 else {})} for place, row in enumerate(rows)]


def _timeline(forecast: PipelinesForecast, count: int) -> dict[str, Any]:
    """The ranks of each pipeline under its name; of many minibatches the first ones."""
    few = tuple(span for span in forecast.trace.spans if span.minibatch < count * MINIBATCHES)
    trace = Trace(few or forecast.trace.spans, "simulated")
    lanes: list[int | str] = []
    for k, ranks in enumerate(forecast.trace.facts["pipelines"]):
        lanes += [f"pipeline {k}", *ranks]
    drawn = timeline(trace, lanes)
    drawn["end"] = max((span.end for span in trace.spans), default=0.0)
    return drawn


OF_ONE = "available for one pipeline only: set pipelines to 1"


class ExplorerView:
    """Draws answers; `parts` are what to display, `serial` counts the pictures.

    `pinned`: the plan to compare with, A, with the settings it was made for.
    """

    def __init__(
        self, profile: Profile, messages: Messages, sliders: Mapping[str, tuple[str, StopSlider]], *, note: str
    ) -> None:
        self.profile, self.note, self.sliders, self.serial = profile, note, sliders, 0
        self.drawing = PartitionView()
        self.drawing.graph = graph_text(profile)
        self.sizes = SizesForecasts(profile)
        self.waiting: WaitingFigures | None = None  # made for the first several pipelines: it brings plotly to the page
        self.pinned: Answer | None = None
        messages.add_class("sp-messages")
        self.pin = SettledButton(self.drawing, description="set baseline A", icon="thumb-tack")
        self.unpin = looks.Button(description="clear baseline A", tooltip="stop comparing", disabled=True)
        self._beside = looks.VBox([])  # what several pipelines add to the picture
        self._beside.add_class("sp-beside")
        words = HtmlView(explained(definitions("Plans", "Pipeline replicas"), schedules=True))
        words.add_class("sp-glossary")
        self.parts = [self.drawing, messages, self._beside, words]  # of the explorer's grid

    def draw(self, answer: Answer | PipelinesAnswer, *, same_stages: bool = False) -> None:
        """Show a plan, its numbers and what each rank does. `same_stages`: as those that are shown."""
        self.serial += not same_stages
        if isinstance(answer, PipelinesAnswer):
            drawn = pipelines_picture(answer, note=self.note)
            self.await_pipelines().show(compared(answer, note=self.note))
        else:
            batch_size = answer.settings.batch_size or self.profile.batch_size
            drawn = picture(answer, self.pinned, batch_size=batch_size, note=self.note, sliders=self.sliders)
        if self.waiting is not None:
            looks.show(self.waiting.widget, on=isinstance(answer, PipelinesAnswer))
        self.drawing.show({**drawn, "serial": self.serial})

    def draw_gap(self, answer: Answer, bound: float) -> None:
        """Show the bound of a search that goes on, for the plan that is shown."""
        least = max(bound, answer.bound or 0.0)
        self.drawing.show_closing(gap_tiles(answer.plan, least, searching=True), self.serial)

    def await_pipelines(self) -> WaitingFigures:
        """Make room for the figures of several pipelines, hidden until there is something to show."""
        if self.waiting is None:
            self.waiting = WaitingFigures()
            looks.show(self.waiting.widget, on=False)
            self._beside.children = (self.waiting.widget,)
        return self.waiting

    def mark(self, stale: str, reason: str, *, of_one: str, pending: bool) -> None:
        """Say what an old picture is of, and why nothing acts on it; without a text that it is new.

        `of_one`: why no plan can be compared with it. The picture is marked last: once a page shows that it is old,
        nothing next to it can be clicked any more.
        """
        if self.waiting is not None:
            self.waiting.fade(bool(stale))
        self.pin.disabled = bool(reason or of_one)
        self.pin.tooltip = reason or of_one or "compare later plans with this one"
        self.drawing.mark(stale, reason, pending=pending)

    def compare_with(self, answer: Answer | PipelinesAnswer | None) -> None:
        """Compare the next plans with this one, or with none. Raises InputError for one of several pipelines."""
        if isinstance(answer, PipelinesAnswer):
            raise InputError("explorer.of_one_pipeline", OF_ONE)
        self.pinned = answer
        self.unpin.disabled = answer is None

    def draw_sizes(self, asked: AskedSizes, *, superseded: Callable[[], bool]) -> None:
        """Compare the orders of minibatches under a plan, and show that; nothing once `superseded` says so."""
        try:
            scene = sizes_scene(asked, self.sizes.forecast(asked, superseded))
        except InputError as error:
            scene = refused_scene(asked, error)
        except Superseded:
            return
        if not superseded():
            self.drawing.show_sizes(scene)

    def fade_sizes(self) -> None:
        """Mark what is shown of sizes as old."""
        self.drawing.show_sizes({**json.loads(self.drawing.sizes), "serial": -1})

    def figures(self, asked: AskedSizes, *, inches: float) -> Export:
        """Return what the export button writes of a plan, and of the orders of its minibatches if these are few.

        `explorer_view` is the view on screen, laid out for its width on paper.
        """
        answer = asked.answer
        if isinstance(answer, PipelinesAnswer):
            made = pipelines_export(answer, profile=self.profile, note=self.note)
        else:
            made = explorer_export(answer, self.pinned, profile=self.profile, note=self.note)
        if scene := scene_of(self.drawing.scene):
            network = self.profile.origin.get("model") or number_of(len(self.profile.graph.layers), "layer")
            view = plan_figure(
                scene,
                title=f"{network}, as planned",
                note=in_lines(noted(self.note, self.profile.origin), answer.told()),
                inches=inches,
                links=self.drawing.links,
            )
            table = plots.stages_table(*answer.plan.pipelines)
            made = Export({**made.figures, "explorer_view": (view, table)}, made.origin)
        try:
            forecast = self.sizes.forecast(asked)
        except InputError:  # which the picture says in place of the orders
            return made
        note = in_lines(noted(self.note, self.profile.origin), answer.told(), sizes_text(asked, forecast))
        figures = {**made.figures, "explorer_orders": sizes_figure(asked, forecast, note=note)}
        settings = {**made.origin.settings, "sizes": sizes_settings(asked, forecast)}
        return Export(figures, replace(made.origin, settings=settings))
