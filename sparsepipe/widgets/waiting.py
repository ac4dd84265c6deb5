"""The waiting explorer: pickers for pipelines, replication rule and straggler, and what they cost, simulated."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets

from .. import plots
from ..cluster import Cluster, Link
from ..display.markup import Html
from ..errors import InputError
from ..fields import integer
from ..pipeline_simulator import PipelinesForecast, simulate_pipelines
from ..pipelines import Pipelines
from ..planners import partition
from ..profile import Profile
from ..provenance import Provenance
from ..quantities import TIME
from ..replication import RULES, parse_rule, rule_text
from ..stragglers import Stragglers
from .controls import bandwidth_slider, count_slider, dropdown, number_slider
from .exporter import Export, Exporter
from .html_view import HtmlView
from .messages import Messages
from .plot_view import PlotView
from .responsive import responsive
from .shown import Shown
from .stop_slider import StopSlider
from .tips import with_tips

NOBODY, PIPELINE, SLOW = "nobody", "one pipeline is slow", "one rank is slow"
JITTER, STOP = "ranks sleep by chance", "one rank stops once"
_MOST_PIPELINES, _MOST_STAGES = 8, 8
_FACTORS = (1.5, 2, 3, 4, 6, 8, 16)
_CHANCES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
_SECONDS = [float(f"{m}e{e}") for e in (-3, -2, -1, 0, 1) for m in (1, 2, 5)]
_KEPT = 256  # outcomes that are remembered: going back costs nothing


class WaitingExplorer(Shown):
    """Pickers over pipelines of devices that are alike. `widget` is what to display.

    Each pipeline has one device for each of its stages; `shown` is the simulation of the rule that is picked, beside it
    the others stand under the same straggler. `rules` are given as the command line takes them, with their options.
    `minibatches`: how many each pipeline trains on average. `figures`: where the export button writes to.
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
        minibatches: int = 24,
        note: str = "",
        figures: Path | str = "figures",
    ) -> None:
        for given in rules:
            parse_rule(given)
        integer(minibatches, "minibatches", least=1)
        self.profile, self.link, self.minibatches, self.note = profile, link, minibatches, note
        self.messages = Messages()
        self.shown: PipelinesForecast | None = None
        self._lock = threading.RLock()  # the page's clicks come in one thread, cells run in another
        self._simulated: dict[tuple, PipelinesForecast] = {}
        self._drawn: list[plots.Outcome] = []
        self._make_controls(pipelines, stages, rules, rule)
        self.told = HtmlView()
        self.paces, self.groups, self.lost = PlotView(), PlotView(), PlotView()
        self.exporter = Exporter(self.messages, Path(figures), self._export)
        redraw = self.messages.shown(self.update)
        for control in self._controls:
            control.observe(redraw, names="value")
        self.widget = responsive(with_tips(self._layout()))
        redraw()

    def _make_controls(self, pipelines: int, stages: int, rules: tuple[str, ...], rule: str) -> None:
        most = min(_MOST_STAGES, len(self.profile.graph.layers))
        high = max(_MOST_PIPELINES, pipelines)
        self.pipelines = count_slider("pipelines", pipelines, low=2, high=high, most=64, tip="copies of the network")
        self.stages = count_slider("stages", stages, low=1, high=most, most=most, tip="of each pipeline, a device each")
        self.link_bandwidth = bandwidth_slider("links", [self.link.bandwidth], "bandwidth between any two devices")
        self.rule = dropdown("rule", list(dict.fromkeys([*rules, rule])), "how pipelines average")
        self.rule.value = rule
        self.straggler = dropdown("who is slow", [PIPELINE, SLOW, JITTER, STOP, NOBODY], "what holds ranks up")
        self.rank = count_slider(
            "rank", 0, low=0, high=high - 1, most=64 * most - 1, tip="pipeline 0's first; or one of a pipeline"
        )
        self.factor = number_slider("times as slow", 4.0, _FACTORS, "of slow ranks")
        self.chance = number_slider("chance", 0.1, _CHANCES, "that a rank sleeps in a minibatch")
        self.seconds = StopSlider(
            "sleeps, stops for", 0.1, TIME, stops=_SECONDS, tooltip="seconds of a sleep or a stop"
        )
        self._controls = (self.pipelines, self.stages, self.link_bandwidth, self.rule, self.straggler)
        self._controls += (self.rank, self.factor, self.chance, self.seconds)

    def _layout(self) -> ipywidgets.HBox:
        left = ipywidgets.VBox([*self._controls, self.exporter.widget], layout={"flex": "0 0 350px"})
        views = [self.messages, self.told, self.paces, self.lost, self.groups]
        right = ipywidgets.VBox(views, layout={"flex": "1 1 420px", "min_width": "0"})
        return ipywidgets.HBox([left, right], layout={"flex_flow": "row wrap"})

    def stragglers(self) -> Stragglers:
        """What the pickers say holds ranks up."""
        rank, seconds = f"rank={self.rank.value}", f"seconds={self.seconds.value:g}"
        factor, stages = f"factor={self.factor.value:g}", self.stages.value
        first = self.rank.value // stages * stages  # of its pipeline: devices are alike, and split in their order
        given = {
            PIPELINE: ";".join(f"slow:rank={first + k},{factor}" for k in range(stages)),
            SLOW: f"slow:{rank},{factor}",
            JITTER: f"jitter:p={self.chance.value:g},{seconds}",
            STOP: f"stop:{rank},at={self.minibatches // 4},{seconds}",
        }
        return Stragglers.parse(given.get(self.straggler.value, ""))

    def update(self, _: Any = None) -> None:
        """Simulate what the pickers say, under every rule, and draw it. Raises InputError for what cannot be."""
        with self._lock:
            self._follow()
            cluster, planned, held = *self._plan(), self.stragglers()
            held.check(len(cluster.devices))
            outcomes = []
            for stragglers in (Stragglers(), held) if held.parts else (held,):
                for rule in self.rule.options:
                    told = self._simulate(cluster, planned, rule, stragglers).to_json()["replication"]
                    outcomes.append(plots.Outcome.of(told, rule=rule, stragglers=stragglers))
            self.shown, self._drawn = self._simulate(cluster, planned, self.rule.value, held), outcomes
            self._draw()

    def _follow(self) -> None:
        """Grey the sliders that say nothing about what is picked."""
        picked = self.straggler.value
        self.rank.disabled = picked not in (PIPELINE, SLOW, STOP)
        self.factor.disabled = picked not in (PIPELINE, SLOW)
        self.chance.disabled = picked != JITTER
        self.seconds.disabled = picked not in (JITTER, STOP)

    def _plan(self) -> tuple[Cluster, Pipelines]:
        count, stages = self.pipelines.value, self.stages.value
        kind, link = self.profile.device_types[0], replace(self.link, bandwidth=self.link_bandwidth.value)
        one, cluster = (Cluster.uniform(number, device_type=kind, link=link) for number in (stages, count * stages))
        plan = partition(self.profile, one, planner="model-parallel")
        samples = self.profile.origin.get("batch_size", 1)
        return cluster, Pipelines.alike(plan, count, parse_rule(self.rule.value), samples=samples)

    def _simulate(self, cluster: Cluster, planned: Pipelines, rule: str, stragglers: Stragglers) -> PipelinesForecast:
        key = (cluster, rule, str(stragglers), len(planned.pipelines))
        if key not in self._simulated:
            if len(self._simulated) >= _KEPT:
                self._simulated.pop(next(iter(self._simulated)))
            counts = self.profile.typical_sizes
            sizes = [counts[k % len(counts)] for k in range(self.minibatches * len(planned.pipelines))]
            asked = replace(planned, replication=parse_rule(rule))
            self._simulated[key] = simulate_pipelines(asked, self.profile, cluster, sizes, stragglers=stragglers)
        return self._simulated[key]

    # --- What is drawn ------------------------------------------------------------------------------------------------

    def _noted(self) -> str:
        shape = f"{self.pipelines.value} pipelines, stages of each: {self.stages.value}, simulated"
        return " · ".join(filter(None, [self.note, shape]))

    def _of_straggler(self) -> list[plots.Outcome]:
        """The outcomes of all rules under what holds ranks up now."""
        return self._drawn[-len(self.rule.options) :]

    def _undisturbed(self) -> float:
        """The pace of the rule that is picked while nobody is slow."""
        return next(one.samples_per_second for one in self._drawn if one.rule == self.rule.value)

    def _figures(self) -> dict[str, Any]:
        picked = [one for one in self._of_straggler() if one.rule == self.rule.value]
        return {
            "explorer_waiting": (plots.waiting(self._drawn, note=self._noted()), plots.waiting_table(self._drawn)),
            "explorer_lost_seconds": (
                plots.lost_seconds(self._of_straggler(), note=self._noted()),
                plots.lost_seconds_table(self._of_straggler()),
            ),
            **({} if not _averaged(picked) else _of_groups(picked, self._noted())),
        }

    def _draw(self) -> None:
        assert self.shown is not None
        figures = self._figures()
        self.paces.show(figures["explorer_waiting"][0])
        self.lost.show(figures["explorer_lost_seconds"][0])
        self.groups.layout.display = "" if "explorer_groups" in figures else "none"
        if "explorer_groups" in figures:
            self.groups.show(figures["explorer_groups"][0])
        self.told.value = _told(self.shown, self._undisturbed())

    def _export(self) -> Export:
        with self._lock:
            if self.shown is None:
                raise InputError("nothing was simulated yet: mend what the message above the picture says")
            cluster, planned = self._plan()
            settings = {"stragglers": str(self.stragglers()), "rule": self.rule.value, "minibatches": self.minibatches}
            origin = Provenance.of(self.profile, cluster, planned.pipelines, settings)
            return Export(self._figures(), origin)


def _averaged(picked: list[plots.Outcome]) -> bool:
    return any(one.group_sizes or one.staleness for one in picked)


def _of_groups(picked: list[plots.Outcome], note: str) -> dict[str, Any]:
    return {"explorer_groups": (plots.groups(picked, note=note), plots.groups_table(picked))}


def _told(forecast: PipelinesForecast, undisturbed: float) -> Html:
    """The rule that is picked, in a sentence; `undisturbed`: its pace while nobody is slow."""
    pace, own = forecast.samples_per_second, forecast.own_pace
    several = sum(forecast.group_sizes.values())
    averages = (
        f"{several} averages, of {forecast.mean_group_size:.1f} pipelines on average" if several else "no average yet"
    )
    text = Html("<b>{}</b>: {:,.0f} samples/s, {} of its pace while nobody is slow. Waiting costs {} of {:,.0f}; {}")
    shares = (f"{part / whole:.0%}" if whole else "none" for part, whole in ((pace, undisturbed), (own - pace, own)))
    return text.format(rule_text(forecast.rule), pace, *shares, own, averages)
