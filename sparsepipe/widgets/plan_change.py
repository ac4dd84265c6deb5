"""Another plan for a job that runs: which job, which plan of the board or of a file, and a button."""

from collections.abc import Callable, Sequence

from ..display.markup import Html
from ..io.paths import expanded
from ..pipelines import Pipelines
from ..plan import Plan
from . import looks
from .html_view import HtmlView
from .messages import Messages

_ASKED = Html("{} is asked to go on under {}: its ranks prepare it while they train")


class PlanChange:
    """A row below the plans, hidden while nothing runs. `change(job, plan, called)` is what a click asks of the board.

    `prepared` gives the board's plan of a name. A file comes first where one is named.
    """

    def __init__(
        self,
        messages: Messages,
        prepared: Callable[[str], Plan | Pipelines],
        change: Callable[[str, Plan | Pipelines, str], object],
    ) -> None:
        self._prepared, self._change = prepared, change
        self.job = looks.Dropdown(description="running job", style=looks.OWN_WIDTH, layout={"width": "auto"})
        self.job.tooltip = "the job that is to go on under another plan"
        self.plan = looks.Dropdown(description="goes on under", style=looks.OWN_WIDTH, layout={"width": "auto"})
        self.plan.tooltip = "a plan of this board, as its line shows it"
        self.file = looks.Text(description="or a file", style=looks.OWN_WIDTH, layout={"width": "260px"})
        self.file.placeholder, self.file.tooltip = "work/plans/….json", "a plan's file, in place of one of this board"
        self.button = looks.Button(description="change its plan", icon="random", layout={"width": "auto"})
        self.button.tooltip = "layers that change hands travel with all their state; its processes stay"
        self.told = HtmlView()
        self.button.on_click(messages.shown(lambda _: self._asked()))
        row = [self.job, self.plan, self.file, self.button, self.told]
        self.widget = looks.HBox(row, layout={"flex_flow": "row wrap", "display": "none"})

    def offer(self, jobs: Sequence[str], plans: Sequence[str]) -> None:
        """Offer those jobs, which run, and plans; what was chosen stays chosen."""
        looks.show(self.widget, on=bool(jobs))
        for chooser, names in ((self.job, jobs), (self.plan, plans)):
            if chooser.options != tuple(names):
                chosen = chooser.value
                chooser.options = tuple(names)
                chooser.value = chosen if chosen in names else next(iter(names), None)

    def say(self, job: str, called: str, doubt: str = "") -> None:
        """Show that a job was asked, and what could not be told of the plan, until `done`."""
        self.told.value = Html("; ").join(filter(None, [_ASKED.format(job, called), doubt]))

    def done(self) -> None:
        self.told.value = ""

    def _asked(self) -> None:
        if not self.job.value:
            return  # it has ended as the button was clicked
        file = self.file.value.strip()
        plan = Plan.load(expanded(file)) if file else self._prepared(self.plan.value)
        self._change(self.job.value, plan, file or self.plan.value)
