"""What compressed boundaries cost in accuracy: the same pipeline trained with each way of it, seed by seed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..launchers import launch
from ..launchers.folders import new_folder
from ..models import network
from ..plan import Plan, Stage
from ..record import RunRecord
from ..runtime.config import RunConfig
from .kept import newest

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
    asked = [(how, seed) for seed in seeds for how in (None, *LOSSY)] + [(how, seeds[0]) for how in EXACT]
    return [_trained(runs, replace(config, compression=how, seed=seed)) for how, seed in asked]


def _trained(runs: Path, config: RunConfig) -> RunRecord:
    name, told = f"{config.model}-halves", f"{config.compression or 'nothing'} compressed, seed {config.seed}"
    if found := newest(runs, name, config):
        print(f"{told}: from runs/{found.name}", flush=True)
        return found
    print(f"{told}: training now", flush=True)
    job = launch(halves(config.model), config, run_dir=new_folder(runs, name))
    try:
        job.wait()
    except BaseException:
        job.cancel()
        raise
    return job.record
