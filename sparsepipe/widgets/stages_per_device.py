"""How many stages each device has: a slider, and below it why it cannot be moved, or what cannot be done meanwhile."""

from ..display.markup import Html
from ..errors import InputError
from ..planners import check_interleaves, planners_with
from .controls import count_slider
from .html_view import HtmlView

_MOST, _MOST_OF_ALL = 4, 16  # stages per device, stages of all devices: more are not found while a slider is dragged


class StagesPerDevice:
    """`slider` and `note` are what to display, `number` is what to plan with: 1 while the slider is disabled."""

    def __init__(self, *, num_layers: int, num_devices: int) -> None:
        high = max(2, min(_MOST, min(_MOST_OF_ALL, num_layers) // num_devices))
        self.slider = count_slider("stages per device", 1, low=1, high=high, most=high)
        self.note = HtmlView(layout={"width": "330px"})

    @property
    def number(self) -> int:
        return 1 if self.slider.disabled else self.slider.value

    def offer(self, planner: str, schedule: str, *, pinned: bool) -> None:
        """Let the slider be moved where planner and schedule know what to do with several stages a device."""
        reason = self._refused(planner, schedule, pinned)
        self.slider.disabled = bool(reason)
        told = "to pin cuts or devices, move it to 1" if self.number > 1 else reason
        self.note.value = Html("<div style='font-size:12px;line-height:1.4'>{}</div>").format(told) if told else ""

    def _refused(self, planner: str, schedule: str, pinned: bool) -> str:
        """Why every device has one stage whatever the slider says; nothing where it may have several."""
        if pinned:
            return "what is pinned has one stage a device"
        able = planners_with("stages_per_device")
        if planner not in able:
            return f"planner {planner!r} plans one stage a device, {' and '.join(able)} several"
        try:
            check_interleaves(schedule, max(2, self.slider.value))
        except InputError as error:
            return str(error)
        return ""
