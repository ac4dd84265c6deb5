"""Have every network cut by either, and say which did it, or why not."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from scripts.bench.tracing import torch_pipeline
from sparsepipe.networks.traced import TracedNetwork, trace
from sparsepipe.networks.traced.verification import Pass, differences, mean_square, run_whole
from tests import traced_zoo

STAGES = (2, 4)
ROUNDING = 1e-9  # of the largest number compared with: float64 throughout


@dataclass(frozen=True)
class Answer:
    """What became of one network."""

    name: str
    layers: int  # ours
    opaque: tuple[str, ...]
    ours: dict[int, str]  # number of stages → "", or why it was not cut
    torch: dict[int, str]

    def as_json(self) -> dict[str, Any]:
        return {
            "network": self.name,
            "layers": self.layers,
            "one_layer": list(self.opaque),
            "sparsepipe": {str(number): why or True for number, why in self.ours.items()},
            "torch_pipeline": {str(number): why or True for number, why in self.torch.items()},
        }


def answer(name: str) -> Answer:
    """Cut one network by either."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network, inputs = traced(name)
        ours = {number: said(lambda number=number: by_us(name, network, inputs, number)) for number in STAGES}
        torchs = {number: said(lambda number=number: by_torch(name, number)) for number in STAGES}
    return Answer(name, len(network.rows), network.opaque, ours, torchs)


def traced(name: str) -> tuple[TracedNetwork, Any]:
    module, inputs = traced_zoo.build(name)
    return trace(module, inputs, name=name), inputs


def said(attempt: Callable[[], str]) -> str:
    """Return what an attempt says, or what it raises, in a line."""
    try:
        return attempt()
    except Exception as error:  # that is the answer
        return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"


def by_us(name: str, network: TracedNetwork, inputs: Any, number: int) -> str:
    if len(network.rows) < number:
        return f"{len(network.rows)} layer"
    engine = traced_zoo.engine(name)
    for training in (True, False):
        for each in differences(network, inputs, engine=engine, stages=number, training=training):
            if each.relative > ROUNDING:
                return f"{each.what} is off by {each.size:.1g}"
    return ""


def by_torch(name: str, number: int) -> str:
    """Try several places; return why the first of them failed where all do."""
    network, inputs = traced(name)
    whole = run_whole(network, inputs, loss=mean_square, training=True)
    called = _called(name)
    reasons: list[str] = []
    for paths in called:
        for at in torch_pipeline.places(paths, number):
            reasons.append(said(lambda at=at: _by_torch_at(name, at, whole)))
            if not reasons[-1]:
                return ""
    return reasons[0] if reasons else f"{max(map(len, called))} modules are called"


def _called(name: str) -> tuple[list[str], list[str]]:
    """Return the paths of modules without parts, and of those with, as they are called first."""
    module, inputs = traced_zoo.build(name)
    order: dict[str, None] = {}
    for path, part in module.named_modules():
        if path:
            part.register_forward_pre_hook(lambda _, __, path=path: order.setdefault(path))
    args, kwargs = _arguments(inputs)
    module(*args, **kwargs)
    parts = {path: next(module.get_submodule(path).children(), None) is not None for path in order}
    return [path for path in order if not parts[path]], [path for path in order if parts[path]]


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def _by_torch_at(name: str, at: tuple[str, ...], whole: Pass) -> str:
    module, inputs = traced_zoo.build(name)
    module.train()
    args, kwargs = _arguments(inputs)
    stages = torch_pipeline.cut(module, args, kwargs, at)
    torch.manual_seed(0)
    output, gradients = torch_pipeline.run(stages, pytree.tree_leaves((args, kwargs)), mean_square)
    given = pytree.tree_leaves(output)
    if len(given) != len(whole.outputs) or any(_off(a, b) for a, b in zip(whole.outputs, given, strict=True)):
        return "other outputs"
    for key, gradient in gradients:
        if key in whole.gradients and _off(whole.gradients[key], gradient):
            return f"another gradient of {key}"
    missing = {key for key, gradient in whole.gradients.items() if gradient.any()} - {key for key, _ in gradients}
    return f"no gradient of {min(missing)}" if missing else ""


def _off(a: Any, b: Any) -> bool:
    if not isinstance(a, torch.Tensor):
        return bool(a != b)
    if not isinstance(b, torch.Tensor) or a.shape != b.shape or a.dtype != b.dtype:
        return True
    return bool(a.numel()) and float((a - b).abs().max()) > ROUNDING * max(float(a.abs().max()), 1e-30)
