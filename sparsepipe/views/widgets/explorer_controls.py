"""The partition explorer's controls: devices and links, workload, plan, stages by hand, pipelines."""

from collections.abc import Callable, Iterable
from typing import Any

import ipywidgets

from ...planning import PLANNERS, PlanSettings
from ...planning.scale import Scale
from ...runtime.config import RunConfig
from ...util.io.options import option_values, written_value
from ...util.io.settings import rows
from ...util.text.numbers import EXTRAPOLATED
from ...values.cluster import Cluster
from ...values.profile import Profile
from ...values.replication import RULES, parse_rule
from ...values.schedule_rules import WEIGHT_POLICIES, WEIGHT_RULES
from ..glossary import definition
from ..markup import Html
from . import looks
from .controls import (
    StragglerPicker,
    bandwidth_slider,
    choice_slider,
    count_slider,
    dropdown,
    folded,
    latency_slider,
    memory_slider,
    number_slider,
    toggle,
    written,
)
from .html_view import HtmlView, Messages
from .looks import sentence
from .planning import Answer
from .settings import AS_GIVEN, BY_TYPE, NOBODY, Settings, SeveralPipelines, hosts_of, placement_told
from .stage_editor import SMALL, StagesByHand, StagesPerDevice
from .stop_slider import StopSlider

_MAX_DEVICES, _MOST_DEVICES = 8, 64  # where a slider ends, and what may be typed: planning more takes minutes
_MOST_MICROBATCHES, _MOST_SAMPLES = 1024, 10**6
_VOXEL_SIZES = (0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2)
_OF_RUNS, _OF_PLANS = rows(RunConfig), rows(PlanSettings)
AS_PROFILED, LOGNORMAL = "as in the profile's data", "lognormal"
_VARIATIONS = (*(k / 20 for k in range(1, 21)), *(k / 10 for k in range(11, 21)))
_COMPRESSIONS = {"none": 1.0, "2 × (bfloat16)": 2.0, "4 × (int8)": 4.0}
_RULE, _MOST_PIPELINES = "partial-reduce", 8
_EXAMPLE = "e.g. every=2"
_PINNED = "Pinned cuts and devices apply to one pipeline: unpin them to plan pipeline replicas"


