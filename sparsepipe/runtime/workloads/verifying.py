"""Before the first run of a network that is a torch module: its stages are held against the whole on one minibatch."""

from collections.abc import Sequence

import torch

from ...data.sources import user_cache
from ...derived.digests import digest
from ...functions import UserFunction, is_function
from ...io.files import write_atomic
from ...io.told import tell
from ...models.traced import verify
from ...plan import Plan
from ..config import RunConfig
from .opening import LearningTask, first_samples


def verify_once(task: LearningTask, plan: Plan, config: RunConfig) -> bool:
    """Compare the plan's stages with the network in one piece: outputs, gradients and buffers, training and not.

    What was compared before, the same code cut at the same places, is not compared again. Returns whether it was now.
    Raises InputError that names the first layer that differs.
    """
    stages = [stage.layers for stage in plan.stages]
    mark = user_cache() / "verified" / _digest(task, stages, config)
    if mark.exists():
        return False
    batch = task.training.batch(first_samples(task.training))
    inputs = task.engine.tensor(batch)
    verify(task.network, inputs, engine=task.engine, stages=stages)  # type: ignore[arg-type]  # a traced one
    tell(f"{task.network.name}: it is the same network when cut into the stages of the plan ({len(stages)})")
    write_atomic(mark, "")
    return True


def _digest(task: LearningTask, stages: Sequence[Sequence[str]], config: RunConfig) -> str:
    """A name for what is compared: the code, what it is given, the example's form, the cuts, the library."""
    code = UserFunction.parse(config.model).sha256() if is_function(config.model) else config.model
    given = [config.model, config.model_args, config.data, config.data_args]
    return digest([code, given, [list(stage) for stage in stages], str(torch.__version__)])
