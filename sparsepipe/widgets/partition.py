"""The partition explorer: sliders for devices, links, workload, planner, schedule, cuts and pipelines, and the plan."""

import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets

from ..cluster import Cluster
from ..display.counting import number_of
from ..display.markup import Html
from ..display.words import OF_PIPELINES, OF_PLANS
from ..errors import InputError
from ..io.paths import expanded
from ..pipelines import Pipelines
from ..plan import Plan
from ..planners import PLANNERS, Problem
from ..planners.scale import Scale
from ..profile import Profile
from ..schedule_rules import WEIGHT_POLICIES, WEIGHT_RULES
from ..trace import Trace
from . import looks
from .controls import (
    bandwidth_slider,
    choice_slider,
    count_slider,
    dropdown,
    latency_slider,
    memory_slider,
    number_slider,
    toggle,
)
from .explorer_export import explorer_export
from .exporter import Export, Exporter
from .html_view import HtmlView
from .later import Later
from .messages import Messages
from .partition_view import NO_PLAN, PartitionView, graph_text
from .picture import picture
from .pipelines_choice import PipelinesChoice
from .pipelines_picture import compared, pipelines_export, pipelines_picture
from .pipelines_planning import Asked, PipelinesAnswer, PipelinesPlanning
from .placement import placement_told
from .plan_saver import Board, PlanSaver
from .planning import Answer, Planning
from .settings import AS_GIVEN, BY_TYPE, Settings
from .settled_button import SettledButton
from .shown import Shown
from .stage_editor import StageEditor, one_less, one_more
from .stages_per_device import StagesPerDevice
from .stop_slider import StopSlider
from .tips import with_tips
from .waiting_figures import WaitingFigures
from .words import explained

_MAX_DEVICES, _MOST_DEVICES = 8, 64  # where a slider ends, and what may be typed: planning more takes minutes
_MOST_MICROBATCHES, _MOST_SAMPLES = 1024, 10**6
_VOXEL_SIZES = (0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2)
_COMPRESSIONS = {"none": 1.0, "2 × (bfloat16)": 2.0, "4 × (int8)": 4.0}
_HANDOVER = 0.5  # seconds in which a thread that has changed a control comes to plan it
_PIN_CUTS = "keep the cuts: drag them, or move them with the arrow keys"
_PIN_DEVICES = "keep the devices of each stage: change them below"
_PAUSE, _PATIENCE = 0.25, 300.0  # seconds: from the last move until pipelines are planned; for which a click waits
_PLANNING = "the pipelines are being planned: a moment"
_OF_ONE = "this goes with one pipeline: move pipelines to 1"


