"""A button whose click waits for slider moves that the page has not sent yet."""

from typing import Any

from . import looks
from .partition_view import PartitionView


class SettledButton(looks.Button):
    """Acts on a click of the page once all changes made there before it have come.

    A page holds back the moves of a slider while the kernel is at work on an earlier one, and a click would overtake
    them. `click()` in a cell acts at once.
    """

    def __init__(self, view: PartitionView, **settings: Any) -> None:
        super().__init__(**settings)
        self._view = view

    def _handle_button_msg(self, widget: Any, content: Any, buffers: Any) -> None:
        if content.get("event") == "click":
            self._view.settled(self.click)
