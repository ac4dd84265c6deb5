"""What a run trains on: a network and data, or a profile that is slept through.

A new workload is a file here with a member of `Workload` (base.py), a row in WORKLOADS, and one in
records/run_progress.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import InputError
from ...networks import network
from ...records.run_progress import LEARNING, REPLAY
from ...util.io.functions import is_function
from ...values.cluster import Cluster
from ...values.graph import LayerGraph
from ...values.plan import Plan
from ...values.profile import Profile
from ..config import RunConfig
from ..plan_fit import ForwardOnly
from .resolved import ResolvedRun

if TYPE_CHECKING:  # they bring torch, for which nobody who launches need wait
    from ...networks.base import AnyNetwork
    from .base import Workload


@dataclass(frozen=True)
class WorkloadKind:
    """Functions of a workload: check a plan before launch, and open the workload in each worker."""

    check: Callable[[Plan, ResolvedRun, Profile | None, Cluster | None], None]
    open: Callable[[Path, RunConfig], "Workload"]


def check_launch(plan: Plan, run: ResolvedRun, profile: Profile | None, cluster: Cluster | None) -> None:
    """Raise InputError if a plan is not one for the workload of a run, or something that it needs is missing.

    `profile` and `cluster` are what the plan was made for, if that is known.
    """
    WORKLOADS[run.workload.name].check(plan, run, profile, cluster)


def open_workload(run_dir: Path, config: RunConfig) -> "Workload":
    """Open the workload that the settings of a run name. Raises InputError for what does not exist or does not fit."""
    return WORKLOADS[config.workload.name].open(run_dir, config)


def _check_learning(plan: Plan, run: ResolvedRun, profile: Profile | None, cluster: Cluster | None) -> None:
    for name, function in run.functions.items():
        if name not in ("model", "data", "loss"):  # these are opened by whoever needs them
            function.load()
    shares = any(stage.shares_scenes for stage in plan.stages)
    if run.is_table:
        plan.check(layer_graph(run))
        if shares:
            _check_shared(network(run.config.model, num_classes=2), run.config.engine, plan, run.config.loss)
        return
    from .opening import open_task, verify_once

    task = open_task(run, phases=(True, False) if run.config.validate else (True,), validates=False)
    plan.check(task.network.graph())
    if shares:
        _check_shared(task.network, task.engine.name, plan, run.config.loss)
    verify_once(task, plan, run)


def _check_shared(network: "AnyNetwork", engine_name: str, plan: Plan, loss: str | None) -> None:
    """Raise InputError if a network, an engine or a loss needs whole scenes, which the plan shares among ranks."""
    from ...engines import AUTO, engine  # here: they bring torch
    from ..stages.scene_parts import check_shares_scenes

    try:
        chosen = engine("native" if engine_name == AUTO else engine_name)
    except InputError:
        return  # workers on other hosts may have it
    check_shares_scenes(network, chosen, plan, own_loss=loss is not None and is_function(loss))


def layer_graph(run: ResolvedRun) -> LayerGraph:
    """Return the layer graph of the network of a run.

    Of a table of rows it is known at once; a torch module is built and traced for it.
    """
    if run.is_table:
        return network(run.config.model, num_classes=2).graph()  # its layers do not depend on the number of classes
    from .opening import open_task

    return open_task(run, validates=False).network.graph()


def _open_learning(run_dir: Path, config: RunConfig) -> "Workload":
    from .learning import Learning

    return Learning.open(config, trains=ForwardOnly.of_run(run_dir) is None, run_dir=run_dir)


def _check_replay(plan: Plan, run: ResolvedRun, profile: Profile | None, cluster: Cluster | None) -> None:
    config = run.config
    if profile is None or cluster is None:
        raise InputError(
            "engine.no_profile",
            f"engine {config.engine!r} needs the plan's profile and cluster",
            engine=config.engine,
        )
    plan.check(profile.graph, cluster)


def _open_replay(run_dir: Path, config: RunConfig) -> "Workload":
    from .replay import Replay

    return Replay.open(run_dir, config)


WORKLOADS: Mapping[str, WorkloadKind] = {
    LEARNING.name: WorkloadKind(_check_learning, _open_learning),
    REPLAY.name: WorkloadKind(_check_replay, _open_replay),
}
