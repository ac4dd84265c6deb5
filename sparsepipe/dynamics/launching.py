"""Launch a run that changes its plan by itself: `launchers.launch`, and a thread that follows the job."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..cluster import Cluster
from ..errors import InputError
from ..launchers import LOCAL
from ..launchers import launch as launch_alone
from ..launchers.base import Job
from ..pipelines import Pipelines
from ..plan import Plan
from ..profile import Profile
from ..record import RunRecord
from ..runtime import RunConfig
from ..workload_facts import workload_facts
from .following import Following, check_replan
from .interference.predictor import Predictor
from .of_runs import devices_of
from .predictions import check_predictor
from .variants.base import LayerFactors


def launch(
    plan: Plan | Pipelines,
    config: RunConfig,
    *,
    run_dir: Path | str,
    replan: str | None = None,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    tell: Callable[[str], None] = lambda text: None,
    predict: Callable[[int], LayerFactors | None] | None = None,
    predictor: Predictor | None = None,
    **given: Any,
) -> Job:
    """Start `plan` as worker processes and return at once; all that is `given` is as `launchers.launch` takes it.

    `replan` is a variant's name (variants/): this process follows the run and changes its plan where devices change,
    for which it needs the `profile` and the `cluster` that the plan was made for; a run that is resumed has them.
    `tell` is called with a line for each decision. Variant "predicted" asks a `predictor` that learned on this machine,
    or on hosts like those of the run (`Predictor.load`), how long a rank's layers will take beside what disturbs it,
    or `predict` in its place. Where a host's metrics are not those that it learned from, that is told by `tell`, and
    the plan is followed no longer.
    Raises InputError for a run that cannot change its plan, before anything is started.
    """
    if replan is not None:
        if given.get("detach"):
            raise InputError(f"replan {replan}: the process that launches a run follows it; leave detach out")
        known = profile, cluster
        if given.get("resume") and None in known:
            known = devices_of(RunRecord.load(run_dir), profile, cluster)
        check_replan(replan, plan, *known)
    computes = predict is None and workload_facts(config.engine).trains
    here = given.get("launcher", LOCAL) == LOCAL
    check_predictor(replan, predictor, needed=computes, device=config.device, here=here)
    job = launch_alone(plan, config, run_dir=run_dir, profile=profile, cluster=cluster, **given)
    if replan is not None:
        following = Following(job, replan, tell=tell, predict=predict, predictor=predictor)
        job.wait_for(following.thread)
    return job
