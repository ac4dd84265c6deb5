"""Sailor's measured plans: what a step took and the memory it needed, with the profiles to predict both from.

    simulations/validation/SITE/…/plan_config_….json   a plan, seconds of its step ("real"), bytes ("max_mem")
    simulations/profiles_tmp.json                       model → GPU → samples → tensor degree → layer → seconds
    llm_info.json                                       model → tensor degree → layer → sizes on one GPU
    providers/*.json                                    bandwidth of links as a function of a message's size

A replica is one device here, of a type such as "RTX-3090 x8": the GPUs that share its layers (tensor parallelism) are
read as one faster device on a node of its own. Source: "Sailor: Automating Distributed Training over Dynamic,
Heterogeneous, and Geo-distributed Clusters" (SOSP 2025), eth-easl/sailor.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...util.io.fields import MOST_DEVICES, integer, number, real, shown, shown_key, text
from ...util.io.files import expanded, read_json
from ...util.text.numbers import number_of
from ...values.cluster import Cluster, DeviceType, Node
from ...values.graph import Layer, LayerGraph
from ...values.plan import Plan, Stage
from ...values.profile import CostSample, LayerCost, Profile

PLANS = "simulations/validation"
_FLOAT = 4  # bytes of a number: all was measured with float32
# Transformer layers of the network that was profiled, as their profile.sh says; each layer's seconds of the optimizer
# are those of its step on all of that network: these, the embedding and the last layer.
_PROFILED = 2
_BARRIER = 0.05  # seconds that a record has for averaging where nothing is averaged
_MOST_LAYERS = 1000
_MOST_GPUS = 1024


@dataclass(frozen=True)
class SizedLink:
    """A link whose bandwidth depends on the size of a message: a polynomial of log2(megabytes), in GB/s.

    Several GPUs send at the same time, each an equal part; the bandwidth is theirs together. Below 1 MB, and beyond
    the highest point of a parabola that opens downwards, the curve says nothing: bandwidth stays as it is.
    """

    coefficients: tuple[float, ...]  # of the highest power first
    senders: int = 1

    def transfer_time(self, num_bytes: float) -> float:
        """Seconds for `num_bytes`, all senders together."""
        size, bandwidth = log2(max(1.0, num_bytes / self.senders / 1e6)), 0.0
        if len(self.coefficients) == 3 and self.coefficients[0] < 0:
            size = min(size, max(0.0, -self.coefficients[1] / (2 * self.coefficients[0])))
        for coefficient in self.coefficients:
            bandwidth = bandwidth * size + coefficient
        if not bandwidth > 0:
            raise InputError(
                "sailor.no_bandwidth",
                f"a link has bandwidth {bandwidth:g} GB/s for messages of {num_bytes / self.senders:.0f} bytes, "
                "expected more than 0",
            )
        return num_bytes / 1e9 / bandwidth


@dataclass(frozen=True)
class MeasuredPlan:
    """A plan, what it was made of, and what was measured of it."""

    name: str
    model: str
    plan: Plan
    profile: Profile
    cluster: Cluster
    samples: int  # of a microbatch
    seconds: float  # measured, of a step
    peak_bytes: float  # measured, on the fullest GPU, with what driver and libraries hold
    links: Mapping[tuple[str, str], SizedLink]  # (device type, device type) → between two nodes of theirs
    inner_links: Mapping[str, SizedLink]  # device type → between its GPUs, where that was measured
    shard_bytes: Mapping[str, tuple[float, ...]]  # device type → parameter bytes of each layer on one of its GPUs
    reduction_seconds: float = 0.0  # as their record tells it, of gradients

    @property
    def unlike(self) -> bool:
        """Return whether it ran on unlike GPUs."""
        return len({gpu_of(kind) for stage in self.plan.stages for kind in stage.device_types}) > 1

    @property
    def time_doubt(self) -> str:
        """A sentence on what the record's time says against itself; empty if it does not."""
        alone = all(len(stage.ranks) == 1 for stage in self.plan.stages)
        if not alone or self.reduction_seconds <= max(_BARRIER, 0.02 * self.seconds):
            return ""
        text = f"{self.reduction_seconds:.2f} s for averaging gradients though each stage has one replica"
        return f"its record has {text}: the times of another plan"

    @property
    def memory_doubt(self) -> str:
        """A sentence on why the record's memory cannot be, by the sizes that were profiled; empty if it can."""
        least = max(self._least_bytes(s) for s in range(len(self.plan.stages)))
        if self.peak_bytes >= least:
            return ""
        text = f"weights, gradients, Adam's two numbers and one microbatch take {least / 1e9:.2f} GB of a GPU"
        return f"its record has {self.peak_bytes / 1e9:.2f} GB at the peak, but {text}"

    def _least_bytes(self, stage: int) -> float:
        own_stage = self.plan.stages[stage]
        return min(
            4 * weights + saved for weights, saved in (self.held(stage, kind) for kind in own_stage.device_types)
        )

    def held(self, stage: int, kind: str) -> tuple[float, float]:
        """Bytes on one GPU of this type of device: a stage's weights, and what one microbatch keeps in it."""
        index = self.profile.graph.index
        layers = [index[id] for id in self.plan.stages[stage].layers]
        costs = [self.profile.cost(k, kind, self.samples) for k in layers]
        return sum(self.shard_bytes[kind][k] for k in layers), sum(cost.saved_bytes for cost in costs)


