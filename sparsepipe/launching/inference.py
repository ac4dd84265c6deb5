"""What a run of forwards alone needs before its workers start: the checkpoint, and settings that go with it."""

from pathlib import Path

from ..data.order import SHUFFLE
from ..errors import InputError
from ..runtime import RunConfig
from ..runtime.config import BUDGETS, REFUSE
from ..util.io.files import expanded
from ..util.io.functions import short_name
from ..values.cluster import Cluster
from ..values.plan import Plan


def inference_config(config: RunConfig) -> RunConfig:
    """Return the settings of a run of forwards alone. Raises InputError for an engine that computes no outputs."""
    if not config.workload.trains:
        text = f"engine {config.engine!r} computes no outputs; omit {{forward_only}}"
        raise InputError("engine.computes_nothing", text, setting="forward_only")
    # Of a training run: nothing is kept for a backward, so no limit makes layers recompute.
    of_training = (*BUDGETS, "composition", "initial", "memory_limit", "fitting_sizes")
    composed = dict.fromkeys(of_training) | {"order": SHUFFLE, "oversize": REFUSE}
    return config.replace(validate=True, checkpoint_every=0, max_restarts=0, stragglers=None, **composed)


def first_pipeline(plan: Plan, cluster: Cluster | None) -> tuple[Plan, Cluster | None]:
    """Return the plan that computes outputs in the place of several pipelines, each of which has the whole network: the
    first of them, with ranks from 0, and its own devices of the cluster.

    Raises InputError for ranks that the cluster has no device for.
    """
    return plan.local(0), None if cluster is None else cluster.part(plan.ranks_of(0))


def find_checkpoint(given: Path | str, plan: Plan, config: RunConfig) -> Path:
    """Return the folder of a checkpoint: of a run's folder its newest one.

    Raises InputError if there is none, or it is of another network.
    """
    # Here: it brings torch, for which nobody else who launches need wait.
    from ..runtime.training_state import checkpoint

    folder = expanded(given).resolve()
    if (folder / "plan.json").exists():
        found = checkpoint.latest(folder)
        if found is None:
            raise InputError(
                "run.no_checkpoint",
                f"{given}: the run has no checkpoint yet; wait for the end of an epoch, or name another run",
            )
    else:
        found = checkpoint.load(folder)
    found.check(model=short_name(config.model), layers=plan.layers)
    return found.folder


def run_of(given: Path) -> Path | None:
    """Return the folder of the run that a checkpoint, or the folder itself, is of; None if it stands alone."""
    folder = given.resolve()
    return next((one for one in (folder, folder.parent.parent) if (one / "plan.json").exists()), None)