class ExplorerControls:
    """All controls, in the groups of the page; `settings` is what they say, but for `sizes`, which change no plan."""

    def __init__(
        self,
        profile: Profile,
        cluster: Cluster,
        scale: Scale | None,
        messages: Messages,
        changed: Callable[[], None],
    ) -> None:
        layers, num_devices = profile.graph.layers, len(cluster.devices)
        self.devices = DeviceControls(cluster)
        self.workload = WorkloadControls(scale)
        self.sizes = SizeControls(profile)
        self.plan = PlanControls(num_layers=len(layers), num_devices=num_devices)
        self.stages = StagesByHand(
            self.devices.counts, messages, changed, num_layers=len(layers) - len(profile.graph.input_layers)
        )
        self.pipelines = PipelinesChoice(num_devices=num_devices, most=max(_MOST_DEVICES, 2 * num_devices))

    @property
    def every(self) -> list[ipywidgets.DOMWidget]:
        """All whose value is a setting of the plan, in the order of the page."""
        groups = self.devices, self.workload, self.plan, self.stages, self.pipelines
        return [control for group in groups for control in group.controls]

    @property
    def boxes(self) -> list[ipywidgets.DOMWidget]:
        """The controls that matter most, and below a button the others, under a head for each group."""
        names = ("Devices and links", "Workload", "Plan", "Pipelines")
        heads = [HtmlView(Html("<b>{}</b>").format(name)) for name in names]
        plan, stages, workload = self.plan, self.stages, self.workload
        most = [*workload.controls[:-1], self.devices.first_link, plan.schedule]
        fold = looks.VBox(
            [
                *(heads[0], *self.devices.advanced, self.devices.placed),
                *(heads[1], workload.compression, *self.sizes.controls),
                *(heads[2], plan.planner, plan.weights, plan.microbatches, plan.stages_per_device.slider),
                *(plan.stages_per_device.note, plan.recompute),
                *(looks.HBox(list(stages.controls)), stages.editor.widget),
                *(heads[3], self.pipelines.widget),
            ]
        )
        fold.add_class("sp-fold")
        return [*most, folded("Advanced", "shows all other controls", fold), fold]

    @property
    def sliders(self) -> dict[str, tuple[str, StopSlider]]:
        """All but that of pipelines by their names, with the field of the settings that they are."""
        devices, workload, plan = self.devices, self.workload, self.plan
        fields = {
            "network_bandwidth": devices.between,
            "bandwidth": devices.inside,
            "batch_size": workload.batch_size,
            "voxel_size": workload.voxel_size,
            "network_latency": devices.between_latency,
            "latency": devices.inside_latency,
            "memory_bytes": devices.memory,
            "num_microbatches": plan.microbatches,
            "stages_per_device": plan.stages_per_device.slider,
        }
        counts = {slider.description: ("devices", slider) for slider in devices.counts.values()}
        return counts | {
            slider.description: (field, slider) for field, slider in fields.items() if slider in self.every
        }

    def settings(self) -> Settings:
        """The current settings of the controls."""
        devices, workload, plan = self.devices, self.workload, self.plan
        return Settings(
            devices=tuple((name, slider.value) for name, slider in devices.counts.items()),
            placement=devices.placement.value,
            bandwidth=devices.inside.value,
            latency=devices.inside_latency.value,
            network_bandwidth=devices.between.value,
            network_latency=devices.between_latency.value,
            memory_bytes=devices.memory.value or None,
            batch_size=workload.batch_size.value if workload.scale else None,
            voxel_size=workload.voxel_size.value if workload.scale else None,
            compression=workload.compression.value,
            planner=plan.planner.value,
            schedule=plan.schedule.value,
            weights=plan.weights.value,
            num_microbatches=1 if plan.microbatches.disabled else plan.microbatches.value,
            stages_per_device=plan.stages_per_device.number,
            recompute=plan.recompute.value,
            cuts=self.stages.cuts,
            stage_devices=self.stages.devices,
            several=self.pipelines.picked,
            hosts=devices.hosts,
        )

    def show(self, settings: Settings, answer: Answer | None) -> None:
        """Let the controls say these settings, of one pipeline. `answer`: the answer with pinned cuts or devices."""
        devices, workload, plan = self.devices, self.workload, self.plan
        self.pipelines.slider.value = 1
        for name, count in settings.devices:
            devices.counts[name].value = count
        devices.placement.value = settings.placement
        devices.hosts = settings.hosts
        devices.inside.value, devices.inside_latency.value = settings.bandwidth, settings.latency
        devices.between.value, devices.between_latency.value = settings.network_bandwidth, settings.network_latency
        devices.memory.value = settings.memory_bytes or 0.0
        if workload.scale:
            workload.batch_size.value, workload.voxel_size.value = settings.batch_size, settings.voxel_size
        workload.compression.value = settings.compression
        self.stages.pin_cuts.value = settings.cuts is not None
        self.stages.pin_devices.value = settings.stage_devices is not None
        plan.schedule.value, plan.planner.value = settings.schedule, settings.planner
        plan.weights.options = WEIGHT_POLICIES[settings.schedule]
        plan.weights.value = settings.weights
        if WEIGHT_RULES[settings.weights].updates_by_step:
            plan.microbatches.value = settings.num_microbatches
        plan.stages_per_device.slider.value = settings.stages_per_device
        plan.recompute.value = settings.recompute
        if answer is not None:
            self.stages.show(answer)

    def follow(self, change: Any, answer: Answer | None) -> None:
        """Let the other controls offer what goes with a change. `answer`: the plan on screen, of one pipeline."""
        self.stages.follow(change, answer)
        self.plan.follow(pinned=self.stages.pinned)
        self.pipelines.follow(change, pinned=self.stages.pinned)


