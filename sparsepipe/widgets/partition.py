"""The partition explorer: devices, links, planner, schedule and cuts under sliders; the predicted plan beside them."""

import html
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import ipywidgets

from .. import plots
from ..cluster import Cluster, DeviceType, Link, Node
from ..errors import InputError
from ..plan import WEIGHT_POLICIES, Plan
from ..planners import PLANNERS, Problem, estimate, partition
from ..profile import Profile
from ..simulator import simulate
from .messages import Messages
from .plot_view import PlotView

_BY_HAND = "cuts by hand"
_UNLIMITED = 12.0  # log10 of bytes: the memory slider's end stands for no limit
_MAX_DEVICES = 8
_WIDE = ipywidgets.Layout(width="340px")
_NAMES = {"description_width": "118px"}


class PartitionExplorer:
    """Sliders over a profile. `plan` is the plan on screen, `cluster` its devices, `widget` what to display."""

    def __init__(self, profile: Profile, cluster: Cluster, *, minibatches: int = 12, note: str = "") -> None:
        self.profile, self.minibatches, self.note = profile, minibatches, note
        self.messages = Messages()
        self.plan: Plan | None = None
        self.cluster = cluster
        self.pinned: Plan | None = None
        self._make_controls(cluster)
        self.summary, self.code = ipywidgets.HTML(), ipywidgets.HTML()
        self.timeline, self.stages, self.layers = PlotView(), PlotView(), PlotView()
        pin = ipywidgets.Button(description="pin as A", tooltip="keep this plan to compare the next ones with")
        pin.on_click(self.messages.shown(self._pin))
        column = ipywidgets.Layout(flex="0 0 370px", overflow="hidden")
        controls = ipywidgets.VBox([*self._controls(), self.cuts, pin, self.code], layout=column)
        room = ipywidgets.Layout(flex="1 1 0", min_width="0")
        views = ipywidgets.VBox([self.messages, self.summary, self.timeline, self.stages, self.layers], layout=room)
        self.widget = ipywidgets.HBox([controls, views])
        self._redraw = self.messages.shown(self.update)
        for control in self._controls():
            control.observe(self._changed, names="value")
        self._changed()

    def _make_controls(self, cluster: Cluster) -> None:
        kinds = [device.type for device in cluster.devices]
        self.counts = {
            kind.name: self._slider(kind.name, kinds.count(kind), low=0, high=max(_MAX_DEVICES, 2 * kinds.count(kind)))
            for kind in cluster.device_types
        }
        inside, between = cluster.nodes[0].link, cluster.network
        self.inside = self._log_slider("inside a node", inside.bandwidth, "B/s within a node")
        self.between = self._log_slider("between nodes", between.bandwidth, "B/s between nodes")
        memory = min(kind.memory_bytes for kind in cluster.device_types)
        self.memory = self._log_slider(
            "memory", memory, "bytes a device; the end means no limit", low=7, high=_UNLIMITED
        )
        self.planner = self._choice("planner", [*PLANNERS, _BY_HAND], "optimal")
        self.schedule = self._choice("schedule", list(WEIGHT_POLICIES), "1f1b")
        self.microbatches = self._slider("microbatches", 2 * len(kinds), low=1, high=64)
        mean = self.profile.voxels()
        self.voxels = self._slider("voxels", round(mean), low=max(1, round(mean / 4)), high=max(2, round(mean * 4)))
        self.cuts = ipywidgets.VBox([])

    def _controls(self) -> list[Any]:
        links = [self.inside, self.between] if len(self.counts) > 1 else [self.inside]
        sparse = [self.voxels] if any(len(c.samples) > 1 for c in next(iter(self.profile.costs.values()))) else []
        return [*self.counts.values(), *links, self.memory, *sparse, self.planner, self.schedule, self.microbatches]

    @staticmethod
    def _slider(name: str, value: int, *, low: int, high: int) -> ipywidgets.IntSlider:
        return ipywidgets.IntSlider(
            value=value, min=low, max=high, description=name, layout=_WIDE, style=_NAMES, continuous_update=True
        )

    @staticmethod
    def _log_slider(
        name: str, value: float, tip: str, *, low: float = 6, high: float = 12
    ) -> ipywidgets.FloatLogSlider:
        start = min(max(value, 10**low), 10**high)
        looks = {"layout": _WIDE, "style": _NAMES, "readout_format": ".2s", "tooltip": tip}
        return ipywidgets.FloatLogSlider(value=start, base=10, min=low, max=high, step=0.1, description=name, **looks)

    @staticmethod
    def _choice(name: str, options: list[str], value: str) -> ipywidgets.Dropdown:
        return ipywidgets.Dropdown(options=options, value=value, description=name, layout=_WIDE, style=_NAMES)

    def _changed(self, _: Any = None) -> None:
        self.microbatches.disabled = WEIGHT_POLICIES[self.schedule.value] != ("flush",)
        self._offer_cuts()
        self._redraw()

    def _offer_cuts(self) -> None:
        """One slider a boundary, when cuts are made by hand; where they stand follows the plan that was on screen."""
        number = max(0, sum(slider.value for slider in self.counts.values()) - 1) if self._by_hand else 0
        if number == len(self.cuts.children):
            return
        layers = len(self._planned_layers())
        ends = self._ends(self.plan) if self.plan and len(self.plan.stages) == number + 1 else ()
        starts = ends or [round(layers * (k + 1) / (number + 1)) for k in range(number)]
        sliders = [self._slider(f"cut {k} | {k + 1}", at, low=1, high=layers - 1) for k, at in enumerate(starts)]
        for slider in sliders:
            slider.observe(lambda _: self._redraw(), names="value")
        self.cuts.children = sliders

    @property
    def _by_hand(self) -> bool:
        return self.planner.value == _BY_HAND

    def _planned_layers(self) -> tuple[int, ...]:
        return tuple(k for k in range(len(self.profile.graph.layers)) if k not in self.profile.graph.input_layers)

    @staticmethod
    def _ends(plan: Plan) -> list[int]:
        counts = [len(stage.layers) for stage in plan.stages]
        return [sum(counts[: k + 1]) for k in range(len(counts) - 1)]

    def _chosen_cluster(self) -> Cluster:
        """A node for each device type, as the sliders say. Raises InputError without any device."""
        limit = self.memory.value if self.memory.value < 10**_UNLIMITED * 0.99 else float("inf")
        inside = Link(self.inside.value, self.cluster.nodes[0].link.latency)
        nodes = tuple(
            Node(
                f"node of {name}" if len(self.counts) > 1 else "node", (DeviceType(name, limit),) * slider.value, inside
            )
            for name, slider in self.counts.items()
            if slider.value
        )
        if not nodes:
            raise InputError("no device chosen: move a device slider up")
        return Cluster(nodes, Link(self.between.value, self.cluster.network.latency) if len(nodes) > 1 else inside)

    def _chosen_plan(self, profile: Profile, cluster: Cluster) -> Plan:
        schedule = self.schedule.value
        count = self.microbatches.value if WEIGHT_POLICIES[schedule] == ("flush",) else 1
        problem = Problem(profile, cluster, schedule, count)
        if not self._by_hand:
            plan = partition(profile, cluster, planner=self.planner.value, schedule=schedule, num_microbatches=count)
            told = plan.estimate
            if told is not None and any(stage.memory_bytes for stage in told.stages):
                return plan
            return replace(plan, estimate=estimate(plan, problem))  # a published cost model leaves memory out
        layers = self._planned_layers()
        ends = [0, *(slider.value for slider in self.cuts.children), len(layers)]
        if any(b <= a for a, b in zip(ends, ends[1:], strict=False)):
            raise InputError(f"cuts at layers {ends[1:-1]}: each must lie behind the one before; move them apart")
        parts = [layers[a:b] for a, b in zip(ends, ends[1:], strict=False)]
        plan = problem.plan([problem.stage(part, (rank,)) for rank, part in enumerate(parts)], "by hand")
        return replace(plan, estimate=estimate(plan.check(profile.graph, cluster), problem))

    def update(self) -> None:
        """Plan and simulate what the sliders say, and draw it. Raises InputError for a choice that cannot be."""
        counts = self.profile.voxel_counts or (self.profile.voxels(),)
        factor = self.voxels.value / max(self.profile.voxels(), 1)
        profile = replace(self.profile, voxel_counts=tuple(count * factor for count in counts))
        cluster = self._chosen_cluster()
        plan = self._chosen_plan(profile, cluster)
        number = max(self.minibatches, 2 * plan.num_microbatches)
        trace = simulate(plan, profile, cluster, [profile.voxel_counts[k % len(counts)] for k in range(number)])
        self.plan, self.shown_cluster, self.trace = plan, cluster, trace
        self.summary.value = summary_table(plan, cluster, batch_size=self.profile.origin.get("batch_size"))
        compared = [plan] if self.pinned is None else [replace(self.pinned, planner="A: " + self.pinned.planner), plan]
        self.timeline.show(plots.timeline(trace, note=self.note))
        self.stages.show(plots.stages(*compared, note=self.note))
        self.layers.show(plots.compare(*compared, note=self.note))
        self.code.value = f"<details><summary>as code</summary><pre>{html.escape(self.as_code())}</pre></details>"

    def _pin(self, _: Any = None) -> None:
        self.pinned = self.plan
        self.update()

    def as_code(self) -> str:
        """The cell that makes the plan on screen again."""
        assert self.plan is not None
        cluster = self.shown_cluster
        nodes = ",\n    ".join(_node_code(node) for node in cluster.nodes)
        lines = [f"cluster = Cluster((\n    {nodes},\n), {_link_code(cluster.network)})"]
        if self._by_hand:
            stages = ", ".join(f"Stage({stage.layers!r}, {stage.ranks!r})" for stage in self.plan.stages)
            lines.append(
                f"plan = Plan(({stages},), {self.plan.schedule!r}, num_microbatches={self.plan.num_microbatches})"
            )
        else:
            lines.append(
                f"plan = partition(profile, cluster, planner={self.planner.value!r}, schedule={self.plan.schedule!r}, "
                f"num_microbatches={self.plan.num_microbatches})"
            )
        return "\n".join(lines)


