"""The waiting explorer: pickers for pipelines, replication rule and straggler, and what they cost, simulated."""

import threading
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets

from ...planning import partition
from ...planning.simulator import PipelinesForecast, simulate_pipelines
from ...records.provenance import Provenance
from ...util.io.fields import integer
from ...util.io.files import expanded
from ...util.text.numbers import number_of
from ...values.cluster import Cluster, Link
from ...values.plan import Plan
from ...values.profile import Profile
from ...values.replication import RULES, parse_rule
from ...values.stragglers import Stragglers
from .. import plots
from ..glossary import definition
from . import looks
from .controls import Shown, StragglerPicker, bandwidth_slider, count_slider, dropdown, with_tips
from .exporter import Export, Exporter
from .html_view import Messages
from .settings import MINIBATCHES
from .waiting_figures import Compared, WaitingFigures

_MOST_PIPELINES, _MOST_STAGES = 8, 8
_NOT_SIMULATED = "these settings cannot be simulated: see the message above the picture"
_KEPT = 256  # outcomes that are remembered: going back costs nothing


class WaitingExplorer(Shown):
    """Compare synchronization schemes of pipeline replicas on identical devices, under a straggler. Display `widget`.

    Each pipeline has one device per stage. `shown` is the simulation of the chosen scheme, next to the other schemes
    under the same straggler. `rules` are schemes with their options, as on the command line. `minibatches` is the mean
    number per pipeline. `figures` is the folder of exported figures.
    """

    def __init__(
        self,
        profile: Profile,
        link: Link,
        *,
        pipelines: int = 4,
        stages: int = 2,
        rules: tuple[str, ...] = tuple(RULES),
        rule: str = "partial-reduce",
        minibatches: int = MINIBATCHES,
        note: str = "",
        figures: Path | str = "figures",
    ) -> None:
        for given in rules:
            parse_rule(given)
        integer(minibatches, "minibatches", least=1)
        self.profile, self.note = profile, note
        self.messages = Messages()
        self.shown: PipelinesForecast | None = None
        self._lock = threading.RLock()  # the page's clicks come in one thread, cells run in another
        self.compared: Compared | None = None  # the outcomes that are drawn
        self._drawn: tuple[Cluster, tuple[Plan, ...], dict[str, Any]] | None = None  # what they are of
        self.controls = WaitingControls(
            pipelines, stages, link, list(dict.fromkeys([*rules, rule])), num_layers=len(profile.graph.layers)
        )
        self.controls.rule.value = rule
        self.simulations = PipelinesSimulations(profile, link, minibatches=minibatches)
        self.waiting = WaitingFigures()
        self.exporter = Exporter(self.messages, expanded(figures), self._export)
        redraw = self.messages.shown(self.update)
        for control in self.controls.every:
            control.observe(redraw, names="value")
        self.widget = with_tips(self._layout())
        redraw()

    def _layout(self) -> ipywidgets.HBox:
        left = looks.VBox([*self.controls.every, self.exporter.widget], layout={"flex": "0 0 350px"})
        right = looks.VBox(
            [self.messages, self.waiting.stale, self.waiting.widget], layout={"flex": "1 1 420px", "min_width": "0"}
        )
        return looks.HBox([left, right], layout=ipywidgets.Layout(flex_flow="row wrap"))

    def stragglers(self) -> Stragglers:
        """Chosen straggler. Raises InputError for a malformed text."""
        return self.controls.stragglers(minibatches=self.simulations.minibatches)

    def update(self, _: object = None) -> None:
        """Simulate the present choice under every scheme, and draw the result. Raises InputError for an invalid choice.

        The picture then stays, marked as outdated, and nothing is exported, until another choice can be simulated.
        """
        with self._lock:
            try:
                self._simulated_anew()
            except BaseException as error:
                self._mark(str(error) or type(error).__name__)
                raise
            self._mark("")

    def _simulated_anew(self) -> None:
        controls, simulations = self.controls, self.simulations
        controls.straggler.follow()
        rule, rules = controls.rule.value, controls.rule.options
        cluster, planned = simulations.plan(controls)
        held = self.stragglers()
        held.check(len(cluster.devices))
        free = simulations.outcomes(cluster, planned, rules, Stragglers()) if held.parts else ()
        outcomes = simulations.outcomes(cluster, planned, rules, held)
        shown = simulations.forecast(cluster, planned, rule, held)
        compared = Compared(free, outcomes, rule, shown, self._noted())
        self.waiting.show(compared)
        self.shown, self.compared = shown, compared
        settings = {"stragglers": str(held), "rule": rule, "minibatches": simulations.minibatches}
        self._drawn = cluster, planned.pipelines, settings

    def _mark(self, reason: str) -> None:
        """Mark the picture as old for that reason, or as new without one."""
        self.messages.hold(reason)
        self.exporter.block(_NOT_SIMULATED if reason else "")
        last = "" if self.compared is None else f": {self.compared.note}, by {self.compared.rule}"
        self.waiting.mark(f"the last settings that could be simulated{last}" if reason else "")

    def _noted(self) -> str:
        picked = self.controls
        count, stages = number_of(picked.pipelines.value, "pipeline"), number_of(picked.stages.value, "stage")
        return " · ".join(filter(None, [self.note, f"{count} of {stages} each"]))

    def _export(self) -> Export:
        with self._lock:
            assert self.compared is not None and self._drawn is not None  # else the button is blocked
            return Export(self.compared.figures(), Provenance.of(self.profile, *self._drawn))