class DeviceControls:
    """Controls for the number of devices of each type, their nodes, links and memory."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        names = [device.type.name for device in cluster.devices]
        self.counts = {name: _device_slider(name, names.count(name)) for name in dict.fromkeys(names)}
        self.placement = dropdown("nodes", [AS_GIVEN, BY_TYPE], "placement of devices on nodes: as given, or regrouped")
        links = [node.link for node in cluster.nodes]
        within, between = "bandwidth within a node", "bandwidth between nodes"
        self.inside = bandwidth_slider("within a node", [link.bandwidth for link in links], f"bandwidth {within}")
        self.inside_latency = latency_slider(
            "latency within a node", [link.latency for link in links], f"latency {within}"
        )
        self.between = bandwidth_slider("between nodes", [cluster.network.bandwidth], f"bandwidth {between}")
        self.between_latency = latency_slider("latency between nodes", [cluster.network.latency], f"latency {between}")
        self.placed = HtmlView(layout={"width": "330px"})
        self.memory = memory_slider("memory", "memory limit of every device; as given: the limit of each type")
        self.hosts: tuple[tuple[tuple[str, int], ...], ...] | None = None  # as set on the map
        self._stepping = False
        for control in (*self.counts.values(), self.placement):
            control.observe(self._by_rule, names="value")

    def step(self, host: int, name: str, by: int, settings: Settings) -> None:
        """Add devices of a type to a host of the map, or remove them. Raises InputError if there are too many."""
        hosts = [counts for _, counts in hosts_of(self.cluster, settings)]
        count = hosts[host][name] + by
        if count < 0:
            return
        hosts[host][name] = count
        set_by_hand = self.placement.value == AS_GIVEN
        self._stepping, before = set_by_hand, self.hosts
        try:
            if set_by_hand:
                self.hosts = tuple(tuple(held.items()) for held in hosts)
            self.counts[name].value += by
        except BaseException:
            self.hosts = before
            raise
        finally:
            self._stepping = False

    def _by_rule(self, _: object) -> None:
        """A count that is set by a slider is placed by the rule, and no more as on the map."""
        if not self._stepping:
            self.hosts = None

    @property
    def controls(self) -> list[ipywidgets.DOMWidget]:
        """All whose value is a setting."""
        several = len(self.counts) > 1 or len(self.cluster.nodes) > 1
        nodes = [self.placement] if several else []
        between = [self.between, self.between_latency] if several else []
        return [*self.counts.values(), *nodes, self.inside, self.inside_latency, *between, self.memory]

    def tell(self, settings: Settings) -> None:
        """Say below the sliders on which nodes the devices are."""
        told = placement_told(self.cluster, settings)
        self.placed.value = SMALL.format(told) if told else ""

    @property
    def advanced(self) -> list[ipywidgets.DOMWidget]:
        """All but the link that matters most."""
        return [control for control in self.controls if control is not self.first_link]

    @property
    def first_link(self) -> StopSlider:
        """The bandwidth between nodes; of one node that within it."""
        return self.between if self.between in self.controls else self.inside


class WorkloadControls:
    """The size of minibatches and voxels, if the profile has a `scale` for them, and how features are compressed."""

    def __init__(self, scale: Scale | None) -> None:
        self.scale = scale
        sizes = sorted({*_VOXEL_SIZES, scale.voxel_size}) if scale else [1.0]
        batches = sorted({*(2**k for k in range(11)), scale.batch_size}) if scale else [1]
        batch_size, voxel_size = (scale.batch_size, scale.voxel_size) if scale else (1, 1.0)
        samples, voxels = _OF_RUNS["batch_size"], _OF_RUNS["voxel_size"]
        self.batch_size = choice_slider(samples.label, batch_size, batches, most=_MOST_SAMPLES, tip=samples.help)
        self.voxel_size = number_slider(voxels.label, voxel_size, sizes, f"voxels {scale.law}" if scale else "")
        self.compression = dropdown("compression", _COMPRESSIONS, "compression of features at stage boundaries")
        self._measured: dict[float, tuple[float, float]] = {}  # voxel size: smallest and largest batch size

    def shade(self, profile: Profile, types: Iterable[str]) -> None:
        """Shade what was measured on these device types: batch sizes at the voxel size chosen, and the reverse."""
        scale = self.scale
        if scale is None or not profile.sized:
            return
        for voxel_size in set(self.voxel_size.values) - self._measured.keys():
            scaled = scale.scaled(profile, scale.batch_size, voxel_size)
            ranges = [scaled.range_of_laws(name) for name in types]
            each = scaled.size() / scale.batch_size
            low, high = max(low for low, _ in ranges) / each, min(high for _, high in ranges) / each
            self._measured[voxel_size] = low / EXTRAPOLATED, high * EXTRAPOLATED
        low, high = self._measured[self.voxel_size.value]
        self.batch_size.shade(size for size in self.batch_size.values if low <= size <= high)
        within = [size for size in self.voxel_size.values if _within(self.batch_size.value, self._measured[size])]
        self.voxel_size.shade(within)

    @property
    def controls(self) -> list[ipywidgets.DOMWidget]:
        """All whose value is a setting."""
        return [*([self.batch_size, self.voxel_size] if self.scale else []), self.compression]


def _within(value: float, measured: tuple[float, float]) -> bool:
    return measured[0] <= value <= measured[1]


class SizeControls:
    """The distribution of sizes of samples, which changes no plan, but what each order of minibatches loses."""

    def __init__(self, profile: Profile) -> None:
        known = bool(profile.origin.get("sample_sizes"))
        tip = "variation of sample sizes" + ("" if known else ": not in the profile, so sizes are drawn at random")
        self.distribution = dropdown("sizes", [*([AS_PROFILED] if known else []), LOGNORMAL], tip)
        tip = "coefficient of variation of lognormal sizes: their standard deviation over their mean"
        self.variation = number_slider("variation", 0.5, _VARIATIONS, tip)
        self.follow()

    @property
    def controls(self) -> tuple[ipywidgets.DOMWidget, ...]:
        """All whose value is a setting."""
        return self.distribution, self.variation

    @property
    def cv(self) -> float | None:
        """The coefficient of variation of lognormal sizes; None for sizes as the profile counted them."""
        return None if self.distribution.value == AS_PROFILED else float(self.variation.value)

    def follow(self) -> None:
        """Offer what goes with the distribution."""
        self.variation.disabled = self.distribution.value == AS_PROFILED
        looks.show(self.variation, on=not self.variation.disabled)


class PlanControls:
    """Controls for planner, schedule, weights, microbatches, stages per device and recomputation."""

    def __init__(self, *, num_layers: int, num_devices: int) -> None:
        self.planner = dropdown("planner", list(PLANNERS), _OF_PLANS["planner"].help)
        self.schedule = dropdown("schedule", list(WEIGHT_POLICIES), _OF_PLANS["schedule"].help)
        self.weights = dropdown("weights", WEIGHT_POLICIES["1f1b"], "weight version that each minibatch uses")
        count = 2 * num_devices
        tip = _OF_PLANS["num_microbatches"].help
        self.microbatches = count_slider(
            "microbatches", count, low=1, high=max(64, count), most=max(_MOST_MICROBATCHES, count), tip=tip
        )
        self.stages_per_device = StagesPerDevice(num_layers=num_layers, num_devices=num_devices)
        self.recompute = toggle("recompute", _OF_PLANS["recompute"].help)

    @property
    def controls(self) -> list[ipywidgets.DOMWidget]:
        """All whose value is a setting."""
        slider = self.stages_per_device.slider
        return [self.planner, self.schedule, self.weights, self.microbatches, slider, self.recompute]

    def follow(self, *, pinned: bool) -> None:
        """Offer what goes with the schedule chosen; `pinned`: no planner chooses the stages."""
        policies = WEIGHT_POLICIES[self.schedule.value]
        if self.weights.options != policies:
            self.weights.options = policies
        self.microbatches.disabled = not WEIGHT_RULES[policies[0]].updates_by_step
        self.weights.disabled = len(policies) == 1
        self.planner.disabled = pinned
        for control in (self.microbatches, self.weights, self.planner):
            looks.show(control, on=not control.disabled)
        self.stages_per_device.follow(self.planner, self.schedule, pinned=pinned)


def _device_slider(name: str, count: int) -> StopSlider:
    high, most = max(_MAX_DEVICES, 2 * count), max(_MOST_DEVICES, 2 * count)
    return count_slider(
        name, count, low=0, high=high, most=most, tip=f"number of {name} devices; {count} in the cluster"
    )


class PipelinesChoice:
    """`widget` is what to display, `picked` what it says: None for one pipeline, of which all else is hidden.

    `num_devices`: of the cluster given; the slider goes so far. `most` devices may be typed.
    """

    def __init__(self, *, num_devices: int, most: int) -> None:
        high = max(2, min(num_devices, _MOST_PIPELINES))
        tip = f"number of pipeline replicas; replica: {definition('pipeline replica')}"
        self.slider = count_slider("pipelines", 1, low=1, high=high, most=most, tip=tip)
        self.rule = dropdown("scheme", list(RULES), definition("synchronization scheme"))
        self.rule.value = _RULE
        tip = "scheme options that differ from the defaults, as option=value,…; press Enter"
        self.options = written("scheme options", example=_EXAMPLE, tip=tip)
        self.straggler = StragglerPicker(pipelines=high, ranks=num_devices, most=most, kind=NOBODY)
        self.about, self.note = HtmlView(layout={"width": "330px"}), HtmlView(layout={"width": "330px"})
        self._rule, self._pinned = "", False  # the rule that is told about
        self.more = looks.VBox([self.rule, self.about, self.options, *self.straggler.controls])
        self.widget = looks.VBox([self.slider, self.note, self.more])
        self.follow(None, pinned=False)

    @property
    def controls(self) -> tuple[ipywidgets.DOMWidget, ...]:
        """All whose value is a setting."""
        return self.slider, self.rule, self.options, *self.straggler.controls

    @property
    def picked(self) -> SeveralPipelines | None:
        count = 1 if self._pinned else self.slider.value
        if count == 1:
            return None
        options = self.options.value.strip()
        rule = f"{self.rule.value}:{options}" if options else self.rule.value
        return SeveralPipelines(int(count), rule, self.straggler.picked)

    def follow(self, change: Any, *, pinned: bool) -> None:
        """Offer what goes with what is picked, after a `change` if there was one.

        `pinned`: cuts or devices are kept, which are those of one pipeline.
        """
        if change is not None and change["owner"] is self.rule:  # the options were those of another rule
            self.options.value = ""
        self._pinned = self.slider.disabled = pinned
        looks.show(self.slider, on=not pinned)
        self.note.value = SMALL.format(_PINNED) if pinned else ""
        looks.show(self.more, on=self.picked is not None)
        if self.picked is None:  # a move costs nothing more then
            return
        if self._rule != self.rule.value:
            self._rule = self.rule.value
            self.options.disabled = not option_values(parse_rule(self.rule.value))
            looks.show(self.options, on=not self.options.disabled)
            self.about.value = SMALL.format(_about(self.rule.value))
        self.straggler.follow()


def _about(name: str) -> str:
    """Summary of a synchronization scheme, with its default options."""
    options = option_values(parse_rule(name))
    told = ", ".join(f"{option}={written_value(value)}" for option, value in options.items())
    summary, left = RULES[name].summary, " (none: chosen by the scheme)" if None in options.values() else ""
    return f"{sentence(summary)}. " + (f"Options{left}: {told}" if told else "This scheme has no options.")
