"""The right side of the partition explorer: pictures of a plan, and of the plan that it is compared with."""

import json
from collections.abc import Callable
from dataclasses import replace

from ...errors import InputError
from ...values.profile import Profile
from ..glossary import definitions
from ..plots.table import noted
from . import looks
from .exporter import Export
from .html_view import HtmlView, explained
from .messages import Messages
from .partition_view import PartitionView, SettledButton, graph_text
from .picture import explorer_export, in_lines, picture
from .pipelines_picture import compared, pipelines_export, pipelines_picture
from .pipelines_planning import PipelinesAnswer
from .planning import Answer
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
from .waiting_figures import WaitingFigures

OF_ONE = "available for one pipeline only: set pipelines to 1"


class ExplorerView:
    """Draws answers; `widget` is what to display, `serial` counts the pictures.

    `pinned`: the plan to compare with, A, with the settings it was made for.
    """

    def __init__(self, profile: Profile, messages: Messages, *, note: str) -> None:
        self.profile, self.note, self.serial = profile, note, 0
        self.drawing = PartitionView()
        self.drawing.graph = graph_text(profile)
        self.sizes = SizesForecasts(profile)
        self.waiting: WaitingFigures | None = None  # made for the first several pipelines: it brings plotly to the page
        self.pinned: Answer | None = None
        self.pin = SettledButton(self.drawing, description="set baseline A", icon="thumb-tack")
        self.unpin = looks.Button(description="clear baseline A", tooltip="stop comparing", disabled=True)
        self._beside = looks.VBox([])  # what several pipelines add to the picture
        words = HtmlView(explained(definitions("Plans", "Pipeline replicas"), schedules=True))
        views = [messages, self.drawing, self._beside, words]
        self.widget = looks.VBox(views, layout={"flex": "1 1 420px", "min_width": "0"})

    def draw(self, answer: Answer | PipelinesAnswer) -> None:
        """Show a plan, its numbers and what each rank does."""
        self.serial += 1
        if isinstance(answer, PipelinesAnswer):
            drawn = pipelines_picture(answer, note=self.note)
            self.await_pipelines().show(compared(answer, note=self.note))
        else:
            batch_size = answer.settings.batch_size or self.profile.batch_size
            drawn = picture(answer, self.pinned, batch_size=batch_size, note=self.note)
        if self.waiting is not None:
            looks.show(self.waiting.widget, on=isinstance(answer, PipelinesAnswer))
        self.drawing.show({**drawn, "serial": self.serial})

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

    def figures(self, asked: AskedSizes) -> Export:
        """Return what the export button writes of a plan, and of the orders of its minibatches if these are few."""
        answer = asked.answer
        if isinstance(answer, PipelinesAnswer):
            made = pipelines_export(answer, profile=self.profile, note=self.note)
        else:
            made = explorer_export(answer, self.pinned, profile=self.profile, note=self.note)
        try:
            forecast = self.sizes.forecast(asked)
        except InputError:  # which the picture says in place of the orders
            return made
        note = in_lines(noted(self.note, self.profile.origin), answer.told(), sizes_text(asked, forecast))
        figures = {**made.figures, "explorer_orders": sizes_figure(asked, forecast, note=note)}
        settings = {**made.origin.settings, "sizes": sizes_settings(asked, forecast)}
        return Export(figures, replace(made.origin, settings=settings))
