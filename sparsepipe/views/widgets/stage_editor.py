"""Stages by hand: where the cuts are, which devices each stage has, how many stages there are, also of a device."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets

from ...errors import InputError
from ...planning import check_interleaves, planner_for, planners_with
from ...util.text.numbers import number_of
from ...values.schedule_rules import SCHEDULE_RULES
from ..glossary import definition
from ..markup import Html
from . import looks
from .controls import count_slider, toggle
from .html_view import HtmlView, Messages
from .looks import sentence
from .planning import Answer
from .stop_slider import StopSlider

SMALL = Html("<div style='font-size:12px;line-height:1.4'>{}</div>")
Group = Mapping[str, int]  # device type → how many

_WIDEST = 280  # pixels of a device type's name
_PIN_CUTS = "fix the split points: drag them, or use the arrow keys"
_PIN_DEVICES = "fix the devices of each stage: edit them below"


class StagesByHand:
    """Toggles that keep cuts and devices of the plan on screen, to be changed then. `ends`: layers before each cut.

    `counts`: the slider of each device type; `changed` is called after each change by hand.
    """

    def __init__(
        self,
        counts: Mapping[str, StopSlider],
        messages: Messages,
        changed: Callable[[], None],
        *,
        num_layers: int,
    ) -> None:
        self.counts, self._changed, self.num_layers = counts, changed, num_layers
        self.pin_cuts = toggle("pin cuts", _PIN_CUTS)
        self.pin_devices = toggle("pin devices", _PIN_DEVICES)
        self.editor = StageEditor(list(counts), changed)
        self.editor.more.on_click(messages.shown(lambda _: self._resize(1)))
        self.editor.less.on_click(messages.shown(lambda _: self._resize(-1)))
        self.ends: list[int] = []

    @property
    def controls(self) -> tuple[ipywidgets.DOMWidget, ...]:
        """All whose value is a setting."""
        return self.pin_cuts, self.pin_devices

    @property
    def pinned(self) -> bool:
        """Return whether cuts or devices are kept."""
        return bool(self.pin_cuts.value or self.pin_devices.value)

    @property
    def cuts(self) -> tuple[int, ...] | None:
        """Layers before each cut that is kept; None if a planner chooses."""
        return tuple(self.ends) if self.pin_cuts.value else None

    @property
    def devices(self) -> tuple[tuple[tuple[str, int], ...], ...] | None:
        """The devices of each stage that are kept; None if a planner chooses."""
        return tuple(tuple(group.items()) for group in self.editor.groups) if self.pin_devices.value else None

    def follow(self, change: Any, answer: Answer | None) -> None:
        """A toggle that was switched on keeps what the plan on screen has; it goes back if there is none."""
        if change is not None and change["owner"] in self.controls:
            if answer is not None:
                self.show(answer)
            elif change["new"]:
                change["owner"].value = False
        looks.show(self.editor.widget, on=self.pinned)

    def show(self, answer: Answer) -> None:
        """Show cuts and devices of a plan."""
        kinds = [stage.device_types for stage in answer.plan.stages]
        self.ends = answer.ends
        self.editor.show([{name: own.count(name) for name in own} for own in kinds], devices=self.pin_devices.value)

    def block(self, reason: str, *, interleaved: bool) -> None:
        """Pin nothing until this is called again without a reason; what is pinned can be let go.

        `interleaved`: devices have several stages, which no one pins.
        """
        for pin, tip in ((self.pin_cuts, _PIN_CUTS), (self.pin_devices, _PIN_DEVICES)):
            stuck = bool(reason) and not pin.value
            pin.disabled, pin.tooltip = interleaved or stuck, reason if stuck else tip

    def move_cut(self, cut: int, at: int) -> None:
        """Move a cut, if cuts are kept, until so many layers are before it."""
        if self.pin_cuts.value and cut < len(self.ends):
            self.ends[cut] = at
            self._changed()

    def _resize(self, step: int) -> None:
        """One stage more, out of the one with the most layers, or one less, joined with its neighbour."""
        groups = self.editor.groups
        if step > 0:
            counts = {name: slider.value for name, slider in self.counts.items()}
            self.ends, self.editor.groups = one_more(self.ends, groups, num_layers=self.num_layers, counts=counts)
        else:
            self.ends, self.editor.groups = one_less(self.ends, groups)
        self._changed()


class StageEditor:
    """A row of numbers for each stage, a column for each device type, and buttons for one stage more or less.

    `groups` is what they say; `changed` is called after each change by hand.
    """

    def __init__(self, types: Sequence[str], changed: Callable[[], None]) -> None:
        self.types, self._changed, self._quiet = tuple(types), changed, False
        self.more = looks.Button(icon="plus", tooltip="add stage", layout={"width": "38px"})
        self.less = looks.Button(icon="minus", tooltip="remove stage", layout={"width": "38px"})
        self.number = looks.Label()
        self.rows = looks.VBox([])
        self.widget = looks.VBox([looks.HBox([self.number, self.less, self.more]), self.rows])
        self.groups: list[dict[str, int]] = []

    def show(self, groups: Sequence[Group], *, devices: bool) -> None:
        """Show these groups; with `devices` their numbers can be changed."""
        self._quiet = True
        self.groups = [{name: int(group.get(name, 0)) for name in self.types} for group in groups]
        self.number.value = number_of(len(groups), "stage")
        self.less.disabled = len(groups) < 2
        shown = len(self.rows.children) if devices else 0
        if not devices:
            self.rows.children = ()
        elif shown != len(groups):
            self.rows.children = tuple(self._row(k) for k in range(len(groups)))
        for row, group in zip(self.rows.children, self.groups, strict=False):
            for box in row.children[1:]:
                box.value = group[box.description]
        self._quiet = False

    def _row(self, k: int) -> ipywidgets.HBox:
        boxes, wide = [], max(82, min(_WIDEST, 8 + 7 * max(map(len, self.types))))  # names whole, up to a line of them
        for name in self.types:
            layout, style = {"width": f"{wide + 54}px"}, {"description_width": f"{wide}px"}
            box = looks.BoundedIntText(min=0, max=99, description=name, layout=layout, style=style)
            box.add_class(f"sp-of-stage-{k}")  # by which tips.js calls it, as there are as many of its name as stages
            box.observe(lambda change, name=name: self._set(k, name, change["new"]), names="value")
            boxes.append(box)
        label = looks.Label(f"stage {k}", layout={"width": "52px"})
        return looks.HBox([label, *boxes], layout={"flex_flow": "row wrap"})  # of many types in several lines

    def _set(self, k: int, name: str, value: int) -> None:
        if not self._quiet:
            self.groups[k] = self.groups[k] | {name: value}
            self._changed()


def one_more(
    ends: Sequence[int], groups: Sequence[Group], *, num_layers: int, counts: Mapping[str, int]
) -> tuple[list[int], list[dict[str, int]]]:
    """Return cuts and devices with one stage more: half of the layers of the one that has most, on a device to spare.

    `counts`: how many devices there are of each type. Raises InputError if there is no layer or no device for it.
    """
    bounds = [0, *ends, num_layers]
    sizes = [b - a for a, b in zip(bounds, bounds[1:], strict=False)]
    k = sizes.index(max(sizes))
    if sizes[k] < 2:
        raise InputError("explorer.too_many_stages", "cannot add a stage: every stage has only one layer")
    spare = {name: number - sum(group.get(name, 0) for group in groups) for name, number in counts.items()}
    free = next((name for name, number in spare.items() if number > 0), None)
    if free is None:
        raise InputError(
            "explorer.no_free_device", "every device is in use; add a device with +, or remove a device from a stage"
        )
    own = [dict(group) for group in groups]
    return [*ends[:k], bounds[k] + sizes[k] // 2, *ends[k:]], [*own[: k + 1], {free: 1}, *own[k + 1 :]]


def one_less(ends: Sequence[int], groups: Sequence[Group]) -> tuple[list[int], list[dict[str, int]]]:
    """Return them with one stage less: the last joins its neighbour. Raises InputError if there is one stage."""
    if len(groups) < 2:
        raise InputError("explorer.one_stage", "the last stage cannot be removed; a plan needs at least one")
    return list(ends[:-1]), [dict(group) for group in groups[:-1]]


_MOST, _MOST_OF_ALL = 4, 16  # stages per device, stages of all devices: more are not found while a slider is dragged

_TIP = f"number of stages on each device; interleaved stages: {definition('interleaved stages')}"


class StagesPerDevice:
    """`slider` and `note` are what to display, `number` is what to plan with: what the schedule allows of the slider's
    value, 1 where the planner knows of no more.
    """

    def __init__(self, *, num_layers: int, num_devices: int) -> None:
        high = max(2, min(_MOST, min(_MOST_OF_ALL, num_layers) // num_devices))
        self.slider = count_slider("stages per device", 1, low=1, high=high, most=high, tip=_TIP)
        self.note = HtmlView(layout={"width": "330px"})
        self._allowed: tuple[int, int | None] = (1, 1)
        self._schedule = ""  # that the planner was last looked at for
        self._stands_in = self._wanted = ""  # the planner taken for a schedule, and the one that was chosen

    @property
    def number(self) -> int:
        fewest, most = self._allowed
        wanted: int = max(fewest, self.slider.value)
        return wanted if most is None else min(wanted, most)

    def follow(self, planner: ipywidgets.Dropdown, schedule: ipywidgets.Dropdown, *, pinned: bool) -> None:
        """Offer what goes with the planner and the schedule chosen.

        A schedule that needs several stages per device takes a planner that plans them; with another schedule the
        planner that was chosen comes back. One that is chosen afterwards stays, and is refused with its reason.
        """
        if planner.value != self._stands_in:
            self._wanted = ""
        if not pinned and schedule.value != self._schedule:
            wanted = self._wanted or planner.value
            self._schedule = schedule.value
            self._stands_in = planner.value = planner_for(schedule.value, wanted)
            self._wanted = "" if wanted == self._stands_in else wanted
        self.offer(planner.value, schedule.value, pinned=pinned)

    def offer(self, planner: str, schedule: str, *, pinned: bool) -> None:
        """Show the slider where planner and schedule know what to do with several stages per device."""
        able = planners_with("stages_per_device")
        self._allowed = (1, 1) if pinned or planner not in able else SCHEDULE_RULES[schedule].stages_per_rank
        fewest, most = self._allowed
        self.slider.disabled = fewest == most
        looks.show(self.slider, on=not self.slider.disabled)
        if pinned:
            told = "pinned plans have one stage per device"
        elif planner not in able:
            alone = SCHEDULE_RULES[schedule].stages_per_rank[0] == 1  # else as many as the schedule places
            told = f"planner {planner!r} plans one stage per device; {' and '.join(able)} several" if alone else ""
        else:
            told = self._of_schedule(schedule)
        self.note.value = SMALL.format(sentence(told)) if told else ""

    def _of_schedule(self, schedule: str) -> str:
        """Return the schedule's effect on the slider, and the controls that it disables."""
        fewest, most = self._allowed
        asked = max(2, self.slider.value) if most == 1 else self.slider.value
        try:
            check_interleaves(schedule, asked)
        except InputError as error:
            taken = f"; {self._stands_in!r} stands in for {self._wanted!r}" if self._wanted else ""
            return str(error) if most == 1 else f"{error}; {self.number} are planned{taken}"
        if fewest > 1:
            return "to pin cuts or devices, choose a schedule with one stage per device"
        return "to pin cuts or devices, set it to 1" if self.number > 1 else ""
