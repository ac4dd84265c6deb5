"""Launch a run that changes its plan by itself: `launching.launch`, and a thread that follows the job."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..launching import LOCAL, check_options
from ..launching import launch as launch_alone
from ..launching.base import Job
from ..records import RunRecord
from ..runtime import RunConfig
from ..runtime.workloads.resolved import ResolvedRun, resolve
from ..util.io.fields import shown
from ..util.io.quantities import keywords_of
from ..util.text.numbers import number_of
from ..values.cluster import Cluster
from ..values.plan import Plan
from ..values.profile import Profile
from .following import Following, check_replan
from .interference.predictor import Predictor
from .of_runs import devices_of
from .predictions import check_predictor
from .variants import LayerFactors


def launch(
    plan: Plan,
    config: RunConfig | ResolvedRun,
    *,
    run_dir: Path | str,
    replan: str | None = None,
    profile: Profile | None = None,
    cluster: Cluster | None = None,
    tell: Callable[[str], None] = lambda text: None,
    predict: Callable[[int], LayerFactors | None] | None = None,
    predictor: Predictor | None = None,
    on_epoch: Callable[..., object] | None = None,
    **given: Any,
) -> Job:
    """Launch the worker processes of a plan and return the job immediately.

    Args:
        plan: The plan.
        config: Settings of the run.
        run_dir: Run directory to create.
        replan: Online repartitioning; needs `profile` and `cluster`. "live" switches to the best plan for the measured
            devices. "epoch", "measured" and "predicted" use DynPipe's planner: at the ends of epochs, with the measured
            slowdown of a stage, or with a predictor. "never" only monitors. Each pipeline replica keeps its ranks.
            Default: no monitoring.
        profile: Profile of the plan. The run reports ranks and links that are slower. Default for a resumed run: its
            profile.
        cluster: Cluster of the plan, with devices in the order of the ranks. Default for a resumed run: its cluster.
        tell: Callback that receives a line of text for each decision.
        predictor: Predictor for "predicted" (required) or "epoch" (optional), trained on machines of the same kind.
        predict: Function instead of `predictor`: rank → slowdown of each layer, or None if not yet known.
        launcher: "local" (this machine; default), "ssh" (hosts of the cluster) or "ray" (nodes of a Ray cluster).
        resume: Whether to continue from the newest checkpoint in `run_dir`, under the same plan or another.
        detach: Whether the job keeps running after this process ends (see `attach`). Not with `replan`.
        forward_only: Path of a checkpoint or run for inference: write the outputs of the validation split to
            predictions.npz. With pipeline replicas, the first one computes them.
        replication: Synchronization scheme of pipeline replicas: "all-reduce", "partial-reduce:wait=0.1" (seconds),
            "ad-psgd", "wsp", "local-sgd", "diloco" or "quorum". Default: that of the plan.
        stragglers: Injected stragglers, separated by semicolons, times in seconds: "jitter:p=0.1,seconds=0.05",
            "slow:rank=1,factor=4", "stop:rank=1,at=50,seconds=20", "trace:FILE", "kill:rank=2,at=80" (`at`: minibatch).
        on_epoch: Function of a file. A worker calls it after each epoch with an `EpochEnd`: its scores and the weights.
            The numbers that it returns are recorded; an exception in it ends the run.
        campaign: Name of the experiment (a set of comparable runs).
        port: TCP port of the loopback interface for the rendezvous, 1 to 65535; only with "local" and one pipeline.
            Default: a file instead.
        ray_address: Address of the Ray cluster, such as "10.0.0.1:6379" or "auto". Default: RAY_ADDRESS, or a new local
            cluster.

    Returns:
        The job. As a context manager, it stops a job that is still running at exit. `Job.wait` waits for its end.

    Raises:
        InputError: An invalid plan, folder or option. No process is started then.

    Example:
        The workers of this example emulate the plan; `emulate` does the same.

        >>> config = sp.RunConfig("replay", "replay", engine="replay", batch_size=1, minibatches=4)
        >>> with sp.launch(plan, config, run_dir="emulated", profile=profile, cluster=cluster) as job:
        ...     summary = job.wait()
        >>> job.state, summary["minibatches"]
        ('finished', 4)

    See also:
        guides/command_line, guides/ssh, guides/online_repartitioning, `RunConfig`, `attach`
    """
    check_options(given.get("launcher", LOCAL), given, beside=keywords_of(launch))
    if not isinstance(plan, Plan):
        raise InputError(
            "plan.not_a_plan", f"plan {shown(plan)} given, expected a Plan (from `partition` or `Plan.load`)"
        )
    if not isinstance(config, RunConfig | ResolvedRun):
        raise InputError("config.not_a_config", f"config {shown(config)} given, expected a RunConfig(model, data, …)")
    run = resolve(config)
    if on_epoch is not None:
        run = replace(run, config=run.config.replace(on_epoch=on_epoch))
    if replan is not None:
        if given.get("detach"):
            raise InputError(
                "replan.detached", f"replan {replan} requires that the launching process monitors the run; omit detach"
            )
        known_profile, known_cluster = profile, cluster
        if given.get("resume") and (profile is None or cluster is None):
            known_profile, known_cluster = devices_of(RunRecord.load(run_dir), profile, cluster)
        check_replan(replan, plan, known_profile, known_cluster)
    computes = predict is None and run.workload.trains
    here = given.get("launcher", LOCAL) == LOCAL
    check_predictor(replan, predictor, needed=computes, device=run.config.device, here=here)
    if given.get("forward_only") is not None and plan.members:
        told = f"inference: the first of the plan's {number_of(len(plan.pipelines), 'pipeline')} computes the outputs"
        tell(f"{told}, on {len(plan.pipelines[0].ranks)} of {len(plan.ranks)} devices")
    job = launch_alone(plan, run, run_dir=run_dir, profile=profile, cluster=cluster, **given)
    if replan is not None:
        following = Following(job, replan, tell=tell, predict=predict, predictor=predictor)
        for thread in following.threads:
            job.wait_for(thread)
    return job


def emulate(
    plan: Plan,
    profile: Profile,
    cluster: Cluster,
    *,
    run_dir: Path | str,
    minibatches: int = 32,
    stragglers: str | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    **given: Any,
) -> Job:
    """Emulate a plan with real processes that sleep for the profiled times instead of computing.

    Two cores can emulate many devices. Messages, synchronization and stalls are real. The run directory contains times
    and traces, but no loss, because no weights are trained.

    Args:
        plan: Plan of one or several pipelines.
        profile: Costs of the layers on the device types of `cluster`.
        cluster: Emulated devices and links.
        run_dir: Run directory to create.
        minibatches: Number of minibatches. Their sizes are the typical sizes in the profile, in turn.
        stragglers: Injected stragglers, as in `launch`.
        seed: Random seed of the groups of pipelines.
        settings: Other settings of the run, such as `{"timeout_seconds": 60.0}`.
        given: Other arguments of `launch`, such as `launcher="ssh"` or `replan="live"`.

    Returns:
        The job. `Job.wait` returns its summary.

    Raises:
        InputError: A plan that does not fit the profile and the cluster, or an unknown option.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     sp.emulate(plan, profile, cluster, run_dir=f"{folder}/run", minibatches=4).wait()["minibatches"]
        4

    See also:
        guides/emulate_a_cluster, `launch`, `simulate`
    """
    config = RunConfig(
        profile.origin.get("model", "profile"),
        "replay",
        engine="replay",
        batch_size=profile.batch_size or 1,
        minibatches=minibatches,
        stragglers=stragglers,
        seed=seed,
        **(settings or {}),
    )
    return launch(plan, config, run_dir=run_dir, profile=profile, cluster=cluster, **given)
