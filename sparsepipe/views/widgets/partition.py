"""The partition explorer: sliders for devices, links, workload, planner, schedule, cuts and pipelines, and the plan."""

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Generic, TypeVar

import ipywidgets

from ...errors import InputError
from ...planning import Problem
from ...planning.scale import Scale
from ...util.io.files import expanded
from ...util.text.counting import number_of
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.profile import Profile
from ...values.trace import Trace
from ..markup import Html
from . import looks
from .candidates import Candidates
from .controls import folded
from .explorer_controls import ExplorerControls
from .explorer_view import OF_ONE, ExplorerView
from .exporter import Exporter
from .html_view import HtmlView
from .labs import Lab, LabMenu
from .messages import Messages
from .partition_view import NO_PLAN, SettledButton
from .pipelines_planning import Asked, PipelinesAnswer, PipelinesPlanning
from .plan_saver import Board, PlanSaver
from .planning import Answer, Planning
from .settings import Settings, map_of
from .sizes import AskedSizes, Superseded
from .tips import Shown, with_tips

Work = TypeVar("Work")


class Later(Generic[Work]):
    """Calls `act` with what was asked last, `pause` seconds after it was, in one thread that ends when nothing is left.

    What is asked while `act` is at work comes after it; what was asked before that, and not begun, is dropped. `act`
    must raise nothing.
    """

    def __init__(self, act: Callable[[Work], None], *, pause: float, name: str) -> None:
        self._act, self._pause, self._name = act, pause, name
        self._turn = threading.Condition()
        self._asked: list[Work] = []  # one or none
        self._due = 0.0
        self._thread: threading.Thread | None = None
        self.superseded = False  # whether something was asked, or dropped, since `act` began its work

    def ask(self, what: Work) -> None:
        with self._turn:
            self.superseded = True
            self._asked, self._due = [what], time.monotonic() + self._pause
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def drop(self) -> None:
        """Forget what was asked and is not begun."""
        with self._turn:
            self.superseded = True
            self._asked = []

    def _work(self) -> None:
        while True:
            with self._turn:
                while self._asked and (left := self._due - time.monotonic()) > 0:
                    self._turn.wait(left)
                if not self._asked:
                    self._thread = None
                    return
                (what,), self._asked = self._asked, []
                self.superseded = False
            self._act(what)


_HANDOVER = 0.5  # seconds in which a thread that has changed a control comes to plan it
_PAUSE, _PATIENCE = 0.25, 300.0  # seconds: from the last move until pipelines are planned; for which a click waits
_PLANNING = "planning the pipelines…"


class PlanOnScreen:
    """The requested settings, and the last answer: of that, or of settings before if it was refused or is `pending`.

    The page's clicks come in one thread, cells run in another: `lock` is held by whoever changes any of it.
    """

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.asked: Settings | None = None  # what was planned last, or refused, or is being planned
        self.shown: Answer | PipelinesAnswer | None = None
        self.refused = ""  # why what the controls say cannot be planned
        self.pending = False  # whether several pipelines are being planned
        self._changing = True  # whether a change is at work, or the controls are being made

    @property
    def plan(self) -> Plan | None:
        """The plan for what was asked; None while it cannot be planned, or is being planned."""
        return self.shown.plan if self.shown is not None and not (self.refused or self.pending) else None

    @property
    def of_one(self) -> Answer | None:
        """The answer for what was asked, if there is one, of one pipeline."""
        return self.shown if self.plan is not None and isinstance(self.shown, Answer) else None

    def last(self) -> Answer | PipelinesAnswer:
        """The answer in the picture. Raises InputError if there was none yet."""
        if self.shown is None:
            raise InputError("explorer.no_plan", f"no plan yet: {self.refused}")
        return self.shown

    def begin(self) -> None:
        """From here on changes count."""
        self._changing = False

    def change(self, act: Callable[[], None]) -> None:
        """Act on a change of a control, once: not on those that follow from it."""
        with self.lock:  # a change from another thread waits, and is not lost
            if self._changing:
                return
            self._changing = True
            try:
                act()
            finally:
                self._changing = False
                self.lock.notify_all()

    def ask(self, settings: Settings, *, pending: bool = False) -> None:
        """Note what is asked for from here on."""
        self.asked, self.pending = settings, pending

    def awaits(self, settings: Settings) -> bool:
        """Return whether pipelines are being planned for these settings, and not for later ones."""
        return self.pending and self.asked == settings

    def take(self, answer: Answer | PipelinesAnswer) -> None:
        """Note the answer to what was asked."""
        self.shown, self.asked, self.pending = answer, answer.settings, False

    def current(self) -> Answer | PipelinesAnswer:
        """Wait for pipelines that are being planned. Raises InputError if what was asked was refused."""
        if not self.lock.wait_for(lambda: not self.pending, timeout=_PATIENCE):
            raise InputError("explorer.planning", f"{_PLANNING}, and try again")
        if self.shown is None or self.refused:
            raise InputError("explorer.no_plan", NO_PLAN)
        return self.shown


