"""Launch a run that changes its plan by itself: `launching.launch`, and a thread that follows the job."""

from collections.abc import Callable, Mapping
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
from ..util.io.keywords import keywords_of
from ..util.text.counting import number_of
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
    **given: Any,
) -> Job:
    """Start `plan` as worker processes and return at once; `Job.wait` waits for them.

    - `run_dir`: the folder of the record; `config`: the training's settings, in a `RunConfig`
    - `replan`: this process follows the run and changes its plan where devices change, for which it needs `profile` and
      `cluster`. Each of several pipelines changes by its own devices while the others train on, and keeps its ranks.
      "never" continues as before; "epoch", "measured" and "predicted" cut again with DynPipe's planner, at ends of
      epochs, by the ratio measured of a disturbed stage, or by what a predictor says of each layer; "live" takes the
      best plan for the devices as they are now. None: no one follows the run
    - `profile`, `cluster`: what the plan was made for; a resumed run's record has them. With a profile the run says
      which rank or link takes longer than that; a cluster names the hosts, in the order of the ranks
    - `tell`: called with a line of text for each decision
    - `predictor`: for "predicted", which needs one, and "epoch": learned on this machine, or on hosts like those of the
      run (`Predictor.load`). If a host's metrics are not those that it learned from, that is reported by `tell`, and
      the plan is followed no longer
    - `predict`: in its place, a function: rank → for each layer, how many times as long as alone; None: not known yet

    All else is `given` to `launching.launch`:

    - `launcher`: "local" (the default, on this machine), "ssh" (the cluster's hosts) or "ray" (nodes of Ray)
    - `resume=True`: continue from the newest checkpoint in `run_dir`, under the same plan or another
    - `detach=True`: the job outlives this process, and `attach` finds it again; not with `replan`
    - `forward_only`: a checkpoint's path, or a run's folder: nothing is trained, outputs for the validation split are
      written to predictions.npz; of several pipelines the first computes them, which `tell` receives
    - `replication`: of several pipelines, the rule by which they average, with its options: "all-reduce",
      "partial-reduce:wait=0.1" (seconds), "ad-psgd", "wsp", "local-sgd", "diloco" or "quorum"; that of the plan unless
      given
    - `stragglers`: what delays ranks on purpose, several separated by semicolons, durations in seconds:
      "jitter:p=0.1,seconds=0.05", "slow:rank=1,factor=4", "stop:rank=1,at=50,seconds=20", "trace:FILE",
      "kill:rank=2,at=80" (`at`: a minibatch)
    - `campaign`: names the runs that this one is made to be compared with
    - `port`: with "local" and one pipeline, a TCP port of the loopback interface, 1 to 65535, to meet on; a file unless
      given
    - `ray_address`: with "ray", such as "10.0.0.1:6379" or "auto"; RAY_ADDRESS unless given, else a Ray of its own

    Raises InputError for a run that cannot change its plan, and for a plan, a folder or an option that cannot be used,
    before anything is started.
    """
    check_options(given.get("launcher", LOCAL), given, beside=keywords_of(launch))
    if not isinstance(plan, Plan):
        raise InputError(
            "plan.not_a_plan", f"plan {shown(plan)} given, expected a Plan, as partition makes or Plan.load reads"
        )
    if not isinstance(config, RunConfig | ResolvedRun):
        raise InputError("config.not_a_config", f"config {shown(config)} given, expected a RunConfig(model, data, …)")
    run = resolve(config)
    if replan is not None:
        if given.get("detach"):
            raise InputError(
                "replan.detached", f"replan {replan}: the process that launches a run follows it; leave detach out"
            )
        known_profile, known_cluster = profile, cluster
        if given.get("resume") and (profile is None or cluster is None):
            known_profile, known_cluster = devices_of(RunRecord.load(run_dir), profile, cluster)
        check_replan(replan, plan, known_profile, known_cluster)
    computes = predict is None and run.workload.trains
    here = given.get("launcher", LOCAL) == LOCAL
    check_predictor(replan, predictor, needed=computes, device=run.config.device, here=here)
    if given.get("forward_only") is not None and plan.members:
        told = (
            f"forwards alone: the first of the plan's {number_of(len(plan.pipelines), 'pipeline')} computes the outputs"
        )
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
    """Emulate `plan`: the real runtime, whose processes sleep for the profile's times instead of computing.

    Messages, synchronization and stalls are real, so few cores are enough for many devices. Nothing is learned: the
    run directory has times and traces, and no loss.

    Args:
        plan: the plan, of one pipeline or of several.
        profile: times of the layers in seconds, on the device types of `cluster`.
        cluster: the emulated devices and links.
        run_dir: the run directory.
        minibatches: number of minibatches; their sizes are the profile's, in turn.
        stragglers: injected stragglers, as of `launch`.
        seed: seed of random groups of pipelines.
        settings: further settings of the run, such as `{"timeout_seconds": 60.0}`.
        given: further arguments of `launch`, such as `launcher="ssh"` or `replan="live"`.

    Returns:
        The job; `Job.wait` returns its summary.

    Raises:
        InputError: the plan is none for the profile and the cluster, or an option is unknown.

    >>> import tempfile
    >>> from sparsepipe import Cluster, CostSample, Layer, LayerCost, LayerGraph, Profile, emulate, partition
    >>> cost = LayerCost((CostSample(1, 0.001, 0.002, 40),))  # size 1: 1 ms forward, 2 ms backward, 40 bytes
    >>> profile = Profile(LayerGraph.chain([Layer("a"), Layer("b")]), {"cpu": (cost, cost)})
    >>> cluster = Cluster.uniform(2, device_type="cpu")
    >>> plan = partition(profile, cluster)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     emulate(plan, profile, cluster, run_dir=f"{folder}/run", minibatches=4).wait()["minibatches"]
    4
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
