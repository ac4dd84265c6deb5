"""The accuracy that compressed boundaries cost: train one pipeline with each compression, for several seeds."""

from collections.abc import Sequence
from pathlib import Path

from ..networks import network
from ..records import RunRecord
from ..runtime.config import RunConfig
from ..values.plan import Plan, Stage
from .cached_runs import train

EXACT, LOSSY = ("zeros", "lossless"), ("bfloat16", "float16", "int8")


def halves(model: str) -> Plan:
    """The network in two stages of as many layers, a process each."""
    ids = tuple(layer.id for layer in network(model, num_classes=2).graph().layers)
    middle = len(ids) // 2
    return Plan((Stage(ids[:middle], (0,)), Stage(ids[middle:], (1,))), planner="halves")


def compressed(runs: Path, config: RunConfig, seeds: Sequence[int]) -> list[RunRecord]:
    """Train without compression and with each that loses something for every seed, with the exact ones for the first.

    Finished runs under the same configuration are taken.
    """
    asked = [(how, seed) for seed in seeds for how in ("none", *LOSSY)] + [(how, seeds[0]) for how in EXACT]
    return [_trained(runs, config.replace(compression=how, seed=seed)) for how, seed in asked]


def _trained(runs: Path, config: RunConfig) -> RunRecord:
    name = f"{config.model}-halves-{config.compression}-seed{config.seed}"
    return train(runs, {name: (halves(config.model), config)})[name]
