"""Candidates next to the plan on screen: the plans of all planners, pins, and time against memory."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ...errors import InputError
from ...planning import PLANNERS, planner_for, planners_with
from ...planning.hardware_changes import compare_hardware
from ...util.text.numbers import duration, scaled_bytes
from ...values.plan import Plan
from ...values.schedule_rules import SCHEDULE_RULES, WEIGHT_POLICIES, WEIGHT_RULES
from .explorer_controls import ExplorerControls
from .explorer_view import ExplorerView
from .html_view import Messages
from .pipelines_planning import Later, PipelinesAnswer
from .planning import Answer, Planning
from .settings import Settings
from .sizes import Superseded
from .stop_slider import StopSlider
from .view_model import moved_scene

MOST_PINS = 5
_PAUSE = 0.25  # seconds from the last move until candidates are planned
Point = tuple[str, float, float, str, bool]
_STAGES = (1, 2)  # per device, of the points
_JUDGED = (
    "network_bandwidth",
    "bandwidth",
    "batch_size",
    "voxel_size",
    "memory_bytes",
)  # settings, by the present plan
_REACH = 16  # stops of their sliders on each side, at which a plan is judged before the slider is moved
_PLANNED_REACH = 2  # of other sliders and of cuts, at which a plan is made
_MOST_SECONDS = 0.5  # of the processor for all of these
_SAME = 5e-4  # relative: periods that differ by less are shown as equal


class Candidates:
    """Plans to choose from, for the settings of an answer of one pipeline. `pins` are kept until they are removed.

    `planning` must be used by nothing else: `rows` and `points` are called in a thread of their own.
    """

    def __init__(self, planning: Planning) -> None:
        self.pins: list[Answer] = []
        self._planning = planning
        self._points: list[Settings] = []

    def pin(self, answer: Answer) -> None:
        """Keep an answer; the oldest pin makes room for a sixth."""
        if answer.settings not in [pin.settings for pin in self.pins]:
            self.pins = [*self.pins, answer][-MOST_PINS:]

    def remove(self, key: str) -> Answer:
        """Remove a pin by its row's key; returns it."""
        return self.pins.pop(self._number(key, "pin", len(self.pins)))

    def settings(self, key: str, shown: Settings) -> tuple[Settings, Answer | None]:
        """Return the settings that a row or point stands for, and the answer to them if it is pinned.

        Raises InputError for a row that is not there any more.
        """
        if key in PLANNERS:
            return _of_planner(key, shown), None
        if key.startswith("pin"):
            pin = self.pins[self._number(key, "pin", len(self.pins))]
            return pin.settings, pin
        return self._points[self._number(key, "point", len(self._points))], None

    def rows(self, answer: Answer, baseline: Answer | None, superseded: Callable[[], bool]) -> list[dict[str, object]]:
        """Return a row for every planner and for every pin. Raises Superseded if other settings were requested."""
        reference = _period((baseline or answer).plan)
        rows = []
        for name in PLANNERS:
            if superseded():
                raise Superseded
            settings = _of_planner(name, answer.settings)
            row = {"key": name, "name": name, "shown": settings == answer.settings, "baseline": False}
            try:
                plan = self._planning.plan(settings)
            except InputError as error:
                rows.append(row | {"refused": str(error)})
                continue
            rows.append(row | _facts(plan, reference))
        for k, pin in enumerate(self.pins):
            is_baseline = baseline is not None and pin.settings == baseline.settings
            name = f"{'A · ' if is_baseline else ''}{pin.plan.planner}, {pin.plan.schedule}"
            row = {"key": f"pin {k}", "name": name, "shown": pin.settings == answer.settings, "baseline": is_baseline}
            rows.append(row | {"about": pin.told()} | _facts(pin.plan, reference))
        return rows

    def moves(
        self, answer: Answer, sliders: Mapping[str, tuple[str, StopSlider]], superseded: Callable[[], bool]
    ) -> dict[str, dict[str, object]]:
        """Return what the page shows of a move before the kernel has its plan: {name: {"base", "stops"}}.

        At the stops near a slider's own, the times of the present plan; of devices, stages per device and pinned cuts
        those of the plan there. The nearest come first, until half a second is spent. `sliders`: name → (the field of
        the settings, the slider). Raises Superseded if other settings were requested.
        """
        began, settings = time.thread_time(), answer.settings
        bases: dict[str, str] = {}
        stops: dict[str, dict[str, object]] = {}
        near = [move for name, (field, slider) in sliders.items() for move in _near(settings, name, field, slider)]
        for move in sorted([*near, *_near_cuts(settings, answer.ends)], key=lambda move: move.steps):
            if superseded():
                raise Superseded
            if time.thread_time() - began > _MOST_SECONDS:
                break
            judged = move.field in _JUDGED
            try:
                if judged:
                    problem, plan = self._planning.judge(answer.plan, move.settings)
                else:
                    problem, plan = self._planning.problem(move.settings), self._planning.plan(move.settings)
            except InputError:  # which the kernel says if it comes to that
                continue
            if judged and _memory(plan) > (move.settings.memory_bytes or float("inf")):
                continue
            batch_size = move.settings.batch_size or self._planning.profile.batch_size
            bases[move.name] = answer.base(move.field) if judged else answer.place(move.field, move.part)
            scene = moved_scene(plan, problem, batch_size=batch_size, whole=not judged)
            stops.setdefault(move.name, {})[move.key] = scene
        return {name: {"base": base, "stops": stops[name]} for name, base in bases.items()}

    def points(self, answer: Answer, superseded: Callable[[], bool]) -> list[Point]:
        """Return [key, seconds, bytes, words, on the front] over schedules × recomputation × stages per device.

        Bytes are those of the worst device; no plan is better in both than one on the front. Raises Superseded if
        other settings were requested.
        """
        planned: list[tuple[Settings, Plan]] = []
        for settings in _variants(answer.settings, devices=len(answer.cluster.devices)):
            if superseded():
                raise Superseded
            try:
                planned.append((settings, self._planning.plan(settings)))
            except InputError:  # which no point can show
                continue
        self._points = [settings for settings, _ in planned]
        sizes = [(_period(plan), _memory(plan)) for _, plan in planned]
        return [
            (f"point {k}", *size, _words(settings), not any(_better(other, size) for other in sizes))
            for k, ((settings, _), size) in enumerate(zip(planned, sizes, strict=True))
        ]

    def hardware(self, answer: Answer, superseded: Callable[[], bool]) -> list[dict[str, object]]:
        """Return a row for each change of the hardware, with its interval: see `compare_hardware`.

        Plans are those of a quick search. Raises Superseded if other settings were requested.
        """

        def go_on(_: str) -> None:
            if superseded():
                raise Superseded

        problem = answer.problem
        try:
            compared = compare_hardware(
                problem.profile,
                answer.cluster,
                schedule=problem.schedule,
                num_microbatches=problem.num_microbatches,
                recompute=problem.recompute,
                quick=True,
                progress=go_on,
            )
        except InputError as error:
            return [{"name": "changes of the hardware", "refused": str(error)}]
        return [
            {"name": each.name, "change": each.change, "least": each.least, "most": each.most, "refused": each.reason}
            for each in compared.changes
        ]

    @staticmethod
    def _number(key: str, kind: str, count: int) -> int:
        number = key.removeprefix(f"{kind} ")
        if not (number.isdecimal() and int(number) < count):
            raise InputError("explorer.candidate_lost", f"candidate {key!r} does not exist any more: choose another")
        return int(number)


