"""The partition explorer: devices, links, workload, planner, schedule and cuts under sliders; the plan beside them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ipywidgets

from .. import plots
from ..cluster import Cluster, DeviceType, Link, Node
from ..display.markup import Html
from ..errors import InputError
from ..plan import WEIGHT_POLICIES, Plan
from ..planners import PLANNERS, Problem, bound_of, partition
from ..planners.by_hand import by_hand, with_cuts, with_groups
from ..planners.teams import device_classes
from ..plots.table import scaled_bytes
from ..profile import Profile
from ..simulator import simulate
from .answering import answering
from .as_code import as_code
from .blocked import blocked
from .controls import choices, dropdown, log_slider, slider, toggle
from .exporter import Exporter
from .html_view import HtmlView
from .messages import Messages
from .partition_view import PartitionView, graph_text
from .scale import Scale
from .scene import scene
from .stage_editor import StageEditor
from .stages_per_device import StagesPerDevice
from .what_if import compressed, judged

_MAX_DEVICES = 8
_AS_GIVEN = 0.0
_MEMORY = [m * 10.0**e for e in range(7, 12) for m in (1, 1.5, 2, 3, 4, 6, 8)]
_VOXEL_SIZES = (0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2)
_COMPRESSIONS = {"none": 1.0, "2 × (bfloat16)": 2.0, "4 × (int8)": 4.0}
_KEPT = 64  # plans that are remembered: going back costs nothing


class PartitionExplorer:
    """Sliders over a profile. `plan` is the plan on screen, `shown_cluster` its devices, `widget` what to display.

    `voxels_by_size`: mean active voxels of a sample at each voxel size, where they were counted.
    `figures`: where the export button writes to.
    """

    def __init__(
        self,
        profile: Profile,
        cluster: Cluster,
        *,
        minibatches: int = 12,
        note: str = "",
        voxels_by_size: Mapping[float, float] | None = None,
        figures: Path | str = "figures",
    ) -> None:
        _check(profile, cluster)
        self.profile, self.cluster, self.minibatches, self.note = profile, cluster, minibatches, note
        self.scale = Scale.of(profile, voxels_by_size)
        self.messages = Messages()
        self.plan: Plan | None = None
        self.shown_cluster = cluster
        self.pinned: Plan | None = None
        self.ends: list[int] = []
        self._serial, self._quiet = 0, True
        self._asked: tuple[tuple, Problem] | None = None
        self._made: dict[tuple, Plan | str] = {}
        self._compressed = {1.0: profile}
        self.view = PartitionView()
        self.view.graph = graph_text(profile)
        self._make_controls(cluster)
        self._redraw = self.messages.shown(self.update)
        self.exporter = Exporter(self.messages, Path(figures), self._figures, origin=lambda: dict(profile.origin))
        self.view.on_cut(self._cut_moved)
        for control in self._controls():
            control.observe(self._changed, names="value")
        self.widget = answering(self._layout())
        self._quiet = False
        self._changed()

    # --- Controls ---------------------------------------------------------------------------------------------------

    def _make_controls(self, cluster: Cluster) -> None:
        kinds = [device.type for device in cluster.devices]
        self.counts = {
            kind.name: slider(kind.name, kinds.count(kind), low=0, high=max(_MAX_DEVICES, 2 * kinds.count(kind)))
            for kind in cluster.device_types
        }
        self.inside = log_slider("within a node", cluster.nodes[0].link.bandwidth, "bytes per second within a node")
        self.between = log_slider("between nodes", cluster.network.bandwidth, "bytes per second between nodes")
        options = [*((scaled_bytes(value), value) for value in _MEMORY), ("as given", _AS_GIVEN)]
        self.memory = choices("memory", options, _AS_GIVEN, "limit of every device")
        sizes = sorted({*_VOXEL_SIZES, self.scale.voxel_size}) if self.scale else [1.0]
        batches = sorted({*(2**k for k in range(11)), self.scale.batch_size}) if self.scale else [1]
        law = f"voxels {self.scale.law}" if self.scale else ""
        self.batch_size = choices("batch size", batches, self.scale.batch_size if self.scale else 1, "of a minibatch")
        self.voxel_size = choices("voxel size", sizes, self.scale.voxel_size if self.scale else 1.0, law)
        self.compression = dropdown("compression", _COMPRESSIONS, "of the features that cross a boundary")
        self.planner = dropdown("planner", list(PLANNERS), "who chooses the stages")
        self.schedule = dropdown("schedule", list(WEIGHT_POLICIES), "the order of forwards and backwards")
        self.weights = dropdown("weights", WEIGHT_POLICIES["1f1b"], "which version a minibatch meets")
        self.microbatches = slider("microbatches", 2 * len(kinds), low=1, high=64)
        self.stages_per_device = StagesPerDevice(num_layers=len(self.profile.graph.layers), num_devices=len(kinds))
        self.pin_cuts = toggle("pin cuts", "keep the cuts: drag them, or move them with the arrow keys")
        self.pin_devices = toggle("pin devices", "keep the devices of each stage: change them below")
        self.editor = StageEditor(list(self.counts), self._changed)
        self.editor.more.on_click(self.messages.shown(lambda _: self._resize(1)))
        self.editor.less.on_click(self.messages.shown(lambda _: self._resize(-1)))
        self.pin = ipywidgets.Button(
            description="pin as A", icon="thumb-tack", tooltip="compare the next plans with it"
        )
        self.unpin = ipywidgets.Button(description="forget A", tooltip="compare no more", disabled=True)
        self.pin.on_click(self.messages.shown(lambda _: self._pin(self.plan)))
        self.unpin.on_click(self.messages.shown(lambda _: self._pin(None)))

    def _controls(self) -> list[Any]:
        links = [self.inside, self.between] if len(self.counts) > 1 else [self.inside]
        sparse = [self.batch_size, self.voxel_size] if self.scale else []
        chosen = [self.planner, self.schedule, self.weights, self.microbatches, self.stages_per_device.slider]
        chosen += [self.pin_cuts, self.pin_devices]
        return [*self.counts.values(), *links, self.memory, *sparse, self.compression, *chosen]

    def _layout(self) -> ipywidgets.HBox:
        found = self._controls()
        split = found.index(self.memory) + 1
        end = found.index(self.planner)
        heads = [HtmlView(Html("<b>{}</b>").format(text)) for text in ("Devices and links", "Workload", "Plan")]
        toggles = ipywidgets.HBox([self.pin_cuts, self.pin_devices])
        chosen = [*found[end:-2], self.stages_per_device.note, toggles]
        column = [heads[0], *found[:split], heads[1], *found[split:end], heads[2], *chosen]
        column += [self.editor.widget, ipywidgets.HBox([self.pin, self.unpin]), self.exporter.widget]
        left = ipywidgets.VBox(column, layout={"flex": "0 0 350px", "overflow": "hidden"})
        right = ipywidgets.VBox([self.messages, self.view], layout={"flex": "1 1 420px", "min_width": "0"})
        return ipywidgets.HBox([left, right], layout={"flex_flow": "row wrap"})

    def _changed(self, change: Any = None) -> None:
        """One redraw for one change, whatever other controls follow from it."""
        if self._quiet:
            return
        self._quiet = True
        try:
            policies = WEIGHT_POLICIES[self.schedule.value]
            if self.weights.options != policies:
                self.weights.options = policies
            self.microbatches.disabled = policies[0] not in ("flush", "2bw")
            self.weights.disabled = len(policies) == 1
            self._start_pinning(change)
            pinned = self.pin_cuts.value or self.pin_devices.value
            self.stages_per_device.offer(self.planner.value, self.schedule.value, pinned=pinned)
            self.pin_cuts.disabled = self.pin_devices.disabled = self.stages_per_device.laps > 1
            self._redraw()
        finally:
            self._quiet = False

    def _start_pinning(self, change: Any) -> None:
        """A toggle that was switched on keeps what the plan on screen has."""
        pinned = self.pin_cuts.value or self.pin_devices.value
        if change is not None and change["owner"] in (self.pin_cuts, self.pin_devices) and self.plan is not None:
            counts = [len(stage.layers) for stage in self.plan.stages]
            self.ends = [sum(counts[: k + 1]) for k in range(len(counts) - 1)]
            self.editor.groups = [_group(stage.device_types) for stage in self.plan.stages]
        self.planner.disabled = pinned
        self.editor.widget.layout.display = "" if pinned else "none"

    def _resize(self, step: int) -> None:
        """One stage more, out of the one with the most layers, or one less, joined with its neighbour."""
        if self.plan is None:
            return
        bounds = [0, *self.ends, len(Problem(self.profile, self.shown_cluster).layers)]
        sizes = [b - a for a, b in zip(bounds, bounds[1:], strict=False)]
        groups = [dict(group) for group in self.editor.groups]
        if step > 0:
            k = sizes.index(max(sizes))
            if sizes[k] < 2:
                raise InputError("every stage has one layer: there is no place for one stage more")
            spare = {n: s.value - sum(group.get(n, 0) for group in groups) for n, s in self.counts.items()}
            free = next((name for name, number in spare.items() if number > 0), None)
            if free is None:
                raise InputError("every device has a stage: move a device slider up, or take one from a stage")
            self.ends.insert(k, bounds[k] + sizes[k] // 2)
            groups.insert(k + 1, {free: 1})
        else:
            self.ends.pop()
            groups.pop()
        self.editor.groups = groups
        self._changed()

    def _cut_moved(self, cut: int, at: int) -> None:
        if self.pin_cuts.value and cut < len(self.ends):
            self.ends[cut] = at
            self._changed()

    # --- The plan ---------------------------------------------------------------------------------------------------

    def _chosen_cluster(self) -> Cluster:
        """A node for each device type, as the sliders say. Raises InputError without any device."""
        inside = Link(self.inside.value, self.cluster.nodes[0].link.latency)
        nodes = []
        for kind in self.cluster.device_types:
            limit = self.memory.value or kind.memory_bytes
            own = (DeviceType(kind.name, limit),) * self.counts[kind.name].value
            if own:
                nodes.append(Node(f"node of {kind.name}" if len(self.counts) > 1 else "node", own, inside))
        if not nodes:
            raise InputError("no device chosen: move a device slider up")
        network = Link(self.between.value, self.cluster.network.latency) if len(nodes) > 1 else inside
        return Cluster(tuple(nodes), network)

    def _chosen_profile(self) -> Profile:
        """The profile at the batch size, voxel size and compression chosen."""
        ratio = self.compression.value
        if ratio not in self._compressed:
            self._compressed[ratio] = compressed(self.profile, ratio)
        profile = self._compressed[ratio]
        if self.scale is None:
            return profile
        factor = self.scale.factor(self.batch_size.value, self.voxel_size.value)
        counts = self.profile.voxel_counts or (self.profile.voxels(),)
        return replace(profile, voxel_counts=tuple(count * factor for count in counts))

    def _problem(self) -> Problem:
        """What the controls ask for; the same object while they do, as it holds the costs worked out."""
        count = 1 if self.microbatches.disabled else self.microbatches.value
        sizes = (self.batch_size.value, self.voxel_size.value, self.compression.value)
        key = (self._chosen_cluster(), self.schedule.value, count, *sizes)
        if self._asked is None or self._asked[0] != key:
            self._asked = key, Problem(self._chosen_profile(), *key[:3])
        return self._asked[1]

    def _planned(self, problem: Problem, planner: str, **options: int) -> Plan:
        """What a planner answers; remembered. Raises InputError where nothing fits."""
        assert self._asked is not None
        key = (*self._asked[0], planner, *options.items())
        if key not in self._made:
            if len(self._made) >= _KEPT:
                self._made.pop(next(iter(self._made)))
            try:
                self._made[key] = _partition(problem, planner, **options)
            except InputError as error:
                self._made[key] = str(error)
        found = self._made[key]
        if isinstance(found, str):
            raise InputError(found)
        return found

    def _chosen_plan(self, problem: Problem) -> tuple[Plan, float | None]:
        """(the plan as the default cost model sees it, a lower bound of every plan's period where one is known)."""
        laps = self.stages_per_device.laps
        try:
            best, refused = self._planned(problem, "optimal"), ""  # which also bounds others
        except InputError as error:
            best, refused = None, str(error)
        plan = self._by_hand(problem)
        if plan is None:
            if best is None and laps == 1:
                raise InputError(refused)
            plan = self._planned(problem, self.planner.value, **({"stages_per_device": laps} if laps > 1 else {}))
        if plan.weights != self.weights.value:
            plan = replace(plan, weights=self.weights.value).check(problem.graph, problem.cluster)
        plan = judged(plan, problem)
        bound = bound_of(plan, best.estimate.lower_bound_seconds) if best is not None and best.estimate else None
        assert plan.estimate is not None
        return replace(plan, estimate=replace(plan.estimate, lower_bound_seconds=bound)), bound

    def _by_hand(self, problem: Problem) -> Plan | None:
        """The plan around what is pinned; None where nothing is."""
        if not (self.pin_cuts.value or self.pin_devices.value):
            return None
        kinds = [one.type.name for one in device_classes(problem.cluster)]
        if self.pin_devices.value:
            groups = [tuple(group.get(kind, 0) for kind in kinds) for group in self.editor.groups]
            lost = {name for group in self.editor.groups for name, n in group.items() if n and name not in kinds}
            if lost:
                raise InputError(
                    f"stages use {min(lost)}, of which there is none: move its slider up, or unpin devices"
                )
            return by_hand(problem, self.ends, groups) if self.pin_cuts.value else with_groups(problem, groups)
        return with_cuts(problem, self.ends)

    def update(self) -> None:
        """Plan and simulate what the controls say, and draw it. Raises InputError for a choice that cannot be."""
        problem = self._problem()
        plan, bound = self._chosen_plan(problem)
        counts = problem.profile.voxel_counts or (problem.voxels,)
        number = max(self.minibatches, 2 * plan.num_microbatches)
        trace = simulate(plan, problem.profile, problem.cluster, [counts[k % len(counts)] for k in range(number)])
        self.plan, self.shown_cluster, self.trace, self.problem = plan, problem.cluster, trace, problem
        sizes = [len(stage.layers) for stage in plan.stages]
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes) - 1)]
        pinned = self.pin_cuts.value or self.pin_devices.value
        if pinned:
            self.ends = ends
            self.editor.show([_group(stage.device_types) for stage in plan.stages], devices=self.pin_devices.value)
        self._serial += 1
        batch_size = self.batch_size.value if self.scale else self.profile.origin.get("batch_size")
        drawn = scene(plan, problem, trace, bound=bound, batch_size=batch_size, before=self.pinned)
        movable = self.pin_cuts.value
        where = blocked(plan, problem, ends) if movable else {"blocked": [], "reasons": []}
        drawn |= {
            "serial": self._serial,
            "cuts": {"at": ends, "movable": movable, **where},
            "hint": "drag a cut, or focus it and press the arrow keys"
            if movable
            else "in order, as high as their time; pin cuts to move them",
            "code": self.as_code(),
        }
        if self.note:
            drawn["notes"] = [*drawn["notes"], self.note]
        self.view.show(drawn)

    def _pin(self, plan: Plan | None) -> None:
        self.pinned = plan
        self.unpin.disabled = plan is None
        self.update()

    def _figures(self) -> dict[str, tuple[Any, Any]]:
        """Name → (figure, table) of what is on screen, for the export button."""
        if self.plan is None:
            raise InputError("no plan on screen: change what the message above names")
        compared = [self.plan] if self.pinned is None else [replace(self.pinned, planner="A"), self.plan]
        return {
            "explorer_stages": (plots.stages(*compared, note=self.note), plots.stages_table(*compared)),
            "explorer_layers": (plots.compare(*compared, note=self.note), plots.compare_table(*compared)),
            "explorer_timeline": (plots.timeline(self.trace, note=self.note), plots.timeline_table(self.trace)),
        }

    def as_code(self) -> str:
        """The cell that makes the plan on screen again, given `profile`."""
        assert self.plan is not None
        counts = self.problem.profile.voxel_counts if self.scale else None
        changed = counts if counts and counts != self.profile.voxel_counts else None
        factor = changed[0] / self.profile.voxel_counts[0] if changed and self.profile.voxel_counts else None
        return as_code(
            self.plan,
            self.shown_cluster,
            planner=None if self.pin_cuts.value or self.pin_devices.value else self.planner.value,
            factor=factor,
            compression=self.compression.value,
        )


def _partition(problem: Problem, planner: str, **options: int) -> Plan:
    return partition(
        problem.profile,
        problem.cluster,
        planner=planner,
        schedule=problem.schedule,
        num_microbatches=problem.num_microbatches,
        **options,
    )


def _check(profile: Profile, cluster: Cluster) -> None:
    for given, expected in ((profile, Profile), (cluster, Cluster)):
        if not isinstance(given, expected):
            kind = expected.__name__
            raise InputError(f"{given!r} given, expected a {kind}: {kind}.load(path) reads one")
    for kind in cluster.device_types:
        if kind.name not in profile.device_types:
            raise InputError(
                f"the cluster has devices of type {kind.name!r}, the profile knows {', '.join(profile.device_types)}: "
                f"profile the model on a {kind.name}, or rename the profile with profile.renamed({kind.name!r})"
            )


def _group(kinds: tuple[str, ...]) -> dict[str, int]:
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