class PartitionExplorer(Shown):
    """Sliders over a profile. `widget` is what to display.

    `plan` is the plan for what the controls say, None while that cannot be planned; `shown` is what the picture shows:
    the last plan that could be made, beside its settings. At first they are those of `cluster`, as given.
    Several pipelines are planned and simulated beside the page, a moment after the last move: `plan` is None until
    then, `current()` waits for it.
    `voxels_by_size`: mean active voxels of a sample at each voxel size, where they were counted.
    `figures`: where the export button writes to; `plans`: where plans are saved to. With a `board` the plan on screen
    can be opened there, to be launched.
    """

    def __init__(
        self,
        profile: Profile,
        cluster: Cluster,
        *,
        minibatches: int = 12,
        note: str = "",
        voxels_by_size: Mapping[float, float] | None = None,
        figures: Path | str = "figures",
        plans: Path | str = "plans",
        board: Board | None = None,
    ) -> None:
        _check(profile, cluster)
        self.profile, self.cluster, self.minibatches, self.note = profile, cluster, minibatches, note
        self.scale = Scale.of(profile, voxels_by_size)
        self.planning = Planning(profile, cluster, self.scale, minibatches=minibatches)
        self.together = PipelinesPlanning(self.planning)
        self.messages = Messages()
        self.shown: Answer | PipelinesAnswer | None = None
        self.refused = ""  # why what the controls say cannot be planned
        self._pinned: Answer | None = None  # a plan to compare with, beside the settings it was made for
        self.ends: list[int] = []
        self._serial, self._quiet = 0, True
        self._asked: Settings | None = None  # what was planned last, or refused, or is being planned
        self._pending = False  # whether several pipelines are being planned
        self._later: Later[Asked] = Later(self.messages.shown(self._plan_several), pause=_PAUSE, name="pipelines")
        self._lock = threading.Condition()  # the page's clicks come in one thread, cells run in another
        self.view = PartitionView()
        self.view.graph = graph_text(profile)
        self._make_controls(cluster)
        self._redraw = self.messages.shown(self.update)
        self.exporter = Exporter(self.messages, expanded(figures), self._figures, button=SettledButton(self.view))
        self.saver = PlanSaver(profile, self.view, self.messages, self.current, folder=expanded(plans), board=board)
        self.view.on_cut(self._cut_moved)
        self.view.on_copy(self.as_code)
        for control in [*self._controls(), *self.several.controls]:
            control.observe(self._changed, names="value")
        self.widget = with_tips(self._layout())
        self._quiet = False
        self._changed()

    @property
    def plan(self) -> Plan | Pipelines | None:
        """The plan for what the controls say; None while it cannot be planned, or is being planned."""
        return self.shown.plan if self.shown is not None and not (self.refused or self._pending) else None

    @property
    def problem(self) -> Problem:
        """What the plan in the picture was made for."""
        return self._last().problem

    @property
    def trace(self) -> Trace:
        """The simulated timeline in the picture."""
        return self._last().trace

    @property
    def shown_cluster(self) -> Cluster:
        """The devices of the plan in the picture."""
        return self._last().cluster

    def _last(self) -> Answer | PipelinesAnswer:
        if self.shown is None:
            raise InputError("explorer.no_plan", f"no plan could be made yet: {self.refused}")
        return self.shown

    @property
    def pinned(self) -> Plan | None:
        """The plan to compare with: A."""
        return self._pinned.plan if self._pinned is not None else None

    # --- Controls ---------------------------------------------------------------------------------------------------

    def _make_controls(self, cluster: Cluster) -> None:
        names = [device.type.name for device in cluster.devices]
        self.counts = {name: _device_slider(name, names.count(name)) for name in dict.fromkeys(names)}
        self.placement = dropdown("nodes", [AS_GIVEN, BY_TYPE], "where devices stand: on the nodes given, or regrouped")
        links = [node.link for node in cluster.nodes]
        within, between = "of the links within every node", "of the links between nodes"
        self.inside = bandwidth_slider("within a node", [link.bandwidth for link in links], f"bandwidth {within}")
        self.inside_latency = latency_slider("its latency", [link.latency for link in links], f"latency {within}")
        self.between = bandwidth_slider("between nodes", [cluster.network.bandwidth], f"bandwidth {between}")
        self.between_latency = latency_slider("their latency", [cluster.network.latency], f"latency {between}")
        self.placed = HtmlView(layout={"width": "330px"})
        self.memory = memory_slider("limit of every device; as given: of each type its own")
        sizes = sorted({*_VOXEL_SIZES, self.scale.voxel_size}) if self.scale else [1.0]
        batches = sorted({*(2**k for k in range(11)), self.scale.batch_size}) if self.scale else [1]
        law = f"voxels {self.scale.law}" if self.scale else ""
        batch_size = self.scale.batch_size if self.scale else 1
        self.batch_size = choice_slider("batch size", batch_size, batches, most=_MOST_SAMPLES, tip="of a minibatch")
        self.voxel_size = number_slider("voxel size", self.scale.voxel_size if self.scale else 1.0, sizes, law)
        self.compression = dropdown("compression", _COMPRESSIONS, "of the features that cross a boundary")
        self.planner = dropdown("planner", list(PLANNERS), "who chooses the stages")
        self.schedule = dropdown("schedule", list(WEIGHT_POLICIES), "the order of forwards and backwards")
        self.weights = dropdown("weights", WEIGHT_POLICIES["1f1b"], "which version a minibatch meets")
        count = 2 * len(names)
        tip = "of one step of a schedule that flushes"
        self.recompute = toggle("recompute", "run forwards again before backwards: slower, with less memory")
        self.microbatches = count_slider(
            "microbatches", count, low=1, high=max(64, count), most=max(_MOST_MICROBATCHES, count), tip=tip
        )
        self.stages_per_device = StagesPerDevice(num_layers=len(self.profile.graph.layers), num_devices=len(names))
        self.several = PipelinesChoice(num_devices=len(names), most=max(_MOST_DEVICES, 2 * len(names)))
        self.waiting: WaitingFigures | None = None  # made for the first several pipelines: it brings plotly to the page
        self.pin_cuts = toggle("pin cuts", _PIN_CUTS)
        self.pin_devices = toggle("pin devices", _PIN_DEVICES)
        self.editor = StageEditor(list(self.counts), self._changed)
        self.editor.more.on_click(self.messages.shown(lambda _: self._resize(1)))
        self.editor.less.on_click(self.messages.shown(lambda _: self._resize(-1)))
        self.pin = SettledButton(self.view, description="pin as A", icon="thumb-tack")
        self.unpin = looks.Button(description="forget A", tooltip="compare no more", disabled=True)
        self.pin.on_click(self.messages.shown(lambda _: self._pin(self.current())))
        self.unpin.on_click(self.messages.shown(lambda _: self._pin(None)))

    def _controls(self) -> list[Any]:
        """All whose value is a setting, in the order of the page, but those of several pipelines."""
        several = len(self.counts) > 1 or len(self.cluster.nodes) > 1
        links = [self.inside, self.inside_latency, *([self.between, self.between_latency] if several else [])]
        sparse = [self.batch_size, self.voxel_size] if self.scale else []
        chosen = [self.planner, self.schedule, self.weights, self.microbatches, self.stages_per_device.slider]
        chosen += [self.recompute, self.pin_cuts, self.pin_devices]
        nodes = [self.placement] if several else []
        return [*self.counts.values(), *nodes, *links, self.memory, *sparse, self.compression, *chosen]

    def _layout(self) -> ipywidgets.HBox:
        found = self._controls()
        split = found.index(self.memory) + 1
        end = found.index(self.planner)
        names = ("Devices and links", "Workload", "Plan", "Pipelines")
        heads = [HtmlView(Html("<b>{}</b>").format(text)) for text in names]
        toggles = looks.HBox([self.pin_cuts, self.pin_devices])
        chosen = [*found[end:-3], self.stages_per_device.note, self.recompute, toggles]
        column = [heads[0], *found[:split], self.placed, heads[1], *found[split:end], heads[2], *chosen]
        column += [self.editor.widget, heads[3], self.several.widget, looks.HBox([self.pin, self.unpin])]
        column += [self.saver.widget, self.exporter.widget]
        left = looks.VBox(column, layout={"flex": "0 0 350px", "overflow": "hidden"})
        words = HtmlView(explained({**OF_PLANS, **OF_PIPELINES}, schedules=True))
        self._beside = looks.VBox([])  # what several pipelines add to the picture
        views = [self.messages, self.view, self._beside, words]
        right = looks.VBox(views, layout={"flex": "1 1 420px", "min_width": "0"})
        return looks.HBox([left, right], layout=ipywidgets.Layout(flex_flow="row wrap"))

    def settings(self) -> Settings:
        """What the controls say now."""
        groups = tuple(tuple(group.items()) for group in self.editor.groups)
        return Settings(
            devices=tuple((name, slider.value) for name, slider in self.counts.items()),
            placement=self.placement.value,
            bandwidth=self.inside.value,
            latency=self.inside_latency.value,
            network_bandwidth=self.between.value,
            network_latency=self.between_latency.value,
            memory_bytes=self.memory.value or None,
            batch_size=self.batch_size.value if self.scale else None,
            voxel_size=self.voxel_size.value if self.scale else None,
            compression=self.compression.value,
            planner=self.planner.value,
            schedule=self.schedule.value,
            weights=self.weights.value,
            num_microbatches=1 if self.microbatches.disabled else self.microbatches.value,
            stages_per_device=self.stages_per_device.number,
            recompute=self.recompute.value,
            cuts=tuple(self.ends) if self.pin_cuts.value else None,
            stage_devices=groups if self.pin_devices.value else None,
            several=self.several.picked,
        )

    def _changed(self, change: Any = None) -> None:
        """One redraw for one change, whatever other controls follow from it."""
        with self._lock:  # a change from another thread waits, and is not lost
            if self._quiet:
                return
            self._quiet = True
            try:
                self._follow(change)
                self._redraw()
            finally:
                self._quiet = False
                self._lock.notify_all()

    def _follow(self, change: Any) -> None:
        """Let the other controls offer what goes with what was changed."""
        policies = WEIGHT_POLICIES[self.schedule.value]
        if self.weights.options != policies:
            self.weights.options = policies
        self.microbatches.disabled = not WEIGHT_RULES[policies[0]].updates_by_step
        self.weights.disabled = len(policies) == 1
        self._start_pinning(change)
        pinned = self.pin_cuts.value or self.pin_devices.value
        self.several.follow(change, pinned=pinned)
        self.stages_per_device.follow(self.planner, self.schedule, pinned=pinned)

    def _start_pinning(self, change: Any) -> None:
        """A toggle that was switched on keeps what the plan on screen has; it goes back where there is none."""
        if change is not None and change["owner"] in (self.pin_cuts, self.pin_devices):
            if self.plan is not None and isinstance(self.shown, Answer):
                self.ends = self.shown.ends
                self.editor.groups = [_group(stage.device_types) for stage in self.shown.plan.stages]
            elif change["new"]:
                change["owner"].value = False
        pinned = self.pin_cuts.value or self.pin_devices.value
        self.planner.disabled = pinned
        looks.show(self.editor.widget, on=pinned)

    def _resize(self, step: int) -> None:
        """One stage more, out of the one with the most layers, or one less, joined with its neighbour."""
        graph, groups = self.profile.graph, self.editor.groups
        if step > 0:
            num_layers = len(graph.layers) - len(graph.input_layers)
            counts = {name: slider.value for name, slider in self.counts.items()}
            self.ends, self.editor.groups = one_more(self.ends, groups, num_layers=num_layers, counts=counts)
        else:
            self.ends, self.editor.groups = one_less(self.ends, groups)
        self._changed()

    def _cut_moved(self, cut: int, at: int) -> None:
        if self.pin_cuts.value and cut < len(self.ends):
            self.ends[cut] = at
            self._changed()

    # --- The plan ---------------------------------------------------------------------------------------------------

    def current(self) -> Answer | PipelinesAnswer:
        """The plan for what the controls say now, beside its settings. Raises InputError while there is none."""
        with self._lock:
            if not self._lock.wait_for(lambda: self._asked == self.settings(), timeout=_HANDOVER):
                self._changed()
            if not self._lock.wait_for(lambda: not self._pending, timeout=_PATIENCE):
                raise InputError("explorer.planning", f"{_PLANNING}, and try again")
            if self.shown is None or self.refused:
                raise InputError("explorer.no_plan", NO_PLAN)
            return self.shown

    def update(self) -> None:
        """Plan and simulate what the controls say, and draw it. Raises InputError for a choice that cannot be.

        Until another choice can be planned the picture is then marked as that of the settings before, and nothing can
        be exported, copied or pinned. So it is while several pipelines are being planned.
        """
        with self._lock:
            self._asked = self.settings()
            self._pending = False
            self._later.drop()
            self.placed.value = _small(placement_told(self.cluster, self._asked))
            try:
                if self._asked.several is not None:
                    self._ask(self.together.asked(self._asked))
                    return
                answer = self._with_pins(self.planning.answer(self._asked))
                self._draw(answer)
            except BaseException as error:
                self._refuse(str(error) or type(error).__name__)
                raise
            self.shown, self._asked = answer, answer.settings
            self._refuse("")

    # --- Several pipelines ------------------------------------------------------------------------------------------

    def _ask(self, asked: Asked) -> None:
        """Have pipelines planned in a moment, and mark the picture until then."""
        if self.waiting is None:
            self.waiting = WaitingFigures()
            looks.show(self.waiting.widget, on=False)  # until there is something to show
            self._beside.children = (self.waiting.widget,)
        self._pending, self.refused = True, ""
        self.messages.hold("")
        self._mark(f"planning {number_of(asked.several.count, 'pipeline')}…", _PLANNING)
        self._later.ask(asked)

    def _plan_several(self, asked: Asked) -> None:
        """Plan, simulate and draw, unless the controls say something else by then; in a thread of its own."""
        try:
            answer = self.together.answer(asked)
            with self._lock:
                if self._pending and self._asked == asked.settings:
                    self._draw(answer)
                    self.shown, self._pending = answer, False
                    self._refuse("")
        except BaseException as error:
            with self._lock:
                if not (self._pending and self._asked == asked.settings):
                    return
                self._pending = False
                self._refuse(str(error) or type(error).__name__)
            raise
        finally:
            with self._lock:
                self._lock.notify_all()

    def _with_pins(self, answer: Answer) -> Answer:
        """Let what is pinned say what was chosen around it: cuts around devices, devices around cuts."""
        if not (self.pin_cuts.value or self.pin_devices.value):
            return answer
        self.ends = answer.ends
        groups = [_group(stage.device_types) for stage in answer.plan.stages]
        self.editor.show(groups, devices=self.pin_devices.value)
        return replace(answer, settings=self.settings())

    def _refuse(self, reason: str) -> None:
        """Mark the picture as old, with a reason, or as new without one."""
        self.refused = reason
        last = "no plan fits yet" if self.shown is None else f"last plan that fits: {self.shown.told()}"
        self.messages.hold(reason)
        self._mark(last if reason else "", NO_PLAN if reason else "")

    def _mark(self, stale: str, reason: str) -> None:
        """Say what an old picture is of, and let nothing act on it for that reason; without one, all that can.

        The picture is marked last: once a page shows that it is old, nothing beside it can be clicked any more.
        """
        if self.waiting is not None:
            self.waiting.fade(bool(stale))
        of_one = _OF_ONE if self.several.picked is not None else ""
        self.exporter.block(reason)
        self.saver.block(reason, of_one=of_one)
        self.pin.disabled = bool(reason or of_one)
        self.pin.tooltip = reason or of_one or "compare the next plans with it"
        several = self.stages_per_device.number > 1
        for one, tip in ((self.pin_cuts, _PIN_CUTS), (self.pin_devices, _PIN_DEVICES)):
            stuck = bool(reason or of_one) and not one.value  # what is pinned can be let go
            one.disabled, one.tooltip = several or stuck, (reason or of_one) if stuck else tip
        self.view.mark(stale, reason, pending=self._pending)

    def _draw(self, answer: Answer | PipelinesAnswer) -> None:
        """Show a plan, its numbers and what each rank does."""
        self._serial += 1
        if isinstance(answer, PipelinesAnswer):
            drawn = pipelines_picture(answer, note=self.note)
            assert self.waiting is not None
            self.waiting.show(compared(answer, note=self.note))
        else:
            batch_size = answer.settings.batch_size or self.profile.batch_size
            drawn = picture(answer, self._pinned, batch_size=batch_size, note=self.note)
        if self.waiting is not None:
            looks.show(self.waiting.widget, on=isinstance(answer, PipelinesAnswer))
        self.view.show({**drawn, "serial": self._serial})

    def _pin(self, answer: Answer | PipelinesAnswer | None) -> None:
        if isinstance(answer, PipelinesAnswer):
            raise InputError("explorer.of_one_pipeline", _OF_ONE)
        self._pinned = answer
        self.unpin.disabled = answer is None
        if self.shown is not None and not self._pending:
            self._draw(self.shown)

    def _figures(self) -> Export:
        """What the export button writes. Raises InputError while there is no plan."""
        answer = self.current()
        if isinstance(answer, PipelinesAnswer):
            return pipelines_export(answer, profile=self.profile, note=self.note)
        return explorer_export(answer, self._pinned, profile=self.profile, note=self.note)

    def as_code(self) -> str:
        """The cell that makes the plan again, given `profile`. Raises InputError while there is no plan."""
        return self.current().as_code()


def _device_slider(name: str, count: int) -> StopSlider:
    high, most = max(_MAX_DEVICES, 2 * count), max(_MOST_DEVICES, 2 * count)
    return count_slider(name, count, low=0, high=high, most=most, tip=f"how many {name} there are; {count} given")


def _small(text: str) -> str:
    return Html("<div style='font-size:12px;line-height:1.4'>{}</div>").format(text) if text else ""


def _check(profile: Profile, cluster: Cluster) -> None:
    for given, expected in ((profile, Profile), (cluster, Cluster)):
        if not isinstance(given, expected):
            kind = expected.__name__
            raise InputError(
                "explorer.value_kind",
                f"{given!r} given, expected a {kind}: {kind}.load(path) reads one",
                given=given,
                kind=kind,
            )
    for kind in cluster.device_types:
        if kind.name not in profile.device_types:
            raise InputError(
                "profile.no_device_type",
                f"the cluster has devices of type {kind.name!r}, the profile knows {', '.join(profile.device_types)}: "
                f"profile the model on a {kind.name}, or rename the profile with profile.renamed({kind.name!r})",
                name=kind.name,
            )


def _group(kinds: tuple[str, ...]) -> dict[str, int]:
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
