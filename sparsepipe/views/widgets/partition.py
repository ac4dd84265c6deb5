"""The partition explorer: sliders for devices, links, workload, planner, schedule, cuts and pipelines, and the plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ipywidgets

from ...errors import InputError
from ...planning import PlanProgress, Problem
from ...planning.scale import Scale
from ...util.io.files import expanded
from ...util.text.numbers import number_of
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.profile import Profile
from ...values.trace import Trace
from ..markup import Html
from . import looks
from .candidates import Candidates, CandidatesPanel
from .controls import Shown, folded, with_tips
from .explorer_controls import ExplorerControls
from .explorer_page import PAGE_MINIBATCHES, PageGrid, explorer_page, write_page
from .explorer_view import OF_ONE, ExplorerView
from .exporter import Exporter, LaunchTarget, PlanSaver
from .html_view import HtmlView, Messages
from .labs import Lab, LabMenu
from .partition_view import NO_PLAN, SettledButton
from .pipelines_planning import PLANNING, AskedSettings, Later, PipelinesAnswer, PipelinesPlanning, PlanOnScreen
from .planning import Answer, Planning, unless
from .settings import map_of
from .sizes import AskedSizes

_HANDOVER = 0.5  # seconds in which a thread that has changed a control comes to plan it
_PAUSE = 0.25  # seconds from the last move until what takes longer is begun


@dataclass(frozen=True)
class ExplorerOptions:
    """Arguments of the explorer that hold for every lab; `voxels_by_size` for the profile given alone."""

    note: str
    voxels_by_size: Mapping[float, float]
    minibatches: int
    figures: Path
    plans: Path
    board: LaunchTarget | None


class PartitionExplorer(Shown):
    """Partitions a network over a cluster as sliders move; the last line of a notebook's cell shows it.

    `plan` is the plan for the present settings, None while they cannot be planned. `shown` is the last plan that could
    be made, with its settings. Several pipelines are planned in the background, a moment after the last move: `plan`
    is None until then, and `current()` waits for it.

    Args:
        profile: Costs of the network's layers; without a profile and a cluster, the first lab of the menu is opened.
        cluster: Devices and links at first.
        minibatches: Number of minibatches in the timeline.
        note: Text above the picture.
        voxels_by_size: Mean number of active voxels of a sample at each voxel size, if they were counted.
        figures: Folder for exported figures.
        plans: Folder for saved plans.
        board: Launch board that opens the plan on screen.

    Raises:
        InputError: The profile lacks a device type of the cluster, or a value is of another kind.

    Example:
        >>> explorer = sp.widgets.PartitionExplorer()
        >>> print(f"{len(explorer.plan.ranks)} devices")
        4 devices

    See also:
        guides/explorer_and_board, `Plan`, `partition`
    """

    def __init__(
        self,
        profile: Profile | None = None,
        cluster: Cluster | None = None,
        *,
        minibatches: int = 24,
        note: str = "",
        voxels_by_size: Mapping[float, float] | None = None,
        figures: Path | str = "figures",
        plans: Path | str = "plans",
        board: LaunchTarget | None = None,
    ) -> None:
        given = None if profile is None and cluster is None else Lab.of(profile, cluster)
        self.messages = Messages()
        self.labs = LabMenu(given, self.messages, self.open)
        self._options = ExplorerOptions(
            note, voxels_by_size or {}, minibatches, expanded(figures), expanded(plans), board
        )
        self.later: Later[AskedSettings] = Later(
            self.messages.shown(self._plan_several), pause=_PAUSE, name="pipelines"
        )
        self.gap_later: Later[Answer] = Later(self.messages.failing(self._close_gap), pause=_PAUSE, name="gap")
        self.sizes_later: Later[AskedSizes] = Later(
            self.messages.failing(self._draw_sizes), pause=_PAUSE, name="orders"
        )
        self.widget = looks.VBox([], layout=ipywidgets.Layout())
        self.widget.add_class("sp-explorer")
        self.open(self.labs.lab)

    def _display_(self) -> ipywidgets.DOMWidget:
        """Return the part that marimo can show, which takes an anywidget but no ipywidgets: all except the sliders."""
        return self.view.drawing

    def open(self, lab: Lab) -> None:
        """Show another lab: its network, its devices, and controls for these. Raises InputError if it has no costs."""
        profile, cluster, options = lab.profile, lab.cluster, self._options
        voxels = options.voxels_by_size if lab is self.labs.lab else None  # they are of the profile given
        scale = Scale.of(profile, voxels)
        self.later.drop()
        self.gap_later.drop()
        self.sizes_later.drop()
        planning, others = (Planning(profile, cluster, scale, minibatches=options.minibatches) for _ in range(2))
        self.state = PlanOnScreen(planning)
        self.controls = ExplorerControls(profile, cluster, scale, self.messages, self.changed)
        self.view = ExplorerView(profile, self.messages, self.controls.sliders, note=options.note)
        self.panel = CandidatesPanel(Candidates(others), self.controls, self.view, self.messages)
        drawing, shown = self.view.drawing, self.messages.shown
        drawing.on_cut(shown(self._move_cut))
        drawing.observe(shown(self._let_swap), names="swap")
        drawing.on_copy(self.as_code)
        drawing.on_step(shown(self._step))
        drawing.on_candidate(shown(self._choose), shown(lambda part: self.panel.toggle(part, self.shown)))
        self.view.pin.on_click(shown(lambda _: self._pin(self.current())))
        self.view.unpin.on_click(shown(lambda _: self._pin(None)))
        self.exporter = Exporter(
            self.messages,
            options.figures,
            lambda: self.view.figures(self._asked_sizes(self.current()), inches=self.exporter.width.value),
            button=SettledButton(drawing),
        )
        self.saver = PlanSaver(profile, drawing, self.messages, self.current, folder=options.plans, board=options.board)
        self.controls.stages.pin_devices.observe(lambda change: self._tell_swap(not change["new"]), names="value")
        for control in self.controls.every:
            control.observe(self.changed, names="value")
        for control in self.controls.sizes.controls:
            control.observe(self._sizes_changed, names="value")
        grid = with_tips(self._grid(lab))
        self.state.begin()
        self.changed()
        self.widget.children = (grid,)

    def _grid(self, lab: Lab) -> ipywidgets.Box:
        """A header, the picture's parts and the controls: explorer.css says what stands where."""
        title = HtmlView(Html("<b>{}</b> on").format(lab.network))
        title.add_class("sp-title")
        gap = looks.Label()
        gap.add_class("sp-gap")
        more = looks.VBox([self.saver.widget, self.exporter.widget])
        more.add_class("sp-more")
        button = folded("⋯", "shows where plans are saved, and what exports figures", more)
        header = looks.HBox([title, self.labs.menu, gap, *self.saver.buttons, button])
        header.add_class("sp-header")
        pins = looks.HBox([self.view.pin, self.view.unpin], layout={"flex_flow": "row wrap"})
        pins.add_class("sp-right")
        left = looks.VBox([*self.labs.controls, *self.controls.boxes])
        left.add_class("sp-controls")
        drawers = [] if self._options.board is None else [self._options.board.drawer.widget]
        grid = looks.VBox([header, *self.view.parts, left, pins, more, *drawers], layout=ipywidgets.Layout())
        grid.add_class("sp-grid")
        return grid

    @property
    def profile(self) -> Profile:
        """Profile that the explorer plans with."""
        return self.planning.profile

    @property
    def planning(self) -> Planning:
        """Planner for one pipeline."""
        return self.state.planning

    @property
    def together(self) -> PipelinesPlanning:
        """Planner for several pipelines."""
        return self.state.together

    @property
    def candidates(self) -> Candidates:
        """Plans of other planners, and pins."""
        return self.panel.candidates

    @property
    def plan(self) -> Plan | None:
        """Plan for the present controls. None: it cannot be planned, or is being planned."""
        return self.state.plan

    @property
    def shown(self) -> Answer | PipelinesAnswer | None:
        """Last plan that could be made, with its settings."""
        return self.state.shown

    @property
    def problem(self) -> Problem:
        """Planning problem of the plan in the picture."""
        return self.state.last().problem

    @property
    def trace(self) -> Trace:
        """Simulated timeline in the picture."""
        return self.state.last().trace

    @property
    def shown_cluster(self) -> Cluster:
        """Devices of the plan in the picture."""
        return self.state.last().cluster

    @property
    def pinned(self) -> Plan | None:
        """Baseline A, which plans are compared with."""
        return self.view.pinned.plan if self.view.pinned is not None else None

    def _move_cut(self, cut: int, at: int) -> None:
        """Move a cut; the first move keeps the others where they are, and the devices unless these may swap."""
        stages, answer = self.controls.stages, self.state.of_one
        if answer is not None and not stages.pin_cuts.value and len(answer.ends) > cut:

            def pin() -> None:
                stages.pin_cuts.value, stages.pin_devices.value = True, not self.view.drawing.swap
                stages.show(answer)

            self.state.change(pin)  # drawn once, with the cut moved
        stages.move_cut(cut, at)

    def _tell_swap(self, on: bool) -> None:
        self.view.drawing.swap = on

    def _let_swap(self, _: object) -> None:
        """Pin the devices of stages whose cuts are pinned, or let these go, as the picture's box says."""
        if self.controls.stages.pinned:
            self.controls.stages.pin_devices.value = not self.view.drawing.swap

    def _step(self, host: int, name: str, by: int) -> None:
        """Add a device to a host of the map, or remove one."""
        self.controls.devices.step(host, name, by, self.controls.settings())
        self.changed()  # also if a device moved from host to host

    def changed(self, change: Any = None) -> None:
        """Redraw once for a change, even if it changes other controls."""

        def act() -> None:
            self.controls.follow(change, self.state.of_one)
            self.messages.shown(self.update)()

        self.state.change(act)

    def current(self) -> Answer | PipelinesAnswer:
        """Plan for the present controls, with its settings. Raises InputError if there is none."""
        with self.state.lock:
            if not self.state.lock.wait_for(lambda: self.state.asked == self.controls.settings(), timeout=_HANDOVER):
                self.changed()
            return self.state.current()

    def update(self) -> None:
        """Plan and simulate the present controls, and draw the result. Raises InputError for an invalid choice.

        The picture then stays, marked as outdated, and nothing can be exported, copied or pinned, until another choice
        can be planned. The same holds while several pipelines are being planned.
        """
        with self.state.lock:
            asked = self.controls.settings()
            self.state.ask(asked)
            self.later.drop()
            self.gap_later.drop()
            self.sizes_later.drop()
            self.panel.later.drop()
            self.controls.devices.tell(asked)
            self.view.drawing.show_map(map_of(self.planning.cluster, asked))
            try:
                if asked.several is not None:
                    self._ask(self.together.asked(asked))
                    return
                answer = self._with_pins(self.planning.answer(asked))
                self.view.draw(answer)
            except BaseException as error:
                self._refuse(str(error) or type(error).__name__)
                raise
            self.state.take(answer)
            self._refuse("")
            self._ask_sizes()
            if self.planning.has_gap(answer):
                self.gap_later.ask(answer)

    def as_code(self) -> str:
        """Code of a cell that makes the same plan from `profile`. Raises InputError without a plan."""
        return self.current().as_code()

    def export_html(
        self,
        path: Path | str,
        *,
        counts: Mapping[str, Sequence[int]] | None = None,
        bandwidths: Sequence[float] | None = None,
        schedules: Sequence[str] | None = None,
    ) -> Path:
        """Write a page on which device counts, a link's bandwidth and the schedule move, without a kernel or network.

        The plans are computed beforehand, some tens of milliseconds each.

        Args:
            path: File to write, such as "page.html".
            counts: Numbers of devices by device type. Default: none to a few more than there are.
            bandwidths: Bytes/s between nodes, or within the only one. Default: 1/8, 1 and 8 × the present.
            schedules: Names of schedules. Default: all.

        Returns:
            The path.

        Raises:
            InputError: The page is above 5 MB, a name is unknown, several pipelines are shown, or the file cannot be
                written.

        Example:
            >>> explorer = sp.widgets.PartitionExplorer()
            >>> path = explorer.export_html("page.html", counts={"RTX": [1, 2]}, bandwidths=[1e9], schedules=["1f1b"])
            >>> path.stat().st_size < 5e6
            True

        See also:
            guides/figures_for_a_paper
        """
        answer = self.current()
        if not isinstance(answer, Answer):
            raise InputError("explorer.of_one_pipeline", OF_ONE)
        planning, settings = self.planning, answer.settings
        grid = PageGrid.around(settings, planning.cluster, counts=counts, bandwidths=bandwidths, schedules=schedules)
        few = min(PAGE_MINIBATCHES, planning.minibatches)
        another = Planning(planning.profile, planning.cluster, planning.scale, minibatches=few)
        return write_page(explorer_page(another, settings, grid, note=self.view.note), path)

    def _ask(self, asked: AskedSettings) -> None:
        """Have pipelines planned in a moment, and mark the picture until then."""
        self.view.await_pipelines()
        self.state.ask(asked.settings, pending=True)
        self.state.refused = ""
        self.messages.hold("")
        self._mark(f"planning {number_of(asked.several.count, 'pipeline')}…", PLANNING)
        self.later.ask(asked)

    def _plan_several(self, asked: AskedSettings) -> None:
        """Plan, simulate and draw, unless the controls say something else by then; in a thread of its own."""
        state = self.state
        try:
            answer = self.together.answer(asked)
            with state.lock:
                if state.awaits(asked.settings):
                    self.view.draw(answer)
                    state.take(answer)
                    self._refuse("")
                    self._ask_sizes()
        except BaseException as error:
            with state.lock:
                if not state.awaits(asked.settings):
                    return
                state.pending = False
                self._refuse(str(error) or type(error).__name__)
            raise
        finally:
            with state.lock:
                state.lock.notify_all()

    def _close_gap(self, answer: Answer) -> None:
        """Search on while the controls rest: the gap is shown as it closes, then a better plan; in its own thread."""
        superseded, state, planning, view = self.gap_later.is_superseded, self.state, self.planning, self.view

        def show(progress: PlanProgress) -> None:
            with state.lock:
                if not superseded():
                    view.draw_gap(answer, progress.lower_bound_seconds)

        plan = unless(superseded, lambda: planning.searched(answer, show))
        with state.lock:
            if plan is None or superseded():
                return
            better = planning.take(answer, plan)
            same = better.plan.stages == answer.plan.stages
            view.draw(better, same_stages=same)
            state.take(better)
            if not same:
                self._ask_sizes()

    def _with_pins(self, answer: Answer) -> Answer:
        """Let what is pinned say what was chosen around it: cuts around devices, devices around cuts."""
        if not self.controls.stages.pinned:
            return answer
        self.controls.stages.show(answer)
        return replace(answer, settings=self.controls.settings())

    def _refuse(self, reason: str) -> None:
        """Mark the picture as old, with a reason, or as new without one."""
        self.state.refused = reason
        shown = self.state.shown
        last = "no plan fits yet" if shown is None else f"last plan that fits: {shown.told()}"
        self.messages.hold(reason)
        self._mark(last if reason else "", NO_PLAN if reason else "")

    def _mark(self, stale: str, reason: str) -> None:
        """Say what an old picture is of, and let nothing act on it for that reason; without one, all that can."""
        controls = self.controls
        of_one = OF_ONE if controls.pipelines.picked is not None else ""
        self.exporter.block(reason)
        self.saver.block(reason)
        controls.stages.block(reason or of_one, interleaved=controls.plan.stages_per_device.number > 1)
        self.view.mark(stale, reason, of_one=of_one, pending=self.state.pending)

    def _pin(self, answer: Answer | PipelinesAnswer | None) -> None:
        self.view.compare_with(answer)
        if isinstance(answer, Answer):
            self.candidates.pin(answer)
        if self.shown is not None and not self.state.pending:
            self.view.draw(self.shown)
            self._ask_sizes()

    def _asked_sizes(self, answer: Answer | PipelinesAnswer) -> AskedSizes:
        return AskedSizes(answer, self.controls.sizes.cv, self.view.serial)

    def _ask_sizes(self) -> None:
        """Have the orders of the plan in the picture, and other plans, compared in a moment."""
        if self.shown is not None:
            self.sizes_later.ask(self._asked_sizes(self.shown))
        self.panel.ask(self.shown)

    def _choose(self, key: str, act: str) -> None:
        """Show a candidate, make it the baseline, or remove a pin."""
        shown = self.state.last()
        if act == "remove":
            removed = self.candidates.remove(key)
            if self.view.pinned is not None and removed.settings == self.view.pinned.settings:
                self._pin(None)
            else:
                self._ask_sizes()
            return
        settings, answer = self.candidates.settings(key, shown.settings)
        if act == "baseline":
            self._pin(answer or self.planning.answer(settings))
            return
        self.state.change(lambda: self.controls.show(settings, answer))
        self.changed()

    def _sizes_changed(self, _: object) -> None:
        self.controls.sizes.follow()
        self.view.fade_sizes()
        self._ask_sizes()

    def _draw_sizes(self, asked: AskedSizes) -> None:
        """Compare orders and draw that, unless the controls say something else by then; in a thread of its own."""
        self.view.draw_sizes(asked, superseded=lambda: self.sizes_later.superseded)