def summary_table(plan: Plan, cluster: Cluster, *, batch_size: int | None = None) -> str:
    """What a plan promises as a small HTML table: pace, gains, proof, and which stage holds it back and why."""
    expected = plan.estimate
    assert expected is not None
    period = expected.period_seconds
    rows = [("period", f"{period * 1e3:.2f} ms a minibatch")]
    if batch_size:
        rows.append(("throughput", f"{batch_size / period:.0f} samples/s"))
    for name, seconds in (
        ("one device", expected.single_device_seconds),
        ("data parallel", expected.data_parallel_seconds),
    ):
        if seconds:
            rows.append((f"over {name}", f"{seconds / period:.2f} ×"))
    if expected.gap is not None:
        rows.append(("at most above the optimum", f"{expected.gap:.2%}"))
    rows.append(("held back by", bottleneck(plan)))
    limits = [cluster.devices[rank].type.memory_bytes for stage in plan.stages for rank in stage.ranks[:1]]
    worst = max(zip(expected.stages, limits, strict=True), key=lambda pair: pair[0].memory_bytes / pair[1])
    limit = f" of {plots.table.scaled_bytes(worst[1])}" if worst[1] < float("inf") else ""
    rows.append(("fullest device", f"{plots.table.scaled_bytes(worst[0].memory_bytes)}{limit}"))
    rows += [("note", text) for text in plan.warnings]
    return _html_table(rows)


