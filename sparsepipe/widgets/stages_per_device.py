"""The slider for stages per device, with a note on why it is disabled or what it disables."""

import ipywidgets

from ..display.markup import Html
from ..errors import InputError
from ..planners import check_interleaves, planner_for, planners_with
from ..schedule_rules import SCHEDULE_RULES
from .controls import count_slider
from .html_view import HtmlView
from .sentences import sentence

_MOST, _MOST_OF_ALL = 4, 16  # stages per device, stages of all devices: more are not found while a slider is dragged

_TIP = "how many stages of the pipeline each device has, between which it takes turns"
_SMALL = Html("<div style='font-size:12px;line-height:1.4'>{}</div>")


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
        """Let the slider be moved where planner and schedule know what to do with several stages per device."""
        able = planners_with("stages_per_device")
        self._allowed = (1, 1) if pinned or planner not in able else SCHEDULE_RULES[schedule].stages_per_rank
        fewest, most = self._allowed
        self.slider.disabled = fewest == most
        if pinned:
            told = "what is pinned has one stage per device"
        elif planner not in able:
            told = f"planner {planner!r} plans one stage per device; {' and '.join(able)} several"
        else:
            told = self._of_schedule(schedule)
        self.note.value = (
            Html("<div style='font-size:12px;line-height:1.4'>{}</div>").format(sentence(told)) if told else ""
        )

    def _of_schedule(self, schedule: str) -> str:
        """What a schedule has to say about the slider, and what that stands in the way of."""
        fewest, most = self._allowed
        asked = max(2, self.slider.value) if most == 1 else self.slider.value
        try:
            check_interleaves(schedule, asked)
        except InputError as error:
            taken = f"; {self._stands_in!r} stands in for {self._wanted!r}" if self._wanted else ""
            return str(error) if most == 1 else f"{error}; {self.number} are planned{taken}"
        if fewest > 1:
            return "to pin cuts or devices, choose a schedule with one stage per device"
        return "to pin cuts or devices, move it to 1" if self.number > 1 else ""
