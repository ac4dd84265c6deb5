"""What a plan promises a run: its estimate at the run's own batch size and schedule."""

from dataclasses import dataclass, replace
from typing import Any

from ...errors import DamagedRecord, InputError
from ...planning.run_estimate import estimated_for_run
from ...records import RunRecord
from ...records.provenance import work_digest
from ...runtime.config import BUDGETS, RunConfig
from ...util.io.fields import json_object
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
    return found + [name.replace("_", " ") for name in _WORK if _setting(own, name) != _setting(config, name)]


def _setting(config: RunConfig, name: str) -> Any:
    value = getattr(config, name)
    return json_object(value, name) if name.endswith("_args") else value


def promised(plan: Plan, config: RunConfig, made_for: MadeFor) -> Plan:
    """Return the plan, or the plans of several pipelines, with the estimate that holds for `config`."""
    own = tuple(_promised(one, config, made_for) for one in plan.pipelines)
    if own != plan.pipelines:  # what is proven of others, and the baseline, are of other minibatches
        plan = plan.with_pipelines(own)
    return replace(plan, samples=float(config.batch_size)) if plan.members else plan


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