class CandidatesPanel:
    """Has candidates planned in a thread of their own, a moment after the last move, and shown in the `view`."""

    def __init__(
        self, candidates: Candidates, controls: ExplorerControls, view: ExplorerView, messages: Messages
    ) -> None:
        self.candidates, self._controls, self._view = candidates, controls, view
        self.later: Later[Answer] = Later(messages.failing(self._draw), pause=_PAUSE, name="candidates")
        self._shown = set[str]()  # of "points", the Pareto view, and "hardware"

    def ask(self, shown: Answer | PipelinesAnswer | None) -> None:
        """Have the candidates of what is shown planned in a moment."""
        if isinstance(shown, Answer):
            self.later.ask(shown)
        elif shown is not None:
            self._view.drawing.show_candidates({"note": "For one pipeline: set pipelines to 1 in Advanced."})

    def toggle(self, part: str, shown: Answer | PipelinesAnswer | None) -> None:
        """Show "points", time against memory of all schedules, or "hardware", what changes are worth; or hide them."""
        self._shown ^= {part}
        self.ask(shown)

    def _draw(self, answer: Answer) -> None:
        """Plan and show, unless the controls say something else by then. What was measured is shaded first."""
        drawing, candidates = self._view.drawing, self.candidates
        superseded = self.later.is_superseded
        try:
            self._controls.workload.shade(answer.problem.profile, {kind.name for kind in answer.cluster.device_types})
            drawing.show_moves(candidates.moves(answer, self._controls.sliders, superseded))
            drawn: dict[str, object] = {"rows": candidates.rows(answer, self._view.pinned, superseded)}
            if "points" in self._shown:
                drawn["points"] = candidates.points(answer, superseded)
            if "hardware" in self._shown:
                drawn["hardware"] = candidates.hardware(answer, superseded)
        except Superseded:
            return
        if not superseded():
            drawing.show_candidates(drawn)