class PartitionExplorer(Shown):
    """Sliders over a profile. `widget` is what to display. Without a profile and a cluster it opens the first lab of
    its menu, two RTX and two TITAN V.

    `plan` is the plan for what the `controls` say, None while that cannot be planned; `shown` is what the picture
    shows: the last plan that could be made, with its settings. At first they are those of `cluster`, as given.
    Several pipelines are planned and simulated in the background, a moment after the last move: `plan` is None until
    then, `current()` waits for it.
    `voxels_by_size`: mean active voxels of a sample at each voxel size, if they were counted.
    `figures`: where the export button writes to; `plans`: where plans are saved to. With a `board` the plan on screen
    can be opened there, to be launched.
    """

    def __init__(
        self,
        profile: Profile | None = None,
        cluster: Cluster | None = None,
        *,
        minibatches: int = 12,
        note: str = "",
        voxels_by_size: Mapping[float, float] | None = None,
        figures: Path | str = "figures",
        plans: Path | str = "plans",
        board: Board | None = None,
    ) -> None:
        given = None if profile is None and cluster is None else Lab(profile, cluster)  # type: ignore[arg-type]
        self.messages = Messages()
        self.labs = LabMenu(given, self.messages, self.open)
        self._note, self._voxels_by_size, self._minibatches = note, voxels_by_size, minibatches
        self._figures, self._plans, self._board = expanded(figures), expanded(plans), board
        self.later: Later[Asked] = Later(self.messages.shown(self._plan_several), pause=_PAUSE, name="pipelines")
        self.sizes_later: Later[AskedSizes] = Later(self._draw_sizes, pause=_PAUSE, name="orders")
        self.candidates_later: Later[Answer] = Later(self._draw_candidates, pause=_PAUSE, name="candidates")
        self._points: list[list[Any]] | None = None  # of the Pareto view, while it is shown
        self.widget = looks.VBox([], layout=ipywidgets.Layout())
        self.widget.add_class("sp-explorer")
        self.open(self.labs.lab)

    def open(self, lab: Lab) -> None:
        """Show another lab: its network, its devices, and controls for these. Raises InputError if it has no costs."""
        profile, cluster = lab.profile, lab.cluster
        voxels = self._voxels_by_size if lab is self.labs.lab else None  # they are of the profile given
        scale = Scale.of(profile, voxels)
        self.later.drop()
        self.sizes_later.drop()
        self.candidates_later.drop()
        self.profile = profile
        self.candidates = Candidates(Planning(profile, cluster, scale, minibatches=self._minibatches))
        self.planning = Planning(profile, cluster, scale, minibatches=self._minibatches)
        self.together = PipelinesPlanning(self.planning)
        self.state = PlanOnScreen()
        self.controls = ExplorerControls(profile, cluster, scale, self.messages, self.changed)
        self.view = ExplorerView(profile, self.messages, self.controls.foreseen, note=self._note)
        drawing, shown = self.view.drawing, self.messages.shown
        drawing.on_cut(shown(self._move_cut))
        drawing.on_copy(self.as_code)
        drawing.on_step(shown(self._step))
        drawing.on_candidate(shown(self._choose), shown(self._toggle_points))
        self.view.pin.on_click(shown(lambda _: self._pin(self.current())))
        self.view.unpin.on_click(shown(lambda _: self._pin(None)))
        self.exporter = Exporter(
            self.messages,
            self._figures,
            lambda: self.view.figures(self._asked_sizes(self.current())),
            button=SettledButton(drawing),
        )
        self.saver = PlanSaver(profile, drawing, self.messages, self.current, folder=self._plans, board=self._board)
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
        grid = looks.VBox([header, *self.view.parts, left, pins, more], layout=ipywidgets.Layout())
        grid.add_class("sp-grid")
        return grid

    @property
    def plan(self) -> Plan | None:
        """The plan for what the controls say; None while it cannot be planned, or is being planned."""
        return self.state.plan

    @property
    def shown(self) -> Answer | PipelinesAnswer | None:
        """The last plan that could be made, with its settings."""
        return self.state.shown

    @property
    def problem(self) -> Problem:
        """The problem of the plan in the picture."""
        return self.state.last().problem

    @property
    def trace(self) -> Trace:
        """The simulated timeline in the picture."""
        return self.state.last().trace

    @property
    def shown_cluster(self) -> Cluster:
        """The devices of the plan in the picture."""
        return self.state.last().cluster

    @property
    def pinned(self) -> Plan | None:
        """The plan to compare with: A."""
        return self.view.pinned.plan if self.view.pinned is not None else None

    def _move_cut(self, cut: int, at: int) -> None:
        """Move a cut; the first move keeps the others where they are."""
        stages, answer = self.controls.stages, self.state.of_one
        if answer is not None and not stages.pin_cuts.value and len(answer.ends) > cut:
            stages.pin_cuts.value = True
        stages.move_cut(cut, at)

    def _step(self, host: int, name: str, by: int) -> None:
        """Add a device to a host of the map, or remove one."""
        self.controls.devices.step(host, name, by, self.controls.settings())
        self.changed()  # also if a device moved from host to host

    def changed(self, change: Any = None) -> None:
        """Redraw once for one change, whatever other controls follow from it."""

        def act() -> None:
            self.controls.follow(change, self.state.of_one)
            self.messages.shown(self.update)()

        self.state.change(act)

    def current(self) -> Answer | PipelinesAnswer:
        """The plan for what the controls say now, with its settings. Raises InputError while there is none."""
        with self.state.lock:
            if not self.state.lock.wait_for(lambda: self.state.asked == self.controls.settings(), timeout=_HANDOVER):
                self.changed()
            return self.state.current()

    def update(self) -> None:
        """Plan and simulate what the controls say, and draw it. Raises InputError for a choice that cannot be.

        Until another choice can be planned the picture is then marked as that of the settings before, and nothing can
        be exported, copied or pinned. So it is while several pipelines are being planned.
        """
        with self.state.lock:
            asked = self.controls.settings()
            self.state.ask(asked)
            self.later.drop()
            self.sizes_later.drop()
            self.candidates_later.drop()
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

    def as_code(self) -> str:
        """The cell that makes the plan again, given `profile`. Raises InputError while there is no plan."""
        return self.current().as_code()

    def _ask(self, asked: Asked) -> None:
        """Have pipelines planned in a moment, and mark the picture until then."""
        self.view.await_pipelines()
        self.state.ask(asked.settings, pending=True)
        self.state.refused = ""
        self.messages.hold("")
        self._mark(f"planning {number_of(asked.several.count, 'pipeline')}…", _PLANNING)
        self.later.ask(asked)

    def _plan_several(self, asked: Asked) -> None:
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
        if isinstance(self.shown, Answer):
            self.candidates_later.ask(self.shown)
        elif self.shown is not None:
            self.view.drawing.show_candidates({"note": "For one pipeline: set pipelines to 1 in Advanced."})

    def _draw_candidates(self, answer: Answer) -> None:
        """Plan and show the candidates of an answer, unless the controls say something else by then.

        What was measured is shaded first.
        """

        def superseded() -> bool:
            return self.candidates_later.superseded

        try:
            self.controls.workload.shade(self.profile, {kind.name for kind in answer.cluster.device_types})
            self.view.drawing.show_moves(self.candidates.moves(answer, self.controls.foreseen, superseded))
            told: dict[str, Any] = {"rows": self.candidates.rows(answer, self.view.pinned, superseded)}
            if self._points is not None:
                self._points = told["points"] = self.candidates.points(answer, superseded)
        except Superseded:
            return
        except Exception:
            self.messages.fail(traceback.format_exc())
            return
        if not superseded():
            self.view.drawing.show_candidates(told)

    def _toggle_points(self) -> None:
        """Show time against memory of all schedules, or show it no more."""
        self._points = [] if self._points is None else None
        if isinstance(self.shown, Answer):
            self.candidates_later.ask(self.shown)

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
        try:
            self.view.draw_sizes(asked, superseded=lambda: self.sizes_later.superseded)
        except Exception:
            self.messages.fail(traceback.format_exc())
