"""The promise of a plan to a run: its estimate at the run's own batch size and schedule, on the devices it runs on."""

from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import Any

from ...errors import DamagedRecord, InputError
from ...launching import LOCAL, default_launcher
from ...planning.run_estimate import estimated_for_run
from ...planning.scale import Scale
from ...records import RunRecord
from ...records.provenance import work_digest
from ...records.run_progress import workload_facts
from ...runtime.config import BUDGETS, RunConfig
from ...util.host import cpu
from ...util.host.background_load import num_processors
from ...util.io.fields import json_object
from ...util.text.numbers import counted, number_of
from ...values.cluster import Cluster
from ...values.plan import Plan
from ...values.profile import Profile


@dataclass(frozen=True)
class MadeFor:
    """The basis of a plan: the minibatches of its estimate, and the profile and devices, if known."""

    batch_size: int
    voxel_size: float | None  # None: it does not matter
    profile: Profile | None = None
    cluster: Cluster | None = None

    def holds(self, config: RunConfig) -> bool:
        """Return whether a run under `config` has such minibatches."""
        return self.batch_size == config.batch_size and self.voxel_size in (None, config.voxel_size)

    def held_against(self, plan: Plan) -> dict[str, Any]:
        """The profile and the cluster that a run of the plan is compared with; none of another network or devices."""
        if self.profile is None or self.cluster is None:
            return {}
        try:
            plan.check(self.profile.graph, self.cluster)
        except InputError:
            return {}
        return {"profile": self.profile, "cluster": self.cluster}

    def other_devices(self, plan: Plan, config: RunConfig) -> str:
        """Return which devices the plan was made for, if a run on this machine has others; empty if it has not.

        Others are those of published profiles, of another processor, of other hosts, and more than there are cores. A
        profile without an origin counts as one of this machine.
        """
        profile, cluster = self.profile, self.cluster
        if profile is None or cluster is None or not workload_facts(config.engine).trains:
            return ""
        kinds = counted(device.type.name for device in cluster.devices)
        if "published" in profile.origin:
            return f"{kinds} (published times)"
        names = {device.type.name for device in cluster.devices if device.rank in plan.ranks}
        parts = [part for part in _parts(profile.origin) if names & _types(part, names)]
        processors = {str(part["device"]) for part in parts if "device" in part}
        if config.device == "cpu" and processors - {cpu.name()}:
            return f"{kinds} of {', '.join(sorted(processors))}"
        if default_launcher(cluster) != LOCAL:
            return f"{kinds} on {', '.join(node.name for node in cluster.nodes)}"
        cores = num_processors()
        threads = max((int(str(part["threads"])) for part in parts if "threads" in part), default=0)
        if config.device == "cpu" and threads * len(plan.ranks) > cores:
            return f"{kinds}; this machine has {number_of(cores, 'core')}"
        return ""

    def emulation(self, config: RunConfig, minibatches: int) -> RunConfig:
        """Return the settings of an emulation of the devices.

        Its minibatches are as in a run under `config`, or as profiled if others cannot be scaled.
        """
        size = config.batch_size
        if self.profile is not None and Scale.of(self.profile) is None:  # its minibatches are as they were profiled
            size = self.profile.batch_size or 1
        model = self.profile.origin.get("model") if self.profile is not None else None
        return RunConfig(
            str(model or config.model),
            "replay",
            engine="replay",
            batch_size=size,
            minibatches=minibatches,
            voxel_size=config.voxel_size,
            seed=config.seed,
            stragglers=config.stragglers,
        )

    def emulated(self, config: RunConfig) -> "MadeFor":
        """Return the basis with the profile scaled to the minibatches of a run: an emulation sleeps for its times."""
        scale = Scale.of(self.profile) if self.profile is not None else None
        if self.profile is None or scale is None:
            return self
        return replace(self, profile=scale.scaled(self.profile, config.batch_size, config.voxel_size))