@dataclass(frozen=True)
class _Move:
    """A move of a slider or a cut, `steps` from where it is. `part`: the device type, or the number of the cut."""

    name: str
    field: str
    part: object
    key: str
    steps: int
    settings: Settings


def _near(settings: Settings, name: str, field: str, slider: StopSlider) -> Iterator[_Move]:
    """Return moves to the stops on both sides, if the slider can be moved."""
    if slider.disabled or field == "num_microbatches":
        return
    values, reach = slider.values, _REACH if field in _JUDGED else _PLANNED_REACH
    middle = values.index(slider.value)
    for k in range(max(0, middle - reach), min(len(values), middle + reach + 1)):
        if k == middle:
            continue
        value: Any = values[k]
        changes: dict[str, Any] = {field: value or None if field == "memory_bytes" else value}
        if field == "devices":
            counts = tuple((kind, value if kind == name else count) for kind, count in settings.devices)
            changes = {"devices": counts, "hosts": None}
        part = name if field == "devices" else None
        yield _Move(name, field, part, slider.key(value), abs(k - middle), replace(settings, **changes))


def _near_cuts(settings: Settings, ends: Sequence[int]) -> Iterator[_Move]:
    """Return moves of pinned cuts to both sides; those that are none are refused as they are planned."""
    for k, at in enumerate(settings.cuts or ()):
        for step in range(-_PLANNED_REACH, _PLANNED_REACH + 1):
            cuts = (*ends[:k], at + step, *ends[k + 1 :])
            if step:
                yield _Move(f"cut {k}", "cuts", k, str(at + step), abs(step), replace(settings, cuts=cuts))


def _of_planner(name: str, settings: Settings) -> Settings:
    """Return the settings that a planner is asked for: pinned stages are not its own."""
    several = settings.stages_per_device if name in planners_with("stages_per_device") else 1
    return replace(settings, planner=name, cuts=None, stage_devices=None, several=None, stages_per_device=several)


def _variants(settings: Settings, *, devices: int) -> Iterator[Settings]:
    able = planners_with("stages_per_device")
    for schedule, recompute, stages in product(WEIGHT_POLICIES, (False, True), _STAGES):
        fewest, most = SCHEDULE_RULES[schedule].stages_per_rank
        if stages < fewest or (most is not None and stages > most):
            continue
        planner = planner_for(schedule, settings.planner)
        if stages > 1 and planner not in able:
            planner = able[0]
        weights = WEIGHT_POLICIES[schedule][0]
        count = max(settings.num_microbatches, 2 * devices) if WEIGHT_RULES[weights].updates_by_step else 1
        yield replace(
            _of_planner(planner, settings),
            schedule=schedule,
            weights=weights,
            num_microbatches=count,
            stages_per_device=stages,
            recompute=recompute,
        )


def _facts(plan: Plan, reference: float) -> dict[str, object]:
    period = _period(plan)
    change = period / reference - 1
    sizes = [len(stage.layers) for stage in plan.stages]
    return {
        "time": duration(period),
        "delta": "=" if abs(change) < _SAME else f"{change:+.1%}".replace("-", "−"),
        "memory": scaled_bytes(_memory(plan)),
        "parts": sizes,
        "ends": [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)],
        "refused": "",
    }


def _words(settings: Settings) -> str:
    several = f", {settings.stages_per_device} stages per device" if settings.stages_per_device > 1 else ""
    return f"{settings.planner}, {settings.schedule}{several}{', recomputation' if settings.recompute else ''}"


def _better(first: tuple[float, float], second: tuple[float, float]) -> bool:
    return first[0] <= second[0] and first[1] <= second[1] and first != second


def _period(plan: Plan) -> float:
    assert plan.estimate is not None
    return plan.estimate.period_seconds


def _memory(plan: Plan) -> float:
    """Bytes of the worst device."""
    return max(position.memory_bytes for position in plan.position_estimates)