class WaitingControls:
    """Controls for pipelines and stages, links, synchronization scheme and straggler."""

    def __init__(self, pipelines: int, stages: int, link: Link, rules: Sequence[str], *, num_layers: int) -> None:
        most, high = min(_MOST_STAGES, num_layers), max(_MOST_PIPELINES, pipelines)
        self.pipelines = count_slider(
            "pipelines", pipelines, low=2, high=high, most=64, tip="number of pipeline replicas"
        )
        self.stages = count_slider(
            "stages", stages, low=1, high=most, most=most, tip="stages of each pipeline, one device each"
        )
        self.link_bandwidth = bandwidth_slider("links", [link.bandwidth], "bandwidth between any two devices")
        self.rule = dropdown("scheme", rules, definition("synchronization scheme"))
        self.straggler = StragglerPicker(pipelines=high, ranks=high, most=64 * most)

    @property
    def every(self) -> tuple[ipywidgets.DOMWidget, ...]:
        """All of them, in the order of the page."""
        return self.pipelines, self.stages, self.link_bandwidth, self.rule, *self.straggler.controls

    def stragglers(self, *, minibatches: int) -> Stragglers:
        """The straggler for ranks that train so many minibatches. Raises InputError for a text that cannot be read."""
        stages = self.stages.value  # devices are alike, and split in their order
        pipelines = [range(k * stages, (k + 1) * stages) for k in range(self.pipelines.value)]
        return self.straggler.picked.stragglers(pipelines, minibatches=minibatches)


class PipelinesSimulations:
    """Plans pipelines of devices that are identical, and simulates them; going back costs nothing."""

    def __init__(self, profile: Profile, link: Link, *, minibatches: int) -> None:
        self.profile, self.link, self.minibatches = profile, link, minibatches
        self._kept: dict[Hashable, PipelinesForecast] = {}

    def outcomes(
        self, cluster: Cluster, planned: Plan, rules: Sequence[str], stragglers: Stragglers
    ) -> tuple[plots.Outcome, ...]:
        """Outcomes of every synchronization scheme."""
        found = []
        for rule in rules:
            told = self.forecast(cluster, planned, rule, stragglers).to_json()["replication"]
            found.append(plots.Outcome.of(told, rule=rule, stragglers=stragglers))
        return tuple(found)

    def plan(self, controls: "WaitingControls") -> tuple[Cluster, Plan]:
        """Split the network in the same way for each pipeline."""
        count, stages = controls.pipelines.value, controls.stages.value
        kind, link = self.profile.device_types[0], replace(self.link, bandwidth=controls.link_bandwidth.value)
        one, cluster = (Cluster.uniform(number, device_type=kind, link=link) for number in (stages, count * stages))
        plan = partition(self.profile, one, planner="model-parallel")
        samples = self.profile.batch_size
        return cluster, Plan.alike(plan, count, parse_rule(controls.rule.value), samples=samples)

    def forecast(self, cluster: Cluster, planned: Plan, rule: str, stragglers: Stragglers) -> PipelinesForecast:
        """Simulate a rule; what was simulated before is remembered."""
        key = (cluster, rule, str(stragglers), len(planned.pipelines))
        if key not in self._kept:
            if len(self._kept) >= _KEPT:
                self._kept.pop(next(iter(self._kept)))
            counts = self.profile.typical_sizes
            sizes = [counts[k % len(counts)] for k in range(self.minibatches * len(planned.pipelines))]
            asked = replace(planned, replication=parse_rule(rule))
            self._kept[key] = simulate_pipelines(asked, self.profile, cluster, sizes, stragglers=stragglers)
        return self._kept[key]
