"""Options of `train`, `profile` and `data check` that nothing asks for under the other ones: each is told in a line."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..data.examples import is_examples
from ..data.examples.recognising import recognised
from ..data.manifests import LEARNED, get_learned
from ..errors import InputError
from ..networks import network
from ..runtime import RunConfig
from ..runtime.config import BUDGETS, OPTIMIZERS
from ..runtime.workloads.resolved import ResolvedRun
from ..util.io.files import expanded
from ..util.io.functions import is_function
from ..values.plan import Plan

CLOUDS, IMAGES, TRANSLATION, TEXT = LEARNED
_KINDS = {"aligned": TRANSLATION, "plain": TEXT, "shards": TEXT}  # folders of examples; the others have images


def kind_of_data(source: str) -> str | None:
    """Say what the samples of a data set are, one of LEARNED, without reading them; None if that is not known.

    What a function of the user's own gives is known once it is called.
    """
    if is_function(source) and not expanded(source).exists():
        return None
    try:
        if not expanded(source).exists():
            return get_learned(source).kind
    except (InputError, OSError):
        return None  # told by whoever opens it
    if not is_examples(source):
        return CLOUDS
    found = recognised(expanded(source))
    return _KINDS.get(found[0], IMAGES) if found else None


@dataclass(frozen=True)
class _Run:
    """The facts of a run against which options are checked."""

    resolved: ResolvedRun
    plan: Plan

    @property
    def config(self) -> RunConfig:
        return self.resolved.config

    @cached_property
    def data(self) -> str | None:
        return kind_of_data(self.config.data)

    @property
    def has_no_replicas(self) -> bool:
        return all(len(stage.ranks) == 1 for plan in self.plan.pipelines for stage in plan.stages)

    @property
    def has_no_boundaries(self) -> bool:
        return all(len(plan.stages) == 1 for plan in self.plan.pipelines)

    @property
    def has_no_batch_norm(self) -> bool:
        """Return whether the network is known to have no batch norm. A torch module must be built first."""
        if not self.resolved.is_table:
            return False
        return all(row.kind != "batch_norm" for row in network(self.config.model, num_classes=2).rows)


class _Case(NamedTuple):
    """Condition under which an option has no effect, with the reason and the remedy."""

    idle: Callable[[_Run], bool]
    why: str


def _of_clouds(run: _Run) -> bool:
    return run.data not in (None, CLOUDS)


def _without_checkpoints(run: _Run) -> bool:
    return run.config.checkpoint_every == 0


def _by_budget(run: _Run) -> bool:
    return any(getattr(run.config, name) is not None for name in BUDGETS)


def _of_optimizers(*names: str) -> _Case:
    """Return when a setting of some optimizers has no effect; a parameter group may have another optimizer."""
    return _Case(
        lambda run: run.config.optimizer not in names and not run.config.patterns,
        f"it requires --optimizer {', '.join(names)}",
    )


_DECAYING = ("step", "exponential", "polynomial", "milestones", "plateau")
_NOT_OF_CLOUDS = "the data are not point clouds"
OF_MODULES = "they apply to torch modules, but the model is a declarative layer list"
_NO_CHECKPOINTS = "no checkpoints are written (--checkpoint-every 0)"
_CASES: Mapping[str, tuple[_Case, ...]] = {
    "epochs": (_Case(lambda run: run.config.minibatches is not None, "--minibatches determines the end of the run"),),
    "learning_rate_decay": (
        _Case(
            lambda run: run.config.learning_rate_schedule not in _DECAYING,
            f"it requires --learning-rate-schedule {', '.join(_DECAYING)}",
        ),
    ),
    "decay_epochs": (
        _Case(
            lambda run: run.config.learning_rate_schedule not in ("step", "exponential", "cosine-restarts"),
            "it requires --learning-rate-schedule step, exponential or cosine-restarts",
        ),
    ),
    "momentum": (_of_optimizers("sgd", "muon"),),
    "nesterov": (_of_optimizers("sgd", "muon"),),
    "betas": (_of_optimizers("adam", "adamw", "lamb", "lion", "muon"),),
    "eps": (_of_optimizers("adam", "adamw", "lamb", "muon"),),
    "optimizer_args": (
        _Case(
            lambda run: run.config.optimizer in OPTIMIZERS and not run.config.patterns,
            "it applies only to classes of torch.optim and your own classes",
        ),
    ),
    "allow_shape": (_Case(lambda run: run.config.initial is None, "no weights to start from; give --initial"),),
    "loss_scale": (
        _Case(
            lambda run: run.config.precision != "float16",
            "it requires --precision float16 and a synchronous schedule",
        ),
    ),
    "float32_layers": (
        _Case(lambda run: run.config.precision == "float32", "with --precision float32 all layers already use it"),
    ),
    "synchronised_batch_norm": (
        _Case(lambda run: run.has_no_replicas, "no stage of the plan has replicas"),
        _Case(lambda run: run.has_no_batch_norm, "the network has no batch norm"),
    ),
    "compression": (_Case(lambda run: run.has_no_boundaries, "the plan has only one stage, so no stage boundary"),),
    "model_args": (_Case(lambda run: run.resolved.is_table, OF_MODULES),),
    "data_args": (_Case(lambda run: run.data == CLOUDS, "point clouds have none"),),
    "voxel_size": (_Case(_of_clouds, _NOT_OF_CLOUDS),),
    "num_points": (_Case(_of_clouds, _NOT_OF_CLOUDS),),
    "collate": (_Case(lambda run: run.data is not None, "the data are no function of one's own"),),
    "crop": (_Case(_of_clouds, _NOT_OF_CLOUDS),),
    "views": (_Case(lambda run: not run.config.validate, "nothing is validated (--no-validation)"),),
    "features": (_Case(_of_clouds, _NOT_OF_CLOUDS),),
    "task": (_Case(_of_clouds, _NOT_OF_CLOUDS),),
    "bleu_sentences": (
        _Case(lambda run: run.data not in (None, TRANSLATION), "the data are not sentence pairs"),
        _Case(lambda run: not run.config.validate, "nothing is validated (--no-validation)"),
        _Case(_without_checkpoints, _NO_CHECKPOINTS),
    ),
    "last_minibatch": (_Case(_by_budget, "minibatches by a budget are never partial"),),
    "validation_split": (_Case(lambda run: not run.config.validate, "nothing is validated (--no-validation)"),),
    "metrics": (_Case(lambda run: not run.config.validate, "nothing is validated (--no-validation)"),),
    "keep_checkpoints": (_Case(_without_checkpoints, _NO_CHECKPOINTS),),
    "asynchronous_checkpoints": (_Case(_without_checkpoints, _NO_CHECKPOINTS),),
    "oversize": (_Case(lambda run: run.config.memory_limit is None, "memory is not limited; add --memory-limit"),),
    "on_lost_host": (
        _Case(
            lambda run: run.config.max_restarts == 0, "without restarts a node failure ends the run; add --max-restarts"
        ),
    ),
}


def no_effect(name: str, why: str) -> str:
    """Say that an option, named as its attribute, has no effect."""
    return f"--{name.replace('_', '-')} has no effect: {why}"


def without_effect(given: argparse.Namespace, resolved: ResolvedRun, plan: Plan) -> Iterator[str]:
    """Yield a line for each given option of `train` that the run's settings and plan leave nothing to do."""
    run = _Run(resolved, plan)
    for name, cases in _CASES.items():
        if getattr(given, name, None) is None:
            continue
        why = next((case.why for case in cases if case.idle(run)), None)
        if why is not None:
            yield no_effect(name, why)


def of_other_data(given: Mapping[str, Any], source: str) -> Iterator[str]:
    """Yield a line for each option of clouds that is given for other data, and of other data for clouds."""
    kind = kind_of_data(source)
    for name, value in given.items():
        is_of_clouds = name != "data_args"
        if value is not None and kind is not None and is_of_clouds != (kind == CLOUDS):
            why = _NOT_OF_CLOUDS if is_of_clouds else "point clouds have none"
            yield no_effect(name, why)
