"""What a workload is, as a row of facts, and the unit of its pace that a record can vouch for.

What a run does, by the engine that its settings name: records, launchers and workers ask a fact, never a name. How a
workload is opened: runtime/workloads/__init__.py.

A pace is in samples/s only where the samples of a minibatch are known. A replay sleeps through a profile, and most
profiles that others published do not tell how many samples a minibatch has. Its processes count each minibatch as one
sample; whoever reads its record gets minibatches/s, of earlier records too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..values.profile import Profile
from ..values.trace import Source


@dataclass(frozen=True)
class WorkloadFacts:
    """Facts of a workload for other rooms than the runtime."""

    name: str
    trains: bool = True  # else there is nothing to validate, and nothing to keep in checkpoints
    source: Source = "measured"  # of its traces


LEARNING = WorkloadFacts("learning")
REPLAY = WorkloadFacts("replay", trains=False, source="emulated")

_BY_ENGINE: Mapping[str, WorkloadFacts] = {"replay": REPLAY}  # those that bring what runs their layers


def workload_facts(engine: str) -> WorkloadFacts:
    """The workload of runs with an engine: its own if it has one, else learning, which any engine can run."""
    return _BY_ENGINE.get(engine, LEARNING)


SAMPLES, MINIBATCHES = "samples_per_second", "minibatches_per_second"


def knows_samples(folder: Path, config: Mapping[str, Any]) -> bool:
    """Return whether the run in a folder, with these settings, knows how many samples a minibatch of it has."""
    if workload_facts(config.get("engine", "")).trains or config.get("batch_size", 1) > 1:
        return True
    try:
        return Profile.load(folder / "profile.json").batch_size is not None
    except InputError:  # gone, or damaged: nothing tells
        return False


def in_minibatches(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of metrics whose samples are minibatches, with its pace under the name of minibatches/s."""
    return {MINIBATCHES if key == SAMPLES else key: value for key, value in row.items()}