def gpu_of(kind: str) -> str:
    """The GPU of a device type: RTX-3090 of "RTX-3090 x8"."""
    return kind.rpartition(" x")[0]


def profiled_bytes(parameter_bytes: Sequence[float]) -> float:
    """Of all layers' parameter bytes, those of the network whose optimizer was timed: embedding, two layers, last."""
    if len(parameter_bytes) < 3:
        return sum(parameter_bytes)
    return parameter_bytes[0] + _PROFILED * parameter_bytes[1] + parameter_bytes[-1]


@dataclass(frozen=True)
class SailorFiles:
    """Read the files that the Sailor planner published: seconds and sizes of layers, links, and measured plans.

    Attributes:
        folder: Folder of the planner's files.
        times: Seconds of each model's layers, by GPU.
        sizes: Sizes of each model's layers.
        between: Coefficients of links between zones: zone → GPU → senders → zone → GPU → receivers.
        alike: Coefficients of links of one GPU type: "inter" between nodes, "intra" within one → GPU → number of GPUs.

    Example:
        >>> from sparsepipe.records.formats.sailor import SailorFiles
        >>> try:
        ...     SailorFiles.load("not fetched")  # sparsepipe data fetch sailor
        ... except sp.InputError as error:
        ...     print(type(error).__name__)
        InputError

    See also:
        guides/import_from_other_systems, `planning.measured_plans.predict`
    """

    folder: Path
    times: Mapping[str, Any]
    sizes: Mapping[str, Any]
    between: Mapping[str, Any]
    alike: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path | str) -> "SailorFiles":
        """Read Sailor's files in a folder.

        Args:
            folder: Folder from `sparsepipe data fetch sailor`, or one with Sailor's planner folders.

        Returns:
            The content of the files. `plans()` returns the measured plans.

        Raises:
            InputError: A missing or malformed file.

        Example:
            >>> from sparsepipe.records.formats.sailor import SailorFiles
            >>> try:
            ...     SailorFiles.load("not fetched")
            ... except sp.InputError as error:
            ...     print(type(error).__name__)
            InputError
        """
        folder = expanded(folder)
        planner = folder / "sailor" / "Planner"
        planner = planner if planner.is_dir() else folder
        providers = folder / "sailor" / "providers"
        return cls(
            planner,
            _table(planner / "simulations" / "profiles_tmp.json"),
            _table(planner / "llm_info.json"),
            _table(providers / "multizone_bandwidths_het.json"),
            _table(providers / "network_coeffs_all_homo.json"),
        )

    def plans(self) -> tuple[MeasuredPlan, ...]:
        """All measured plans of models that were profiled, by name. Raises InputError for one that is malformed."""
        return tuple(self.plan(path) for path in sorted((self.folder / PLANS).rglob("plan_config_*.json")))

    def plan(self, path: Path | str) -> MeasuredPlan:
        """Read one measured plan. Raises InputError that names the file and what is wrong or missing."""
        path = expanded(path)
        content = _table(path)
        try:
            return self._plan(content, path)
        except InputError as error:
            raise error.within(f"{path}: ") from None

    def _folders(self, path: Path) -> tuple[str, ...]:
        """The folders that a plan lies in, below those of all plans: by its own path first, which may be a link."""
        for of in (os.path.abspath, os.path.realpath):
            with suppress(ValueError):
                return Path(of(path)).relative_to(of(self.folder / PLANS)).parts[:-1]
        raise InputError(
            "sailor.no_model",
            f"the plan lies outside {self.folder / PLANS}, whose folders name the model; move it there",
        )

    def _plan(self, content: Mapping[str, Any], path: Path) -> MeasuredPlan:
        folders = self._folders(path)
        name = "/".join((*folders, path.stem.removeprefix("plan_config_")))
        model = self._model(folders)
        samples = integer(_at(content, "", "mbs"), "mbs", least=1)
        stages, types = _stages(content)
        batch = integer(_at(content, "", "gbs"), "gbs", least=1)
        if batch % samples:
            raise InputError("sailor.batch_size_uneven", f"gbs is {batch}, expected a multiple of mbs, {samples}")
        kinds = {kind: parts for gpu_type in types for kind, parts in gpu_type}
        profile, shards = self._profile(model, stages, kinds, samples)
        plan, ranks = _plan_of(stages, types, batch // samples, profile.graph)
        nodes = tuple(Node(f"node{k}", (DeviceType(kind),)) for k, kind in enumerate(ranks))
        zone = text(_at(content, "", "zone"), "zone")
        return MeasuredPlan(
            name,
            model,
            plan.check(profile.graph),
            profile,
            Cluster(nodes),
            samples,
            _positive(content, "real"),
            _positive(content, "max_mem"),
            {(a, b): self._link(zone, kinds[a], kinds[b]) for a in kinds for b in kinds},
            {kind: link for kind, parts in kinds.items() if (link := self._inner_link(*parts)) is not None},
            shards,
            number(content.get("red_grads", 0), "red_grads"),
        )

    def _model(self, folders: Sequence[str]) -> str:
        """The model is in a folder's name, GPT-NEO for GPT-Neo-2.7; plans without one are of OPT-350."""
        for folder in folders:
            for model in self.sizes:
                if model.lower().startswith(folder.lower()) and "-" in folder:
                    return model
        return "OPT-350"

    def _profile(
        self, model: str, stages: Sequence[Sequence[int]], kinds: Mapping[str, tuple[str, int]], samples: int
    ) -> tuple[Profile, dict[str, tuple[float, ...]]]:
        count = sum(map(len, stages))
        costs, rates, shards = {}, {}, {}
        for kind, (gpu, degree) in kinds.items():
            sizes = _at(self.sizes, "llm_info.json", model, str(degree))
            held = [_at(sizes, "llm_info.json", str(k)) for k in range(count)]
            shards[kind] = tuple(number(_at(held_profile, "", "params_bytes"), "params_bytes") for held_profile in held)
            tables = self._times(model, gpu, degree)
            if samples not in tables:
                raise InputError(
                    "sailor.no_profile",
                    f"no profile of {model} on {gpu} with {number_of(samples, 'sample')} and tensor degree {degree}",
                )
            # The plan's microbatch was measured itself: a law through other sizes would say less of it.
            costs[kind] = tuple(_cost(tables[samples], samples, held[k], k) for k in range(count))
            profiled = degree * profiled_bytes(shards[kind])
            rates[kind] = _seconds(tables[samples], 0)[2] / profiled if profiled else 0.0
        layers = [Layer(f"layer{k}", "", max(kinds[t][1] * shards[t][k] for t in kinds)) for k in range(count)]
        graph = LayerGraph(tuple(layers), tuple((k, k + 1) for k in range(count - 1)))
        origin = {"source": "sailor", "model": model}
        return Profile(graph, costs, (float(samples),), origin, rates, size_unit="samples"), shards

    def _times(self, model: str, gpu: str, degree: int) -> dict[int, Any]:
        """Samples of a microbatch → layer → seconds, of one GPU and tensor degree."""
        measured = _at(self.times, "profiles_tmp.json", model, gpu)
        times = {}
        for count, measured_time in measured.items() if isinstance(measured, Mapping) else ():
            if re.fullmatch("[1-9][0-9]{0,8}", count) and _find(measured_time, str(degree)) is not None:
                times[int(count)] = measured_time[str(degree)]
        return times

    def _link(self, zone: str, a: tuple[str, int], b: tuple[str, int]) -> SizedLink:
        """Between two nodes; if their numbers of GPUs were not measured together, with the fewer."""
        for senders in (min(a[1], b[1]), 1):
            sender_text = str(senders)
            bandwidth = _find(self.between, zone, a[0], sender_text, zone, b[0], sender_text)
            if bandwidth is None and a[0] == b[0]:
                bandwidth = _find(self.alike, "inter", a[0], sender_text)
            if bandwidth is not None:
                return SizedLink(_coefficients(bandwidth, f"link from {a[0]} to {b[0]}"), senders)
        raise InputError("sailor.no_link", f"no link from {a[0]} to {b[0]} in {zone}; add it to the bandwidth file")

    def _inner_link(self, gpu: str, degree: int) -> SizedLink | None:
        """Within a node, where half of its GPUs were measured sending to the other half; None if they were not."""
        bandwidth = _find(self.alike, "intra", gpu, str(degree))
        if bandwidth is None:
            return None
        return SizedLink(_coefficients(bandwidth, f"link within a node of {gpu}"), max(1, degree // 2))


def _coefficients(found: object, what: str) -> tuple[float, ...]:
    numbers = found[0] if isinstance(found, list) and found else None
    if not isinstance(numbers, list) or not numbers:
        raise InputError("sailor.coefficients_malformed", f"{what} are {shown(found)}, expected a list of coefficients")
    return tuple(real(coefficient, f"coefficient of a {what}") for coefficient in numbers)


def _plan_of(
    stages: Sequence[Sequence[int]], types: Sequence[Sequence[tuple[str, Any]]], count: int, graph: LayerGraph
) -> tuple[Plan, list[str]]:
    """The plan, and the device type of each rank. DeepSpeed's stages hold as many microbatches as stages follow."""
    plan_stages: list[Stage] = []
    ranks: list[str] = []
    for s, (layers, stage_number) in enumerate(zip(stages, types, strict=True)):
        kinds = tuple(kind for kind, _ in stage_number)
        first = len(ranks)
        ranks += kinds
        places, names = tuple(range(first, len(ranks))), tuple(graph.layers[k].id for k in layers)
        nodes = tuple(f"node{k}" for k in places)
        plan_stages.append(Stage(names, places, device_types=kinds, nodes=nodes, warmup=len(stages) - 1 - s))
    return Plan(tuple(plan_stages), "1f1b-flush", num_microbatches=count, planner="sailor"), ranks


def _stages(content: Mapping[str, Any]) -> tuple[list[list[int]], list[list[tuple[str, tuple[str, int]]]]]:
    """Layers of each stage, and the replicas of each: (device type, (GPU, tensor degree))."""
    pipelines = _at(content, "", "pipeline_list")
    if not isinstance(pipelines, list) or len(pipelines) != 1:
        raise InputError("sailor.several_pipelines", f"pipeline_list is {shown(pipelines)}, expected one pipeline")
    pipeline = pipelines[0]
    layers, replicas = _at(pipeline, "pipeline", "layers_per_stage"), _at(pipeline, "pipeline", "tmp_per_stage")
    if not isinstance(layers, list) or not isinstance(replicas, list) or len(layers) != len(replicas) or not layers:
        raise InputError(
            "sailor.lists_differ", "layers_per_stage and tmp_per_stage must be lists with an entry per stage"
        )
    stages = [
        [integer(k, "layers_per_stage", most=_MOST_LAYERS) for k in part] if isinstance(part, list) else []
        for part in layers
    ]
    if [k for part in stages for k in part] != list(range(sum(map(len, stages)))) or not all(stages):
        raise InputError(
            "sailor.layers_malformed", f"layers_per_stage is {shown(layers)}, expected all layers in their order"
        )
    types = [list(_replicas(part)) for part in replicas]
    if not all(types) or sum(map(len, types)) > MOST_DEVICES:
        raise InputError("sailor.replicas_malformed", "tmp_per_stage is malformed: expected the replicas of each stage")
    return stages, types


def _replicas(part: object) -> Iterator[tuple[str, tuple[str, int]]]:
    for replica in part if isinstance(part, list) else []:
        try:
            ((gpu, _, _),), degree = replica
        except (TypeError, ValueError):
            told = "expected [[[GPU, count, zone]], tensor degree], on one machine"
            raise InputError("sailor.replica_malformed", f"tmp_per_stage has {shown(replica)}: {told}") from None
        gpu, degree = text(gpu, "GPU"), integer(degree, "tensor degree", least=1, most=_MOST_GPUS)
        yield f"{gpu} x{degree}", (gpu, degree)


def _cost(table: Mapping[str, Any], samples: int, held: Mapping[str, Any], layer: int) -> LayerCost:
    sent = number(_at(held, "llm_info.json", "act_output_floats"), "act_output_floats") * _FLOAT
    activation_bytes = number(_at(held, "llm_info.json", "act_mem_bytes"), "act_mem_bytes")
    forward, backward, _ = _seconds(table, layer)
    return LayerCost((CostSample(samples, forward, backward, sent * samples, saved_bytes=activation_bytes * samples),))


def _seconds(table: Mapping[str, Any], layer: int) -> list[float]:
    """Seconds of a layer's forward, its backward, and the optimizer."""
    layer_times = _at(table, "profiles_tmp.json", str(layer))
    if not isinstance(layer_times, list) or len(layer_times) != 3:
        raise InputError(
            "sailor.profile_malformed",
            f"profiles_tmp.json: layer {layer} is {shown(layer_times)}, expected three numbers",
        )
    return [number(layer_time, f"profiles_tmp.json: layer {layer}") for layer_time in layer_times]


def _table(path: Path) -> Mapping[str, Any]:
    content = read_json(path, what="file of Sailor's")
    if not isinstance(content, Mapping):
        raise InputError("sailor.malformed", f"{path}: contains {shown(content)}, expected an object")
    return content


def _at(content: object, where: str, *keys: str) -> Any:
    """Return the value below keys of an object. Raises InputError that names the first that does not exist."""
    for key in keys:
        if not isinstance(content, Mapping) or key not in content:
            raise InputError("sailor.key_missing", f"{where + ': ' if where else ''}no {shown_key(key)}")
        content = content[key]
    return content


def _find(content: object, *keys: str) -> Any:
    """Return the value below keys of an object, None if missing."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def _positive(content: Mapping[str, Any], key: str) -> float:
    """A number above 0 of a plan's file."""
    value = number(_at(content, "", key), key)
    if not value > 0:
        raise InputError("sailor.not_positive", f"{key} is {value:g}, expected more than 0")
    return value