def bottleneck(plan: Plan) -> str:
    """Name the slowest stage and what makes it so."""
    assert plan.estimate is not None
    causes = []
    for k, part in enumerate(plan.estimate.stages):
        own = "averaging" if part.averaging_seconds > part.compute_seconds else "compute"
        causes += [(part.compute_seconds + part.averaging_seconds, k, own), (part.transfer_seconds, k, "transfers")]
    seconds, stage, cause = max(causes)
    return f"stage {stage}: {cause}, {seconds * 1e3:.2f} ms"


def _html_table(rows: Iterable[tuple[str, str]]) -> str:
    faint = "padding:0 14px 0 0;opacity:.75"
    cells = "".join(
        f"<tr><td style='{faint}'>{html.escape(name)}</td><td><b>{html.escape(value)}</b></td></tr>"
        for name, value in rows
    )
    return f"<table style='font-size:13px;line-height:1.5'>{cells}</table>"


def _node_code(node: Node) -> str:
    kinds = ", ".join(f"DeviceType({kind.name!r}, {_number(kind.memory_bytes)})" for kind in node.device_types)
    return f"Node({node.name!r}, ({kinds},), {_link_code(node.link)})"


def _link_code(link: Link) -> str:
    return f"Link({_number(link.bandwidth)}, {link.latency:.3g})"


def _number(value: float) -> str:
    return 'float("inf")' if value == float("inf") else f"{value:.6g}"
