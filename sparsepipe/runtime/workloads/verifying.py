"""Before the first run of a network that is a torch module: its stages are compared with the whole module."""

from collections.abc import Sequence

import torch

from ... import data
from ...data.sources import user_cache
from ...errors import InputError
from ...networks.traced import verify
from ...util.derived import digest
from ...util.io.files import write_atomic
from ...util.io.told import tell
from ...values.plan import Plan
from .opening import LearningTask, other_samples
from .resolved import ResolvedRun

_COMPARISON = 2  # counts up where more is compared: what passed before is compared again


def verify_once(task: LearningTask, plan: Plan, run: ResolvedRun) -> bool:
    """Compare the plan's stages with the network in one piece: outputs, gradients and buffers, training and not.

    On other samples than it was traced on, and on a single one where a minibatch of the run has one.
    What was compared before, the same code cut at the same places, is not compared again. Returns whether it was now.
    Raises InputError that names the first layer that differs.
    """
    config, stages = run.config, [stage.layers for stage in plan.stages]
    mark = user_cache() / "verified" / _digest(stages, run)
    if mark.exists():
        return False
    sizes = data.sizes(len(task.training), config.batch_size, last=config.last_minibatch)
    for samples in (other_samples(task.training), range(1)) if 1 in sizes else (other_samples(task.training),):
        inputs = task.engine.tensor(task.training.batch(samples))
        try:
            verify(task.network, inputs, engine=task.engine, stages=stages)  # type: ignore[arg-type]  # a traced one
        except InputError:
            raise
        except Exception:
            if len(samples) > 1:
                raise  # else the module takes no single sample, which the run says when it comes to it
    tell(f"{task.network.name}: it is the same network when cut into the stages of the plan ({len(stages)})")
    write_atomic(mark, "")
    return True


def _digest(stages: Sequence[Sequence[str]], run: ResolvedRun) -> str:
    """A name for what is compared: the code, what it is given, the example's form, the cuts, the library."""
    config, function = run.config, run.functions.get("model")
    code = function.sha256() if function else config.model
    given: list[object] = [config.model, config.model_args, config.data, config.data_args, *config.freeze]
    return digest([_COMPARISON, code, given, [list(stage) for stage in stages], str(torch.__version__)])