def _parts(origin: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    """Yield the origin of each part of a profile that was joined of several."""
    joined = origin.get("joined")
    yield from (part for part in joined if isinstance(part, Mapping)) if isinstance(joined, list) else (origin,)


def _types(part: Mapping[str, object], every: Set[str]) -> set[str]:
    """Return the device types of a part of a profile; `every` of one that was not joined."""
    types = part.get("device_types")
    return set(map(str, types)) if isinstance(types, list | tuple) else set(every)


# Settings that decide what work a run did: its speed and accuracy under others say nothing of this one's.
_WORK: tuple[str, ...] = ("model", "model_args", "data", "data_args", "loss", "loss_args", "batch_size", "voxel_size")
_WORK += ("num_points", "task", "features", "augmentation", "balance", "engine", "precision", "compression", "device")
_WORK += ("order", "collate", "crop", "sampler", *BUDGETS)


def differences(record: RunRecord, plan: Plan, config: RunConfig) -> list[str]:
    """Return in what a run differs from one of `plan` under `config`: "plan", "batch size", …; [] if in nothing.

    How long and how fast it learned, or with which seed, is no difference of the work.
    """
    found = [] if work_digest(record.plan) == work_digest(plan) else ["plan"]
    try:
        own = RunConfig.from_json(record.config)
    except DamagedRecord:
        return found  # whoever shows the run says what is damaged
    except InputError:
        return [*found, "version's settings"]
    return found + _other_work(own, config)


_DATA = ("data", "data_args", "batch_size", "voxel_size", "num_points")


def same_data(record: RunRecord, other: RunRecord) -> bool:
    """Return whether two runs have the same data and minibatches: else their throughputs are not compared.

    An emulation has no data: it is compared with runs of its minibatches, whatever these are of.
    """
    try:
        configs = [each.config for each in (record, other)]
        emulated = not (record.workload.trains and other.workload.trains)
    except DamagedRecord:
        return False
    return all(configs[0].get(name) == configs[1].get(name) for name in (("batch_size",) if emulated else _DATA))


def _other_work(config: RunConfig, other: RunConfig) -> list[str]:
    return [name.replace("_", " ") for name in _WORK if _setting(config, name) != _setting(other, name)]


def measured_here(config: RunConfig, num_devices: int, *, say: Callable[[str], None]) -> MadeFor:
    """Profile the network of a run on this machine, as so many processes at most as there are cores will train it.

    Raises InputError if the network or its data cannot be opened.
    """
    from ...launching.probes.measure import loopback_link  # here: they bring torch
    from ...profiling import profile_model

    threads = config.threads or 1
    count = max(1, min(num_devices, num_processors() // threads))
    profile = profile_model(
        config.model,
        config.data,
        batch_size=config.batch_size,
        voxel_size=config.voxel_size,
        num_points=config.num_points,
        model_args=_setting(config, "model_args"),
        data_args=_setting(config, "data_args"),
        loss=config.loss,
        loss_args=_setting(config, "loss_args"),
        engine=config.engine,
        device=config.device,
        threads=threads,
        seed=config.seed,
        beside=count - 1,
        progress=say,
    )
    cluster = Cluster.uniform(count, device_type=profile.device_types[0], link=loopback_link())
    return MadeFor(config.batch_size, config.voxel_size, profile, cluster)


def _setting(config: RunConfig, name: str) -> Any:
    value = getattr(config, name)
    return json_object(value, name) if name.endswith("_args") else value


def promised(plan: Plan, config: RunConfig, made_for: MadeFor) -> Plan:
    """Return the plan, or the plans of several pipelines, with the estimate that holds for `config`."""
    own = tuple(_promised(one, config, made_for) for one in plan.pipelines)
    if own != plan.pipelines:  # what is proven of others, and the baseline, are of other minibatches
        plan = plan.with_pipelines(own)
    if not plan.members:
        return plan
    return replace(plan, samples=float(config.batch_size) if unit_of(config, made_for) == "samples" else None)


def _promised(plan: Plan, config: RunConfig, made_for: MadeFor) -> Plan:
    """Return the plan with the estimate that holds for `config`; without one if nothing tells.

    A plan keeps the estimate that it came with where that holds. Else the profile on the cluster tells, scaled to the
    voxels of the run's minibatches; not of another network, or more devices than there are.
    """
    if made_for.holds(config) and plan.estimate is not None:
        return plan
    if made_for.profile is not None and made_for.cluster is not None:
        try:
            return estimated_for_run(
                plan, made_for.profile, made_for.cluster, batch_size=config.batch_size, voxel_size=config.voxel_size
            )
        except InputError:
            pass
    return plan if made_for.holds(config) else replace(plan, estimate=None)


def samples_per_second(plan: Plan, batch_size: int) -> float | None:
    """One minibatch a period, of several pipelines where none waits; None if a plan holds no estimate."""
    rate = plan.minibatches_per_second
    return None if rate is None else batch_size * rate


def unit_of(config: RunConfig, made_for: MadeFor) -> str:
    """The unit of a run's throughput: "minibatches" if nobody knows how many samples one has, as in an emulation of
    published times.
    """
    if workload_facts(config.engine).trains or config.batch_size > 1:
        return "samples"
    return "samples" if made_for.profile is not None and made_for.profile.batch_size else "minibatches"
